"""Class maps: source label or class name -> new label, for training on another label space than the dataset's."""

import io
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.runtime.printable import quoted

Entries: TypeAlias = dict[str | int, int]
"""Source label or class name -> new label, >= 0."""

NO_LABEL = -1
"""The label that TFDS stores for an example without a class, as in many test splits. It stays."""

_LARGEST_LABEL = 2**63 - 1
_MOST_LISTED = 5


@dataclass(frozen=True)
class ClassMap:
    """New labels for a dataset's target.

    An integer key names a source label, and wins over the label's class name. Where the dataset names no classes, a
    label goes by its digits as well, as TFDS itself names such classes.
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
        """Raises ConfigError when a class that the dataset names has no new label."""
        names = self.source_names or ()
        missing = [f"{quoted(name)}" for label, name in enumerate(names) if self._find(label) is None]
        if missing:
            listed = ", ".join(missing[:_MOST_LISTED]) + (", ..." if len(missing) > _MOST_LISTED else "")
            raise ConfigError(
                f"{self.dataset}: the class map has no label for {len(missing)} of the {len(names)} classes: {listed}. "
                f"Give every class a label, by its name or its number. To leave classes out, give them the label n "
                f"behind the others, and read parser.subset(parser.targets() < n)."
            )

    def remap(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields batches, or pieces of them, with new labels.

        A text becomes an integer, and so `Batch.label`. Sequences of labels are mapped element by element.

        Raises:
            ConfigError: an example has a label that is not in the map.
        """
        for batch in batches:
            yield self._remap_batch(batch)

    def _remap_batch(self, batch: Batch) -> Batch:
        is_text = batch.label is None and isinstance(batch.features["label"][0], str | bytes)
        if batch.label is None and not is_text:
            values = zip(batch.features["label"], batch.id, batch.valid.tolist(), strict=True)
            labels = [self._new_value(value, id) if valid else _padded(value) for value, id, valid in values]
            return replace(batch, features=batch.features | {"label": labels})
        features = {name: values for name, values in batch.features.items() if name != "label"}
        sources = batch.features["label"] if batch.label is None else batch.label.tolist()
        examples = zip(sources, batch.id, batch.valid.tolist(), strict=True)
        label = [self._new_label(source, id) if valid else PAD_LABEL for source, id, valid in examples]
        return replace(batch, label=np.array(label, np.int64), features=features if is_text else batch.features)

    def remap_values(self, values: Any, ids: Sequence[str]) -> Any:
        """Returns the labels of n examples, an array or a list, as new labels: int64 [n] where each has one.

        Raises:
            ConfigError: an example has a label that is not in the map.
        """
        each = zip(values.tolist() if isinstance(values, np.ndarray) else values, ids, strict=True)
        if (np.ndim(values) == 1 and isinstance(values, np.ndarray)) or isinstance(values[0], str | bytes):
            return np.array([self._new_label(value, id) for value, id in each], np.int64)
        return [self._new_value(value, id) for value, id in zip(values, ids, strict=True)]

    def _new_value(self, value: Any, example: str) -> Any:
        """Returns a label, an array of labels, or nested lists of them, with new labels."""
        if isinstance(value, list):
            return [self._new_value(inner, example) for inner in value]
        if isinstance(value, np.ndarray):
            return self._new_array(value, example)
        return self._new_label(value, example)

    def _new_array(self, sources: NDArray[Any], example: str) -> NDArray[np.int64]:
        different, positions = np.unique(sources, return_inverse=True)
        labels = np.array([self._new_label(source, example) for source in different.tolist()], np.int64)
        return labels[positions].reshape(sources.shape)

    def _new_label(self, source: Any, example: str) -> int:
        source = source.decode(errors="replace") if isinstance(source, bytes) else source
        label = self._find(source)
        if label is None and source == PAD_LABEL:
            return PAD_LABEL  # An optional label that is None.
        if label is None:
            raise ConfigError(
                f"{self.dataset}: the class map has no label for {quoted(source)}, the target of the example "
                f"{example}. Add it to the map."
            )
        return label

    def _find(self, source: str | int) -> int | None:
        label = self.entries.get(source)
        if label is not None or isinstance(source, str):
            return label
        if self.source_names is None:
            return self.entries.get(str(int(source)))
        if 0 <= source < len(self.source_names):
            return self.entries.get(self.source_names[source])
        return NO_LABEL if source == NO_LABEL else None


def _padded(value: Any) -> Any:
    """Returns the new label of padding: of a sequence as many of them."""
    if isinstance(value, list):
        return [_padded(inner) for inner in value]
    return np.full(value.shape, PAD_LABEL, np.int64) if isinstance(value, np.ndarray) else PAD_LABEL


def load_class_map(class_map: object) -> Entries:
    """Returns a class map, read from its file if it is one.

    Args:
        class_map: a mapping from source label (int) or class name (str) to new label (int, >= 0); or the path of such a
            dict as a pickle (`.pkl`), or of a text file (`.txt`, UTF-8) with a class name in each line, whose new label
            is the line's number, from 0.

    Raises:
        ConfigError: the file is missing, unreadable, or of another kind; the map is empty, or does not map integers and
            names to integers >= 0; a class name stands there twice.
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
    """Returns a checked class map; messages call it `source`."""
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
    """Reads values of built-in types; a class or function, through which a pickle could run code, is refused."""

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
