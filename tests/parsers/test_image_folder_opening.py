"""Image folders: what is one, how it is opened, and what it says of itself; nothing is read here."""

import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folder_fixtures import LABELS, NUM_TRAIN, write_image
from PIL import Image
from tfds_fixtures import Datasets, edited_info

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.map_style.image_folder import list_image_folder

NAME = "image_folder"


def test_an_image_folder_says_what_it_is(folder: Path) -> None:
    parser = ParserTfds(folder, NAME)
    sizes = [path.stat().st_size for path in folder.rglob("a *")]
    assert (parser.dataset_name, parser.data_dir) == ("image_folder:1.0.0", folder)
    assert parser.num_shards == parser.num_examples == NUM_TRAIN
    assert parser.mean_example_bytes == sum(sizes) // len(sizes)
    assert parser.class_to_idx == {label: number for number, label in enumerate(LABELS)}
    features = {key: (spec.shape, np.dtype(spec.dtype)) for key, spec in parser.element_spec.fields.items()}
    assert features["image"] == ((None, None, 3), np.uint8)
    assert features["label"] == ((), np.int64)
    assert features["image/filename"] == ((), np.object_)


def test_it_opens_by_every_form_of_its_name(folder: Path) -> None:
    for name in (NAME, "image_folder:1.0.0", "image_folder:1.*.*", "ImageFolder"):
        for root in (folder, str(folder), f"{folder}/"):
            assert ParserTfds(root, name).num_examples == NUM_TRAIN


NO_IMAGES = "is not an image folder: no image lies two folders below it. Its folders are: "
NOT_FOLDERS: dict[str, tuple[list[str], str]] = {
    "missing": ([], "of an image folder is missing, or is not a directory."),
    "a file": (["root"], "of an image folder is missing, or is not a directory."),
    "bare": (["root/a.png"], f"{NO_IMAGES}none."),
    "flat": (["root/train/note.txt"], f"{NO_IMAGES}train."),
    "unlabelled": (["root/train/a.png", "root/test/a.png"], f"{NO_IMAGES}test, train."),
    "empty": ([f"root/{split}/label/" for split in range(7)], f"{NO_IMAGES}0, 1, 2, 3, 4, ..."),
}
"""Files, or folders, that are made; and what is said of them."""


@pytest.mark.parametrize("case", NOT_FOLDERS)
def test_what_is_no_image_folder_is_said_with_the_layout(case: str, tmp_path: Path) -> None:
    files, found = NOT_FOLDERS[case]
    for name in files:
        folder = tmp_path / (name if name.endswith("/") else os.path.dirname(name))
        folder.mkdir(parents=True, exist_ok=True)
        if name.endswith(".png"):
            write_image(tmp_path / name, 1)
        elif not name.endswith("/"):
            (tmp_path / name).touch()
    with pytest.raises(DatasetNotFoundError) as caught:
        ParserTfds(tmp_path / "root", NAME)
    assert str(tmp_path / "root") in str(caught.value)
    assert found in str(caught.value)
    assert str(caught.value).endswith(
        "The layout is <root>/<split>/<label>/<image>.jpg (or .png, .tif, ...), and the root is the folder that holds "
        "the splits; or <root>/<label>/<image>.jpg, which is one split, train."
    )


def test_a_folder_that_cannot_be_listed_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("tfds_torch.storage.map_style.image_folder.os.scandir", refuse)
    with pytest.raises(DatasetNotFoundError, match=r"cannot be listed: .*Permission denied"):
        list_image_folder(str(folder))


@pytest.mark.parametrize(
    ("root", "arguments", "message"),
    [
        (None, {}, "image_folder needs root: the folder that holds the splits."),
        ("gs://bucket/photos", {}, "the root gs://bucket/photos is remote, and only folders of this machine"),
        ("/r", {"download": True}, "download=True, and there is nothing to download: its images are those in /r."),
    ],
)
def test_arguments_that_mean_nothing_for_an_image_folder_are_refused(
    monkeypatch: pytest.MonkeyPatch, root: str | None, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("tfds_torch.parsers.tfds.find._find", lambda *_: None)
    with pytest.raises(ConfigError) as caught:
        ParserTfds(root, NAME, **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "asked"), [("image_folder:2.0.0", "version '2.0.0'"), ("image_folder/big", "config 'big'")]
)
def test_another_version_or_a_config_is_not_there(folder: Path, name: str, asked: str) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        ParserTfds(folder, name)
    assert str(caught.value) == (f"image_folder has no configs, and its only version is 1.0.0: asked for was {asked}.")


def test_a_prepared_dataset_of_that_name_comes_first(datasets: Datasets, tmp_path: Path) -> None:
    shutil.copytree(datasets.root / "tiny", tmp_path / NAME)
    with edited_info(tmp_path / NAME / "1.0.0") as info:
        info["name"] = NAME
    assert ParserTfds(tmp_path, NAME).element_spec.fields.keys() >= {"id"}


def test_the_fingerprint_tells_examples_apart_and_nothing_else(own_folder: Path, tmp_path: Path) -> None:
    def fingerprint(root: Path = own_folder, split: str = "train", **arguments: Any) -> str:
        return ParserTfds(root, NAME, split, **arguments).fingerprint

    elsewhere = Path(shutil.copytree(own_folder, tmp_path / "elsewhere"))
    first = fingerprint()
    assert first == fingerprint(elsewhere) == fingerprint(batch_size=3, is_training=True, seed=9)
    assert first == fingerprint(Path(os.path.relpath(own_folder)))
    seen = {first, fingerprint(split="train[:50%]"), fingerprint(split="test"), fingerprint(split="train+test")}
    path = sorted((own_folder / "train" / "circle").glob("*.jpg"))[0]
    path.write_bytes(path.read_bytes() + b" ")
    seen.add(fingerprint())
    path = path.rename(path.with_name("other.jpg"))
    seen.add(fingerprint())
    path = path.rename(own_folder / "train" / "square" / path.name)
    seen.add(fingerprint())
    path.unlink()
    seen.add(fingerprint())
    (own_folder / "test" / "apple").mkdir()  # Every label is another number now.
    seen.add(fingerprint())
    assert len(seen) == 9


def test_a_parser_travels_by_pickle_at_less_than_100_bytes_an_image(tmp_path: Path, folder: Path) -> None:
    for label in ("n01440764", "n01443537"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for i in range(1000):
            (tmp_path / "train" / label / f"{label}_{i}.JPEG").touch()
    parser = ParserTfds(tmp_path, NAME)
    assert len(pickle.dumps(parser)) < 2000 * 100
    assert len(pickle.dumps(parser)) - len(pickle.dumps(ParserTfds(folder, NAME))) < 2000 * 50
    copy = pickle.loads(pickle.dumps(parser))
    assert copy.fingerprint == parser.fingerprint
    assert copy.filenames() == parser.filenames()


def test_a_later_file_does_not_change_an_open_parser(own_folder: Path) -> None:
    parser = ParserTfds(own_folder, NAME)
    write_image(own_folder / "train" / "circle" / "0 new.png", 5)
    assert parser.num_examples == NUM_TRAIN
    assert ParserTfds(own_folder, NAME).num_examples == NUM_TRAIN + 1


@pytest.mark.parametrize("has_splits", [True, False])
def test_hidden_folders_are_no_classes_and_hidden_files_no_images(
    has_splits: bool, own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Jupyter and macOS leave them."""
    root = own_folder if has_splits else own_folder / "train"
    before = ParserTfds(root, NAME, "train")
    others = int(re.findall(r"left out (\d+) files", caplog.text)[0])
    for folder in (own_folder, own_folder / "train", own_folder / "train" / "circle"):
        (folder / ".ipynb_checkpoints").mkdir()
    write_image(own_folder / "train" / ".ipynb_checkpoints" / "0-checkpoint.png", 5)
    write_image(own_folder / "train" / "circle" / "._1.jpg", 5)
    caplog.clear()
    parser = ParserTfds(root, NAME, "train")
    assert (parser.class_names, parser.filenames()) == (before.class_names, before.filenames())
    hidden = 2 if has_splits else 1
    assert f"left out {hidden} hidden folders" in caplog.text
    assert f"left out {others + 2} files or folders that are hidden or do not end in" in caplog.text


def test_images_of_every_format_are_examples_and_what_is_left_out_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = np.random.default_rng(0).integers(0, 2, (40, 30)).astype(np.uint8) * 255
    scan, label = Image.fromarray(pixels).convert("1"), tmp_path / "train" / "letter"
    label.mkdir(parents=True)
    scan.save(label / "halftone.tif", compression="group4")
    for name in ("a.TIFF", "b.bmp", "c.gif", "d.pgm", "e.jp2", "f.png"):
        scan.convert("L").save(label / name)
    scan.convert("RGB").save(label / "g.webp", lossless=True)
    (label / "notes.txt").write_text("none")
    parser = ParserTfds(tmp_path, NAME)
    ParserTfds(tmp_path, NAME)
    (batch,) = parser.with_batch_size(8).batches()
    assert sorted(Path(id).suffix.lower() for id in batch.id) == [
        *(".bmp", ".gif", ".jp2", ".pgm", ".png", ".tif", ".tiff", ".webp")
    ]
    for id, image in zip(batch.id, batch.image, strict=True):
        assert (image == pixels[..., None]).all(), id
    assert caplog.text.count("left out 1 files or folders that are hidden or do not end in .jpg, .png, .gif") == 1


def test_a_folder_without_splits_is_the_split_train(folder: Path) -> None:
    """In TFDS's order of that split, with paths below this folder."""
    whole, flat = ParserTfds(folder, NAME), ParserTfds(folder / "train", NAME)
    index = np.arange(NUM_TRAIN)
    assert list(flat.ids(index)) == [id.removeprefix("train/") for id in whole.ids(index)]
    assert (flat.num_examples, flat.class_names) == (NUM_TRAIN, sorted(LABELS))
    examples = flat[:5]
    assert [one.label for one in examples] == [one.label for one in whole[:5]]
    for one, other in zip(examples, whole[:5], strict=True):
        np.testing.assert_array_equal(one.image, other.image)
        assert flat[one.id].index == one.index
    assert flat.filenames(absolute=True)[0] == str(folder / "train" / flat.filenames()[0])
    assert sum(1 for _ in ParserTfds(folder / "train", NAME, "train[:3]").batches()) == 3
    with pytest.raises(ConfigError, match=r"The splits are: train \(\d+ examples\)"):
        ParserTfds(folder / "train", NAME, "test")
