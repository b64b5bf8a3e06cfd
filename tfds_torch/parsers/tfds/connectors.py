"""Turn TFDS's feature connectors into plain values. Imports TFDS, and no tensorflow."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import tensorflow_datasets as tfds

from tfds_torch.parsers.tfds.feature_tree import Dictionary, Feature, Leaf, Repeated
from tfds_torch.parsers.tfds.features import OwnDecoder, decode_audio_file, decode_tensor
from tfds_torch.parsers.tfds.features_json import AudioFile
from tfds_torch.parsers.tfds.image_values import ImageValues
from tfds_torch.storage.source import FieldSpec

_Kind = Literal["image", "label", "text", "box", "other box", "tensor", "other"]
_KINDS: tuple[tuple[type, _Kind], ...] = (
    (tfds.features.Image, "image"),
    (tfds.features.ClassLabel, "label"),
    (tfds.features.Text, "text"),
    (tfds.features.BBoxFeature, "box"),
    (tfds.features.Tensor, "tensor"),
)
"""Connector -> its kind. The first entry that fits counts, because all but the image are tensors."""


def plain_features(connector: Any) -> Feature:
    """Return a TFDS connector as plain values, with all connectors inside it."""
    text, spec = repr(connector), _declared_spec(connector.get_tensor_info())
    if isinstance(connector, tfds.features.FeaturesDict):
        return Dictionary(text, spec, {key: plain_features(inner) for key, inner in connector.items()})
    if isinstance(connector, tfds.features.Sequence):
        is_dataset = isinstance(connector, tfds.features.Dataset)
        return Repeated(text, spec, plain_features(connector.feature), is_dataset)
    info = connector.get_serialized_info()
    default = _stored_default(connector)
    if isinstance(info, dict):
        parts: Any = {key: _stored_spec(part) for key, part in info.items()}
    else:
        parts = _stored_spec(info) if default is None else replace(_stored_spec(info), default=default)
    is_label = isinstance(connector, tfds.features.ClassLabel)
    labels = getattr(connector, "_class_label", connector)  # Of the pixels of a LabeledImage.
    names = labels._int2str if isinstance(labels, tfds.features.ClassLabel) else None
    return Leaf(
        text,
        spec,
        kind=_kind_of(connector),
        stored=parts,
        decode=_find_decoder(connector, info, spec),
        only_tensorflow=_tensorflow_class(connector),
        num_classes=connector.num_classes if is_label else None,
        class_names=None if names is None else tuple(names),
        none=_none_of(connector),
    )


def _kind_of(connector: Any) -> _Kind:
    kind: _Kind = next((kind for base, kind in _KINDS if isinstance(connector, base)), "other")
    if kind != "box":
        return kind
    form = getattr(connector, "bbox_format", "REL_YXYX")  # Old versions of TFDS have this form only.
    return "box" if getattr(form, "value", form) == "REL_YXYX" else "other box"  # None: TFDS does not know it.


def stored_specs(features: Any) -> dict[str, FieldSpec]:
    """Return the stored fields of an example: key -> its spec."""
    specs = {key: _stored_spec(info) for key, info in _flatten(features.get_serialized_info())}
    return specs | {key: replace(specs[key], default=default) for key, default in _stored_defaults(features)}


def _stored_defaults(connector: Any, key: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the stored fields of bytes that an example may lack, with the bytes that are read in their place."""
    if isinstance(connector, tfds.features.FeaturesDict):
        for name, inner in connector.items():
            yield from _stored_defaults(inner, f"{key}/{name}" if key else name)
    elif (default := _stored_default(connector)) is not None:
        yield key, default


def _stored_default(connector: Any) -> bytes | None:
    """Return the bytes that stand for None in an example, if an example may lack the feature and it is stored as bytes.

    features.json does not say which texts are optional, so that any text may be missing. A tensor with an encoding has
    the value that it would have without the encoding, where TFDS itself would raise an error.
    """
    if isinstance(connector, tfds.features.Text) and connector.shape == ():
        return b""
    if not isinstance(connector, tfds.features.Tensor) or not _is_optional(connector):
        return None
    if not connector._encoded_to_bytes:
        return None
    least = np.asarray(connector.get_tensor_info().default_value, connector.np_dtype)
    encoded: bytes = connector.encode_example(least)
    return encoded


def _is_optional(connector: Any) -> bool:
    return bool(getattr(connector, "_optional", False))  # Old versions of TFDS have no optional features.


def _none_of(connector: Any) -> float | None:
    """Return the number that stands for None; see Leaf."""
    if not isinstance(connector, tfds.features.Tensor) or not _is_optional(connector):
        return None
    dtype = np.dtype(connector.np_dtype)
    if dtype.kind not in "if":
        return None
    (number, *_) = np.asarray(connector.get_tensor_info().default_value).reshape(-1).tolist()
    if connector._encoded_to_bytes or dtype.kind == "i":
        return cast(float, number)
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _find_decoder(connector: Any, info: Any, spec: Any) -> Callable[..., Any] | None:
    """Return the decoder of an element; None where no decoder is needed, or only tensorflow has one."""
    f = tfds.features
    decoder = type(connector).decode_example_np
    if decoder is f.Image.decode_example_np:
        return ImageValues(connector.shape, connector.np_dtype).decode
    if _tensorflow_class(connector) is not None:
        return None
    if isinstance(connector, AudioFile):
        return partial(decode_audio_file, spec)
    if decoder in (f.Tensor.decode_example_np, f.Text.decode_example_np):
        if not isinstance(info, dict) and (info.shape, info.np_dtype) == (spec.shape, spec.dtype):
            return None
        return partial(decode_tensor, connector._encoding.name.lower(), spec)
    return OwnDecoder(connector, tuple(info) if isinstance(info, dict) else None)


def _tensorflow_class(connector: Any) -> str | None:
    """Return the name of a connector's class if it decodes with tensorflow only, else None."""
    f, kind = tfds.features, type(connector)
    if kind.decode_example_np is f.Image.decode_example_np:
        return None
    with_numpy, with_tensorflow = (
        next(i for i, base in enumerate(kind.__mro__) if way in vars(base))
        for way in ("decode_example_np", "decode_example")
    )
    if kind.decode_example_np is f.FeatureConnector.decode_example_np or with_tensorflow < with_numpy:
        return f"{kind.__module__}.{kind.__name__}"
    return None


def _declared_spec(info: Any) -> Any:
    """Return the FieldSpec of a value as it is declared, or a dictionary of them."""
    if isinstance(info, dict):
        return {key: _declared_spec(inner) for key, inner in sorted(info.items())}
    return FieldSpec(tuple(info.shape), info.np_dtype)


def _stored_spec(info: Any) -> FieldSpec:
    dtype = np.dtype(info.np_dtype)
    # As TFDS's own parser has it, a sequence that an example lacks is empty.
    default = () if info.default_value is None and None in info.shape else info.default_value
    if info.default_value is not None and dtype.kind == "f":
        with np.errstate(over="ignore"):  # The least float64 is -inf in float32, in which floats are stored.
            default = np.asarray(default, np.float32)[()]
    return FieldSpec(tuple(info.shape), object if dtype.kind in "OSU" else dtype, default)


def _flatten(info: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in info.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{key}/")
        else:
            yield prefix + key, inner
