"""ImageFolderSource: the encoded images of a folder, by number."""

import os
import pickle
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from image_folder_fixtures import LABELS, NUM_TEST, NUM_TRAIN, folder, own_folder

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.storage.map_style.image_folder import ImageFolderSource, list_image_folder
from tfds_torch.storage.source import FieldSpec, FileInstruction

__all__ = ["folder", "own_folder"]

NAME = "image_folder:1.0.0"


def open_source(root: str | os.PathLike[str], *parts: tuple[str, int, int]) -> ImageFolderSource:
    """Returns a source of parts: split, first image, number of images; default: train and test."""
    listing = list_image_folder(os.fspath(root))
    instructions: list[FileInstruction] = []
    for split, skip, take in parts or (("train", 0, NUM_TRAIN), ("test", 0, NUM_TEST)):
        first = sum(item.take for item in instructions)
        path = os.path.join(root, split)
        instructions.append(FileInstruction(path, skip, take, first, listing.splits[split].num_examples))
    return ImageFolderSource(NAME, instructions, listing, 1000)


def everything(source: ImageFolderSource) -> np.ndarray:
    return np.arange(len(source))


def test_every_image_comes_with_its_label_and_its_path(folder: Path) -> None:
    source = open_source(folder)
    index = np.random.default_rng(1).permutation(len(source))
    columns = source.read(index, ["image/filename", "label", "image"])
    assert list(columns) == ["image/filename", "label", "image"]
    assert columns["label"].dtype == np.int64
    for path, label, image, name in zip(*columns.values(), source.ids(index), strict=True):
        assert path == os.fsencode(folder / name)
        assert label == LABELS.index(name.split("/")[1])
        assert image == (folder / name).read_bytes()
    assert [len(values) for values in source.read(index[:0], ["label", "image"]).values()] == [0, 0]


def test_what_it_says_of_itself(folder: Path) -> None:
    source = open_source(folder)
    assert (source.name, len(source), source.mean_example_bytes) == (NAME, 72, 1000)
    assert (source.has_shards, source.can_stream, source.obstacle) == (False, False, None)
    encoded, label = FieldSpec((), object), FieldSpec((), np.int64)
    assert source.specs == {"image": encoded, "label": label, "image/filename": encoded}


def test_labels_and_names_open_no_file(own_folder: Path) -> None:
    source = open_source(own_folder)
    shutil.rmtree(own_folder)
    source.check()
    assert len(source.read(everything(source), ["label"])["label"]) == len(source)
    assert len(set(source.read(everything(source), ["image/filename"])["image/filename"])) == len(source)
    with pytest.raises(ShardError, match="is missing"):
        source.read(np.array([3]), ["image"])


def test_the_path_is_below_the_root_as_it_was_given_and_read_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder.parent)
    source = open_source(folder.name)
    monkeypatch.chdir(tmp_path)
    columns = source.read(np.array([5]), ["image/filename", "image"])
    assert columns["image/filename"] == [os.fsencode(os.path.join(folder.name, source.ids(np.array([5]))[0]))]
    assert columns["image"] == open_source(folder).read(np.array([5]), ["image"])["image"]


def test_a_field_that_there_is_not_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no field 'x': its fields are image, label, image/filename\."):
        open_source(folder).read(np.array([0]), ["x"])
    with pytest.raises(ConfigError, match=r"image_folder:1\.0\.0 has no records"):
        open_source(folder).parse([b""], np.array([0]), ["image"])


@pytest.mark.parametrize("fields", [["image"], ["label"], ["image/filename"], []])
def test_an_index_outside_the_split_is_an_error(folder: Path, fields: Sequence[str]) -> None:
    with pytest.raises(ExampleNotFoundError, match="has no example 72 here: the split has 72 examples"):
        open_source(folder).read(np.array([72]), fields)


def test_images_that_are_announced_are_asked_for_and_nothing_is_said_of_damage(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(own_folder)
    first, second = (own_folder / name for name in source.ids(np.array([4, 5])))
    second.unlink()
    advised: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            os, "posix_fadvise", lambda descriptor, *_: advised.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        )
        source.announce(np.array([4, 5]))
    assert advised == [str(first)]
    os.mkfifo(second)
    source.announce(np.array([5]))
    monkeypatch.delattr(os, "posix_fadvise")
    source.announce(np.array([4]))


# Ids.


def test_paths_below_the_root_are_ids_and_name_their_images(folder: Path) -> None:
    for parts in ((), (("train", 10, 10), ("test", 3, 11)), (("test", 0, 14), ("train", 57, 1), ("test", 2, 3))):
        source = open_source(folder, *parts)
        ids = list(source.ids(everything(source)))
        assert [source.find(name) for name in ids] == [ids.index(name) for name in ids]
        assert all((folder / name).is_file() for name in ids)
    source = open_source(folder)
    listed = list(source.ids(everything(source)))
    assert source.ids(np.array([60, 0, 60])) == [listed[60], listed[0], listed[60]]


def test_images_whose_names_lie_in_each_other_are_told_apart(tmp_path: Path) -> None:
    names = ["1.png", "11.png", "111.png", "ng1.png", "1.png1.png"]
    for label in ("a", "b", "1.png"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for name in names:
            (tmp_path / "train" / label / name).touch()
    source = open_source(tmp_path, ("train", 0, 15))
    ids = source.ids(np.arange(15))
    assert len(set(ids)) == 15
    assert [source.find(name) for name in ids] == list(range(15))
    for absent in ("png", "11.png1.png", "2.png", "a/1.png"):
        with pytest.raises(ExampleNotFoundError):
            source.find(f"train/b/{absent}")


@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("train/circle/nothing.jpg", "ids are paths below {root}, with '/', such as 'train/"),
        ("a 0.png", "ids are paths below"),
        ("train", "ids are paths below"),
        ("train/circle/a 0.png\0", "ids are paths below"),
        ("test/circle/a 0.png", "the image is there, but outside the split."),
        (None, "the image is there, but outside the split."),
    ],
)
def test_a_path_that_there_is_not_says_why(folder: Path, id: str | None, reason: str) -> None:
    id = id or open_source(folder).ids(np.array([5]))[0]
    with pytest.raises(ExampleNotFoundError) as caught:
        open_source(folder, ("train", 0, 1)).find(id)
    assert str(caught.value).startswith(f"{NAME}: there is no example {id!r}: ")
    assert reason.format(root=folder) in str(caught.value)


def test_an_empty_split_has_no_ids(folder: Path) -> None:
    source = open_source(folder, ("empty", 0, 0))
    assert len(source) == 0
    with pytest.raises(ExampleNotFoundError, match=r"with '/'\.$"):
        source.find("x")


# Damage.


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def replace_by_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


MISSING = (
    "is missing: it was removed after the folder was listed, or is a link to nothing. Restore it, or open the dataset "
    "anew."
)
DAMAGES: dict[Callable[[Path], None], tuple[Any, str]] = {
    remove: (ShardError, MISSING),
    replace_by_link_to_nothing: (ShardError, MISSING),
    empty: (CorruptRecordError, "is empty: it holds no image."),
    replace_by_folder: (ShardError, "is a directory, not an image file. Restore the image."),
    replace_by_fifo: (ShardError, "is a FIFO, not an image file. Restore the image."),
    replace_by_link_to_itself: (ShardError, "cannot be read: Too many levels of symbolic links."),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damaged_file_is_an_error_that_names_it(own_folder: Path, damage: Callable[[Path], None]) -> None:
    source = open_source(own_folder)
    path = own_folder / source.ids(np.array([41]))[0]
    damage(path)
    kind, words = DAMAGES[damage]
    with pytest.raises(kind) as caught:
        source.read(np.array([3, 41]), ["image"])
    assert type(caught.value) is kind
    assert str(caught.value) == f"{path} of {NAME} {words}"
    assert len(source.read(np.array([3, 42]), ["image"])["image"]) == 2


def test_an_image_that_cannot_be_decoded_is_named(folder: Path) -> None:
    source = open_source(folder)
    assert str(source.undecodable(41, "No image.")) == (
        f"{folder / source.ids(np.array([41]))[0]} of {NAME} (index 41) cannot be decoded: it is damaged, or not an "
        f"image. No image."
    )


# Processes.


def test_a_source_travels_by_pickle_and_loads_nothing(folder: Path, run_python: RunPython) -> None:
    source = open_source(folder)
    assert source.ids(np.array([7])) == pickle.loads(pickle.dumps(source)).ids(np.array([7]))
    code = f"""
    import pickle, sys
    import numpy as np
    source = pickle.loads({pickle.dumps(source)!r})
    source.check()
    print(len(source.read(np.arange(72), ["image", "label"])["image"]))
    source.close()
    print(*{{"tensorflow", "tensorflow_datasets", "torch"}} & set(sys.modules))
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.stdout == "72\n\n", done.stderr
