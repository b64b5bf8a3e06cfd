"""ParserBeton: a `.beton` file as batches of numpy arrays."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from tfds_torch.engines.fields import (
    ClassLabelField,
    DecodedField,
    EncodedField,
    FieldDecoder,
    ImageBesideField,
    ImageField,
    StoredField,
)
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.options import ParserOptions
from tfds_torch.parsers.parser import ParserBase
from tfds_torch.parsers.protocol import METADATA_SPECS, ElementSpec, field_name, stored_key, stored_name
from tfds_torch.parsers.remote_store import open_files
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonBytes, BetonField, BetonInt, BetonJson
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.source import FieldSpec, Source, is_local, source_type

_logger = logging.getLogger(__name__)
SPLIT = "all"
"""The split of a `.beton` file, for messages and states: it holds one."""


@explain_keywords
class ParserBeton(ParserBase):
    """Reads a `.beton` file, FFCV's own or one of this package, by number: FFCV is not needed.

    Building one reads the head of the file; its pointers are checked before the first example is read. Images that are
    stored as pixels of one size go from the mapped file into their batch in one step, and are flipped and cut a batch
    at a time. Parsers can be pickled, and may be used from several processes. The file must not be written to.

    What is read is compared with the checksums that this package writes; files of FFCV itself have none, and those of
    version 0.2.0 are read as these are. Images that are stored as pixels of one size, and arrays, are compared when
    they are first read, anything else at every read.

    Args:
        path: path of the file, or its URL (s3, gs, az, https, http; see docs/remote-files.md).
        shuffle: whether the order is shuffled anew in every epoch; None: as `is_training`.
        is_training: training fills the last batch with further examples; evaluation yields every example exactly once.
        batch_size: examples of a rank's batch, >= 1. Required in training, and in evaluation with several workers.
        repeats: passes over the file in one epoch; 0 and 1 mean one.
        seed: seed of the order, >= 0.
        remainder: as in ParserTfds.
        preprocess: as in ParserTfds.
        image_key: field that holds the image; None: the file has none.
        target_key: field that holds the target; None: there is none.
        image_mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        class_map: as in ParserTfds.
        read: how examples are read: only read mode `index` can.
        epoch_size: as in ParserTfds.
        decode: as in ParserTfds.
        handlers: field -> its `BetonCustom`, for fields of a type of their own.
        remote: of a URL: how it is fetched, and where it is cached. None: RemoteOptions().

    Raises:
        ConfigError: an argument that cannot work, with what is there instead.
        ShardError: the file is missing, or cannot be read.
        CorruptRecordError: it is not a `.beton` file of version 2, or is damaged.
    """

    target_key: str | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        shuffle: bool | None = None,
        is_training: bool = False,
        batch_size: int | None = None,
        repeats: int = 0,
        *,
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
        handlers: Mapping[str, BetonField] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        options = ParserOptions(
            shuffle=shuffle,
            is_training=is_training,
            batch_size=batch_size,
            repeats=repeats,
            seed=seed,
            remainder=remainder,
            preprocess=preprocess,
            image_mode=image_mode,
            class_map=class_map,
            read=read,
            epoch_size=epoch_size,
            decode=decode,
        )
        (shown,), files = open_files([os.fspath(path)], remote, read)
        file = source_type("beton")(shown, handlers, verify_checksums=read.verify_checksums, files=files)
        if file.head.has_old_manifest:
            _logger.warning(
                "An earlier version of tfds_torch wrote %s, which is read as FFCV's own files are, without ids, names "
                "of classes and checksums: to have them, write it again from its dataset.",
                shown,
            )
        super().__init__(file, SPLIT, options, image_key, target_key)
        self.read_mode(World())

    @property
    def _file(self) -> BetonSource:
        return cast(BetonSource, self._source)

    def _source_for(self, read: ReadOptions) -> Source:
        return self._file.with_checksums(read.verify_checksums)

    @property
    def path(self) -> Path | str:
        """The file; of a URL the URL, a text."""
        path = self._file.head.path
        return Path(path) if is_local(path) else path

    @property
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value."""
        fields = {
            field_name(name): FieldSpec((None, None, 3), np.uint8)
            if isinstance(field, BetonImage)
            else self._file.specs[name]
            for name, field in sorted(self._stored.items())
        }
        return ElementSpec(self._undecoded_specs(fields) | METADATA_SPECS)

    def with_read(self, read: ReadOptions) -> "ParserBeton":
        """Returns this parser, reading the same examples in another way."""
        parser = super().with_read(read)
        parser.read_mode(World())
        return parser

    @property
    def _folder(self) -> str:
        return os.path.dirname(self._file.head.path)

    @property
    def _stored(self) -> Mapping[str, BetonField]:
        return self._file.head.fields

    @property
    def _stored_class_names(self) -> list[str] | None:
        names = self._file.class_names.get(self.target_key or "")
        return None if names is None else list(names)

    def _field(self, name: str) -> FieldDecoder:
        key = self._key(name)
        if key is None or key not in self._stored:
            raise ConfigError(self._missing(name, key))
        field = self._stored[key]
        if name == "image" and not isinstance(field, BetonImage):
            images = [other for other, one in self._stored.items() if isinstance(one, BetonImage)]
            raise ConfigError(
                f"{self.dataset_name}: the image field {quoted(key)} is {quoted(field)}, not an image. Use image_key= "
                f"with one of {images}, or None; or ask for it as {quoted(stored_name(key) if key == name else key)}."
            )
        if name == "image":
            return ImageField(key, self.image_mode)
        if isinstance(field, BetonImage):
            return ImageBesideField(key, "picture")  # As FFCV has it: such a field always has three channels.
        if isinstance(field, BetonBytes) and self._goes_along(name):
            return ImageBesideField(key)
        decoder: FieldDecoder = DecodedField(key, json.loads) if isinstance(field, BetonJson) else StoredField(key)
        class_names = self._file.class_names.get(key)
        return ClassLabelField(decoder, len(class_names)) if class_names else decoder

    def _key(self, name: str) -> str | None:
        """Returns the stored field that is behind a field; None: image_key or target_key is None."""
        key, own = {"image": self.image_key, "label": self.target_key}.get(name, name), stored_key(name)
        return own if key not in self._stored and own in self._stored else key

    def _find_undecoded(self) -> frozenset[str]:
        keys = super()._find_undecoded()
        for key in keys:
            num_raw = self._file.reader.count_raw(key)
            if num_raw:
                raise ConfigError(
                    f"{self.dataset_name}: decode names {quoted(key)}, of which {num_raw:,} of {len(self._file):,} "
                    f"images are stored as pixels, not as the bytes of a file. Leave it out of decode, or write the "
                    f"file with BetonImage('jpg') or BetonImage('passthrough')."
                )
        return keys

    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored: images as JPEG or pixels; see ParserBase."""
        decoder = self._field(name)
        if isinstance(decoder, ImageField | ImageBesideField):
            decoder = StoredField(decoder.key)
        if isinstance(self._stored[decoder.keys[0]], BetonImage):
            return EncodedField(decoder, "image", FieldSpec((None, None, 3), np.uint8))
        (key,) = decoder.keys
        is_json = isinstance(self._stored[key], BetonJson)
        return EncodedField(decoder, "value", None if is_json else self._file.specs[key])

    def _find_stored(self, name: str) -> tuple[object, bool]:
        is_image = isinstance(self._field(name), ImageField | ImageBesideField)
        return self._stored[self._key(name) or name], is_image

    @property
    def _has_integer_target(self) -> bool:
        return isinstance(self._stored.get(self.target_key or ""), BetonInt)

    @property
    def _all_fields(self) -> Sequence[str]:
        return list(self._stored)

    def _missing(self, name: str, key: str | None) -> str:
        if key is None:
            argument = "image_key" if name == "image" else "target_key"
            return f"{self.dataset_name}: there is no field {quoted(name)}: {argument}=None."
        argument = {"image": " (image_key)", "label": " (target_key)"}.get(name, "")
        there = ", ".join(map(field_name, self._stored))
        return (
            f"{self.dataset_name} has no field {quoted(key)}{argument}: its fields are {there}."
            f"{did_you_mean(key, self._stored)}"
        )
