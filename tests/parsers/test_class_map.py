"""Class maps: where they come from, and the labels they give. What a target may be is in test_targets."""

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import write_numbered

from tfds_torch import ParserMapStyle, ParserTfds, World
from tfds_torch.errors import ConfigError

NAMES = ("cat", "wild dog", "grün\u2028er")


def opened(class_map: Any, labels: Sequence[Any] = (0, 1), names: Sequence[str] | None = NAMES[:2]) -> ParserMapStyle:
    """Return a parser of labels with names."""
    rows = [{"label": label} for label in labels]
    return ParserMapStyle(rows, class_names=names, class_map=class_map, batch_size=len(rows))


def labels_of(parser: Any) -> list[int]:
    return [int(label) for batch in parser.batches(fields=("label",)) for label in batch.label]


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: bytes, name: str = "classes.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# Where a map comes from


def test_a_mapping_of_names_and_numbers_is_the_class_map() -> None:
    assert labels_of(opened(MappingProxyType({"cat": 1, np.int64(1): np.uint8(3)}))) == [1, 3]
    assert opened({"cat": 1, "wild dog": 0}).class_to_idx == {"cat": 1, "wild dog": 0}


@pytest.mark.parametrize(
    "content",
    [b"wild dog\ncat\n", b"wild dog\ncat", b"  wild dog \r\ncat\r\n\r\n", b"\xef\xbb\xbfwild dog\ncat\n \n\n"],
    ids=["lines", "no newline at the end", "of Windows, with spaces", "marked as UTF-8, empty lines at the end"],
)
def test_the_line_of_a_text_file_is_the_label(
    content: bytes, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert labels_of(opened(write(content))) == [1, 0]
    assert labels_of(opened(str(write(content, "CLASSES.TXT")))) == [1, 0]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert labels_of(opened("~/classes.txt")) == [1, 0]
    write((NAMES[2] + "\n犬").encode())
    assert labels_of(opened("~/classes.txt", [0], NAMES[2:])) == [0]


class Plant:
    """Make a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_dict_is_the_class_map_and_a_pickle_runs_no_code(
    protocol: int, write: Callable[..., Path], tmp_path: Path
) -> None:
    assert labels_of(opened(write(pickle.dumps({"cat": 1, 1: 0}, protocol), "map.pkl"))) == [1, 0]
    content = pickle.dumps({"cat": Plant(tmp_path / "planted")}, protocol)
    message = refusal(lambda: opened(write(content, "map.pkl")))
    assert f"cannot be unpickled: UnpicklingError: it refers to {os.name}.mkdir, and only plain values are" in message
    assert not (tmp_path / "planted").exists()
    pickle.loads(content)  # What an ordinary unpickler would have done.
    assert (tmp_path / "planted").exists()


FILES: list[tuple[str, bytes, str]] = [
    ("map.pkl", b"", " cannot be unpickled: EOFError"),
    ("map.pkl", pickle.dumps({"cat": 1, "dog": 2})[:-4], " cannot be unpickled: "),
    ("map.pkl", b"cat\ndog\n", " cannot be unpickled: "),
    ("map.pkl", pickle.dumps(["cat", "dog"]), " holds list, not a dict: it must map classes to labels."),
    ("map.pkl", pickle.dumps(np.float64(3)), " cannot be unpickled: UnpicklingError: it refers to numpy"),
    ("map.pkl", pickle.dumps({}), " is empty: it needs a label for every class."),
    ("map.pkl", pickle.dumps({"cat": -1}), " maps 'cat' to -1: labels are integers >= 0."),
    ("map.txt", b"", " is empty: it needs a label for every class."),
    ("map.txt", b" \n\n", " is empty: it needs a label for every class."),
    ("map.txt", b"cat\n\ndog", ": line 2 is empty. Every line holds a class name."),
    ("map.txt", b"\ncat", ": line 1 is empty. Every line holds a class name."),
    ("map.txt", b"cat\ndog\n cat", " has the class 'cat' twice, in lines 1 and 3."),
    ("map.txt", b"cat\n\xff", " is not UTF-8 text: "),
    ("map.json", b"{}", " is neither a text file (.txt) nor a pickle (.pkl): other files are not"),
]


def test_files_that_are_no_class_map_are_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    for name, content, message in FILES:
        path = write(content, name)
        assert refusal(lambda path=path: opened(path)).startswith(f"The class map {str(path)!r}{message}")  # type: ignore[misc]
    missing, folder = tmp_path / "missing.txt", tmp_path / "folder.txt"
    folder.mkdir()
    expected = {
        missing: f"The class map {str(missing)!r} does not exist in {tmp_path}.",
        folder: f"The class map {str(folder)!r} cannot be read: [Errno 21] Is a directory",
        "": "The class map '' is neither a text file",
        "a\0.txt": "The class map 'a\\x00.txt' cannot be read: embedded null byte.",
    }
    for other, message in expected.items():
        assert refusal(lambda other=other: opened(other)).startswith(message)  # type: ignore[misc]


def test_values_that_are_no_class_map_are_refused() -> None:
    for value in (-1, 2**63, 1.0, "1", True, None, np.bool_(True), [0]):
        said = refusal(lambda value=value: opened({"dog": 0, "cat": value}))  # type: ignore[misc]
        assert said == f"The class map maps 'cat' to {value!r}: labels are integers >= 0."
    for key in (1.5, None, b"cat", ("cat",)):
        said = refusal(lambda key=key: opened({key: 0}))  # type: ignore[misc]
        assert said == f"The class map has the key {key!r}: keys are class names (str) and source labels (int)."
    for other in (3, ["cat"], b"classes.txt", {"cat"}, True):
        said = refusal(lambda other=other: opened(other))  # type: ignore[misc]
        assert said.startswith(f"class_map={other!r} must be a mapping from class to label, the path of a .txt or .pkl")
    assert labels_of(opened({"cat": 2**63 - 1, 1: 0})) == [2**63 - 1, 0]


# Names of the new labels, and which classes it must have


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ({"a": 1, "b": 0, "c": 2}, ["b", "a", "c"]),
        ({0: 2, 1: 1, 2: 0}, ["c", "b", "a"]),
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
    assert opened(entries, (0, 1), ("a", "b", "c")).class_names == names


def test_class_names_of_a_dataset_without_them_are_those_of_the_map() -> None:
    assert opened({"a": 1, "b": 0, "0": 2}, names=None).class_names == ["b", "a", "0"]
    assert opened({3: 0, 4: 1}, names=None).class_names is None


def test_a_class_without_a_label_is_said_before_reading() -> None:
    names = [f"n{number}" for number in range(1000)]
    said = refusal(lambda: opened({"n1": 0}, names=names))
    assert "no label for 999 of the 1000 classes: 'n0', 'n2', 'n3', 'n4', 'n5', ... Give" in said.replace("....", "...")
    said = refusal(lambda: opened({"Cat": 0, 2: 0, "0": 1}))
    assert "the class map has no label for 2 of the 2 classes: 'cat', 'wild dog'. Give every class a label" in said
    assert said.endswith(
        "To leave classes out, give them the label n behind the others, and read parser.subset(parser.targets() < n)."
    )


# New labels


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ParserTfds]:
    """`texts(class_map)`: a parser whose targets are the texts 0.jpg to 4.jpg."""
    root = tmp_path_factory.mktemp("texts")
    write_numbered(root, {"train": (5,)})
    return lambda class_map: ParserTfds(root, "numbered", target_key="file_name", class_map=class_map, batch_size=2)


def test_every_label_is_mapped_once_by_its_number_its_name_or_its_digits() -> None:
    turned = {"cat": 1, "wild dog": 0}
    assert labels_of(opened(turned, (0, 1, 1, 0))) == [1, 0, 0, 1]
    assert labels_of(opened({**turned, 0: 7}, (0, 1))) == [7, 0]  # Integer keys win over names.
    assert labels_of(opened({"7": 0, 8: 1}, (7, 8), None)) == [0, 1]


def test_an_example_without_a_class_keeps_none() -> None:
    turned = {"cat": 1, "wild dog": 0}
    assert labels_of(opened(turned, (-1, 0))) == [-1, 1]
    assert labels_of(opened({**turned, -1: 5}, (-1, 0))) == [5, 1]
    assert "no label for -1" in refusal(lambda: labels_of(opened({0: 1}, (-1, 0), None)))


def test_padding_stays_padding_whatever_the_map_says(texts: Callable[..., ParserTfds]) -> None:
    own = {"cat": 1, "wild dog": 0, -100: 6}
    of_texts = {f"{number}.jpg": 9 - number for number in range(5)}
    for parser in (opened(own, (0, 1, 0)).with_batch_size(2), texts(of_texts)):
        batches = [batch for rank in range(4) for batch in parser.batches(World(rank, 4), fields=("label",))]
        assert {int(label) for batch in batches for label in batch.label[~batch.valid]} == {-100}
        assert sorted(int(label) for batch in batches for label in batch.label[batch.valid]) == (
            [0, 1, 1] if isinstance(parser, ParserMapStyle) else [5, 6, 7, 8, 9]
        )


def test_a_label_that_is_not_in_the_map_is_said_with_its_example_behind_the_batches_before_it(
    texts: Callable[..., ParserTfds],
) -> None:
    known = {f"{number}.jpg": number for number in (0, 1, 2, 4)}
    numbers = opened({0: 5, 1: 6, 2: 7}, (0, 1, 2, 9, 1), None).with_batch_size(2)
    for parser, what, name in (
        (texts(known), "'3.jpg'", "numbered-train.tfrecord-00000-of-00001__3"),
        (numbers, "9", "3"),
    ):
        batches = parser.batches(fields=("label",))
        next(batches)
        said = refusal(lambda batches=batches: next(batches))  # type: ignore[misc]
        assert f": the class map has no label for {what}, the target of the example {name}. Add it to the map." in said
        assert f"no label for {what}" in refusal(parser.targets)
