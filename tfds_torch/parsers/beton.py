"""ParserBeton: a `.beton` file as batches of numpy arrays."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.options import DecodeOptions, EpochOptions
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import field_name, stored_name
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.parsers.remote_store import open_files
from tfds_torch.plan.epoch import Remainder
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonBytes, BetonField, BetonInt, BetonJson
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.source import FieldSpec, is_local, source_type

_logger = logging.getLogger(__name__)
SPLIT = "all"
"""The split of a `.beton` file, for messages and states: a file holds one split."""

_IMAGE_SPEC = FieldSpec((None, None, 3), np.uint8)


class BetonDataset(Dataset):
    """The examples of a `.beton` file; arguments and errors are those of ParserBeton."""

    source: BetonSource
    target_key: str | None
    is_by_number = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        decoding: DecodeOptions,
        image_key: str | None = "image",
        target_key: str | None = "label",
        handlers: Mapping[str, BetonField] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        (shown,), files = open_files([os.fspath(path)], remote, decoding.read)
        verifies = decoding.read.verify_checksums
        file: BetonSource = source_type("beton")(shown, handlers, verify_checksums=verifies, files=files)
        if file.head.has_old_manifest:
            _logger.warning(
                "An earlier version of tfds_torch wrote %s, which is read as FFCV's own files are, without ids, names "
                "of classes and checksums: to have them, write it again from its dataset.",
                shown,
            )
        super().__init__(file, SPLIT, decoding, image_key, target_key)

    @property
    def path(self) -> Path | str:
        """The file; of a URL the URL, a text."""
        path = self.source.head.path
        return Path(path) if is_local(path) else path

    def provenance(self) -> Provenance:
        """Return where the file lies; see `Dataset`."""
        return Provenance(
            promised_by=f"the head of {os.path.basename(self.path)}",
            place=self.path,
            why_no_second_reader="TFDS does not read .beton files",
        )

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """Field -> shape and dtype of one value."""
        stored = sorted(self._stored.items())
        return {name: _IMAGE_SPEC if isinstance(one, BetonImage) else self.source.specs[name] for name, one in stored}

    @property
    def _folder(self) -> str:
        return os.path.dirname(self.source.head.path)

    @property
    def _stored(self) -> Mapping[str, BetonField]:
        return self.source.head.fields

    @property
    def _all_fields(self) -> list[str]:
        return list(self._stored)

    @property
    def _stored_class_names(self) -> list[str] | None:
        names = self.source.class_names.get(self.target_key or "")
        return None if names is None else list(names)

    @property
    def _has_integer_target(self) -> bool:
        return isinstance(self._stored.get(self.target_key or ""), BetonInt)

    def _field(self, name: str) -> FieldDecoder:
        key = self._key(name)
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
        class_names = self.source.class_names.get(key)
        return ClassLabelField(decoder, len(class_names)) if class_names else decoder

    def _key(self, name: str) -> str:
        """Return the stored field behind a field; raise ConfigError where there is none."""
        key = self._key_among(self._stored, name)
        if key is None or key not in self._stored:
            there = f"its fields are {', '.join(map(field_name, self._stored))}"
            raise ConfigError(self._missing(name, key, self._stored, there))
        return key

    def _find_undecoded(self) -> frozenset[str]:
        keys = super()._find_undecoded()
        for key in keys:
            num_raw = self.source.reader.count_raw(key)
            if num_raw:
                raise ConfigError(
                    f"{self.dataset_name}: decode names {quoted(key)}, of which {num_raw:,} of {len(self.source):,} "
                    f"images are stored as pixels, not as the bytes of a file. Leave it out of decode, or write the "
                    f"file with BetonImage('jpg') or BetonImage('passthrough')."
                )
        return keys

    def _encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored: images as JPEG or pixels."""
        decoder = self._field(name)
        if isinstance(decoder, ImageField | ImageBesideField):
            decoder = StoredField(decoder.key)
        if isinstance(self._stored[decoder.keys[0]], BetonImage):
            return EncodedField(decoder, "image", _IMAGE_SPEC)
        (key,) = decoder.keys
        is_json = isinstance(self._stored[key], BetonJson)
        return EncodedField(decoder, "value", None if is_json else self.source.specs[key])

    def _find_stored(self, name: str) -> tuple[object, bool]:
        is_image = isinstance(self._field(name), ImageField | ImageBesideField)
        return self._stored[self._key(name)], is_image


@explain_keywords
class ParserBeton(DatasetParser):
    """Read a `.beton` file, FFCV's own or one of this package, by number: FFCV is not needed.

    Building one reads the head of the file; its pointers are checked before the first example is read. Images that are
    stored as pixels of one size go from the mapped file into their batch in one step, and are flipped and cut one batch
    at a time. Parsers can be pickled, and may be used from several processes. The file must not be written to.

    Examples are compared with the checksums that this package writes. Files of FFCV itself have none, and files that
    version 0.2.0 wrote are read like those of FFCV. Images that are stored as pixels of one size, and arrays, are
    compared when they are first read, all other values at every read.

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
        transform: as in ParserTfds.
        handlers: field -> its `BetonCustom`, for fields of a type that FFCV does not have.
        remote: of a URL: how it is fetched, and where it is cached. None: RemoteOptions().

    Raises:
        ConfigError: an argument cannot work; the message says which values can.
        ShardError: the file is missing, or cannot be read.
        CorruptRecordError: it is not a `.beton` file of version 2, or is damaged.
    """

    dataset: BetonDataset

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
        transform: Any = None,
        handlers: Mapping[str, BetonField] | None = None,
        remote: RemoteOptions | None = None,
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
        super().__init__(BetonDataset(path, decoding, image_key, target_key, handlers, remote), epoch)

    @property
    def path(self) -> Path | str:
        """The file; of a URL the URL, a text."""
        return self.dataset.path
