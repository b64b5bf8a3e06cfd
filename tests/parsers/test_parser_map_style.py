"""ParserMapStyle: what the items of a dataset of one's own become, and what is said of those that cannot be used."""

import io
import logging
import threading
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_build
from PIL import Image

from parsers.look_alikes import Frame, HubDataset, HubImage, HubLabel, Series
from parsers.tar_samples import SIDE, pixels_of, png
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    MultiLoader,
    ParserMapStyle,
    ParserMixture,
    ReadOptions,
    World,
    create_loader,
)
from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError

WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)
NUM = 12
Pair = namedtuple("Pair", ["x", "y"])


def only_batch(rows: Any, fields: Sequence[str], **arguments: Any) -> Any:
    (batch,) = ParserMapStyle(rows, batch_size=NUM, **arguments).batches(fields=fields)
    return batch


# Values


LABELS: dict[str, tuple[Any, Any]] = {
    "an integer": (7, -100),
    "an unsigned integer by itself": (np.uint8(7), -100),
    "a float": (7.5, np.nan),
    "a float16": (np.float16(7), np.nan),
    "one integer in an array": (np.array([7]), [-100]),
    "int8": (np.arange(3, dtype=np.int8), [-100] * 3),
    "one-hot": (np.eye(3, dtype=np.int32)[1], [-100] * 3),
    "smoothed": (np.full(3, 1 / 3, np.float32), [np.nan] * 3),
    "a mask": (np.ones((2, 2), np.int64), [[-100] * 2] * 2),
    "a tensor": (torch.ones(2), [np.nan] * 2),
    "unsigned": (np.arange(3, dtype=np.uint8), [0, 1, 2]),
    "booleans": (np.array([True, False]), [True, False]),
    "a text": ("seven", "seven"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_padding_are_marked_where_their_type_can_be(kind: str) -> None:
    """Unsigned integers and booleans cannot be; `valid` tells padding apart whatever the labels are."""
    label, expected = LABELS[kind]
    parser = ParserMapStyle([{"x": number, "label": label} for number in range(10)], batch_size=4)
    num_valid = 0
    for rank in range(4):
        for batched in (True, False):
            dataset = ImageDataset(parser, fields=("label", "valid"), world=World(rank, 4), batched=batched)
            for labels, valid in dataset:
                rows = zip(labels, valid, strict=True) if batched else [(labels, valid)]
                for own, is_valid in rows:
                    num_valid += bool(is_valid) and batched
                    np.testing.assert_array_equal(np.asarray(own), np.asarray(label if is_valid else expected))
    assert num_valid == 10


VALUES: dict[str, tuple[Any, Any]] = {
    "int": ([5, -6], np.array([5, -6], np.int64)),
    "float": ([0.5, 2.0], np.array([0.5, 2.0], np.float64)),
    "bool": ([True, False], np.array([True, False])),
    "numpy scalar": ([np.float16(1), np.float16(2)], np.array([1, 2], np.float16)),
    "array": ([np.zeros((2, 3), np.int16)] * 2, np.zeros((2, 2, 3), np.int16)),
    "tensor": ([torch.ones(3), torch.zeros(3)], np.array([[1, 1, 1], [0, 0, 0]], np.float32)),
    "tensor of one number": ([torch.tensor(3), torch.tensor(4)], np.array([3, 4])),
    "text": (["a", "b"], ["a", "b"]),
    "bytes": ([b"a", b""], [b"a", b""]),
    "ragged": ([np.zeros(1), np.zeros(2)], [np.zeros(1), np.zeros(2)]),
    "lists": ([[1, 2], [3]], [[1, 2], [3]]),
    "none": ([None, 3], [None, 3]),
    "none behind a number": ([0.5, None], [0.5, None]),
    "none behind a text": (["a", None], ["a", None]),
    "none behind an array": ([np.zeros(2), None], [np.zeros(2), None]),
    "another byte order": ([np.array([1, 2], ">f4")] * 2, np.array([[1, 2], [1, 2]], "=f4")),
    "complex": ([np.complex64(1j)] * 2, np.array([1j, 1j], np.complex64)),
}


@pytest.mark.parametrize("form", ["dictionaries", "columns", "values"])
@pytest.mark.parametrize("name", VALUES)
def test_values_keep_their_types(name: str, form: str) -> None:
    values, wanted = VALUES[name]
    rows: Any = values if form == "values" else [{"item": value} for value in values]
    rows = {"item": values} if form == "columns" else rows
    names = ["item"] if form == "values" and name == "lists" else None  # A list would be a tuple's fields.
    if names:
        rows = [[value] for value in values]
    found = only_batch(rows, ["item"], names=names).features["item"]
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert (found == wanted).all()
    else:
        assert len(found) == len(wanted)
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("odd", [None, "3", np.int64(2**53 + 1), np.datetime64("2020-01-01"), [1.0], 3])
def test_what_is_not_a_number_of_the_fields_type_is_not_made_one(odd: Any) -> None:
    rows = [1.0, 2.0, odd, odd]
    parser = ParserMapStyle(rows, batch_size=2)
    batches = parser.batches(fields=("item",))
    assert next(batches).features["item"].tolist() == [1, 2]
    if odd is None:
        assert next(batches).features["item"] == [None, None]
        return
    with pytest.raises(
        CorruptRecordError, match=r"item 2 cannot be used\. Its 'item' is .*, and that of item 0 is float64"
    ):
        next(batches)


def test_a_type_that_tensors_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'x' of item 0 is \w+ \[\], a type that tensors do not have"):
        only_batch({"x": np.zeros(3, np.longdouble)}, ["x"])


def nullable_columns(library: str) -> Any:
    """Returns four rows of the columns `x`, `name` and `y`, as a library holds them."""
    columns = {"x": [1.5, 2.5, None, 4.5], "name": ["a", None, "c", "d"], "y": [0, None, 2, 1]}
    if library == "pandas":
        import pandas

        return pandas.DataFrame(columns).astype({"x": "Float32", "y": "Int64"})
    if library == "datasets":
        import datasets

        return datasets.Dataset.from_dict(columns)
    return columns


@pytest.mark.parametrize("library", ["pandas", "datasets", "lists"])
def test_a_column_with_none_is_a_list_in_every_batch_and_no_label(library: str) -> None:
    parser = ParserMapStyle(nullable_columns(library), batch_size=2, target_key="y")
    first, last = parser.batches(fields=("x", "name"))
    assert (first.features, last.features) == (
        {"x": [1.5, 2.5], "name": ["a", None]},
        {"x": [None, 4.5], "name": ["c", "d"]},
    )
    with pytest.raises(ConfigError, match=r"the label 'y' is None in 1 of 4 rows, such as 1\. Leave these rows out"):
        next(parser.batches(fields=("label",)))
    assert [batch.label.tolist() for batch in parser.subset([0, 2, 3]).batches(fields=("label",))] == [[0, 2], [1]]
    items = ParserMapStyle([{"y": 0}, {"y": None}], batch_size=2, target_key="y")
    with pytest.raises(CorruptRecordError, match=r"Its label 'y' is None: leave such items out"):
        next(items.batches(fields=("label",)))


def test_sizes_that_vary_from_chunk_to_chunk_make_a_list() -> None:
    rows = [{"image": png(pixels_of(number)), "boxes": np.zeros((number // 40, 4))} for number in range(80)]
    parser = ParserMapStyle(rows, batch_size=80, preprocess=WHOLE)
    (batch,) = parser.batches(fields=("image", "boxes"))
    assert [len(boxes) for boxes in batch.features["boxes"]] == [0] * 40 + [1] * 40


# Names


@pytest.mark.parametrize(
    ("rows", "arguments", "names"),
    [
        ([(1, 2.0, "a")], {}, ["0", "1", "2"]),
        ([(1, 2.0, "a")], {"names": ("x", "y", "z")}, ["x", "y", "z"]),
        ([[png(pixels_of(0)), 2]], {}, ["image", "label"]),
        ([(np.zeros(3), 2)], {}, ["0", "1"]),
        ([Pair(1, 2)], {}, ["x", "y"]),
        ([Pair(1, 2)], {"names": ("a", "b")}, ["a", "b"]),
        ([png(pixels_of(0))], {}, ["image"]),
        ([3.0], {}, ["item"]),
        ([3.0], {"names": ["x"]}, ["x"]),
        ([{"b": 1, "a": 2}], {}, ["a", "b"]),
    ],
)
def test_fields_have_names(rows: Any, arguments: Any, names: list[str]) -> None:
    fields = ParserMapStyle(rows, **arguments).element_spec.fields
    assert list(fields) == [*names, "valid", "index", "id"]


def test_a_whole_item_and_names_that_a_batch_has() -> None:
    rows = [{"index": 10 + number, "label": "x"} for number in range(3)]
    batch = only_batch(rows, ["item", "stored/index", "index", "label"])
    assert batch.features["item"] == rows
    assert batch.features["stored/index"].tolist() == [10, 11, 12]
    assert batch.index.tolist() == [0, 1, 2]
    assert batch.features["label"] == ["x"] * 3


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("lable", r"list has no field 'lable': .* image \(bytes\), label \(int64 \[\]\)\. Give names= .*Did you mean"),
        ("stored/x", "has no field 'stored/x'"),
    ],
)
def test_an_unknown_field_is_refused_with_those_that_are_there(field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParserMapStyle([(png(pixels_of(0)), 1)]).check_fields([field])


# Images


def images(kind: str, folder: Path) -> list[Any]:
    all_pixels = [pixels_of(number) for number in range(NUM)]
    if kind == "files":
        for number, pixels in enumerate(all_pixels):
            (folder / f"{number}.png").write_bytes(png(pixels))
        return [{"bytes": None, "path": str(folder / f"{number}.png")} for number in range(NUM)]
    make: dict[str, Any] = {
        "PIL": Image.fromarray,
        "opened late": lambda pixels: Image.open(io.BytesIO(png(pixels))),
        "bytes": png,
        "bytearray": lambda pixels: bytearray(png(pixels)),
        "array": lambda pixels: pixels,
        "array, channels first": lambda pixels: pixels.transpose(2, 0, 1),
        "tensor": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
        "undecoded": lambda pixels: {"bytes": png(pixels), "path": None},
    }
    return [make[kind](pixels) for pixels in all_pixels]


IMAGE_KINDS = ["PIL", "opened late", "bytes", "bytearray", "array", "array, channels first", "tensor"]
IMAGE_KINDS += ["undecoded", "files"]


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_images_of_every_form_go_through_the_preprocess(kind: str, tmp_path: Path) -> None:
    rows = [(image, number) for number, image in enumerate(images(kind, tmp_path))]
    batch = only_batch(rows, ("image", "label"), preprocess=WHOLE)
    assert (batch.image == np.stack([pixels_of(number) for number in range(NUM)])).all()
    assert batch.label.tolist() == list(range(NUM))
    parser = ParserMapStyle(rows)
    assert (parser[3].image == pixels_of(3)).all()
    image, label = IndexedImageDataset(parser)[4]
    assert (np.asarray(image) == pixels_of(4)).all()
    assert label == 4


def test_a_table_of_pandas_is_read_by_position_and_not_by_its_labels() -> None:
    columns: dict[str, list[Any]] = {"x": [5, 3, 4], "name": ["e", "c", "d"]}
    for rows in (Frame(columns), {"x": Series(columns["x"]), "name": columns["name"]}):
        batch = only_batch(rows, ["x", "name", "index"])
        assert batch.features["x"].tolist() == columns["x"]
        assert batch.features["name"] == columns["name"]
        (loaded,) = create_loader(rows, batch_size=3)
        assert (loaded["x"].tolist(), loaded["name"]) == (columns["x"], columns["name"])
    assert only_batch(Series([5, 3]), ["item"]).features["item"].tolist() == [5, 3]
    assert only_batch({0: 5, 1: 3}, ["item"]).features["item"].tolist() == [5, 3]


def test_another_key_holds_the_image_or_none_does() -> None:
    rows = [{"picture": png(pixels_of(number)), "image": np.zeros(3), "class": number} for number in range(3)]
    batch = only_batch(rows, ("image", "label"), image_key="picture", target_key="class", preprocess=WHOLE)
    assert (batch.image[2] == pixels_of(2)).all()
    assert batch.label.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"'image' is float64 \[3\], .*Use image_key= with one of \['picture'\]"):
        only_batch(rows, ("image",))
    with pytest.raises(ConfigError, match="there is no field 'image': image_key=None"):
        only_batch(rows, ("image",), image_key=None)
    assert only_batch(rows, ("stored/image",), image_key=None).features["stored/image"].shape == (3, 3)


# Hugging Face, by a look-alike


def hub_dataset() -> HubDataset:
    columns: dict[str, list[Any]] = {
        "image": [{"bytes": png(pixels_of(number)), "path": None} for number in range(NUM)],
        "label": [number % 2 for number in range(NUM)],
        "text": list(map(str, range(NUM))),
    }
    return HubDataset(columns, {"image": HubImage(), "label": HubLabel(["cat", "dog"]), "text": object()})


def test_columns_of_a_hub_are_read_encoded_and_only_those_that_are_asked_for() -> None:
    rows = hub_dataset()
    parser = ParserMapStyle(rows, batch_size=5, preprocess=WHOLE)
    assert parser.class_names == ["cat", "dog"]
    rows.log.clear()
    for batch in parser.batches(fields=("image", "label")):
        assert (batch.image == np.stack([pixels_of(number) for number in batch.index])).all()
        assert batch.label.tolist() == [number % 2 for number in batch.index]
    assert {tuple(sorted(names)) for names in rows.log} == {("image", "label")}
    assert rows.num_decoded == 1  # That of the first item, which shows what there is.
    assert only_batch(rows, ("text", "stored/image")).features["text"] == list(map(str, range(NUM)))


# torchvision


def test_an_image_folder_of_torchvision_is_read_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = torchvision_build.declare_where_needed()
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import pil_loader as load

    for number in range(NUM):
        folder = tmp_path / f"class {number % 2}"
        folder.mkdir(exist_ok=True)
        kind = {3: "tif", 5: "tga"}.get(number, "png")  # The last one is read by torchvision alone.
        Image.fromarray(pixels_of(number)).save(folder / f"{number:02d}.{kind}")
    rows = ImageFolder(str(tmp_path), target_transform=lambda label: label + 10, is_valid_file=lambda path: True)
    order = [*range(0, NUM, 2), *range(1, NUM, 2)]
    parser = ParserMapStyle(rows, batch_size=NUM, preprocess=WHOLE)
    assert parser.class_names == ["class 0", "class 1"]
    (batch,) = parser.batches()
    assert (batch.image == np.stack([pixels_of(number) for number in order])).all()
    assert batch.label.tolist() == [10 + number % 2 for number in order]
    opened: list[str] = []
    monkeypatch.setattr("torchvision.datasets.folder.pil_loader", lambda path: opened.append(path) or load(path))
    (again,) = parser.batches()
    assert (again.image == batch.image).all()
    assert [Path(path).name for path in opened] == ["05.tga"]
    shown = ImageFolder(str(tmp_path), transform=np.asarray)  # One that is changed comes as it gives it.
    assert (only_batch(shown, ("image",)).image[3] == pixels_of(6)).all()
    (Path(rows.samples[3][0])).unlink()
    with pytest.raises(
        CorruptRecordError, match=r"ImageFolder: item 3 cannot be used\. .*06\.png cannot be read: No such"
    ):
        list(parser.batches())
    del held


# Mixtures, identity, export


def test_a_fingerprint_is_the_version_or_the_type_and_the_length() -> None:
    def fingerprint(rows: Any, version: str | None = None) -> str:
        return ParserMapStyle(rows, version=version).fingerprint

    assert fingerprint([1, 2]) == fingerprint([3, 4])
    assert len({fingerprint([1, 2]), fingerprint([1]), fingerprint((1, 2)), fingerprint([1, 2], "a")}) == 4
    assert fingerprint([1, 2], "a") != fingerprint([1, 2], "b")


# One thread


class Watched:
    """Notes which threads ask for items, and how many at a time."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.inside, self.most = 0, 0

    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int) -> Any:
        self.threads.add(threading.get_ident())
        self.inside += 1
        self.most = max(self.most, self.inside)
        found = png(pixels_of(number)), number
        self.inside -= 1
        return found


def test_items_are_asked_for_by_the_thread_that_iterates() -> None:
    rows = Watched()
    parser = ParserMapStyle(rows, batch_size=64, preprocess=WHOLE, read=ReadOptions(num_threads=4))
    assert sum(len(batch) for batch in parser.batches()) == 400
    assert len(parser.examples_by_index(range(400))) == 400
    members = {"a": ParserMapStyle(rows), "b": ParserMapStyle(rows)}
    assert len(ParserMixture(members, batch_size=8, read=ReadOptions(num_threads=4)).examples_by_index(range(800)))
    assert rows.threads == {threading.get_ident()}


# Bad items


ODD: dict[str, tuple[Any, str]] = {
    "lacks": ({"x": np.zeros(2)}, "It lacks 'y': item 0 has the keys 'x', 'y'"),
    "more": ({"x": np.zeros(2), "y": 1, "z": 1}, "It also has 'z': item 0 has the keys"),
    "other": ({"z": 1}, "It lacks 'x', 'y' and it also has 'z'"),
    "no dictionary": (3, "It is of type int, and item 0 is a dictionary"),
    "dtype": ({"x": np.zeros(2, np.float32), "y": 1}, r"Its 'x' is float32 \[2\], and that of item 0 is float64 \[2\]"),
    "axes": ({"x": np.zeros((2, 2)), "y": 1}, r"Its 'x' is float64 \[2, 2\], and that of item 0 is float64 \[2\]"),
    "type": ({"x": np.zeros(2), "y": "one"}, r"Its 'y' is a text, and that of item 0 is int64 \[\]"),
    "huge": ({"x": np.zeros(2), "y": 2**70}, r"Its 'y' is of type int, and that of item 0 is int64 \[\]"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_item_that_is_not_like_the_first_is_named(name: str) -> None:
    odd, message = ODD[name]
    rows = [{"x": np.zeros(2), "y": 1} for _ in range(NUM)]
    rows[7] = odd
    with pytest.raises(CorruptRecordError, match=f"^list: item 7 cannot be used. {message}"):
        only_batch(rows, ("x", "y"))
    parser = ParserMapStyle(rows, batch_size=4, read=ReadOptions(on_error="replace"))
    labels = [batch.valid.tolist() for batch in parser.batches(fields=("x", "y"))]
    assert labels == [[True] * 4, [True] * 3 + [False], [True] * 4]


class Raising:
    """Raises for some numbers."""

    def __init__(self, bad: Sequence[int]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, number: int) -> Any:
        if number in self.bad:
            raise OSError("the disk is gone")
        return png(pixels_of(number)), number


def test_an_item_that_raises_is_named_or_replaced(caplog: pytest.LogCaptureFixture) -> None:
    message = r"^Raising: item 5 cannot be read: OSError: the disk is gone\. It was raised by Raising\[5\]\."
    with pytest.raises(CorruptRecordError, match=message) as caught:
        only_batch(Raising([5]), ("image", "label"))
    assert isinstance(caught.value.__cause__, OSError)
    with (
        MultiLoader(ParserMapStyle(Raising([5]), batch_size=4), 2) as loader,
        pytest.raises(CorruptRecordError, match="item 5 cannot be read"),
    ):
        list(loader)
    parser = ParserMapStyle(
        Raising([5]), batch_size=NUM, shuffle=True, preprocess=WHOLE, read=ReadOptions(on_error="replace")
    )
    with caplog.at_level(logging.WARNING):
        (batch,) = parser.batches(World(), fields=("image", "label"))
    assert sorted(batch.index.tolist()) == [0, 1, 2, 3, 4, 6, 6, *range(7, NUM)]
    assert batch.label.tolist().count(-100) == 1
    assert "item 5 cannot be read" in caplog.text


@pytest.mark.parametrize("batch_size", [3, 40, 200])
def test_an_item_that_raises_leaves_those_of_other_chunks_where_they_are(batch_size: int) -> None:
    class Many(Raising):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, number: int) -> Any:
            return {"x": super().__getitem__(number)[1]}

    parser = ParserMapStyle(Many([70]), batch_size=batch_size, read=ReadOptions(on_error="replace"))
    found = [(batch.index.tolist(), batch.features["x"].tolist()) for batch in parser.batches(fields=("x",))]
    index, x = ([one for part in column for one in part] for column in zip(*found, strict=True))
    assert index == x == [*range(70), 71, *range(71, 200)]


def test_a_first_item_that_raises_is_looked_behind_and_all_of_them_are_an_error() -> None:
    read = ReadOptions(on_error="replace")
    assert only_batch(Raising([0, 1]), ("image", "label"), read=read).label.tolist()[2:] == list(range(2, NUM))
    with pytest.raises(CorruptRecordError, match="Raising: item 0 cannot be read: OSError"):
        ParserMapStyle(Raising(range(NUM))).check_fields(["image"])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (png(pixels_of(1))[:40], r"item 2 cannot be used\. The PNG ends early"),
        (b"no image", r"item 2 cannot be used\. Its 8 bytes are not a whole"),
        (Image.new("F", (8, 8)), "Its 'image' is not an image. It is a PIL image of mode 'F'"),
        (np.zeros((8, 8, 3)), r"Its 'image' is not an image\. It is float64 \[8, 8, 3\], and pixels are uint8"),
        ({"bytes": None, "path": "/nowhere/x.png"}, "Its file /nowhere/x.png cannot be read: No such file"),
        ({"bytes": None, "path": None}, "It has neither bytes nor a path"),
        (None, "It is of type NoneType, and an image is a PIL image"),
    ],
)
def test_an_image_that_cannot_be_used_is_named(image: Any, message: str) -> None:
    rows = [(png(pixels_of(number)), number) for number in range(4)]
    rows[2] = (image, 2)
    with pytest.raises(CorruptRecordError, match=message):
        only_batch(rows, ("image",), preprocess=WHOLE)


def test_class_names_are_given_or_the_datasets_and_given_ones_are_checked() -> None:
    rows = [(png(pixels_of(number)), number) for number in range(3)]
    parser = ParserMapStyle(rows, class_names=["a", "b"], batch_size=3)
    assert parser.class_to_idx == {"a": 0, "b": 1}
    with pytest.raises(CorruptRecordError, match="A label of 'label' is 2, which is not a label of the 2 classes"):
        list(parser.batches())

    class Folder(list[Any]):
        classes = ("x", "y", "z")

    assert ParserMapStyle(Folder(rows)).class_names == ["x", "y", "z"]
    assert ParserMapStyle(rows).class_names is None


def test_ids_are_numbers_and_others_are_not_found() -> None:
    parser = ParserMapStyle(list(range(NUM)))
    assert parser["11"].index == 11
    for wrong in ("12", "011", "-1", "x", "1" * 30, "٣"):
        with pytest.raises(ExampleNotFoundError, match="ids are the numbers of its items as texts, '0' to '11'"):
            parser[wrong]
    with pytest.raises(ConfigError, match="absolute=True needs files"):
        parser.filenames(absolute=True)
