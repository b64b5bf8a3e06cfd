"""ParserBase: what parsers over a Source do alike. A format's own parser opens the source and names its fields."""

import copy
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch, Example
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.fields import Content, EncodedField, FieldDecoder, ImageField
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.read_mode import assign, find_read_mode
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.engines.tensorflow_runtime import has_inherited_runtime
from tfds_torch.engines.tf_data import read_in_stream_mode
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.class_map import ClassMap, load_class_map
from tfds_torch.parsers.examples import decode_examples, find_examples
from tfds_torch.parsers.parser import DEFAULT_FIELDS, METADATA_FIELDS, ElementSpec, field_name, stored_name
from tfds_torch.parsers.parser_options import ParserOptions, check_preprocess, check_single_examples
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.assignment import Assignment
from tfds_torch.plan.epoch import LARGEST_KEY, EpochPlan
from tfds_torch.plan.world import World
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.one_thread import OneThreadIterator
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FileInstruction, Source

_Self = TypeVar("_Self", bound="ParserBase")


class ParserBase(ABC):
    """Reads a split by its Source: plans, batches, single examples. It can be pickled, and used from several processes.

    A subclass sets what its own methods need before it calls this constructor, which checks all arguments.

    Args:
        source: the examples of the split; its files are opened where the first example is read.
        split: the split expression.
        options: the arguments that every parser takes.
        image_key: what is stored of the field `image`; None: there is none.
        target_key: what is stored of the field `label`, several in a tuple; None: there is none.

    Raises:
        ConfigError: an argument that cannot work.
    """

    def __init__(
        self,
        source: Source,
        split: str,
        options: ParserOptions,
        image_key: str | None,
        target_key: str | tuple[str, ...] | None,
    ) -> None:
        self._source = source
        self.split = split
        self.is_training = options.is_training
        self.shuffle = options.is_training if options.shuffle is None else options.shuffle
        self.batch_size = options.batch_size
        self.repeats = options.repeats
        self.seed = options.seed
        self.remainder = options.remainder
        self.preprocess = options.preprocess
        self.image_mode = options.image_mode
        self.read = options.read
        self.image_key, self.target_key = image_key, target_key
        self._check_keys()
        self._check_preprocess()
        self._class_map = self._make_class_map(options.class_map)
        self.plan(World())  # What cannot work in any world is reported now.

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset_name}, split={quoted(self.split)}, num_examples={self.num_examples})"
        )

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, by label; None when the target has no classes, or not one name for each."""
        return self._stored_class_names if self._class_map is None else self._class_map.class_names

    @property
    def class_to_idx(self) -> dict[Any, int]:
        """Class name -> label, or the class map; empty when the target has no classes, or they are unknown."""
        if self._class_map is not None:
            return dict(self._class_map.entries)
        return {name: label for label, name in enumerate(self.class_names or [])}

    @property
    def class_map(self) -> ClassMap | None:
        """How the target gets new labels; None: it keeps its own."""
        return self._class_map

    # What a format's parser knows of its fields.

    @abstractmethod
    def _field(self, name: str) -> FieldDecoder:
        """Returns how a field is decoded that is not a metadata field; `stored/<key>` is the stored one of that key.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """

    @abstractmethod
    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored; also one with the name of a metadata field.

        Raises:
            ConfigError: it does not exist, or only tensorflow could decode it.
        """

    @property
    @abstractmethod
    def _has_integer_target(self) -> bool:
        """Whether the field `label` is one integer."""

    @property
    @abstractmethod
    def _all_fields(self) -> Sequence[str]:
        """The fields that an example of a dataset without image and label has."""

    @property
    @abstractmethod
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value as the dataset declares it."""

    @property
    @abstractmethod
    def _stored_class_names(self) -> list[str] | None:
        """Names of the classes by the label that is stored; None when they are unknown."""

    @abstractmethod
    def _find_stored(self, name: str) -> tuple[object, bool]:
        """Returns what is stored of a field, for messages, and whether that is an image.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """

    @property
    @abstractmethod
    def _folder(self) -> str:
        """The folder that absolute file names begin with."""

    def _file_names(self) -> list[str]:
        """Returns a name for every example, in the order of `index`."""
        return list(self.ids(np.arange(self.num_examples)))

    def _source_for(self, read: ReadOptions) -> Source:
        """Returns the source as other options read it."""
        return self._source

    # What is checked of the arguments.

    def _check_keys(self) -> None:
        """A key that was set by hand must exist; the defaults may be absent until they are asked for."""
        for name, key in (("image", self.image_key), ("label", self.target_key)):
            if key not in (None, name):
                self._find_stored(name)

    def _check_preprocess(self) -> None:
        check_preprocess(self.preprocess, self.batch_size, self.image_mode)
        if self.preprocess is None:
            return
        self._find_stored("image")
        for name in self.preprocess.also:
            stored, is_image = self._find_stored(name)
            if not is_image:
                raise ConfigError(
                    f"{self.dataset_name}: also={self.preprocess.also} names {quoted(name)}, which is not an image but "
                    f"{quoted(stored)}. Only images go through the same crop."
                )

    def _make_class_map(self, class_map: object) -> ClassMap | None:
        if class_map is None:
            return None
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

    # What is read.

    @property
    def dataset_name(self) -> str:
        """`name/config:version`, with what was found on disk."""
        return self._source.name

    @property
    def files(self) -> Sequence[FileInstruction]:
        """The split as TFDS's file instructions, none of them empty, in the order that `index` counts."""
        return self._source.instructions

    @property
    def num_shards(self) -> int:
        """Files of the split that hold examples of it; every image of an image folder is one."""
        if not self._source.has_shards:
            return self.num_examples
        return len({instruction.path for instruction in self.files})

    @property
    def num_examples(self) -> int:
        """Examples of the split."""
        return len(self._source)

    def __len__(self) -> int:
        """Examples of the split: with `parser[i]`, a random-access source."""
        return self.num_examples

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example over all splits of the dataset."""
        return self._source.mean_example_bytes

    @property
    def source(self) -> Source:
        """The encoded examples, by number."""
        return self._source

    @property
    def fingerprint(self) -> str:
        """Hex digest of name, version, split and shard lengths: equal where `index` means the same examples.

        An image folder has file names and sizes instead of shard lengths; a decoded cache with smaller images adds
        their size.
        """
        identity = (self.dataset_name, self.split, self._source.identity)
        return hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()

    def ids(self, index: NDArray[np.int64]) -> Sequence[str]:
        """Returns TFDS's ids, `<shard file>__<record>`, of examples given by index, int64 [n]; computed when looked at.

        The ids of an image folder are the paths below its root, `<split>/<label>/<image>`.
        """
        return self._source.ids(index)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Returns a name for every example, in the order of `index`: its id.

        ParserTfds takes the values of the feature `file_name`, `filename`, `image/filename`, `id` or `image_id`, where
        the dataset has one of them: that takes one pass over the shards.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the folder of the files: the version directory, or the root of an image folder.

        Raises:
            ConfigError: names are among the features, and the shards are remote.
            ShardError: a shard is missing or damaged.
        """
        names = self._file_names()
        if basename:
            names = [os.path.basename(name) for name in names]
        return [os.path.join(self._folder, name) for name in names] if absolute else names

    def has_field(self, name: str) -> bool:
        """Whether a field exists: `image` and `label` by image_key and target_key."""
        try:
            self.check_fields([name])
        except ConfigError:
            return False
        return True

    def check_fields(self, fields: Sequence[str]) -> None:
        """Raises ConfigError when a field does not exist, or `image` or `label` names no suitable feature."""
        for name in fields:
            if not isinstance(name, str):
                raise ConfigError(f"fields={quoted(fields)}: {quoted(name)} is not a field name.")
            if name not in METADATA_FIELDS:
                self._field(name)

    def plan(self, world: World, *, first_example: int = 0) -> EpochPlan:
        """Returns the arithmetic of an epoch for one place in the world.

        Args:
            world: the grid, and the place in it.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; the plan is that of the rest.

        Raises:
            ConfigError: the number of examples, the batch size and the remainder cannot work together there.
        """
        default = EpochPlan.default_remainder(self.is_training, world)
        try:
            return EpochPlan(
                num_examples=self.num_examples,
                world=world,
                batch_size=1 if self.batch_size is None else self.batch_size,
                remainder=default if self.remainder is None else self.remainder,  # type: ignore[arg-type] # A name, too.
                is_training=self.is_training,
                repeats=self.repeats,
                shuffle=self.shuffle,
                seed=self.seed,
                blocks=self.read.blocks,
                first_example=first_example,
            )
        except ConfigError as error:
            raise ConfigError(f"{self.dataset_name}, split {quoted(self.split)}: {error}") from None

    def read_mode(self, world: World) -> str:
        """Returns the read mode in a world: `index`, `files` or `examples`.

        Raises:
            ConfigError: a mode was asked for where it cannot keep its promises, or no mode can read the files.
        """
        return find_read_mode(self._source, self.split, self.plan(world), self.read)

    def assignment(self, world: World, epoch: int = 0) -> Assignment:
        """Returns which ranges of `files` the pipeline at this place of the world reads in an epoch.

        Raises:
            ConfigError: the read mode is `index`: there, `plan(world).batch` says what is in every batch.
        """
        return assign(self._source, self.plan(world), epoch, self.read_mode(world))

    def with_batch_size(self: _Self, batch_size: int) -> _Self:
        """Returns this parser with another batch size.

        Raises:
            ConfigError: batch_size is not an integer >= 1, or leaves no batch.
        """
        parser = copy.copy(self)
        parser.batch_size = check_integer("batch_size", batch_size, 1)
        parser.plan(World())
        return parser

    def with_read(self: _Self, read: ReadOptions) -> _Self:
        """Returns this parser, reading the same examples in another way."""
        parser = copy.copy(self)
        parser.read = read
        parser._source = self._source_for(read)
        return parser

    def with_preprocess(self: _Self, preprocess: Preprocess | None) -> _Self:
        """Returns this parser with another preprocess.

        Raises:
            ConfigError: it does not fit the dataset, or needs a batch_size or an image_mode that the parser lacks.
        """
        parser = copy.copy(self)
        parser.preprocess = preprocess
        parser._check_preprocess()
        return parser

    def batches(
        self,
        world: World = World(),
        epoch: int = 0,
        start_batch: int = 0,
        *,
        fields: Sequence[str] = DEFAULT_FIELDS,
        in_pieces: bool = False,
        context: ReadContext = ReadContext(),
        first_example: int = 0,
    ) -> Iterator[Batch]:
        """Yields the batches of one worker of one rank, to one thread.

        Args:
            world: the grid, and the place whose batches are wanted.
            epoch: which epoch, >= 0.
            start_batch: the rank's batch at which to begin. In mode `index` nothing of earlier ones is read; a stream
                passes over their encoded examples.
            fields: what to decode: `image`, `label`, and any feature of the dataset; the rest is not decoded.
            in_pieces: whether a batch may come as several, one after the other, each as soon as it is decoded;
                preprocessed images come in whole batches.
            context: what the run supplies: the memory of batches, metrics, the ranks of this machine.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; batches are dealt and counted from there on. In mode `index` only.

        Raises:
            ConfigError: fields that do not exist, or a world in which the plan cannot work.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        if self.batch_size is None and world.num_workers > 1:
            raise ConfigError(
                f"Evaluation with {world.num_workers} workers needs batch_size: a worker must know which batches are "
                f"its own."
            )
        self.check_fields(fields)
        plan = self.plan(world, first_example=first_example)
        epoch = plan.check_epoch(epoch)
        plan.worker_batches(start_batch)
        mode = find_read_mode(self._source, self.split, plan, self.read)
        in_pieces = in_pieces and self.preprocess is None
        if has_inherited_runtime() and self.preprocess is not None and self.preprocess.map_fn is not None:
            # A process that was forked after tensorflow ran must not use it, as a map_fn does.
            arguments = (self, world, epoch, start_batch, tuple(fields), context.num_local_ranks, first_example)
            made_there = subprocess_call.iterate(_batches_of, *arguments)
            return self._guarded(_move_into_buffers(made_there, context), context)
        content = self._content(fields, in_buffers=context.make_buffer is not None and not in_pieces)
        request = ReadRequest(
            self._source, plan, epoch, start_batch, content, self.read, in_pieces=in_pieces, context=context
        )
        batches = read_in_index_mode(request) if mode == "index" else read_in_stream_mode(request, mode)
        if "label" in content.fields and self._class_map is not None:
            batches = self._class_map.remap(batches)
        return self._guarded(batches, context)

    def _guarded(self, batches: Iterator[Batch], context: ReadContext) -> Iterator[Batch]:
        """Returns batches for one thread; a loader's worker, which reads ahead, has no other thread."""
        return batches if context.is_read_ahead else OneThreadIterator(batches, repr(self))

    def _content(self, fields: Sequence[str], *, in_buffers: bool, is_preprocessed: bool = True) -> Content:
        """Returns what is decoded for some fields; images in batch buffers where that is asked for or needed."""
        decoders = {name: self._field(name) for name in fields if name not in METADATA_FIELDS}
        has_label = "label" in decoders and self._has_integer_target
        image = decoders.get("image")
        preprocess = self.preprocess if is_preprocessed else None
        if image is None and preprocess is not None and set(preprocess.also) & set(fields):
            raise ConfigError(
                f"fields={tuple(fields)} has {sorted(set(preprocess.also) & set(fields))} without 'image', whose crop "
                f"they go through: add 'image'."
            )
        if isinstance(image, ImageField) and (in_buffers or preprocess is not None):
            del decoders["image"]
            return Content(decoders, has_label, image, preprocess)
        return Content(decoders, has_label)

    # Single examples.

    @overload
    def __getitem__(self, key: slice) -> list[Example]: ...
    @overload
    def __getitem__(self, key: int | str) -> Example: ...
    def __getitem__(self, key: Any) -> Any:
        """Returns the example of an index or an id, or a list of those of a slice.

        It has image and label, as far as the dataset has them. Without both, as where image_key and target_key are
        None, it has all features, those named `image` and `label` too. The image is whole, uint8 [H, W, C], whatever
        the preprocess: crops belong to a pass. A negative index counts from the end; iterating ends with the split. For
        more than a few use `examples_by_index`.

        Raises:
            ConfigError: key is not an index, id or slice, or the files are remote.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        if isinstance(key, slice):
            return self._examples(range(*key.indices(self.num_examples)))
        return self._examples([key])[0]

    def _examples(self, indices_or_ids: Iterable[int | str]) -> list[Example]:
        """Returns examples with image and label, as far as they have them; those without both have all features."""
        fields = [name for name in DEFAULT_FIELDS if self.has_field(name)]
        if fields:
            return self.examples_by_index(indices_or_ids, fields)
        own = {stored_name(key): key for key in DEFAULT_FIELDS if key in self._all_fields}
        fields = [*own, *(field_name(key) for key in self._all_fields if key not in DEFAULT_FIELDS)]
        examples = self.examples_by_index(indices_or_ids, fields)
        return [
            replace(example, features={own.get(name, name): value for name, value in example.features.items()})
            for example in examples
        ]

    def examples_by_index(
        self,
        indices_or_ids: Iterable[int | str],
        fields: Sequence[str] = DEFAULT_FIELDS,
        *,
        epoch: int | None = None,
        context: ReadContext = ReadContext(),
    ) -> list[Example]:
        """Returns examples in the order asked for, fetched together and decoded in this process.

        They are what `batches` yields, example by example: without a preprocess, or with it where an epoch is given.

        Args:
            indices_or_ids: indices (negative ones count from the end) and TFDS ids, `<shard file>__<record>` (of an
                image folder: the path below its root), in any mix and order; also several times the same.
            fields: what to decode: `image`, `label`, and any feature of the dataset.
            epoch: whose crops the images get: those of the first pass of that epoch; None: images are whole, whatever
                the preprocess.
            context: what the run supplies: the memory of preprocessed images, and metrics.

        Raises:
            ConfigError: a field that does not exist, something that is not an index or id, or remote files; or an
                epoch whose sample keys do not fit into int64, or an epoch and a preprocess with a map_fn.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields={quoted(fields)} must be a sequence of field names, such as ('image', 'label').")
        self.check_fields(fields)
        self._check_can_fetch()
        keys = find_examples(self._source, self.split, indices_or_ids)
        if epoch is not None:
            check_single_examples(self.dataset_name, self.preprocess)
            num_keys = max(1, self.repeats) * max(1, self.num_examples)
            keys = keys + check_integer("epoch", epoch, 0, LARGEST_KEY // num_keys - 1) * num_keys
        content = self._content(fields, in_buffers=False, is_preprocessed=epoch is not None)
        return decode_examples(self._source, content, self._class_map, self.read, keys, seed=self.seed, context=context)

    def encoded_names(self) -> list[str]:
        """Returns the fields of an example as it is stored: image and label first, then the dataset's other ones."""
        names = [name for name in DEFAULT_FIELDS if self.has_field(name)]
        behind = {self.encoded_field(name).decoder.keys for name in names}
        return names + [name for name in self._all_fields if name not in names and self._keys_of(name) not in behind]

    def encoded_examples(self, index: NDArray[np.int64], fields: Sequence[str]) -> list[Example]:
        """Returns examples as they are stored, in the order asked for: see `EncodedField`.

        Args:
            index: int64 [n].
            fields: which of `encoded_names`. `label` has its new value where there is a class map.

        Raises:
            ConfigError: a field that does not exist, or remote files.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: an example is damaged.
        """
        self._check_can_fetch()
        content = Content(
            {name: self.encoded_field(name).decoder for name in fields},
            has_label="label" in fields and self._has_integer_target,
        )
        return decode_examples(self._source, content, self._class_map, self.read, index)

    def _keys_of(self, name: str) -> tuple[str, ...] | None:
        try:
            return self.encoded_field(name).decoder.keys
        except ConfigError:  # Only tensorflow could decode it: asking for it raises this error.
            return None

    def _check_can_fetch(self) -> None:
        if self._source.obstacle is not None:
            raise ConfigError(
                f"{self.dataset_name}: single examples cannot be fetched: {self._source.obstacle}. Copy the dataset to "
                f"this machine, or read it in order with batches()."
            )


def _move_into_buffers(batches: Iterator[Batch], context: ReadContext) -> Iterator[Batch]:
    """Yields batches that another process has made, their images in buffers of this one."""
    for batch in batches:
        if context.make_buffer is None or batch.image is None:
            yield batch
            continue
        buffer = context.make_buffer(batch.image.shape)
        buffer.pixels[...] = batch.image
        yield replace(batch, image=buffer.images)


def _batches_of(
    parser: ParserBase,
    world: World,
    epoch: int,
    start_batch: int,
    fields: Sequence[str],
    num_local_ranks: int | None,
    first_example: int,
) -> Iterator[Batch]:
    context = ReadContext(num_local_ranks=num_local_ranks)
    return parser.batches(world, epoch, start_batch, fields=fields, context=context, first_example=first_example)
