"""A sample that fails is told as that sample's failure, and not as one of the disk."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from export.made_sources import Numbered
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.export.shard_file import ShardFile, WriteRefusedError


def miss() -> None:
    Path("/nowhere/at all").read_bytes()


def be_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("act", "said"),
    [(miss, "FileNotFoundError: .*'/nowhere/at all'"), (be_full, "OSError: .*No space left on device")],
)
def test_a_samples_own_error_names_the_sample(tmp_path: Path, act: Callable[[], None], said: str) -> None:
    with pytest.raises(ExportError, match=rf"Numbered, dataset\[3\]: {said}") as caught:
        export_dataset(Numbered(at=3, act=act), tmp_path / "out", format="webdataset", num_workers=1)
    assert "free: make room" not in str(caught.value)


@pytest.mark.parametrize("mode", ["F", "CMYK"])
def test_an_image_that_no_png_holds_names_the_sample_and_what_to_do(tmp_path: Path, mode: str) -> None:
    samples: list[Any] = [{"image": Image.new("RGB", (2, 2))}] * 3 + [{"image": Image.new(mode, (2, 2))}]
    with pytest.raises(ConfigError, match=rf"list, dataset\[3\]: Field 'image': .*{mode}.*convert the image first"):
        export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)


def test_a_file_of_an_image_that_is_gone_or_cut_names_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.effect_noise((50, 50), 99).save(path)
    whole, cut = Image.open(path), tmp_path / "cut.png"
    cut.write_bytes(path.read_bytes()[:300])
    with whole, Image.open(cut) as broken:
        samples: list[Any] = [{"image": whole}, {"image": broken}]
        with pytest.raises(ConfigError, match=r"dataset\[1\]: Field 'image': the image cannot be read: .*truncated"):
            export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)


def test_a_refused_write_is_another_error_than_a_samples(tmp_path: Path) -> None:
    with pytest.raises(WriteRefusedError, match="No such file or directory"):
        ShardFile(tmp_path / "nowhere" / "a.tar")
