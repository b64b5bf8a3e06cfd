"""Dataset: the examples of a split, how their fields are decoded, and all that needs no epoch."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Example, are_labels
from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import (
    BYTES_SPEC,
    BytesField,
    Content,
    EncodedField,
    FieldDecoder,
    ImageField,
    ImagesBeside,
    ListField,
    StoredField,
)
from tfds_torch.engines.options import BLOCKS_OF_SOURCE, ReadOptions
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.engines.transform_chain import Chains
from tfds_torch.engines.transforms import Transform
from tfds_torch.engines.window_fields import WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows, looks_like_boxes
from tfds_torch.images.decoders import jpeg
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.box_rows import check_box_fields, named_boxes
from tfds_torch.parsers.class_map import ClassMap, MappedField, load_class_map
from tfds_torch.parsers.examples import check_are_in, examples_at_once, find_examples, find_place
from tfds_torch.parsers.options import DecodeOptions, check_has_image
from tfds_torch.parsers.protocol import (
    DEFAULT_FIELDS,
    METADATA_FIELDS,
    METADATA_SPECS,
    ElementSpec,
    field_name,
    find_varying,
    flat_names,
    stored_key,
    stored_name,
)
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.parsers.statistics import MemberStatistics, Statistics, read_statistics
from tfds_torch.parsers.targets import read_all_targets, read_targets
from tfds_torch.parsers.transformed import TransformedFields
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.subset import Subset, make_subset
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec, Source


class Dataset(ABC):
    """The examples of a split, or of a subset of it: fields, classes, single examples, targets, columns.

    It has no order, no epoch and no batches: those are a parser's. Nothing of an example is read until it is asked for.
    It can be pickled, and used from several processes. The class of a format says which fields are stored; it sets
    the attributes that its methods need before it calls this constructor, which checks all arguments.

    Args:
        source: the encoded examples of the split; its files are opened where the first example is read.
        split: the split expression.
        decoding: how examples are read and decoded.
        image_key: the stored field behind `image`; None where there is none.
        target_key: the stored field behind `label`, or a tuple of several; None where there is none.
        selected: which examples of the split there are; None for all of them.

    Attributes:
        class_map: how the target gets new labels; None where it keeps its labels.

    Raises:
        ConfigError: an argument cannot work with the stored examples.
    """

    source: Source
    target_key: str | tuple[str, ...] | None

    is_by_number = False
    """Whether no stream can read the examples, so that a parser refuses those modes at once."""

    declares_boxes = False
    """Whether the fields that are boxes are known, at any depth."""

    declares_sizes = True
    """Whether shapes are known before an example is read."""

    def __init__(
        self,
        source: Source,
        split: str,
        decoding: DecodeOptions,
        image_key: str | None,
        target_key: str | tuple[str, ...] | None,
        selected: Subset | None = None,
    ) -> None:
        self.split, self.selected = split, selected
        self.image_key, self.target_key = image_key, target_key
        self._open(source, decoding)
        self._check_keys()
        self._undecoded = self._find_undecoded()
        if self.read.jpeg_decoder == "auto" and image_key is not None and not self.is_undecoded("image"):
            jpeg.warn_of_problems()
        self._check_preprocess()
        self.class_map = self._make_class_map(decoding.class_map)
        self._forms: dict[Any, Any] = {}  # The values that transforms make, as far as their forms are learnt.
        if self.declares_sizes:
            self.transformed.check()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset_name}, split={quoted(self.split)}, num_examples={self.num_examples})"
        )

    def _open(self, source: Source, decoding: DecodeOptions) -> None:
        """Set the source; it is read in blocks where that is best for it and the options leave the choice."""
        read = decoding.read
        is_by_index = read.mode in ("auto", "index")
        if is_by_index and read.block_records == BLOCKS_OF_SOURCE and source.block_records is not None:
            read = replace(read, block_records=source.block_records)
        self.decoding = replace(decoding, read=read)
        self.source = source.in_blocks(None if read.blocks is None else read.blocks.block_records)

    # Answers of a format about its files.

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, Any]:
        """Stored field -> shape and dtype of one value, or dictionaries of them, decoded."""

    @abstractmethod
    def _field(self, name: str) -> FieldDecoder:
        """Return how a field is decoded that is not a metadata field; `stored/<key>` is the stored field of that key.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """

    @abstractmethod
    def _encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored, before the class map."""

    @abstractmethod
    def _find_stored(self, name: str) -> tuple[object, bool]:
        """Return how a field is stored, for messages, and whether it is an image; raise the errors of `_field`."""

    @abstractmethod
    def provenance(self) -> Provenance:
        """Return where the examples lie, what records their number, and whether other code can read them."""

    @property
    @abstractmethod
    def _has_integer_target(self) -> bool:
        """Whether the stored target is one integer."""

    @property
    @abstractmethod
    def _stored_class_names(self) -> list[str] | None:
        """Names of the classes by the label that is stored; None where they are unknown."""

    @property
    @abstractmethod
    def _folder(self) -> str:
        """The folder that absolute file names begin with."""

    @property
    def _all_fields(self) -> Sequence[str]:
        """The stored fields, by name."""
        return list(self.specs)

    def _file_names(self) -> list[str]:
        """Return a name for every example of the split, in the order of `index`."""
        return list(self.ids(np.arange(len(self.source))))

    # The split

    @property
    def _where(self) -> str:
        return f"{self.dataset_name}, split {quoted(self.split)}"

    @property
    def dataset_name(self) -> str:
        """`name/config:version`, with what was found on disk."""
        return self.source.name

    @property
    def read(self) -> ReadOptions:
        """How its files are read."""
        return self.decoding.read

    @property
    def preprocess(self) -> Preprocess | None:
        """How images are cut and resized while they are decoded; None where they come as stored."""
        return self.decoding.preprocess

    @property
    def transforms(self) -> Sequence[Transform]:
        """The user's functions that examples go through before they become a batch, in turn."""
        return self.decoding.transforms

    @property
    def image_mode(self) -> str | None:
        """The mode of images: RGB, L, RGBA; None for the channels as stored."""
        return self.decoding.image_mode

    @property
    def num_examples(self) -> int:
        """Examples of the split, or of the subset."""
        return len(self.source) if self.selected is None else len(self.selected)

    def __len__(self) -> int:
        """Return the number of examples of the split, or of the subset: with `dataset[i]`, a random-access source."""
        return self.num_examples

    @property
    def indices(self) -> Int64Array:
        """The numbers of the examples in the split, int64 [n], in the order of the dataset, or of the subset."""
        return np.arange(len(self.source), dtype=np.int64) if self.selected is None else self.selected.numbers

    @property
    def num_shards(self) -> int:
        """Files of the split that hold examples of it; every image of an image folder is one."""
        if not self.source.has_shards:
            return len(self.source)
        return len({instruction.path for instruction in self.source.instructions})

    @property
    def has_windows(self) -> bool:
        """Whether examples are windows of episodes: of a mixture, whether those of all members are."""
        return False

    @property
    def cameras(self) -> Mapping[str, Preprocess]:
        """Field -> how its images are cut and resized while they are decoded, of windows."""
        return {}

    @property
    def fingerprint(self) -> str:
        """Hex digest of name, version, split, shard lengths and subset: equal where `index` means the same examples."""
        return self.digest({} if self.selected is None else {"subset": self.selected.digest})

    def digest(self, chosen: Mapping[str, Any]) -> str:
        """Return the hex digest of these examples and of the choices that were made of them, as plain JSON values."""
        return digest_of(self.dataset_name, self.split, self.source.identity, dict(chosen))

    def ids(self, index: NDArray[np.int64]) -> Sequence[str]:
        """Return TFDS's ids, `<shard file>__<record>`, of examples given by index, int64 [n]; computed when looked at.

        The ids of an image folder are the paths below its root, `<split>/<label>/<image>`.

        Args:
            index: numbers of examples in the split, int64 [n].
        """
        return self.source.ids(index)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example of the split, in the order of `index`: its id.

        ParserTfds takes the values of the feature `file_name`, `filename`, `image/filename`, `id` or `image_id`, where
        the dataset has one of them: that takes one pass over the shards.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the folder of the files: the version directory, or the root of an image folder.

        Raises:
            ConfigError: names are among the features, and the shards can only be streamed.
            ShardError: a shard is missing or damaged.
        """
        names = self._file_names()
        if basename:
            names = [os.path.basename(name) for name in names]
        return [os.path.join(self._folder, name) for name in names] if absolute else names

    def subset(self, indices: Any) -> Self:
        """Return this dataset with some of its examples only; `index` and ids stay those of the split.

        Args:
            indices: numbers of examples in the split, in any order, each once, all of them this dataset's; or a mask,
                bool [n], of its examples in the order of `indices`.

        Raises:
            ConfigError: indices are neither.
        """
        there = len(self.source) if self.selected is None else self.selected.numbers
        return self._with(selected=make_subset(indices, there))

    def with_read(self, read: ReadOptions) -> Self:
        """Return this dataset with other options for reading, `read`."""
        dataset = self._with()
        dataset._open(self.source.with_checksums(read.verify_checksums), replace(self.decoding, read=read))
        return dataset

    def with_preprocess(self, preprocess: Preprocess | None) -> Self:
        """Return this dataset with another `preprocess`, or None; raise ConfigError where it does not fit."""
        dataset = self._with(decoding=replace(self.decoding, preprocess=preprocess))
        dataset._check_preprocess()
        return dataset

    def with_transform(self, transform: Any) -> Self:
        """Return this dataset with another `transform`, as a parser takes it; None: without any."""
        dataset = self._with(decoding=replace(self.decoding, transform=transform))
        if dataset.declares_sizes:
            dataset.transformed.check()
        return dataset

    def _with(self, **values: Any) -> Self:
        """Return this dataset with other values of some attributes, unchecked."""
        dataset = copy.copy(self)
        vars(dataset).update({"_forms": {}, **values})
        return dataset

    # Fields

    @property
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value as it is declared.

        For a field that a transform makes, they are those of its argument `gives`: None where it has the name only.
        """
        stored = self.stored_spec
        return ElementSpec({**stored.fields, **self.transformed.specs}) if self.transforms else stored

    @property
    def stored_spec(self) -> ElementSpec:
        """The fields that are stored, with shape and dtype of one value as it is declared."""
        specs = {field_name(name): spec for name, spec in self.specs.items()}
        return ElementSpec(
            {name: BYTES_SPEC if self.is_undecoded(name) else spec for name, spec in specs.items()} | METADATA_SPECS
        )

    def field(self, name: str) -> FieldDecoder:
        """Return how a field is decoded: `image`, `label` (after the class map), or any feature of the dataset.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """
        found = self._bytes_field(name)
        if found is not None:
            return found
        decoder = self._field(name)
        return decoder if self.class_map is None or name != "label" else MappedField(decoder, self.class_map)

    def encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as stored, a label after the class map; also a field with a metadata name.

        Raises:
            ConfigError: it does not exist, or only tensorflow could decode it.
        """
        given = self.transformed.specs
        if name in given:  # A value of the form that is declared, by the transform or else by the dataset.
            spec = given[name] or (self._encoded_field(name).spec if self.is_stored(name) else None)
            return EncodedField(StoredField(name), "value", spec)
        found = self._encoded_field(name)
        if self.class_map is None or name != "label":
            return found
        decoder = MappedField(self._field(name), self.class_map)
        return EncodedField(
            decoder, "value", FieldSpec((), np.int64) if self._has_one_target else None, found.is_optional
        )

    def is_undecoded(self, name: str) -> bool:
        """Return whether a field comes as the bytes that are stored, as `decode` asks for."""
        return name in self.decoding.undecoded or self._bytes_field(name) is not None

    def _bytes_field(self, name: str) -> BytesField | None:
        """Return a field that comes as bytes; None where it is decoded."""
        if not self._undecoded:
            return None
        try:
            key = self._bytes_key(name)
        except ConfigError:  # It is not a field, or cannot come as bytes.
            return None
        return BytesField(key) if key in self._undecoded else None

    def _bytes_key(self, name: str) -> str:
        """Return the stored field that holds the bytes of a field.

        Raises:
            ConfigError: it does not exist, or is not stored as bytes.
        """
        found = self._encoded_field(name)
        if isinstance(found.decoder, StoredField) and found.kind in ("image", "text"):
            return found.decoder.key
        raise self._no_bytes(name, quoted(self._find_stored(name)[0]), "Leave it out of decode.")

    def _no_bytes(self, name: str, what: object, advice: str) -> ConfigError:
        return ConfigError(
            f"{self.dataset_name}: decode names {quoted(name)}, which is {what}, not stored as bytes: only "
            f"single images and texts can come undecoded. {advice}"
        )

    def _find_undecoded(self) -> frozenset[str]:
        """Return the stored fields that come as bytes.

        Raises:
            ConfigError: a field does not exist, or is not stored as bytes; or two names of one stored field contradict
                each other.
        """
        keys: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for name, is_decoded in (self.decoding.decode or {}).items():
            keys[is_decoded][self._bytes_key(name)] = name
        undecoded, decoded = keys[False], keys[True]
        for key in undecoded.keys() & decoded.keys():
            raise ConfigError(
                f"{self.dataset_name}: decode={quoted(self.decoding.decode)}: {quoted(undecoded[key])} and "
                f"{quoted(decoded[key])} are one stored field, which comes either as bytes or decoded. Name it once."
            )
        return frozenset(undecoded)

    @property
    def _has_one_target(self) -> bool:
        """Whether the target is one integer, after the class map."""
        return self._has_integer_target

    @property
    def has_one_label(self) -> bool:
        """Whether the field `label` is one integer, which becomes `Batch.label`."""
        return self._has_one_target and not self.is_undecoded("label")

    @property
    def has_markable_label(self) -> bool:
        """Whether padding can be told by its label, which is -100, or NaN among floats; True where it is not known."""
        if self.has_one_label:
            return True
        try:
            spec = self.encoded_field("label").spec
        except ConfigError:
            return True
        return spec is None or (np.dtype(spec.dtype).kind in "ifc" and None not in spec.shape)

    @property
    def has_optional_label(self) -> bool:
        """Whether examples may have no label: then it is -100, or NaN among floats."""
        return False

    def images_beside(self, fields: Sequence[str]) -> frozenset[str]:
        """Return which of some fields are single images [H, W, C] that are not *the* image, like masks."""
        own = [name for name in fields if name not in ("image", *METADATA_FIELDS)]
        own = [name for name in own if not self.transformed.may_give(name) or self.is_stored(name)]
        return frozenset(name for name in own if isinstance(self.field(name), ImagesBeside))

    def varying_fields(self, fields: Sequence[str]) -> frozenset[str]:
        """Return the fields of which a value has a side that varies, as it is declared: lists in every batch.

        Images are not among them: images of one size make one array, as `image` does. Fields of datasets that declare
        no shapes are not among them either: an item would have to be read.
        """
        given = {name: spec for name, spec in self.transformed.specs.items() if spec is not None and name in fields}
        found = frozenset(name for name, spec in given.items() if name != "image" and None in spec.shape)
        if not self.declares_sizes:
            return found
        sized = {"image", *self.images_beside(fields), *given}
        if self.preprocess is not None:
            sized.update(self.preprocess.also_kinds)
        declared = {name: name for name in fields if name not in sized}
        if "label" in declared and self._declared_target is not None:
            declared["label"] = self._declared_target
        return found | find_varying(self.stored_spec, declared)

    @property
    def _declared_target(self) -> str | None:
        """The declared field behind `label`, where it has another name."""
        is_other = isinstance(self.target_key, str) and "label" not in self.element_spec.fields
        return self.target_key if is_other else None  # type: ignore[return-value] # It is a text.

    @property
    def has_image_numbers(self) -> bool:
        """Whether `image` is numbers that no picture has: 13 channels, 16 bits, floats."""
        decoder = self.field("image")
        return isinstance(decoder, ImageField) and decoder.is_deep

    def has_field(self, name: str) -> bool:
        """Return whether a field exists: `image` and `label` by image_key and target_key, or fields of a transform."""
        return name in METADATA_FIELDS or name in self.transformed.specs or self.is_stored(name)

    def check_fields(self, fields: Sequence[str]) -> None:
        """Raise ConfigError where one of `fields` does not exist, or `image` or `label` names no suitable feature."""
        if isinstance(fields, str):
            raise ConfigError(f"fields={quoted(fields)} must be a sequence of field names, such as ('image', 'label').")
        for name in fields:
            if not isinstance(name, str):
                raise ConfigError(f"fields={quoted(fields)}: {quoted(name)} is not a field name.")
            if name not in METADATA_FIELDS and not self.transformed.may_give(name):
                self.field(name)

    def moving_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> tuple[BoxRows, ...]:
        """Return which boxes among some fields move with the image as a preprocess changes it."""
        return named_boxes(preprocess, fields, self.target_key)

    def unmoved_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> list[str]:
        """Return the fields that are boxes, or look like them, and stay those of the whole image beside a preprocess.

        Formats that declare no boxes have names only.
        """
        return [] if preprocess.box_fields is not None else list(filter(looks_like_boxes, fields))

    def all_fields(self) -> dict[str, str]:
        """Return name -> field for all fields that the dataset, or its transforms, declare; nested ones by flat names.

        The feature that `image_key` names is the field `image`, and that of `target_key` `label`, so that preprocess
        and class map hold for them.
        """
        own = {self.image_key: "image", self.target_key: "label"}
        own = {key: field for key, field in own.items() if self.has_field(field)}
        return {name: own.get(name, name) for name in flat_names(self.element_spec)}

    def encoded_names(self) -> list[str]:
        """Return the fields of an example as it is stored: image and label first, then the dataset's other ones."""
        names = [name for name in DEFAULT_FIELDS if self.is_stored(name)]
        behind = {self._encoded_field(name).decoder.keys for name in names}
        names += [name for name in self._all_fields if name not in names and self._keys_of(name) not in behind]
        return names + [name for name in self.transformed.specs if name not in names]

    def _keys_of(self, name: str) -> tuple[str, ...] | None:
        try:
            return self._encoded_field(name).decoder.keys
        except ConfigError:  # Only tensorflow could decode it: asking for it raises this error.
            return None

    def content(
        self,
        fields: Sequence[str],
        *,
        in_buffers: bool = False,
        has_cameras: bool = False,
        is_preprocessed: bool = True,
        in_batches: bool = True,
    ) -> Content:
        """Return the content to decode for some fields.

        Args:
            fields: the fields that are asked for.
            in_buffers: whether `image` goes into batch buffers also without a preprocess.
            has_cameras: whether images of windows go into batch buffers.
            is_preprocessed: whether images are cut and resized.
            in_batches: whether whole batches are made, in which values whose size varies are lists.
        """
        chains = self.transformed.chains(fields, in_batches=in_batches, is_preprocessed=is_preprocessed)
        is_made = chains is not None and chains.gives("label")
        has_label = "label" in fields and (self.has_one_label or is_made)
        fields = fields if chains is None else chains.inner
        decoders = {name: self.transformed.column_field(name) for name in fields if name not in METADATA_FIELDS}
        for name, decoder in decoders.items():
            if isinstance(decoder, ImageField | WindowImageField):
                decoders[name] = replace(decoder, jpeg_decoder=self.read.jpeg_decoder)
            elif isinstance(decoder, ImagesBeside):
                kinds = {} if self.preprocess is None else self.preprocess.also_kinds
                decoders[name] = decoder.of_kind(kinds.get(name), self.read.jpeg_decoder)
        for name in self.varying_fields(list(filter(self.is_stored, decoders))) if in_batches else ():
            if not isinstance(decoders[name], ImageField | WindowImageField):
                decoders[name] = ListField(decoders[name])
        cameras = {name: one for name, one in decoders.items() if has_cameras and isinstance(one, WindowImageField)}
        decoders = {name: one for name, one in decoders.items() if name not in cameras}
        image = decoders.get("image")
        preprocess = self.preprocess if is_preprocessed else None
        is_one_array = in_buffers or preprocess is not None
        in_buffers = in_buffers and (chains is None or not chains.touches("image"))
        if preprocess is not None:
            check_has_image(fields, preprocess)
        content = Content(decoders, has_label, cameras=cameras, chains=chains, are_one_array=is_one_array)
        if isinstance(image, ImageField) and ((in_buffers and not image.is_deep) or preprocess is not None):
            del decoders["image"]
            boxes = () if preprocess is None else self.moving_boxes(fields, preprocess)
            is_open = preprocess is not None and preprocess.box_fields is None and not self.declares_boxes
            return replace(content, image=image, preprocess=preprocess, boxes=boxes, may_hold_boxes=is_open)
        return replace(content, are_whole=not is_preprocessed)

    def request(self, request: ReadRequest) -> ReadRequest:
        """Return a request, changed so that examples of this kind are read in the best way."""
        return request

    # Transforms

    reserved_names = frozenset(METADATA_FIELDS)
    """The fields that no transform may make: they say which example it is."""

    @property
    def transformed(self) -> TransformedFields:
        """The fields behind the transforms."""
        return TransformedFields(self, self._forms)

    def is_stored(self, name: str) -> bool:
        """Return whether a field exists without the transforms: `image` and `label` by image_key and target_key."""
        try:
            self.field(name)
        except ConfigError:
            return False
        return True

    def image_axes(self, name: str) -> int:
        """Return the number of axes of a stored field of images, with axes of time; 0: it is not a field of images."""
        decoder = self.field(name)
        is_image = isinstance(decoder, ImageField | ImagesBeside)
        return 3 if is_image and not self.is_undecoded(name) else 0

    def is_channels_first(self, name: str) -> bool:
        """Return whether the values of a stored field are images [..., C, H, W], as in windows."""
        return False

    # Checks of the arguments

    def _check_keys(self) -> None:
        """Check keys that were set by hand; the default fields may be missing until they are asked for."""
        for name, key in (("image", self.image_key), ("label", self.target_key)):
            if key not in (None, name):
                self._find_stored(name)

    def _check_preprocess(self) -> None:
        if self.preprocess is None:
            return
        self._find_stored("image")
        for name in ("image", *self.preprocess.also_kinds):
            if self.is_undecoded(name):
                raise ConfigError(
                    f"{self.dataset_name}: decode gives {quoted(name)} as bytes, and {quoted(self.preprocess)} works "
                    f"on its pixels. Leave out the preprocess, and decode the bytes where you need pixels "
                    f"(ImageDataset's transform gets them); or leave {quoted(name)} out of decode."
                )
        for name in self.preprocess.also_kinds:
            stored, is_image = self._find_stored(name)
            if not is_image:
                raise ConfigError(
                    f"{self.dataset_name}: also={self.preprocess.also} names {quoted(name)}, which is not an image but "
                    f"{quoted(stored)}. Only images go through the same crop."
                )
        check_box_fields(self.preprocess, self.specs, self._find_stored, self.dataset_name)

    def _goes_along(self, name: str) -> bool:
        """Return whether the preprocess names a field as an image that goes through the crop of the image."""
        return self.preprocess is not None and name in self.preprocess.also_kinds

    def _make_class_map(self, class_map: object) -> ClassMap | None:
        if class_map is None:
            return None
        if self.is_undecoded("label"):
            raise ConfigError(
                f"{self.dataset_name}: class_map gives new labels, and decode gives 'label' as bytes. Leave out one."
            )
        entries = load_class_map(class_map)
        self._check_target_can_be_mapped()
        mapped = ClassMap(entries, self._stored_class_names, self.dataset_name)
        mapped.check_covers_classes()
        return mapped

    def _check_target_can_be_mapped(self) -> None:
        if not self._has_integer_target:
            raise ConfigError(
                f"{self.dataset_name}: class_map gives new labels to integers, and there is no field 'label' of "
                f"integers. Name such a field, or leave out class_map."
            )

    def _key_among(self, stored: Mapping[str, Any], name: str) -> str | None:
        """Return the stored field behind a field; None where image_key or target_key is None."""
        key, own = {"image": self.image_key, "label": self.target_key}.get(name, name), stored_key(name)
        return own if key not in stored and own in stored else key  # type: ignore[return-value] # One target.

    def _missing(self, name: str, key: str | None, stored: Mapping[str, object], there: str, advice: str = "") -> str:
        """Return the message for a field that is not stored; `there` shows the stored ones."""
        if key is None:
            argument = "image_key" if name == "image" else "target_key"
            return f"{self.dataset_name}: there is no field {quoted(name)}: {argument}=None."
        argument = {"image": " (image_key)", "label": " (target_key)"}.get(name, "")
        return f"{self.dataset_name} has no field {quoted(key)}{argument}: {there}.{advice}{did_you_mean(key, stored)}"

    # Classes

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, by label; None when the target has no classes, or not one name for each."""
        return self._stored_class_names if self.class_map is None else self.class_map.class_names

    @property
    def class_to_idx(self) -> dict[Any, int]:
        """Class name -> label, or the class map; empty when the target has no classes, or they are unknown."""
        if self.class_map is not None:
            return dict(self.class_map.entries)
        return {name: label for label, name in enumerate(self.class_names or [])}

    # Single examples

    @overload
    def __getitem__(self, key: slice) -> list[Example]: ...
    @overload
    def __getitem__(self, key: int | str) -> Example: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the example of an index or an id, or a list of those of a slice.

        It has image and label, as far as the dataset has them. Where it has neither, for example because image_key and
        target_key are None, it has all features, also those named `image` and `label`; a window of an episode has all
        of its fields. A feature `image` that is not an image comes as the feature `stored/image`.

        The image is whole, uint8 [H, W, C], whatever the preprocess: crops belong to a pass. A negative index counts
        from the end; iterating ends with the split. For more than a few examples use `examples_by_index`.

        Raises:
            ConfigError: key is not an index, id or slice, or the files can only be streamed.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        return self.at(key)

    def at(self, key: Any, seed: int = 0) -> Any:
        """Return the example of an index or an id, or those of a slice, as `dataset[key]`.

        Args:
            key: see there.
            seed: of the random numbers of transforms, which are those of the first pass.
        """
        if isinstance(key, slice):
            places = range(*key.indices(self.num_examples))
            numbers = places if self.selected is None else self.selected.numbers[list(places)].tolist()
            return self.whole_examples(numbers, seed)
        return self.whole_examples(self.numbers_at([key]), seed)[0]

    def numbers_at(self, places: Iterable[int | str]) -> list[int | str]:
        """Return the numbers of examples in the split by their places in the dataset; equal for a whole split.

        Args:
            places: integers, -num_examples <= i < num_examples; ids are left as they are.

        Raises:
            ExampleNotFoundError: there is no such place.
        """
        if self.selected is None:
            return list(places)
        return [
            one if isinstance(one, str) else int(self.selected.numbers[find_place(self.selected, self._where, one)])
            for one in places
        ]

    def whole_examples(self, indices_or_ids: Iterable[int | str], seed: int = 0) -> list[Example]:
        """Return examples with image and label; windows, and examples that have neither, with all fields.

        All examples have the fields that transforms make. Where a transform does not say which fields it reads, all
        examples have all fields.
        """
        given = list(self.transformed.specs)
        if self.has_windows:
            fields = [*(field_name(key) for key in self._all_fields), *given]
            return self.examples_by_index(indices_or_ids, list(dict.fromkeys(fields)), seed=seed)
        if self.transformed.reads_any:
            return self.examples_by_index(indices_or_ids, list(self.all_fields().values()), seed=seed)
        fields = [name for name in DEFAULT_FIELDS if self.is_stored(name) or name in given]
        if fields:
            if "image" not in fields and self.is_stored(stored_name("image")):  # Not an image, and not left out.
                fields.append(stored_name("image"))
            return self.examples_by_index(indices_or_ids, list(dict.fromkeys([*fields, *given])), seed=seed)
        own = {stored_name(key): key for key in DEFAULT_FIELDS if key in self._all_fields}
        fields = [*own, *(field_name(key) for key in self._all_fields if key not in DEFAULT_FIELDS), *given]
        examples = self.examples_by_index(indices_or_ids, list(dict.fromkeys(fields)), seed=seed)
        return [
            replace(example, features={own.get(name, name): value for name, value in example.features.items()})
            for example in examples
        ]

    def examples_by_index(
        self, indices_or_ids: Iterable[int | str], fields: Sequence[str] = DEFAULT_FIELDS, *, seed: int = 0
    ) -> list[Example]:
        """Return examples in the order asked for, images whole, fetched together and decoded in this process.

        Args:
            indices_or_ids: indices in the split, as the field `index` has them (negative ones count from the end), and
                TFDS ids, `<shard file>__<record>` (of an image folder: the path below its root), in any mix and order;
                also several times the same.
            fields: the fields to decode: `image`, `label`, and any feature of the dataset.
            seed: of the random numbers of transforms, which are those of the first pass.

        Raises:
            ConfigError: a field that does not exist, a key that is neither index nor id, or remote files.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        index = self.find(indices_or_ids, fields)
        return self.decode(index, self.content(fields, is_preprocessed=False, in_batches=False), seed)

    def find(self, indices_or_ids: Iterable[int | str], fields: Sequence[str]) -> Int64Array:
        """Return the numbers in the split of examples to decode, int64 [n]; see `examples_by_index`."""
        self.check_fields(fields)
        self._check_can_fetch()
        index = find_examples(self.source, self.split, indices_or_ids)
        if self.selected is not None:
            check_are_in(self.selected, self._where, index)
        return index

    def encoded_examples(self, index: NDArray[np.int64], fields: Sequence[str]) -> list[Example]:
        """Return examples as they are stored, in the order asked for: see `EncodedField`.

        Args:
            index: int64 [n].
            fields: which of `encoded_names`. `label` has its new value where there is a class map.

        Raises:
            ConfigError: a field that does not exist, or remote files.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: an example is damaged.
        """
        self._check_can_fetch()
        has_label = "label" in fields and self._has_one_target
        chains = self.chains_of_export(fields)
        own = [name for name in fields if chains is None or name not in self.transformed.specs]
        decoders = {name: self.encoded_field(name).decoder for name in own}
        if chains is None:
            return self.decode(index, Content(decoders, has_label))
        (chain,) = chains.parts
        columns = {name: f"decoded:{name}" for name in chain.inner}
        decoders |= {column: self.field(name) for name, column in columns.items()}
        return self.decode(
            index, Content(decoders, has_label, chains=replace(chains, parts=(replace(chain, columns=columns),)))
        )

    def chains_of_export(self, fields: Sequence[str]) -> Chains | None:
        """Return the functions that examples go through as they are exported; None where they need none.

        Raises:
            ConfigError: a function belongs to an epoch, or to a member of a mixture.
        """
        remedy = "Export what is stored: parser.as_stored()."
        chains = self.transformed.without_epoch(fields, "an export", remedy)
        if chains is not None and len(chains.parts) > 1:
            raise ConfigError(
                f"{self.dataset_name}: an export of a mixture cannot run the transforms of its members. Export the "
                f"members one by one. {remedy}"
            )
        return chains

    def decode(
        self, keys: Int64Array, content: Content, seed: int = 0, context: ReadContext = ReadContext()
    ) -> list[Example]:
        """Return examples by their sample keys, int64 [n], in this order; keys of the first pass are indices."""
        if not len(keys):
            return []
        chunk_size = examples_at_once(self.source)
        num_threads = 1 if len(keys) <= chunk_size else self.read.threads_of_worker(1)
        found = read_examples(self.source, content, keys, num_threads, chunk_size, seed=seed, context=context)
        return [one for index, columns in found for one in self._examples_of(index, dict(columns), content.has_label)]

    def _examples_of(self, index: Int64Array, columns: dict[str, Any], has_label: bool) -> Iterator[Example]:
        image, labels = columns.pop("image", None), [None] * len(index)
        if has_label and are_labels(columns["label"]):
            labels = np.asarray(columns.pop("label"), np.int64).tolist()
        for i, (label, number, name) in enumerate(zip(labels, index.tolist(), self.ids(index), strict=True)):
            features = {key: values[i] for key, values in columns.items()}
            yield Example(None if image is None else image[i], label, number, name, features)

    def _check_can_fetch(self) -> None:
        if self.source.obstacle is not None:
            raise ConfigError(
                f"{self.dataset_name}: single examples cannot be fetched: {self.source.obstacle}. Copy the dataset to "
                f"this machine, or read it in order with batches()."
            )

    # All examples

    def targets(self, *, stored: bool = False) -> Any:
        """Return the targets of the examples, in the order of `indices`; no image is decoded.

        Those of a whole split are read once and kept in the user's cache folder, as long as the files are the same.
        Those that a transform makes are made each time.

        Args:
            stored: whether to return the targets that the dataset stores, also where a transform makes others.

        Returns:
            int64 [n] where each is one integer, else a list. None in an optional feature of TFDS is -100, and NaN among
            floats.

        Raises:
            ConfigError: there is no field `label`, the files are read as streams, a label is not in the class map, or a
                transform that may make `label` reads an image, takes random numbers, or does not name the fields that
                it reads.
            ShardError, CorruptRecordError: as reading raises them.
        """
        remedy = "What is stored comes with targets(stored=True)."
        chains = None if stored else self.transformed.without_epoch(["label"], "targets()", remedy)
        if chains is not None:
            decoders = {name: self.transformed.column_field(name) for name in chains.inner}
            return read_targets(self, Content(decoders, has_label=False, chains=chains))
        self.field("label")
        return read_all_targets(self, self._field("label"), self._stored_target)

    @property
    def _stored_target(self) -> object:
        """The stored field behind `label`, by which targets are kept for later runs; None: they cannot be kept."""
        return self.target_key

    def columns(self, fields: Sequence[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
        """Return fields of windows of episodes as arrays over all of them, in the order of `indices`.

        A row is the value of a window's own step, whatever the offsets of the field; with `Windows(stride=1)` there is
        a row for every step of every episode. So a condition over columns is a mask for `subset`. Only the bytes of
        these fields are read, each compared with its checksum, and no image is.

        A field that a Transform makes is as in batches: its function is called for every window, with all fields that
        it reads. Where the value has the steps of the field's offsets (of the offsets of the fields that it is made of,
        where the dataset has no field of its name), a row is the value of the window's own step.

        Args:
            fields: names of fields, as in `batches`: numbers and texts of steps, or of episodes, whose value is
                repeated; `episode`, `step`, and `<name>_pad`, bool [n, T].
            stored: whether to return the fields that the dataset stores, also where a Transform makes others.

        Returns:
            Name -> array [n, ...] of the declared dtype, or of the dtype that a function returns. Texts, which the
            dataset declares or `Windows(texts=...)` names, are objects [n] of str, equal ones the same object; other
            bytes are objects [n] of bytes.

        Raises:
            ConfigError: there are no windows; a field does not exist, is an image, or has no fixed size; a function
                failed, or returns other steps than the window's own.
            ShardError, CorruptRecordError: as reading raises them.
        """
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
            raise ConfigError(f"columns: fields={quoted(fields)} must be a list of the names of fields.")
        names = list(dict.fromkeys(fields))
        return (self.as_stored(names) if stored else self).columns_at(names, self.indices)

    def as_stored(self, fields: Sequence[str]) -> Self:
        """Return this dataset without transforms.

        Args:
            fields: names of the fields that will be asked for.

        Raises:
            ConfigError: one of these fields is only made by a transform.
        """
        if not self.transforms:
            return self
        for name in fields:
            if name not in METADATA_FIELDS and self.transformed.may_give(name) and not self.transformed.is_there(name):
                raise ConfigError(
                    f"{self.dataset_name}: with stored=True columns are what is stored, and {quoted(name)} is given by "
                    f"a transform. Leave out stored=True, or ask for what the dataset has."
                )
        return self.with_transform(None)

    def columns_at(self, fields: Sequence[str], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return fields of windows by their numbers, int64 [n], in the order asked."""
        raise ConfigError(
            f"{self.dataset_name}: columns are fields of the steps of episodes, and the examples of this parser are "
            f"whole records. Give ParserTfds windows=Windows('steps'). Labels of whole records are parser.targets()."
        )

    def number_of_none(self, field: str) -> float | None:
        """Return the number that stands for None in a column; None where the field is not optional, or unknown."""
        return None

    def column_keys(self, field: str) -> tuple[str, ...] | None:
        """Return the stored fields that a column is made of: its own name may be one that the user chose.

        None where a transform makes it, which may be another function in the next run.
        """
        return None if self.transformed.may_give(field) else self._encoded_field(field).decoder.keys

    def statistics(self, fields: Sequence[str], *, stored: bool = False) -> Statistics | MemberStatistics:
        """Return mean, std, min, max and two quantiles of fields of numbers, over the own steps of all windows.

        They describe the values in batches. They are computed in float64 once, and kept in the user's cache folder as
        long as the files are the same; those of a field that a Transform makes are computed each time. A subset has its
        own statistics, and a mixture those of each member: member -> statistics.

        Args:
            fields: names of fields of numbers, as in `columns`.
            stored: whether to use the fields that the dataset stores, also where a Transform makes others.

        Raises:
            ConfigError: there are no windows; a field does not exist, or is not numbers; or a value is not finite.
            ShardError, CorruptRecordError: as reading raises them.
        """
        return read_statistics(self.as_stored(fields) if stored else self, fields)
