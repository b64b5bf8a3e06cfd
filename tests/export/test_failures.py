"""A full disk is an error that says what is needed, a failing sample one that names the sample; old files stay."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from export.exports import PATHS, contents, export
from export.made_sources import PAGE, Numbered
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.export.folder import ShardFile, WriteRefusedError
from tfds_torch.runtime.atomic_file import AtomicFile


class Refusing:
    """Lets the n-th write fail, counted in each process."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, number: int) -> None:
        self.left, self.number, self.write = at, number, AtomicFile.write
        patch.setattr(AtomicFile, "write", lambda *arguments: self.act(*arguments))

    def act(self, *arguments: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        self.write(*arguments)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("has_old", [False, True])
def test_a_full_disk_says_what_is_needed_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, has_old: bool
) -> None:
    path = tmp_path / "a.beton"
    if has_old:
        path.write_bytes(b"old")
    Refusing(monkeypatch, at, errno.ENOSPC)
    with pytest.raises(ExportError) as caught:
        export_dataset(Numbered(), path, format="beton", num_workers=2, chunk_size=4, page_size=PAGE, overwrite=True)
    said = str(caught.value)
    assert "cannot be written: No space left on device. About " in said
    assert "of 40 samples), and " in said
    assert "are free: make room, or write elsewhere. What was there before is untouched." in said
    assert os.listdir(tmp_path) == (["a.beton"] if has_old else [])
    assert not has_old or path.read_bytes() == b"old"


@pytest.mark.parametrize("at", range(4))
def test_a_full_disk_keeps_the_shards_that_are_complete_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        Refusing(patch, at + 1, errno.ENOSPC)  # The plan is written first.
        with pytest.raises(ExportError, match=r"No space left on device\. .* for \d+ of 40 examples, and .* are free"):
            export(Numbered(), out)
    done = contents(out)
    assert len([name for name in done if name.endswith(".tar")]) == at
    assert not [name for name in done if name.endswith(".tmp")]
    assert export(Numbered(), out).num_kept == at
    export(Numbered(), tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 2**20, 3 * 2**20))
from export.made_sources import PAGE
from tfds_torch.errors import ExportError
from tfds_torch.export.api import export_dataset
samples = [{"text": bytes(2**19)}] * 32
try:
    export_dataset(samples, sys.argv[1], format="beton", num_workers=2, chunk_size=2, page_size=PAGE)
except ExportError as error:
    print(error)
"""


def test_a_limit_of_the_files_size_is_met_by_a_worker_and_reported_with_its_remedy(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    done = run_python("-c", LIMITED, str(tmp_path / "a.beton"), env=PATHS)
    assert "cannot be written: File too large. About " in done.stdout, done.stderr
    assert "of 32 samples), and no file may be as large, by a limit (ulimit -f) " in done.stdout
    assert os.listdir(tmp_path) == []


# Samples


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
        ShardFile(tmp_path / "nowhere" / "a.tar", ".a.")
