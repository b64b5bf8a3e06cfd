"""Images for FFCV's writer, which waits for ever for a process of its own that fails."""

import io
import os
import signal
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.conversion import DecodedImages, converted, write_shards
from benchmarks.task import FFCV_INSTALL as INSTALL
from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime import subprocess_call


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def png(size: tuple[int, int], level: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, level).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards: a gray image with label 7, and one that is none."""
    for number, (data, label) in enumerate([(png((20, 10), 99), b"7"), (b"no image", b"8")]):
        with tarfile.open(tmp_path / f"shard-{number}.tar", "w") as archive:
            add(archive, "000000.png", data)
            add(archive, "000000.cls", label)
    return tmp_path


def test_images_are_decoded_to_three_channels_with_their_label(folder: Path) -> None:
    images = DecodedImages(str(folder))
    pixels, label = images[0]
    assert (len(images), label, pixels.shape, pixels.dtype) == (2, 7, (10, 20, 3), np.uint8)
    assert set(pixels.ravel().tolist()) == {99}
    assert images.are_small


def test_photographs_are_not_small(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        add(archive, "000000.png", png((65, 10), 0))
        add(archive, "000000.cls", b"0")
    assert not DecodedImages(str(tmp_path)).are_small


def test_a_broken_image_ends_the_process_that_waits(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = DecodedImages(str(folder))
    assert images._writer == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as waiting:
        images._writer = waiting.pid
        with pytest.raises(OSError, match="cannot identify image file"):
            images[1]
        assert waiting.wait() == -signal.SIGTERM
    assert "UnidentifiedImageError" in capfd.readouterr().err


def test_without_ffcv_it_is_said_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ffcv", None)
    with pytest.raises(ConfigError) as caught:
        write_shards(str(folder), str(folder), "beton")
    assert str(caught.value).endswith(f" ({INSTALL})")
    assert "libopencv-dev" in INSTALL


@pytest.mark.slow
def test_ffcv_writes_all_photographs_or_says_what_is_missing(photos: Path, tmp_path: Path) -> None:
    if find_spec("ffcv") is None:
        with pytest.raises(ConfigError, match="No module named 'ffcv'"):
            converted(photos, "beton", tmp_path)
        return
    found = converted(photos, "beton", tmp_path)
    assert subprocess_call.call(count_and_labels, str(found / "images.beton")) == (64, {0, 1})


@pytest.mark.slow
def test_ffcv_does_not_hang_over_a_broken_image(folder: Path) -> None:
    expected = ConfigError if find_spec("ffcv") is None else WorkerError
    with pytest.raises(expected, match=r"No module named 'ffcv'|was killed by SIGTERM"):
        subprocess_call.call(write_shards, str(folder), str(folder), "beton")


def count_and_labels(beton: str) -> tuple[int, set[int]]:
    from ffcv.reader import Reader

    reader = Reader(beton)
    return reader.num_samples, {int(label) for label in reader.metadata["f1"]}
