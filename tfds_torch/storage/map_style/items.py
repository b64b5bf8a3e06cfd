"""Items of a dataset as columns: which fields they have, and that they are alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import array_of_tensor, is_numeric, is_tensor, native
from tfds_torch.storage.map_style.pixels import is_image
from tfds_torch.storage.source import FieldSpec

IMAGE, LABEL, ITEM = "image", "label", "item"

_OF_IMAGE_AND_TARGET = (IMAGE, LABEL)
_PLAIN = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}
_ARRAYS = (np.ndarray, np.generic)
_NUMBERS = "biufc"
_LARGEST = {"c": 16}  # Bytes of a number that a tensor can hold; all other values count as 8.


class UnlikeItemError(Exception):
    """An item is not like the first one of the dataset; `position` is its place in a batch, `reason` a sentence."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


@dataclass(frozen=True)
class ValueKind:
    """The kind of a value, which all values of a field must share.

    Attributes:
        kind: a number or an array of numbers ("array"), "text", "bytes", or anything else ("object").
        dtype: dtype of an array; `object` for everything else.
        shape: shape of an array; sizes may vary from item to item, the number of axes may not.
        is_image: whether the value can be an image.
        type_name: name of an object's type, for messages.
        is_nullable: whether some items are known to have None, so that the values of every batch are a list.
        is_pil: whether the value is a Pillow image.
    """

    kind: Literal["array", "text", "bytes", "object"]
    dtype: Any = object
    shape: tuple[int, ...] = ()
    is_image: bool = False
    type_name: str = ""
    is_nullable: bool = False
    is_pil: bool = False

    @property
    def spec(self) -> FieldSpec:
        """Shape and dtype of a value."""
        return FieldSpec((), object) if self.is_nullable else FieldSpec(self.shape, self.dtype)

    def __str__(self) -> str:
        if self.kind == "array":
            return f"{self.dtype} {list(self.shape)}"
        return {"text": "a text", "bytes": "bytes", "object": self.type_name}[self.kind]

    @classmethod
    def of(cls, value: Any) -> "ValueKind":
        """Return the kind of a value."""
        if isinstance(value, str):
            return cls("text")
        if isinstance(value, bytes):
            return cls("bytes", is_image=is_image(value))
        array = _as_array(value)
        if array is None:
            is_pil = isinstance(value, Image.Image)
            return cls("object", is_image=is_image(value), type_name=_type_of(value), is_pil=is_pil)
        return cls("array", array.dtype, array.shape, is_image(array))


@dataclass(frozen=True)
class Layout:
    """The fields of items, as the first item of a dataset shows them.

    Attributes:
        form: items are dictionaries ("mapping"), tuples or lists ("sequence"), or single values ("value").
        kinds: field -> the kind of its values, in the order of the item.
        num_bytes: about the size of an item, in bytes.
        number: number of the item that showed the layout.
    """

    form: Literal["mapping", "sequence", "value"]
    kinds: Mapping[str, ValueKind]
    num_bytes: int
    number: int = 0

    @cached_property
    def positions(self) -> dict[str, int]:
        """Field -> its place in an item that is a tuple."""
        return {name: place for place, name in enumerate(self.kinds)}

    @classmethod
    def of(
        cls,
        item: Any,
        names: Sequence[str] | None,
        number: int,
        has_empty: Callable[[str], bool],
    ) -> "Layout":
        """Return the layout of an item; the fields of a tuple or single value are called `names`.

        Fields for which `has_empty` is true hold None in other items, and are therefore lists in every batch.

        Raises:
            ConfigError: the item has more or fewer fields than there are names, or keys that are not texts.
        """
        form, values = take_apart(item, names, "ParserMapStyle")
        kinds = {name: ValueKind.of(value) for name, value in values.items()}
        for name, kind in kinds.items():
            is_too_large = kind.kind == "array" and kind.dtype.itemsize > _LARGEST.get(kind.dtype.kind, 8)
            if is_too_large or (kind.kind == "array" and not is_numeric(kind.dtype)):
                raise ConfigError(
                    f"ParserMapStyle: {quoted(name)} of item {number} is {kind}, a type that tensors do not have: give "
                    f"it as float64 or complex128."
                )
            if not kind.is_image and has_empty(name):
                kinds[name] = replace(kind, is_nullable=True)
        return cls(form, kinds, num_bytes(item), number)

    def column(self, items: Sequence[Any], name: str) -> list[Any]:
        """Return the values of a field of some items, as they are.

        Raises:
            UnlikeItemError: an item lacks the field, or does not have the form of the first item.
        """
        if self.form == "value":
            return list(items)
        if self.form == "mapping":
            try:
                return [item[name] for item in items]
            except (KeyError, TypeError, IndexError):
                raise self._unlike(items) from None
        place = self.positions[name]
        try:
            return [item[place] for item in items]
        except (KeyError, TypeError, IndexError):
            raise self._unlike(items) from None

    def check(self, items: Sequence[Any]) -> None:
        """Raise UnlikeItemError for an item that has more or other fields than the first one."""
        if self.form == "mapping":
            names = self.kinds.keys()
            is_alike = all(isinstance(item, Mapping) and item.keys() == names for item in items)
        elif self.form == "sequence":
            is_alike = all(isinstance(item, tuple | list) and len(item) == len(self.kinds) for item in items)
        else:
            is_alike = True
        if not is_alike:
            raise self._unlike(items)

    def _unlike(self, items: Sequence[Any]) -> UnlikeItemError:
        for position, item in enumerate(items):
            if self.form == "mapping" and not isinstance(item, Mapping):
                return UnlikeItemError(position, f"It is {_type_of(item)}, and item {self.number} is a dictionary.")
            if self.form == "sequence" and not isinstance(item, tuple | list):
                return UnlikeItemError(
                    position, f"It is {_type_of(item)}, and item {self.number} a tuple of {len(self.kinds)} values."
                )
            if self.form == "sequence" and len(item) != len(self.kinds):
                return UnlikeItemError(
                    position, f"It has {len(item)} values, and item {self.number} has {len(self.kinds)}."
                )
            if self.form == "mapping" and item.keys() != self.kinds.keys():
                lacking = [name for name in self.kinds if name not in item]
                extra = [name for name in item if name not in self.kinds]
                said = [
                    f"it {verb} {', '.join(map(quoted, names))}"
                    for verb, names in (("lacks", lacking), ("also has", extra))
                    if names
                ]
                sentence = " and ".join(said)
                return UnlikeItemError(
                    position,
                    f"{sentence[0].upper()}{sentence[1:]}: item {self.number} has the keys "
                    f"{', '.join(map(quoted, self.kinds))}.",
                )
        return UnlikeItemError(0, f"It is not like item {self.number}.")


def pack(values: Sequence[Any], name: str, layout: Layout) -> Any:
    """Return the values of a field as one array [n, ...], where they are numbers of one shape; else as a list.

    Python's numbers become int64, float64 or bool; tensors become arrays, where arrays can hold the same; others stay.
    Where one of the values is None, all stay as they are.

    Raises:
        UnlikeItemError: a value has another kind, dtype or number of axes than that of the first item.
    """
    kind = layout.kinds[name]
    if not len(values):
        return np.empty((0, *kind.shape), kind.dtype) if kind.kind == "array" and not kind.is_nullable else []
    if kind.kind == "object" or kind.is_nullable:
        return list(values)
    if kind.kind != "array":
        wanted = str if kind.kind == "text" else bytes
        for position, value in enumerate(values):
            if not isinstance(value, wanted) and value is not None:
                raise _unlike_value(position, value, name, layout)
        return list(values)
    types = {type(value) for value in values}
    if type(None) in types:
        for position, value in enumerate(values):
            if value is not None and not _is_alike(_as_array(value), kind):
                raise _unlike_value(position, value, name, layout)
        return list(values)
    (first_type, *others) = types
    plain = None if others else _PLAIN.get(first_type)
    if plain is not None and plain == kind.dtype and not kind.shape:
        try:
            return np.array(values, kind.dtype)
        except OverflowError:
            pass  # Found below.
    arrays, dtype, num_axes = [], kind.dtype, len(kind.shape)
    for position, value in enumerate(values):
        array = _as_array(value)
        if array is None or array.dtype != dtype or array.ndim != num_axes:
            raise _unlike_value(position, value, name, layout)
        arrays.append(array)
    return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else arrays


def _is_alike(array: Any, kind: ValueKind) -> bool:
    return array is not None and array.dtype == kind.dtype and array.ndim == len(kind.shape)


def num_bytes(value: Any) -> int:
    """Return the approximate size of a value, an item or a part of an item, in bytes."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Image.Image):
        return value.width * value.height * len(value.getbands())
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(num_bytes, value))
    return int(getattr(value, "nbytes", 8))


def take_apart(
    item: Any, names: Sequence[str] | None, whose: str
) -> tuple[Literal["mapping", "sequence", "value"], dict[str, Any]]:
    """Return the form of an item, and its values by field.

    Args:
        item: a dictionary, a tuple or list, or one value.
        names: names of a tuple's values, by position, or of the one value. None: the names of a named tuple; `image`
            and `label` for two values of which the first one is an image; else "0", "1" ...
        whose: name of the class that takes `names`, for messages.

    Raises:
        ConfigError: an item has more or fewer values than there are names, is a dictionary though there are names, or
            has keys that are not texts.
    """
    if isinstance(item, Mapping) and not is_image(item):
        wrong = next((key for key in item if not isinstance(key, str)), None)
        if wrong is not None:
            raise ConfigError(f"{whose}: an item has the key {quoted(wrong)}, and keys must be texts.")
        if names is not None:
            raise ConfigError(
                f"{whose}: names={quoted(names)} is for items that are tuples, and these are dictionaries with "
                f"the keys {', '.join(map(quoted, item))}. Leave it out."
            )
        return "mapping", dict(item)
    if isinstance(item, tuple | list):
        own = getattr(item, "_fields", None)  # The names of a named tuple.
        if names is None and own is None:
            names = _OF_IMAGE_AND_TARGET if len(item) == 2 and is_image(item[0]) else list(map(str, range(len(item))))
        names = list(own if names is None and own is not None else names or ())
        if len(names) != len(item):
            raise ConfigError(
                f"{whose}: names={quoted(names)} are {len(names)} names, and an item has {len(item)} values."
            )
        return "sequence", dict(zip(names, item, strict=True))
    if names is not None and len(names) != 1:
        raise ConfigError(f"{whose}: names={quoted(names)} are {len(names)} names, and an item is one value.")
    name = names[0] if names else IMAGE if is_image(item) else ITEM
    return "value", {name: item}


def _as_array(value: Any) -> Any:
    """Return a number, or numbers, as an array; None for other values."""
    dtype = _PLAIN.get(type(value))
    if dtype is not None:
        try:
            return np.array(value, dtype)
        except OverflowError:
            return None
    if not isinstance(value, _ARRAYS):
        if not is_tensor(type(value)):
            return None
        value = array_of_tensor(value)
        if value is None:
            return None
    dtype = value.dtype
    if dtype.kind not in _NUMBERS and not is_numeric(dtype):
        return None
    return np.asarray(value) if dtype.isnative else native(np.asarray(value))


def _unlike_value(position: int, value: Any, name: str, layout: Layout) -> UnlikeItemError:
    return UnlikeItemError(
        position,
        f"Its {quoted(name)} is {ValueKind.of(value)}, and that of item {layout.number} is {layout.kinds[name]}.",
    )


def _type_of(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
