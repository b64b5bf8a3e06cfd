"""Class maps: where they come from, and the labels they give."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import CLASSES, Datasets

from tfds_torch.engines.fields import UnmappedLabelError
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.class_map import ClassMap, load_class_map
from tfds_torch.parsers.own import ParserMapStyle
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

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


def mapped(entries: dict[Any, int], names: list[str] | None, labels: Any) -> Any:
    return ClassMap(entries, names, "x:1.0.0").new_labels(labels)


def numbers(labels: Any) -> Any:
    """Labels as nested lists; arrays must be int64."""
    if isinstance(labels, np.ndarray):
        assert labels.dtype == np.int64
        return labels.tolist()
    return [numbers(one) for one in labels] if isinstance(labels, list) else labels


TEXTS = [np.array([b"b", b"a"], object), np.array([], object)]
RAGGED = [[np.array([0, 1]), np.array([], np.int64)], []]


@pytest.mark.parametrize(
    ("entries", "names", "labels", "expected"),
    [
        (NEXT, CLASSES, np.array([0, 4, 1, 0]), [1, 0, 2, 1]),
        (dict[Any, int](NEXT) | {0: 7}, CLASSES, np.array([0, 1]), [7, 2]),  # Integer keys win over names.
        ({"7": 0, 8: 1}, None, np.array([7, 8]), [0, 1]),  # Labels without names go by their digits, too.
        ({"1": 5, "0": 6}, None, np.array([True, False]), [5, 6]),
        ({1: 5}, None, np.array([1, -100]), [5, -100]),  # An optional label that is None.
        (NEXT, CLASSES, np.array([-1, 0]), [-1, 1]),  # TFDS's label for none.
        (NEXT | {-1: 5}, CLASSES, np.array([-1, 0]), [5, 1]),
        ({"a": 4, "b": 0}, None, ["b", "a", "b"], [0, 4, 0]),
        ({"a": 4, "b": 0}, None, [b"b", b"a", b"b"], [0, 4, 0]),
        ({0: 3, 1: 0}, None, np.array([[0, 1], [1, 1]], np.int32), [[3, 0], [0, 0]]),
        ({0: 3, 1: 0}, None, [np.array([0, 1, 0]), np.array([], np.int64), np.array([[1, 1], [0, 1]])], "as nested"),
        ({"a": 3, "b": 0}, None, TEXTS, [[0, 3], []]),
        ({0: 3, 1: 0}, None, RAGGED, [[[3, 0], []], []]),
        ({"a": 3, "b": 0}, ["a", "b"], [[0, 1], [], [1]], [[3, 0], [], [0]]),
    ],
)
def test_labels_get_new_ones_in_the_form_that_they_have(
    entries: dict[Any, int], names: list[str] | None, labels: Any, expected: Any
) -> None:
    expected = [[3, 0, 3], [], [[0, 0], [3, 0]]] if expected == "as nested" else expected
    before = pickle.dumps(labels)
    assert numbers(mapped(entries, names, labels)) == expected
    assert pickle.dumps(labels) == before


@pytest.mark.parametrize(
    ("labels", "position"),
    [
        (np.array([1, 2]), 1),
        (np.array([[1, 1], [1, 1], [1, 2]]), 2),
        (["1", "two"], 1),
        ([b"two", b"1"], 0),
        ([np.array([1]), np.array([1, 2])], 1),
        ([np.array([b"1"], object), np.array([b"1", b"two"], object)], 1),
        ([[np.array([1])], [np.array([1]), np.array([2])]], 1),
    ],
)
def test_a_label_that_is_not_in_the_map_is_said_with_its_place(labels: Any, position: int) -> None:
    with pytest.raises(UnmappedLabelError) as caught:
        mapped({1: 0, "1": 0}, None, labels)
    assert caught.value.position == position
    assert re.fullmatch(r"x:1.0.0: the class map has no label for (2|'two')", caught.value.reason)


def test_an_unknown_label_is_said_with_its_example_and_the_batches_before_it_come() -> None:
    rows = [{"label": number} for number in (1, 1, 2, 1)]
    parser = ParserMapStyle(rows, image_key=None, batch_size=2, class_map={1: 0})
    batches = parser.batches(fields=["label"])
    assert next(batches).label.tolist() == [0, 0]
    message = "the class map has no label for 2, the target of the example 2. Add it to the map."
    assert refusal(lambda: next(batches)).endswith(message)
    assert refusal(parser.targets).endswith(message)


def test_padding_stays_padding() -> None:
    """Whatever the map says about -100."""
    parser = ParserMapStyle([{"label": 1}] * 3, image_key=None, batch_size=2, class_map={1: 5, -100: 6})
    *_, last = parser.batches(World(1, 2), fields=["label"])
    assert last.label.tolist() == [5, -100]
