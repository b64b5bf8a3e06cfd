"""Class maps: source label or class name -> new label, for training on another label space than the dataset's."""

import io
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import FieldDecoder, UnmappedLabelError
from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Columns

Entries: TypeAlias = dict[str | int, int]
"""Source label or class name -> new label, >= 0."""

NO_LABEL = -1
"""The label that TFDS stores for an example without a class, as in many test splits. A class map keeps it."""

_LARGEST_LABEL = 2**63 - 1
_MOST_LISTED = 5


@dataclass(frozen=True)
class ClassMap:
    """New labels for a dataset's target.

    An integer key names a source label, and wins over the label's class name. Where the dataset names no classes, the
    digits of a label are its class name as well, as TFDS itself names such classes.
    """

    entries: Entries
    source_names: Sequence[str] | None
    dataset: str

    @property
    def class_names(self) -> list[str] | None:
        """Names of the new labels, when each of 0..n-1 has exactly one known name; else None."""
        new_labels = {key: label for key, label in self.entries.items() if isinstance(key, str)}
        for label, name in enumerate(self.source_names or ()):
            if label in self.entries:
                new_labels[name] = self.entries[label]
        names = {label: name for name, label in new_labels.items()}
        every_label = range(len(names))
        is_complete = max(self.entries.values()) + 1 == len(new_labels) == len(names)
        return [names[label] for label in every_label] if is_complete else None

    def check_covers_classes(self) -> None:
        """Raise ConfigError when a class that the dataset names has no new label."""
        names = self.source_names or ()
        missing = [f"{quoted(name)}" for label, name in enumerate(names) if self._find(label) is None]
        if missing:
            listed = ", ".join(missing[:_MOST_LISTED]) + (", ..." if len(missing) > _MOST_LISTED else "")
            raise ConfigError(
                f"{self.dataset}: the class map has no label for {len(missing)} of the {len(names)} classes: {listed}. "
                f"Give every class a label, by its name or its number. To leave classes out, give them the label n "
                f"behind the others, and read parser.subset(parser.targets() < n)."
            )

    def new_labels(self, labels: Any) -> Any:
        """Return new labels.

        Args:
            labels: n labels, integers or texts: an array [n, ...], or a list of n labels, of arrays or nested lists.

        Returns:
            int64 [n, ...] for an array and for n single labels, else a list of n arrays int64 or nested lists of them.

        Raises:
            UnmappedLabelError: a label is not in the map; `position` says which of the n has it.
        """
        if isinstance(labels, np.ndarray) and labels.dtype != object:
            return self._of_array(labels)
        found = [self._of_one(label, position) for position, label in enumerate(labels)]
        return np.array(found, np.int64) if all(isinstance(one, int) for one in found) else found

    def _of_one(self, label: Any, position: int) -> Any:
        if isinstance(label, list):
            return [self._of_one(inner, position) for inner in label]
        if isinstance(label, np.ndarray):
            return self._of_array(label, position)
        new = self._new_label(label)
        if new is None:
            raise self._unmapped(label, position)
        return new

    def _of_array(self, labels: NDArray[Any], position: int | None = None) -> NDArray[np.int64]:
        """Return the new labels of an array: of the example at `position`, or of n examples along the first axis."""
        different, places = np.unique(labels, return_inverse=True)
        new = [self._new_label(label) for label in different.tolist()]
        if None in new:
            wrong = new.index(None)
            if position is None:
                position = int(np.argwhere(places.reshape(labels.shape) == wrong)[0, 0])
            raise self._unmapped(different[wrong], position)
        return np.array(new, np.int64)[places].reshape(labels.shape)

    def _new_label(self, label: Any) -> int | None:
        source = label.decode(errors="replace") if isinstance(label, bytes) else label
        found = self._find(source)
        return PAD_LABEL if found is None and source == PAD_LABEL else found  # An optional label that is None.

    def _unmapped(self, label: Any, position: int) -> UnmappedLabelError:
        text = label.decode(errors="replace") if isinstance(label, bytes) else label
        text = text.item() if isinstance(text, np.generic) else text
        return UnmappedLabelError(position, f"{self.dataset}: the class map has no label for {quoted(text)}")

    def _find(self, source: str | int) -> int | None:
        label = self.entries.get(source)
        if label is not None or isinstance(source, str):
            return label
        if self.source_names is None:
            return self.entries.get(str(int(source)))
        if 0 <= source < len(self.source_names):
            return self.entries.get(self.source_names[source])
        return NO_LABEL if source == NO_LABEL else None


@dataclass(frozen=True)
class MappedField:
    """A field of labels that a class map replaces.

    Attributes:
        labels: decodes the labels that are stored.
        class_map: replaces them.
    """

    labels: FieldDecoder
    class_map: ClassMap

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return self.labels.keys

    def decode(self, columns: Columns) -> Any:
        """Return n new labels; raise UnmappedLabelError, and ValueError as `labels` does."""
        return self.class_map.new_labels(self.labels.decode(columns))


def load_class_map(class_map: object) -> Entries:
    """Return a class map, read from its file if it is one.

    Args:
        class_map: a mapping from source label (int) or class name (str) to new label (int, >= 0); or the path of such a
            dict as a pickle (`.pkl`), or of a text file (`.txt`, UTF-8) with a class name in each line, whose new label
            is the line's number, from 0.

    Raises:
        ConfigError: the file is missing, unreadable, or of another kind; the map is empty, or does not map integers and
            names to integers >= 0; a class name is in it twice.
    """
    if isinstance(class_map, Mapping):
        return check_entries(class_map, "The class map")
    if not isinstance(class_map, str | os.PathLike):
        raise ConfigError(
            f"class_map={quoted(class_map)} must be a mapping from class to label, the path of a .txt or .pkl file, "
            "or None."
        )
    source = f"The class map {quoted(os.fspath(class_map))}"
    path = Path(class_map).expanduser()
    if path.suffix.lower() not in (".txt", ".pkl"):
        raise ConfigError(f"{source} is neither a text file (.txt) nor a pickle (.pkl): other files are not read.")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{source} does not exist in {os.fspath(path.parent.absolute())}.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path.
        raise ConfigError(f"{source} cannot be read: {error}.") from None
    is_text = path.suffix.lower() == ".txt"
    return check_entries(_parse_names(content, source) if is_text else _unpickle(content, source), source)


def check_entries(class_map: Mapping[Any, Any], source: str) -> Entries:
    """Return a class map after a check; messages call it `source`."""
    if not class_map:
        raise ConfigError(f"{source} is empty: it needs a label for every class.")
    entries: Entries = {}
    for key, label in class_map.items():
        if not isinstance(key, str | Integral):
            raise ConfigError(
                f"{source} has the key {quoted(key)}: keys are class names (str) and source labels (int)."
            )
        if isinstance(label, bool) or not isinstance(label, Integral) or not 0 <= index(label) <= _LARGEST_LABEL:
            raise ConfigError(f"{source} maps {quoted(key)} to {quoted(label)}: labels are integers >= 0.")
        entries[key if isinstance(key, str) else index(key)] = index(label)
    return entries


def _parse_names(content: bytes, source: str) -> Entries:
    try:
        text = content.decode("utf-8-sig")  # Some editors mark UTF-8 by a first character that is not part of a name.
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text: {error}.") from None
    entries: Entries = {}
    for number, line in enumerate(text.rstrip().split("\n") if text.strip() else ()):
        name = line.strip()
        if not name:
            raise ConfigError(f"{source}: line {number + 1} is empty. Every line holds a class name.")
        if name in entries:
            raise ConfigError(
                f"{source} has the class {quoted(name)} twice, in lines {entries[name] + 1} and {number + 1}."
            )
        entries[name] = number
    return entries


class _PlainUnpickler(pickle.Unpickler):
    """Read values of built-in types, and refuse classes and functions, through which a pickle could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, and only plain values are read")


def _unpickle(content: bytes, source: str) -> Mapping[Any, Any]:
    try:
        value = _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # A damaged pickle may raise anything.
        raise ConfigError(f"{source} cannot be unpickled: {type(error).__name__}: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{source} holds {type(value).__name__}, not a dict: it must map classes to labels.")
    return value
