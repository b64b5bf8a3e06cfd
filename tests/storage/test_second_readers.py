"""Our readers of `.beton` files and of tars find what a second reader finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded_images import photograph, save
from storage.second_readers import read_beton_images, read_tar_samples, tar_ids
from storage.webdataset.made_tars import samples_of, write_samples, write_tar

from tfds_torch.storage.beton.fields import BetonFloat, BetonJson
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.webdataset.source import WebDatasetSource

FIELDS: dict[str, Any] = {
    "text": BetonJson(),
    "score": BetonFloat(),
    "picture": BetonImage("smart", smart_threshold=200),
}


@pytest.mark.parametrize(
    "names", [("picture",), ("text", "picture"), ("score", "picture"), ("text", "score", "picture")]
)
def test_images_lie_where_the_table_of_the_format_has_them(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "some.beton"
    pixels = [np.full((4 + 3 * number, 5, 3), number, np.uint8) for number in range(6)]  # The larger ones are JPEG.
    with BetonWriter(path, {name: FIELDS[name] for name in names}, len(pixels)) as writer:
        for number, image in enumerate(pixels):
            sample = {"text": ["x"] * number, "score": number / 2, "picture": image}
            writer.add({name: sample[name] for name in names})
    ours = BetonSource(path).read(np.array([5, 0, 3]), ["picture"])["picture"]
    theirs = read_beton_images(path, "picture", [5, 0, 3])
    assert [(one.width, one.height) for one in theirs] == [(5, 19), (5, 4), (5, 13)]
    assert [one.stored for one in theirs] == [one if isinstance(one, bytes) else one.tobytes() for one in ours]
    assert [isinstance(one, bytes) for one in ours] == [one.mode == 0 for one in theirs]
    assert {one.mode for one in theirs} == {0, 1}


def assert_equal(paths: list[Path], extensions: dict[str, str]) -> list[str]:
    """Holds ids and content of our index against tarfile's, and returns the ids."""
    source, samples = WebDatasetSource(paths, extensions), read_tar_samples(paths)
    every = np.arange(len(source))
    ids, columns = list(source.ids(every)), source.read(every, list(extensions))
    assert ids == tar_ids(samples, paths)
    for name, extension in extensions.items():
        assert list(columns[name]) == [sample.members[extension] for sample in samples]
    return ids


def test_samples_of_tars_are_those_that_tarfile_and_webdataset_find(tmp_path: Path) -> None:
    paths = [tmp_path / "a-0.tar", tmp_path / "a-1.tar"]
    for tar, path in enumerate(paths):
        rows = range(9 * tar, 9 * tar + 9)
        image = save(photograph((40, 30)), "JPEG")
        write_samples(path, [{"__key__": f"{n:03d}", "jpg": image + b"%d" % n, "cls": b"%d" % n} for n in rows])
    ids = assert_equal(paths, {"image": "jpg", "label": "cls"})
    assert ids == [sample["__key__"] for sample in samples_of(paths)] == [f"{n:03d}" for n in range(18)]


def test_keys_of_two_tars_get_their_tar(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / name, [("1.jpg", b"x"), ("__meta__/1.txt", b"-")]) for name in ("a.tar", "b.tar")]
    assert assert_equal(paths, {"image": "jpg"}) == ["a.tar/1", "b.tar/1"]


def test_an_empty_tar_in_another_folder_counts_for_the_ids(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    files = [("1.cls", b"1")]
    paths = [write_tar(tmp_path / name, files if name < "y" else []) for name in ("x/1.tar", "x/2.tar", "y/3.tar")]
    assert assert_equal(paths, {"label": "cls"}) == ["x/1.tar/1", "x/2.tar/1"]


def test_members_that_describe_the_tar_are_not_samples_by_the_same_rule(tmp_path: Path) -> None:
    names = ["__/a.cls", "___/b.cls", "____/c.cls", "__x__/d.cls", "__x__\n", "__x__", "a/__x__.cls", "__x__.cls"]
    path = write_tar(tmp_path / "a.tar", [(name, b"1") for name in names])
    keys = ["__/a", "___/b", "a/__x__", "__x__"]
    assert assert_equal([path], {"label": "cls"}) == keys == [sample["__key__"] for sample in samples_of([path])]
