"""Class maps: where they come from, and the labels they give."""

import os
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import CLASSES, Datasets

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.class_map import ClassMap, load_class_map
from tfds_torch.parsers.tfds.parser import ParserTfds

NEXT = {name: (label + 1) % 5 for label, name in enumerate(CLASSES)}


def write(directory: Path, content: bytes, name: str = "classes.txt") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Where a map comes from


def test_a_mapping_is_the_class_map() -> None:
    given = MappingProxyType({"cat": 1, 7: 0, np.int64(8): np.uint8(3)})
    entries = load_class_map(given)
    assert entries == {"cat": 1, 7: 0, 8: 3}
    assert [type(value) for item in entries.items() for value in item] == [str, int, int, int, int, int]


@pytest.mark.parametrize(
    "content",
    [b"cat\nwild dog\n", b"cat\nwild dog", b"cat\r\n  wild dog \r\n\r\n", b"\xef\xbb\xbfcat\nwild dog\n \n\n"],
    ids=["lines", "no newline at the end", "of Windows, with spaces", "marked as UTF-8, empty lines at the end"],
)
def test_the_line_of_a_text_file_is_the_label(tmp_path: Path, content: bytes) -> None:
    assert load_class_map(write(tmp_path, content)) == {"cat": 0, "wild dog": 1}
    assert load_class_map(str(write(tmp_path, content, "CLASSES.TXT"))) == {"cat": 0, "wild dog": 1}


def test_names_are_utf_8(tmp_path: Path) -> None:
    assert load_class_map(write(tmp_path, "grün\u2028er\n犬".encode())) == {"grün\u2028er": 0, "犬": 1}


def test_the_folder_of_the_user_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, b"cat")
    assert load_class_map("~/classes.txt") == {"cat": 0}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_dict_is_the_class_map(tmp_path: Path, protocol: int) -> None:
    entries = {"cat": 1, 7: 0}
    assert load_class_map(write(tmp_path, pickle.dumps(entries, protocol), "map.pkl")) == entries


class Plant:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_runs_no_code(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"cat": Plant(tmp_path / "planted")}, protocol)
    message = refusal(lambda: load_class_map(write(tmp_path, content, "map.pkl")))
    assert f"cannot be unpickled: UnpicklingError: it refers to {os.name}.mkdir, and only plain values are" in message
    assert not (tmp_path / "planted").exists()
    pickle.loads(content)  # What an ordinary unpickler would have done.
    assert (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be unpickled: EOFError"),
        (pickle.dumps(NEXT)[:-20], "cannot be unpickled: "),
        (b"cat\ndog\n", "cannot be unpickled: "),
        (pickle.dumps(["cat", "dog"]), "holds list, not a dict: it must map classes to labels."),
        (pickle.dumps(np.float64(3)), "cannot be unpickled: UnpicklingError: it refers to numpy"),
        (pickle.dumps({}), "is empty: it needs a label for every class."),
        (pickle.dumps({"cat": -1}), "maps 'cat' to -1: labels are integers >= 0."),
    ],
)
def test_a_pickle_that_is_no_class_map_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content, "map.pkl")
    assert refusal(lambda: load_class_map(path)).startswith(f"The class map {str(path)!r} {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " is empty: it needs a label for every class."),
        (b" \n\n", " is empty: it needs a label for every class."),
        (b"cat\n\ndog", ": line 2 is empty. Every line holds a class name."),
        (b"\ncat", ": line 1 is empty. Every line holds a class name."),
        (b"cat\ndog\n cat", " has the class 'cat' twice, in lines 1 and 3."),
        (b"cat\n\xff", " is not UTF-8 text: "),
    ],
)
def test_a_text_that_is_no_class_map_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    assert refusal(lambda: load_class_map(path)).startswith(f"The class map {str(path)!r}{message}")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing, folder, other = tmp_path / "missing.txt", tmp_path / "folder.txt", write(tmp_path, b"{}", "map.json")
    folder.mkdir()
    expected = {
        missing: f"The class map {str(missing)!r} does not exist in {tmp_path}.",
        folder: f"The class map {str(folder)!r} cannot be read: [Errno 21] Is a directory",
        other: f"The class map {str(other)!r} is neither a text file (.txt) nor a pickle (.pkl): other files are not",
        "": "The class map '' is neither a text file",
        "a\0.txt": "The class map 'a\\x00.txt' cannot be read: embedded null byte.",
    }
    for path, message in expected.items():
        assert refusal(lambda path=path: load_class_map(path)).startswith(message)  # type: ignore[misc]


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1", True, None, np.bool_(True), [0]])
def test_a_label_must_be_an_integer_from_0(value: object) -> None:
    message = f"The class map maps 'cat' to {value!r}: labels are integers >= 0."
    assert refusal(lambda: load_class_map({"dog": 0, "cat": value})) == message


@pytest.mark.parametrize("key", [1.5, None, b"cat", ("cat",)])
def test_a_key_must_be_a_name_or_a_number(key: object) -> None:
    message = f"The class map has the key {key!r}: keys are class names (str) and source labels (int)."
    assert refusal(lambda: load_class_map({key: 0})) == message


@pytest.mark.parametrize("class_map", [3, ["cat"], b"classes.txt", {"cat"}, True])
def test_anything_else_is_no_class_map(class_map: object) -> None:
    message = f"class_map={class_map!r} must be a mapping from class to label, the path of a .txt or .pkl file, or None"
    assert refusal(lambda: load_class_map(class_map)).startswith(message)


def test_an_empty_mapping_is_refused() -> None:
    assert refusal(lambda: load_class_map({})) == "The class map is empty: it needs a label for every class."


# Names of the new labels


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ({"a": 1, "b": 0, "c": 2}, ["b", "a", "c"]),
        ({0: 2, 1: 1, 2: 0}, ["c", "b", "a"]),
        ({"a": 1, "b": 0, 2: 2}, ["b", "a", "c"]),
        ({"a": 3, "b": 0, 2: 2, "x": 1}, ["b", "x", "c", "a"]),  # x is no class of this dataset, but of the new labels.
        ({"a": 2, "b": 2, 0: 0, 1: 1, 2: 2}, ["a", "b", "c"]),  # Numbers win: the names a and b are not used.
        ({"a": 0, 0: 0, "b": 1, "c": 2}, ["a", "b", "c"]),
        ({"a": 0, "b": 0, "c": 1}, None),  # Two names.
        ({"a": 0, "b": 1, "c": 3}, None),  # No name for 2.
        ({"a": 0, "b": 1, "c": 2, 9: 3}, None),  # 9 is no class here: nobody knows its name.
        ({"a": 0, "b": 1, "c": 2**62}, None),
    ],
)
def test_class_names_are_known_where_every_label_has_one(
    entries: dict[str | int, int], names: list[str] | None
) -> None:
    assert ClassMap(entries, ("a", "b", "c"), "x:1.0.0").class_names == names


def test_class_names_of_a_dataset_without_them_are_those_of_the_map() -> None:
    assert ClassMap({"a": 1, "b": 0}, None, "x:1.0.0").class_names == ["b", "a"]
    assert ClassMap({3: 0, 4: 1}, None, "x:1.0.0").class_names is None


# Which classes it must have


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"circle": 0, 1: 1, "star": 2, 4: 3}, "no label for 1 of the 5 classes: 'triangle'. Give every class a label"),
        ({"Circle": 0}, "no label for 5 of the 5 classes: 'circle', 'square', 'triangle', 'star', 'cross'. Give every"),
        ({5: 0, -1: 1, "x": 2, "0": 3}, "no label for 5 of the 5 classes: "),
    ],
)
def test_a_class_without_a_label_is_said_before_reading(
    datasets: Datasets, entries: dict[str | int, int], message: str
) -> None:
    said = refusal(lambda: ParserTfds(datasets.root, "shapes", class_map=entries))
    assert said.startswith(f"shapes:1.0.0: the class map has {message}")
    assert said.endswith(
        "To leave classes out, give them the label n behind the others, and read parser.subset(parser.targets() < n)."
    )


def test_of_many_classes_without_a_label_the_first_are_named() -> None:
    names = [f"n{number}" for number in range(1000)]
    said = refusal(ClassMap({"n1": 0}, names, "x:1.0.0").check_covers_classes)
    assert "no label for 999 of the 1000 classes: 'n0', 'n2', 'n3', 'n4', 'n5', ... Give" in said.replace("....", "...")


def test_classes_that_the_dataset_does_not_have_are_no_error(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", class_map={**NEXT, "hexagon": 5})
    assert parser.class_names == ["cross", "circle", "square", "triangle", "star", "hexagon"]


# New labels


def batch(label: Any = None, text: Any = None, valid: Any = None, **features: Any) -> Batch:
    values = label if text is None else text
    label = None if label is None else np.array(label)
    valid = np.array([True] * len(values) if valid is None else valid)
    features = features if text is None else features | {"label": text}
    return Batch(None, label, valid, np.arange(len(values)), [f"f__{i}" for i in range(len(values))], features, 3, 4)


def remap_one(entries: dict[Any, int], names: list[str] | None, source: Batch) -> Batch:
    (result,) = ClassMap(entries, names, "x:1.0.0").remap(iter([source]))
    return result


def test_every_label_is_mapped_once_by_its_name() -> None:
    result = remap_one(NEXT, CLASSES, batch([0, 4, 1, 0]))
    assert result.label is not None
    assert (result.label.tolist(), result.label.dtype) == ([1, 0, 2, 1], np.int64)
    assert (result.id, result.epoch, result.batch) == (["f__0", "f__1", "f__2", "f__3"], 3, 4)


def test_integer_keys_win_over_names() -> None:
    result = remap_one({**NEXT, 0: 7}, CLASSES, batch([0, 1]))
    assert result.label.tolist() == [7, 2]


def test_labels_without_names_go_by_their_digits_too() -> None:
    assert remap_one({"7": 0, 8: 1}, None, batch([7, 8])).label.tolist() == [0, 1]
    assert remap_one({"1": 5, "0": 6}, None, batch([True, False])).label.tolist() == [5, 6]
    assert "no label for 0, the target of" in refusal(lambda: remap_one({"0": 5}, ["a"], batch([0])))


def test_padding_stays_padding() -> None:
    """Whatever the map says about -100, and whether or not -100 is in it."""
    for entries in ({1: 5}, {1: 5, -100: 6}):
        assert remap_one(entries, None, batch([1, -100], valid=[True, False])).label.tolist() == [5, -100]
    assert remap_one({"b": 5}, None, batch(text=["b", "z"], valid=[True, False])).label.tolist() == [5, -100]


def test_an_example_that_tfds_gave_no_class_keeps_none() -> None:
    assert remap_one(NEXT, CLASSES, batch([-1, 0])).label.tolist() == [-1, 1]
    assert remap_one({**NEXT, -1: 5}, CLASSES, batch([-1, 0])).label.tolist() == [5, 1]
    assert "no label for -1" in refusal(lambda: remap_one({0: 1}, None, batch([-1])))


def test_texts_become_integer_labels() -> None:
    for texts in (["b", "a", "b"], [b"b", b"a", b"b"]):
        result = remap_one({"a": 4, "b": 0}, None, batch(text=texts, caption=["x", "y", "z"]))
        assert (result.label.tolist(), result.label.dtype) == ([0, 4, 0], np.int64)
        assert result.features == {"caption": ["x", "y", "z"]}


def test_sequences_are_mapped_element_by_element() -> None:
    arrays = [np.array([0, 1, 0]), np.array([], np.int64), np.array([[1, 1], [0, 1]], np.int32)]
    result = remap_one({0: 3, 1: 0}, None, batch(text=arrays))
    assert result.label is None
    for ours, expected in zip(result.features["label"], ([3, 0, 3], [], [[0, 0], [3, 0]]), strict=True):
        assert (ours.tolist(), ours.dtype) == (expected, np.int64)
    texts = [np.array([b"b", b"a"], object), np.array([], object)]
    assert [value.tolist() for value in remap_one({"a": 3, "b": 0}, None, batch(text=texts)).features["label"]] == [
        [0, 3],
        [],
    ]
    ragged = [[np.array([0, 1]), np.array([], np.int64)], []]
    (first, second) = remap_one({0: 3, 1: 0}, None, batch(text=ragged)).features["label"]
    assert [inner.tolist() for inner in first] == [[3, 0], []]
    assert second == []
    positions = remap_one({"a": 3, "b": 0}, ["a", "b"], batch(text=[[0, 1], [], [1]])).features["label"]
    assert positions == [[3, 0], [], [0]]
    assert type(positions[0][0]) is int


def test_padding_of_sequences_stays_padding() -> None:
    texts = [np.array([b"b", b"a"], object), np.array([b"c", b"a"], object), [np.array([-100, -100]), [-100]]]
    source = replace(batch(text=texts), valid=np.array([True, False, False]))
    first, second, third = remap_one({"a": 3, "b": 0}, None, source).features["label"]
    assert (first.tolist(), second.tolist(), third[0].tolist(), third[1]) == ([0, 3], [-100] * 2, [-100] * 2, [-100])


def test_what_a_map_is_given_is_not_changed() -> None:
    source = batch(text=[np.array([0, 1])], other=[5])
    remap_one({0: 3, 1: 0}, None, source)
    assert source.features["label"][0].tolist() == [0, 1]
    source = batch([0, 1], small=[0, 1])
    assert remap_one({0: 3, 1: 0}, None, source).features == {"small": [0, 1]}
    assert source.label.tolist() == [0, 1]


@pytest.mark.parametrize(
    "source",
    [
        batch([1, 2]),
        batch(text=["1", "two"]),
        batch(text=[b"1", b"two"]),
        batch(text=[np.array([1]), np.array([1, 2])]),
        batch(text=[np.array([b"1"], object), np.array([b"1", b"two"], object)]),
        batch(text=[[np.array([1])], [np.array([1]), np.array([2])]]),
    ],
)
def test_a_label_that_is_not_in_the_map_is_said_with_its_example(source: Batch) -> None:
    message = refusal(lambda: remap_one({1: 0, "1": 0}, None, source))
    assert re.fullmatch(
        r"x:1.0.0: the class map has no label for (2|'two'), the target of the example f__1. Add it to the map\.",
        message,
    )


def test_batches_before_an_unknown_label_are_yielded() -> None:
    batches = ClassMap({1: 0}, None, "x:1.0.0").remap(iter([batch([1]), batch([2])]))
    assert next(batches).label.tolist() == [0]
    with pytest.raises(ConfigError, match="no label for 2"):
        next(batches)
