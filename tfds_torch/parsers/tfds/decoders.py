"""TFDS's `decoders=`, as `tfds.load` takes it: which features come undecoded. Imports TFDS, and no tensorflow."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.feature_tree import features_by_key
from tfds_torch.parsers.tfds.fields import DatasetFields
from tfds_torch.runtime.printable import quoted

_SkipDecoding = tfds.decode.SkipDecoding
_UNDERSTOOD = "What is understood is decoders={'image': tfds.decode.SkipDecoding()}, which is decode={'image': False}"


def merge_decoders(decode: Mapping[str, bool] | None, decoders: object, fields: DatasetFields) -> dict[str, bool]:
    """Return what `decode` and `decoders` say together: field -> whether it is decoded.

    Args:
        decode: as ParserTfds takes it, and checked.
        decoders: a dictionary, nested as the features are, of `SkipDecoding()`; or one `SkipDecoding()`, which stands
            for all features that are single images.
        fields: those of the dataset.

    Raises:
        ConfigError: another decoder, or a feature that `decode` decodes.
    """
    if type(decoders) is _SkipDecoding:
        skipped = [key for key in features_by_key(fields.features) if _is_single_image(key, fields)]
        if not skipped:
            raise ConfigError(
                f"{fields.dataset}: decoders=SkipDecoding() stands for all images, and no feature is a single one."
            )
    else:
        skipped = list(_names_of(decoders))
    for name in skipped:
        if (decode or {}).get(name):
            raise ConfigError(
                f"{fields.dataset}: decode={quoted(decode)} decodes {quoted(name)}, and decoders= does not: leave out "
                f"one of them."
            )
    return {**(decode or {}), **dict.fromkeys(skipped, False)}


def _names_of(decoders: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the features that a dictionary of decoders names, those within others with "/"."""
    if isinstance(decoders, Mapping) and all(isinstance(name, str) for name in decoders):
        for name, one in decoders.items():
            yield from _names_of(one, (*path, name))
    elif type(decoders) is _SkipDecoding and path:
        yield "/".join(path)
    else:
        where = f"decoders[{quoted('/'.join(path))}]" if path else "decoders"
        raise ConfigError(f"{where}={quoted(decoders)} {_why_not(decoders)}")


def _why_not(decoder: Any) -> str:
    if isinstance(decoder, tfds.decode.PartialDecoding):
        return (
            f"chooses which features are read, and fields= does that here: ImageDataset(parser, fields=('image', "
            f"'label')) decodes no other. {_UNDERSTOOD}."
        )
    if decoder is _SkipDecoding:
        return f"is the class: give SkipDecoding(). {_UNDERSTOOD}."
    if isinstance(decoder, tfds.decode.Decoder):
        return (
            f"decodes with tensorflow, which reading by number does without. {_UNDERSTOOD}: decode the bytes in "
            f"ImageDataset's transform, with a function of your own."
        )
    return f"is not a decoder. {_UNDERSTOOD}."


def _is_single_image(key: str, fields: DatasetFields) -> bool:
    try:
        return fields.encoded_field(key).kind == "image"
    except ConfigError:  # Only tensorflow could decode it.
        return False
