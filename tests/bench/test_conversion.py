"""The same photographs in other formats, byte by byte."""

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2
from zygote import forked_instead_of_fresh

from benchmarks.conversion import DecodedImages, converted, decode_record, write_shards
from benchmarks.task import FFCV_INSTALL
from tfds_torch import demo
from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.tfrecord.framing import read_records

NUM_PHOTOS, NUM_SHARDS = 64, 2


def source_photographs(data_dir: Path) -> Iterator[tuple[bytes, int]]:
    for shard in sorted((data_dir / "photos" / "1.0.0").glob("*.tfrecord-*")):
        for record in read_records(shard):
            feature = tf_example_pb2.Example.FromString(record).features.feature
            yield feature["image"].bytes_list.value[0], feature["label"].int64_list.value[0]


def tar_photographs(folder: Path) -> Iterator[tuple[bytes, int]]:
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            members = archive.getmembers()
            for image, label in zip(members[::2], members[1::2], strict=True):
                assert image.name.removesuffix(".jpg") == label.name.removesuffix(".cls")
                yield archive.extractfile(image).read(), int(archive.extractfile(label).read())


def names_of(path: Path) -> list[str]:
    if path.suffix != ".tar":
        return []
    with tarfile.open(path) as archive:
        return archive.getnames()


@pytest.fixture(scope="module")
def tars(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with forked_instead_of_fresh():
        return converted(photos, "tar", tmp_path_factory.mktemp("converted"))


def test_tar_files_hold_the_same_bytes_in_the_same_order(photos: Path, tars: Path) -> None:
    assert len(list(tars.glob("*.tar"))) == NUM_SHARDS
    found = list(tar_photographs(tars))
    assert len(found) == NUM_PHOTOS
    assert found == list(source_photographs(photos))


def test_array_records_hold_the_same_bytes_in_the_same_order(photos: Path, tmp_path: Path) -> None:
    if find_spec("array_record") is None:
        with pytest.raises(ConfigError, match="a package that is not installed"):
            converted(photos, "array_record", tmp_path)
        return
    from array_record.python.array_record_module import ArrayRecordReader

    records = []
    for path in sorted(converted(photos, "array_record", tmp_path).glob("*.array_record")):
        reader = ArrayRecordReader(str(path))
        records += reader.read_all()
        reader.close()
    expected = list(source_photographs(photos))
    assert [record[8:] for record in records] == [jpeg for jpeg, _ in expected]
    image, label = decode_record(records[1])
    assert (image.mode, label) == ("RGB", expected[1][1])
    assert isinstance(image, Image.Image)


@pytest.mark.slow
def test_small_images_keep_their_format_and_only_the_split_train_is_taken(tmp_path: Path) -> None:
    data_dir = demo.prepare_fake("cifar10", num_examples=8, num_shards=2, splits=("train", "test"), progress=False)
    folder = converted(data_dir, "tar", tmp_path, "cifar10")
    images = [name for path in sorted(folder.iterdir()) for name in names_of(path)]
    assert images == [f"{number:06d}.{ending}" for _ in range(2) for number in range(4) for ending in ("png", "cls")]


def test_what_was_converted_is_kept(photos: Path, tars: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tars.iterdir()}
    assert converted(photos, "tar", tars.parents[1]) == tars
    assert {path: path.stat().st_mtime_ns for path in tars.iterdir()} == before


def test_a_changed_source_is_converted_again(photos: Path, tars: Path, tmp_path: Path) -> None:
    copy = tmp_path / photos.name
    shutil.copytree(photos, copy)
    cache = tmp_path / "cache"
    shutil.copytree(tars.parents[1], cache)
    (cache / photos.name / "tar" / "left-from-before.tar").write_text("")
    shard = next((copy / "photos" / "1.0.0").glob("*.tfrecord-*"))
    os.utime(shard, ns=(1, 1))
    folder = converted(copy, "tar", cache)
    assert not (folder / "left-from-before.tar").exists()
    assert list(tar_photographs(folder)) == list(source_photographs(photos))
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tar.lock", "tar"]


def test_a_failed_conversion_leaves_nothing(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="KeyError: 'papyrus'"):
        converted(photos, "papyrus", tmp_path)
    assert [path.name for path in (tmp_path / photos.name).iterdir()] == [".papyrus.lock"]


def test_a_folder_that_cannot_be_written_is_an_error(photos: Path, tmp_path: Path) -> None:
    (tmp_path / photos.name).write_text("")
    with pytest.raises(ConfigError, match="cannot be converted to tar in"):
        converted(photos, "tar", tmp_path)


# FFCV's writer waits for ever for a process of its own that fails


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


def test_images_are_decoded_to_three_channels_with_their_label(folder: Path, tars: Path) -> None:
    images = DecodedImages(str(folder))
    pixels, label = images[0]
    assert (len(images), label, pixels.shape, pixels.dtype) == (2, 7, (10, 20, 3), np.uint8)
    assert set(pixels.ravel().tolist()) == {99}
    assert images.are_small
    assert not DecodedImages(str(tars)).are_small


def test_a_broken_image_ends_the_process_that_waits(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = DecodedImages(str(folder))
    assert images._writer == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as waiting:
        images._writer = waiting.pid
        with pytest.raises(OSError, match="cannot identify image file"):
            images[1]
        assert waiting.wait() == -signal.SIGTERM
    assert "UnidentifiedImageError" in capfd.readouterr().err


def test_without_ffcv_the_error_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ffcv", None)
    with pytest.raises(ConfigError) as caught:
        write_shards(str(folder), str(folder), "beton")
    assert str(caught.value).endswith(f" ({FFCV_INSTALL})")
    assert "libopencv-dev" in FFCV_INSTALL


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
