"""ParserMapStyle: any dataset with `len` and `[i]` as batches of numpy arrays."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfds_torch.engines.fields import (
    ClassLabelField,
    EncodedField,
    FieldDecoder,
    ImageBesideField,
    ImageField,
    OneKeyField,
    StoredField,
    TensorImageField,
)
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadRequest
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.options import DecodeOptions, EpochOptions, check_names
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import field_name, stored_name
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.plan.epoch import Remainder
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.map_style.items import ITEM, ValueKind
from tfds_torch.storage.map_style.source import WHOLE_ITEM, MapStyleSource, encoded_image_key, image_beside_key
from tfds_torch.storage.source import Columns, FieldSpec, source_type

SPLIT = "all"
"""The split of the user's own dataset, for messages and states: such a dataset is one split."""

_IMAGE_SPEC = FieldSpec((None, None, 3), np.uint8)
_BESIDE_SPEC = FieldSpec((None, None, None), object)


class OwnDataset(Dataset):
    """The items of the user's own dataset; arguments and errors are those of ParserMapStyle."""

    source: MapStyleSource
    target_key: str | None
    is_by_number = True
    declares_sizes = False

    def __init__(
        self,
        given: Any,
        decoding: DecodeOptions,
        image_key: str | None = "image",
        target_key: str | None = "label",
        names: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        version: str | None = None,
    ) -> None:
        if version is not None and (not isinstance(version, str) or not version):
            raise ConfigError(f"version={quoted(version)} must be a text that names the dataset's content, or None.")
        self._names = check_names("class_names", class_names, "one for each label")
        example = "one for each value of an item, such as ('image', 'label')"
        of_items = check_names("ParserMapStyle: names", names, example)
        super().__init__(source_type("map_style")(given, of_items, version), SPLIT, decoding, image_key, target_key)

    @property
    def given(self) -> Any:
        """The user's dataset."""
        return self.source.dataset

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """Field -> shape and dtype of one value, as the first item has them."""
        return {name: self._spec(name, kind) for name, kind in sorted(self._kinds.items())}

    def _spec(self, name: str, kind: ValueKind) -> FieldSpec:
        if name == self.image_key and kind.is_image:
            return _IMAGE_SPEC
        return _BESIDE_SPEC if kind.is_pil else kind.spec

    def provenance(self) -> Provenance:
        """Return that the user's code makes the examples, and that only it knows where they lie; see `Dataset`."""
        return Provenance(
            promised_by="the length of the dataset",
            has_files=False,
            is_own=True,
            why_no_second_reader="TFDS does not read a dataset of one's own",
        )

    @property
    def _folder(self) -> str:
        raise ConfigError(f"{self.dataset_name}: absolute=True needs files, and this dataset need not have any.")

    @property
    def _kinds(self) -> Mapping[str, ValueKind]:
        return self.source.layout.kinds if len(self.source) else {}

    @property
    def _stored_class_names(self) -> list[str] | None:
        return list(self._names) if self._names is not None else _class_names_of(self.given, self.target_key)

    def _field(self, name: str) -> FieldDecoder:
        if name in (ITEM, WHOLE_ITEM) and (name == WHOLE_ITEM or name not in self._kinds):
            return StoredField(WHOLE_ITEM)
        key = self._key(name)
        if name == "image":
            if not self._kinds[key].is_image and _can_be_image(self._kinds[key]):
                return TensorImageField(image_beside_key(key), self.image_mode, are_numbers=True)
            if not self._kinds[key].is_image:
                raise ConfigError(self._not_an_image(name, key))
            return ImageField(encoded_image_key(key), self.image_mode)
        if self._is_beside(name, key):
            is_picture = self.preprocess is not None and self.preprocess.also_kinds.get(name) == "picture"
            return ImageBesideField(encoded_image_key(key) if is_picture else image_beside_key(key))
        if name != "label":
            return StoredField(key)
        self._check_labels(key)
        is_named = self._names is not None and key == self.target_key
        return ClassLabelField(_LabelField(key), len(self._names or ())) if is_named else _LabelField(key)

    def _check_labels(self, key: str) -> None:
        """Refuse a column in which some of the examples have no label."""
        empty = self.source.empty(key)
        if len(empty) and len(empty := empty[np.isin(empty, self.indices)]):
            raise ConfigError(
                f"{self.dataset_name}: the label {quoted(key)} is None in {len(empty)} of {len(self.indices)} rows, "
                f"such as {', '.join(map(str, empty[:5].tolist()))}. Leave these rows out of the dataset, or of the "
                f"parser (parser.subset), or fill them; or read {quoted(key)} as another field, with target_key=None."
            )

    def _is_beside(self, name: str, key: str) -> bool:
        """Return whether a field is an image beside `image`: one of Pillow's, or one that gets the same crop."""
        kind = self._kinds[key]
        return kind.is_pil or (self._goes_along(name) and _can_be_image(kind))

    def _key(self, name: str) -> str:
        """Return the field of an item behind a field; raise ConfigError where there is none."""
        key = self._key_among(self._kinds, name)
        if key is not None and not len(self.source):
            raise ConfigError(f"{self.dataset_name} has no items, and so no field {quoted(key)}.")
        if key is None or key not in self._kinds:
            there = ", ".join(f"{field_name(one)} ({kind})" for one, kind in self._kinds.items())
            advice = " Give names= to the values of a tuple." if self.source.layout.form == "sequence" else ""
            raise ConfigError(self._missing(name, key, self._kinds, f"the fields of its items are {there}", advice))
        return key

    def _bytes_key(self, name: str) -> str:
        key = self._key(name)
        if not self._kinds[key].is_image and self._kinds[key].kind != "bytes":
            raise self._no_bytes(name, self._kinds[key], "All but images come as they are.")
        return encoded_image_key(key)

    def _find_undecoded(self) -> frozenset[str]:
        if not self.decoding.decode or not len(self.source):
            return frozenset()
        keys = super()._find_undecoded()
        number = self.source.layout.number
        for key, (image,) in self.source.read(np.array([number]), list(keys)).items():
            if not isinstance(image, bytes):
                raise ConfigError(
                    f"{self.dataset_name}: decode names {quoted(key.partition(':')[2])}, and item {number} holds its "
                    f"pixels, not the bytes of a file. Let the dataset give the bytes, or leave it out of decode."
                )
        return keys

    def _encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored: images encoded or as pixels, texts as bytes."""
        decoder = self._field(name)
        if isinstance(decoder, ImageField | ImageBesideField) and not isinstance(decoder, TensorImageField):
            spec = _IMAGE_SPEC if isinstance(decoder, ImageField) else _BESIDE_SPEC
            return EncodedField(StoredField(decoder.key), "image", spec)
        if decoder.keys == (WHOLE_ITEM,):
            return EncodedField(decoder, "value", None)
        key = self._key(name)
        if isinstance(decoder, TensorImageField):
            decoder = StoredField(key)
        kind = self._kinds[key]
        if kind.kind == "object" or kind.is_nullable:
            return EncodedField(decoder, "value", None)
        if kind.kind == "text":
            return EncodedField(_TextField(decoder.keys[0]), "text", FieldSpec((), object))
        return EncodedField(decoder, "value", kind.spec)

    def request(self, request: ReadRequest) -> ReadRequest:
        """Return a request that reads a batch when it is asked for, where no image has to be decoded."""
        return replace(request, is_lazy=request.content.image is None)

    def _find_stored(self, name: str) -> tuple[object, bool]:
        if not len(self.source):
            return "no example", name == "image"
        key = self._key(name)
        kind = self._kinds[key]
        return str(kind), _can_be_image(kind) if self._goes_along(name) else kind.is_image

    def _check_preprocess(self) -> None:
        if not len(self.source):
            return
        super()._check_preprocess()
        if self.preprocess is not None:
            self._field("image")

    @property
    def _stored_target(self) -> None:
        return None  # Another dataset of this type and length may have other targets.

    @property
    def _has_integer_target(self) -> bool:
        kind = self._kinds.get(self.target_key or "")
        return kind is not None and kind.kind == "array" and not kind.shape and kind.dtype.kind in "iu"

    @property
    def _all_fields(self) -> Sequence[str]:
        return list(self._kinds)

    def _not_an_image(self, name: str, key: str) -> str:
        images = [other for other, kind in self._kinds.items() if kind.is_image]
        use = f"Use image_key= with one of {images}, or None" if images else "Use image_key=None"
        return (
            f"{self.dataset_name}: the field {quoted(key)} is {self._kinds[key]}, and {quoted(name)} must be a PIL "
            f"image, the bytes of an image file, or numbers [h, w], [h, w, C] or [C, h, w]. {use}, or give the field "
            f"another name: all other fields come as they are. This one comes as "
            f"{quoted(stored_name(key) if key == name else key)}, too."
        )


@explain_keywords
class ParserMapStyle(DatasetParser):
    """Read your own dataset by number: anything that has a length and returns any item by its number.

    It may be a map-style dataset of torch, a `datasets.Dataset` of Hugging Face, a `tfds.data_source`, a list, a
    dictionary of columns of one length, or a DataFrame of pandas (by position, whatever its index). Order, ranks,
    padding and exact resume are as in all parsers.

    The first item shows which fields there are; it is read when they are first asked for. The fields are the keys of a
    dictionary, the names of a named tuple, or `names` for a tuple. Every item must have the same fields, with values of
    the same type, dtype and number of axes.

    `image` goes through the preprocess, or comes as uint8 [H, W, C]. It may be a PIL image, the bytes of an image file,
    an array or tensor uint8 [H, W], [H, W, C] or [C, H, W], or Hugging Face's `{"bytes": ..., "path": ...}`; a
    `datasets.Dataset` is asked for encoded images. Other PIL images keep their numbers, [H, W, C] (docs/detection.md).
    Other fields keep their types: numbers, arrays and tensors of one size become one array, everything else a list. The
    field `item` is a whole item, as the dataset returns it.

    A process asks the dataset for items in one thread at a time, the thread that iterates. An item that raises becomes
    a CorruptRecordError with its number, and `ReadOptions(on_error="replace")` lets the next one take its place. An
    example's id is its number as a text.

    Parsers can be pickled if the dataset can; workers that are started by fork do not need that. The dataset must not
    change while it is read.

    Args:
        dataset: the dataset.
        names: names of the fields of items that are tuples, or single values. None: `image` and `label` for two values
            of which the first is an image, `image` or `item` for a single value, else "0", "1" and so on.
        class_names: names of the labels, by number; None: those of the dataset, where it has some, as Hugging Face's
            and torchvision's do.
        shuffle: whether the order is shuffled anew in every epoch; None: as `is_training`.
        is_training: training fills the last batch with further examples; evaluation yields every example exactly once.
        batch_size: examples of a rank's batch, >= 1. Required in training, and in evaluation with several workers.
        repeats: passes over the dataset in one epoch; 0 and 1 mean one.
        version: a name of the dataset's content, for the fingerprint in states: a state continues where version and
            length are equal. None: the fingerprint has the type and the length of the dataset only, so that other
            content of the same length is not noticed.
        seed: seed of the order, >= 0.
        remainder: as in ParserTfds.
        preprocess: as in ParserTfds.
        image_key: field that holds the image; None: there is none.
        target_key: field that holds the target; None: there is none.
        image_mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        class_map: as in ParserTfds.
        read: how examples are read: only read mode `index` can.
        epoch_size: as in ParserTfds.
        decode: as in ParserTfds.
        transform: as in ParserTfds.

    Raises:
        ConfigError: an argument cannot work, or the dataset has no length or no items by number.
        CorruptRecordError: the first items are looked at, and none of them can be read.
    """

    dataset: OwnDataset

    def __init__(
        self,
        dataset: Any,
        names: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        shuffle: bool | None = None,
        is_training: bool = False,
        batch_size: int | None = None,
        repeats: int = 0,
        *,
        version: str | None = None,
        seed: int = 42,
        remainder: Remainder | str | None = None,
        preprocess: Preprocess | None = None,
        image_key: str | None = "image",
        target_key: str | None = "label",
        image_mode: str | None = "RGB",
        class_map: Mapping[Any, int] | str | os.PathLike[str] | None = None,
        read: ReadOptions = ReadOptions(),
        epoch_size: int | None = None,
        decode: Mapping[str, bool] | None = None,
        transform: Any = None,
    ) -> None:
        epoch = EpochOptions(
            shuffle=shuffle,
            is_training=is_training,
            batch_size=batch_size,
            repeats=repeats,
            seed=seed,
            remainder=remainder,
            epoch_size=epoch_size,
        )
        decoding = DecodeOptions(
            preprocess=preprocess,
            image_mode=image_mode,
            class_map=class_map,
            read=read,
            decode=decode,
            transform=transform,
        )
        super().__init__(OwnDataset(dataset, decoding, image_key, target_key, names, class_names, version), epoch)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns of a dictionary or a DataFrame; empty for any other dataset."""
        source = self.dataset.source
        return tuple(source.dataset) if source.has_columns and len(source) else ()


@dataclass(frozen=True)
class _LabelField(StoredField):
    """A field of labels that must not be None."""

    def decode(self, columns: Columns) -> Any:
        values = super().decode(columns)
        if isinstance(values, list) and any(value is None for value in values):
            raise ValueError(
                f"Its label {self.key!r} is None: leave such items out (parser.subset), or fill them; or read "
                f"{self.key!r} as another field, with target_key=None."
            )
        return values


def _can_be_image(kind: ValueKind) -> bool:
    """Return whether values can go through the crop of an image: images, and numbers [h, w], [h, w, C] or [C, h, w]."""
    return kind.is_image or (kind.kind == "array" and len(kind.shape) in (2, 3) and kind.dtype.kind in "biuf")


class _TextField(OneKeyField):
    """Texts, as bytes in UTF-8."""

    def decode(self, columns: Columns) -> list[bytes]:
        """Return n values."""
        return [text.encode("utf-8", "surrogatepass") for text in columns[self.key]]


def _class_names_of(dataset: Any, target_key: str | None) -> list[str] | None:
    """Return the names of the labels as a dataset of Hugging Face or torchvision has them; None for others."""
    features = getattr(dataset, "features", None)
    feature = features.get(target_key) if isinstance(features, Mapping) else None
    names = getattr(dataset, "classes", None) if feature is None else getattr(feature, "names", None)
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        return None
    return list(names)
