"""Fields that come as the bytes that are stored: `decode={"image": False}`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfds_torch.engines.fields import OneKeyField
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Columns, FieldSpec

BYTES_SPEC = FieldSpec((), object)
"""The spec of one value that comes as bytes."""


@dataclass(frozen=True)
class BytesField(OneKeyField):
    """Values that come as the bytes that are stored, such as the files of images.

    Attributes:
        is_optional: whether some may be None.
    """

    is_optional: bool = False

    def decode(self, columns: Columns) -> list[bytes | None]:
        """Returns n values; raises ValueError where one is not stored as bytes."""
        values, allowed = list(columns[self.key]), (bytes, type(None)) if self.is_optional else (bytes,)
        if not all(isinstance(value, allowed) for value in values):
            other = next(value for value in values if not isinstance(value, allowed))
            raise ValueError(f"It is stored as {_kind_of(other)}, not as the bytes of a file.")
        return values


def check_decode(decode: object) -> None:
    """Raises ConfigError where `decode` does not say of each field whether it is decoded."""
    if decode is None:
        return
    if (
        not isinstance(decode, Mapping)
        or not all(isinstance(name, str) for name in decode)
        or not all(isinstance(value, bool) for value in decode.values())
    ):
        raise ConfigError(
            f"decode={quoted(decode)} must map fields to whether they are decoded, such as {{'image': False}}, with "
            f"which images come as the bytes of their files."
        )


def find_undecoded(decode: Mapping[str, bool], find_key: Callable[[str], str], dataset_name: str) -> frozenset[str]:
    """Returns the stored fields that come as bytes.

    Args:
        decode: field -> whether it is decoded.
        find_key: returns the stored field that holds the bytes of a field; raises ConfigError where there is none.
        dataset_name: for messages.

    Raises:
        ConfigError: a field does not exist, or is not stored as bytes; or two names of one stored field contradict each
            other.
    """
    keys: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for name, is_decoded in decode.items():
        keys[is_decoded][find_key(name)] = name
    undecoded, decoded = keys[False], keys[True]
    for key in undecoded.keys() & decoded.keys():
        raise ConfigError(
            f"{dataset_name}: decode={quoted(dict(decode))}: {quoted(undecoded[key])} and {quoted(decoded[key])} are "
            f"one stored field, which comes either as bytes or decoded. Name it once."
        )
    return frozenset(undecoded)


def no_bytes(dataset_name: str, name: str, what: object, advice: str) -> ConfigError:
    """Returns the error for a field that `decode` names, and that is not stored as bytes."""
    return ConfigError(
        f"{dataset_name}: decode names {quoted(name)}, which is {what}, not stored as bytes: only "
        f"single images and texts can come undecoded. {advice}"
    )


def works_on_pixels(dataset_name: str, name: str, preprocess: object) -> ConfigError:
    """Returns the error for an undecoded image that a preprocess is to crop."""
    return ConfigError(
        f"{dataset_name}: decode gives {quoted(name)} as bytes, and {quoted(preprocess)} works on its pixels. Leave "
        f"out the preprocess, and decode the bytes where you need pixels (ImageDataset's transform gets them); or "
        f"leave {quoted(name)} out of decode."
    )


def _kind_of(value: object) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"an object of type {type(value).__name__}" if shape is None else f"{dtype} {list(shape)}"
