"""ParserWebDataset: the samples of WebDataset's tars as batches of numpy arrays."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.engines.fields import (
    BytesField,
    ClassLabelField,
    DecodedField,
    EncodedField,
    FieldDecoder,
    ImageBesideField,
    ImageField,
    StoredField,
)
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.options import DecodeOptions, EpochOptions, check_names
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import stored_key
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.parsers.remote_store import open_files
from tfds_torch.parsers.webdataset_fields import (
    DEFAULT_EXTENSIONS,
    MISSING,
    SPECS,
    Decoder,
    Kind,
    LabelField,
    Missing,
    OptionalLabelField,
    OwnDecoder,
    check_decoders,
    decode_array,
    decode_json,
    decode_text,
    decoder_of,
    kind_of,
    name_fields,
    show_extensions,
    spec_of,
)
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.subset import Subset, make_subset
from tfds_torch.runtime.arguments import check_choice, did_you_mean
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.source import FieldSpec, is_local, source_type
from tfds_torch.storage.webdataset.name_hints import folder_hint, name_hint
from tfds_torch.storage.webdataset.shard_paths import shard_paths
from tfds_torch.storage.webdataset.source import WebDatasetSource

SPLIT = "all"
"""The name of the only split of tars, for messages and states."""

_logger = logging.getLogger(__name__)
_NAME_IT = "name it in fields=, so that samples without it are left out; or "
_NO_IMAGE = (
    "leave out such samples with missing='skip' (no image of a batch is None), or read it as bytes or None with "
    "decode={{{name}: False}}; or "
)
_DECODERS = {"json": decode_json, "array": decode_array, "text": decode_text}


class TarDataset(Dataset):
    """The samples of WebDataset's tars; arguments and errors are those of ParserWebDataset.

    Attributes:
        num_incomplete: how many samples lack a member of a field: missing="skip" leaves them out, and missing="none"
            reads None in the place of the member.
    """

    source: WebDatasetSource
    is_by_number = True

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        decoding: DecodeOptions,
        fields: Mapping[str, str] | Sequence[str] = DEFAULT_EXTENSIONS,
        class_names: Sequence[str] | None = None,
        decoders: Mapping[str, Decoder] | None = None,
        remote: RemoteOptions | None = None,
        missing: Missing = "error",
    ) -> None:
        self._names = check_names("class_names", class_names, "one for each label")
        self._has_usual_fields = fields is DEFAULT_EXTENSIONS
        fields = name_fields(fields)
        paths, files = open_files(shard_paths(urls), remote, decoding.read)
        tars: WebDatasetSource = source_type("webdataset")(paths, fields, files, is_complete=missing == "error")
        self._when_missing = missing
        self._decoders = check_decoders(decoders, tars.index.extensions)
        self._kinds = {name: kind_of(name, found, self._decoders) for name, found in tars.alternatives.items()}
        self.num_incomplete = 0
        selected = None if missing == "error" else self._choose_samples(tars)
        image_key, target_key = (name if name in fields else None for name in ("image", "label"))
        super().__init__(tars, SPLIT, decoding, image_key, target_key, selected)
        for name in self._all_fields:
            self._check_has_images(name)

    @property
    def paths(self) -> list[Path | str]:
        """The tars: paths of local files, and texts of URLs."""
        return [Path(path) if is_local(path) else path for path in self.source.paths]

    def provenance(self) -> Provenance:
        """Return where the tars lie: the path of a single one, or the folder of the first of several; see `Dataset`."""
        first = self.paths[0]
        is_one = len(self.paths) == 1
        return Provenance(
            promised_by="the index of the tars",
            place=first if is_one else first.parent if isinstance(first, Path) else os.path.dirname(first),
            why_no_second_reader="TFDS does not read these tars",
            num_skipped_files=self.source.num_skipped,
        )

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """Field -> shape and dtype of one value."""
        return {name: spec_of(name, self._kinds[name]) for name in sorted(self._all_fields)}

    @property
    def extensions(self) -> dict[str, tuple[str, ...]]:
        """Field -> its extensions, for the fields that at least one sample has."""
        return {name: self.source.alternatives[name] for name in self._all_fields}

    @property
    def has_optional_label(self) -> bool:
        """Whether samples may have no label; -100 stands for it then."""
        return self._kinds.get("label") == "label" and self._is_optional("label")

    @property
    def _folder(self) -> str:
        return os.path.dirname(self.source.paths[0])

    @property
    def _stored_class_names(self) -> list[str] | None:
        return None if self._names is None else list(self._names)

    def _kind_of(self, name: str) -> Kind:
        """Return how a field is decoded; an extension that belongs to no field is a field name itself."""
        found = self.source.alternatives_of(name)
        if found and name not in self._kinds and self._when_missing != "none":
            remedy = {} if self._when_missing == "error" else {"remedy": _NAME_IT}
            self.source.check_field(name, None if self.selected is None else self.selected.numbers, **remedy)
        if not found or not self.source.has(name):
            raise ConfigError(self._no_member(name))
        return self._kinds.get(name) or kind_of(name, found, self._decoders)

    def _choose_samples(self, tars: WebDatasetSource) -> Subset | None:
        """Return the samples that have all fields, or None if all are read; log how many lack a field.

        Raises:
            ShardError: samples that lack a field are left out, and none remains.
        """
        names = [name for name in self._kinds if tars.has(name)]
        lacking = {name: number for name in names if (number := tars.num_without(name))}
        if not lacking:
            return None
        complete = tars.complete(names)
        self.num_incomplete = len(tars) - int(np.count_nonzero(complete))
        shown = ", ".join(f"{quoted(name)} ({number:,} of {len(tars):,})" for name, number in lacking.items())
        hint = folder_hint(tars.index, [one for name in names for one in tars.alternatives[name]])
        if self._when_missing == "skip" and not complete.any():
            raise ShardError(
                f"{tars.name}: no sample has all fields, and missing='skip' leaves out those that lack one. "
                f"They lack {shown}. Leave fields out of fields=, or read None for them with missing='none'."
                f"{hint}"
            )
        treatment = "left out (missing='skip')" if self._when_missing == "skip" else "read with None (missing='none')"
        _logger.warning(
            "%s: samples that lack a member are %s: %d of %d. They lack %s.%s",
            tars.name,
            treatment,
            self.num_incomplete,
            len(tars),
            shown,
            hint,
        )
        return make_subset(complete, len(tars)) if self._when_missing == "skip" else None

    def _is_optional(self, name: str) -> bool:
        """Return whether some samples lack a field, and None is its value there."""
        return self._when_missing == "none" and 0 < self.source.num_without(self._key(name)) < len(self.source)

    def _check_has_images(self, name: str) -> None:
        """Raise ShardError where a sample that is read lacks an image: there is no value for missing pixels."""
        if self._is_optional(name) and self._kind_of(self._key(name)) == "image" and not self.is_undecoded(name):
            among = None if self.selected is None else self.selected.numbers
            self.source.check_field(self._key(name), among, _NO_IMAGE.format(name=quoted(name)))

    def field(self, name: str) -> FieldDecoder:
        """Return how a field is decoded, or handed over as bytes; see `Dataset`."""
        decoder = super().field(name)
        self._check_has_images(name)
        return decoder

    def _bytes_field(self, name: str) -> BytesField | None:
        found = super()._bytes_field(name)
        return found if found is None or not self._is_optional(name) else replace(found, is_optional=True)

    def _field(self, name: str) -> FieldDecoder:
        name = self._key(name)
        kind = self._kind_of(name)
        if name == "image" and kind != "image":
            extensions = ";".join(self.source.alternatives_of(name))
            raise ConfigError(
                f"{self.dataset_name}: the field 'image' is {quoted(extensions)}, which is not an image. Use another "
                f"name for it in fields=."
            )
        if kind == "image":
            return ImageField(name, self.image_mode) if name == "image" else ImageBesideField(name)
        if kind == "label":
            is_named = self._names is not None and name == "label"
            labels = ClassLabelField(LabelField(name), len(self._names or ())) if is_named else LabelField(name)
            return OptionalLabelField(labels) if self._is_optional(name) else labels
        own = decoder_of(self.source.alternatives_of(name)[0], self._decoders) if kind == "own" else None
        if own is not None:
            return DecodedField(name, OwnDecoder(own))
        return DecodedField(name, _DECODERS[kind]) if kind in _DECODERS else StoredField(name)

    def _key(self, name: str) -> str:
        return name if name in self._kinds else stored_key(name) or name

    def _bytes_key(self, name: str) -> str:
        name = self._key(name)
        self._kind_of(name)
        return name  # All members of tars are files.

    def _encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored: images and texts as bytes."""
        name = self._key(name)
        decoder, kind, is_optional = self._field(name), self._kind_of(name), self._is_optional(name)
        self._check_has_images(name)
        if kind == "image":
            return EncodedField(StoredField(name), "image", spec_of(name, kind), is_optional)
        if kind == "text":
            return EncodedField(StoredField(name), "text", SPECS[kind], is_optional)
        spec = None if kind in _DECODERS or kind == "own" else SPECS[kind]
        return EncodedField(decoder, "value", spec, is_optional)

    def _find_undecoded(self) -> frozenset[str]:
        return super()._find_undecoded() if self.num_examples else frozenset()

    @property
    def _stored_target(self) -> object:
        # Only labels of `cls`: a user's decoder may make other integers in the next run.
        return ("label", *self.source.alternatives_of("label")) if self._has_integer_target else None

    @property
    def _has_integer_target(self) -> bool:
        return self._kinds.get("label") == "label" and self.source.has("label")

    @property
    def _all_fields(self) -> Sequence[str]:
        return [name for name in self._kinds if self.source.has(name)]

    def _no_usual_field(self) -> str:
        """Return the message for samples that have none of the usual fields."""
        there = self.source.index.extensions
        usual = [one for names in self.source.alternatives.values() for one in names]
        wanted = " or ".join(f".{one}" for one in usual)
        return (
            f"{self.dataset_name}: no sample has a member {wanted}, which are read where fields= does not say "
            f"otherwise. The extensions in the tars are {show_extensions(there)}: name those that you want, as in "
            f"fields={list(there[:1])!r} or fields={{'image': {there[0]!r}}}. All but images, cls, txt, json and npy "
            f"are bytes.{name_hint(self.source.index, usual)}"
        )

    def _no_member(self, name: str) -> str:
        there = show_extensions(self.source.index.extensions)
        if name not in self._kinds:
            return (
                f"{self.dataset_name}: there is no field {quoted(name)}: fields= names {', '.join(self._kinds)}. The "
                f"extensions in the tars, which can be asked for as well, are {there}.{did_you_mean(name, self._kinds)}"
            )
        wanted = self.source.alternatives[name]
        return (
            f"{self.dataset_name} has no field {quoted(name)}: no sample has a member .{' or .'.join(wanted)}. The "
            f"extensions in the tars are {there}: name one in fields={{{quoted(name)}: ...}}."
            f"{name_hint(self.source.index, wanted)}"
        )

    def _find_stored(self, name: str) -> tuple[object, bool]:
        is_image = isinstance(self._field(name), ImageField | ImageBesideField)
        return self._kind_of(self._key(name)), is_image

    def _check_keys(self) -> None:
        """Raise ConfigError where no sample has a field that the user names, or no sample has any usual field."""
        if self.num_examples and self._has_usual_fields and not self._all_fields:
            raise ConfigError(self._no_usual_field())
        if self.num_examples and not self._has_usual_fields:
            for name in self._kinds:
                self._field(name)

    def _check_preprocess(self) -> None:
        if self.num_examples:
            super()._check_preprocess()


@explain_keywords
class ParserWebDataset(DatasetParser):
    """Read the samples of WebDataset's tars by number, with all features of a TFDS dataset, and without webdataset.

    Building one maps the index of the tars. Where there is none, their headers are read once, for all processes of the
    machine; the index is kept in the user's cache folder for as long as sizes and times of the tars stay the same.
    Parsers can be pickled, and may be used from several processes. The tars must not be written to.

    An example's id is its key, `train/0017` for the members `train/0017.jpg` and `train/0017.cls`. Where several tars
    hold the same key, all ids are `<tar>/<key>`.

    Args:
        urls: paths or URLs of tars: one text, with braces as in "https://host/train-{000..099}.tar", also several with
            "::" between, "a-{0..3}.tar::b-{0..5}.tar"; or a list of them, taken as they are. See docs/remote-files.md
            about URLs (s3, gs, az, https, http).
        fields: name -> extension, or several with ";" between: a sample's first one is taken; or a sequence of names,
            each of which is an extension, or `image` or `label`. The last part of an extension sets how it is decoded:
            those of image files that can be read (`jpg png webp tif`, see docs/datasets.md) as an image, `cls` as an
            integer, `txt` as a text, `json` and `npy` as such; all others (`mp ten cbor npz txt.gz`) are bytes. The
            fields `image` and `label` are the image and the label of a batch. An extension that has no name here can
            be asked for as it is: `ImageDataset(parser, fields=("image", "mp"))`.
        class_names: names of the labels, by number; None if they have no names.
        shuffle: whether the order is shuffled anew in every epoch; None means only in training.
        is_training: training fills the last batch with further examples; evaluation yields every example exactly once.
        batch_size: examples of a rank's batch, >= 1. Required in training, and in evaluation with several workers.
        repeats: passes over the tars in one epoch; 0 and 1 mean one.
        seed: seed of the order, >= 0.
        remainder: as in ParserTfds.
        preprocess: as in ParserTfds.
        image_mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        class_map: as in ParserTfds.
        read: how examples are read: by number, so that the stream modes are refused.
        epoch_size: as in ParserTfds.
        decode: as in ParserTfds.
        transform: as in ParserTfds.
        decoders: extension, with or without a leading dot, -> a function that makes a value of a member's bytes,
            instead of the usual decoding: {".msgpack": msgpack.unpackb}. The longest one that an extension ends with is
            taken. An error in the function becomes a CorruptRecordError with the example's key.
        remote: of URLs: how objects are fetched, and where they are cached. None means RemoteOptions().
        missing: how to treat samples that lack a member of a field that others have. "error" raises ShardError here.
            "skip" leaves them out, as `subset` does: lengths are exact, and `index` stays the number in the tars.
            "none" reads None, and -100 as a label of `cls`, as for an optional feature of TFDS; no sample may lack an
            image, except where `decode` asks for its bytes. The log and `num_incomplete` have their number.

    Raises:
        ConfigError: an argument cannot work; the message says which values can.
        ShardError: a tar is missing or compressed, or holds links, sparse files, split samples, or names that leave
            their folder; some samples lack a field that others have, where `missing` does not say what to do.
        CorruptRecordError: a file is cut short, or is not a tar.
    """

    dataset: TarDataset

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        fields: Mapping[str, str] | Sequence[str] = DEFAULT_EXTENSIONS,
        class_names: Sequence[str] | None = None,
        shuffle: bool | None = None,
        is_training: bool = False,
        batch_size: int | None = None,
        repeats: int = 0,
        *,
        seed: int = 42,
        remainder: Remainder | str | None = None,
        preprocess: Preprocess | None = None,
        image_mode: str | None = "RGB",
        class_map: Mapping[Any, int] | str | os.PathLike[str] | None = None,
        read: ReadOptions = ReadOptions(),
        epoch_size: int | None = None,
        decode: Mapping[str, bool] | None = None,
        transform: Any = None,
        decoders: Mapping[str, Decoder] | None = None,
        remote: RemoteOptions | None = None,
        missing: Missing = "error",
    ) -> None:
        check_choice("missing", missing, MISSING)
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
        super().__init__(TarDataset(urls, decoding, fields, class_names, decoders, remote, missing), epoch)

    @property
    def paths(self) -> list[Path | str]:
        """The tars: paths of local files, and texts of URLs."""
        return self.dataset.paths

    @property
    def extensions(self) -> dict[str, tuple[str, ...]]:
        """Field -> its extensions, for the fields that at least one sample has."""
        return self.dataset.extensions

    @property
    def other_extensions(self) -> tuple[str, ...]:
        """Extensions in the tars that no field has."""
        source = self.dataset.source
        taken = {one for names in source.alternatives.values() for one in names}
        return tuple(one for one in source.index.extensions if one not in taken)

    @property
    def num_skipped(self) -> int:
        """How many files in the tars belong to no sample: tar tools leave some."""
        return self.dataset.source.num_skipped

    @property
    def num_incomplete(self) -> int:
        """How many samples lack a member of a field: left out with missing="skip", read with None with "none"."""
        return self.dataset.num_incomplete
