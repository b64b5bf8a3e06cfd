"""ParserTfds: a TFDS dataset on disk as batches of numpy arrays."""

import copy
import hashlib
import importlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import tensorflow_datasets as tfds
from numpy.typing import NDArray
from tensorflow_datasets.proto import tf_example_pb2

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.builder_info import dataset_name, field_spec, split_files
from tfds_torch.parsers.dataset_fields import DatasetFields
from tfds_torch.parsers.dataset_opening import DatasetOpener
from tfds_torch.parsers.example_decoder import Example, ExampleDecoder
from tfds_torch.parsers.example_ids import find_examples
from tfds_torch.parsers.feature_keys import find_feature
from tfds_torch.parsers.parser import DEFAULT_FIELDS, LEDGER_FIELDS, Batch, ElementSpec, FieldSpec
from tfds_torch.parsers.single_examples import read_examples
from tfds_torch.parsers.split_stream import Content, PaintedImages, SplitStream
from tfds_torch.parsers.targets import class_names, make_class_map, parse_target_key
from tfds_torch.pipeline import tensorflow_runtime
from tfds_torch.pipeline.canvas import ArrayCanvas, MakeCanvas
from tfds_torch.pipeline.columns import CHANNELS, ImageColumn
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.pipeline.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.stream import Share
from tfds_torch.plan.world import World
from tfds_torch.records.record_run import RecordRun
from tfds_torch.runtime import fresh_process
from tfds_torch.runtime.clock import Clock
from tfds_torch.runtime.one_thread import OneThreadIterator

_logger = logging.getLogger(__name__)
_FILENAME_KEYS = ("file_name", "filename", "image/filename", "id", "image_id")


class ParserTfds:
    """Reads a split of a prepared TFDS dataset.

    Building one reads `dataset_info.json` and `features.json` only, and loads no tensorflow; `batches` loads it in the
    process that calls it. Parsers can be pickled, and may be used from several processes.

    Args:
        root: TFDS data directory, or the version directory of one dataset; None: TFDS's default data directory. For
            `image_folder`: the folder that holds `<split>/<label>/<image>.jpg` (or .jpeg, .png).
        name: `name`, `name/config`, `name:version` or `name/config:version`; or the path of a version directory; or
            `image_folder`, read as `tfds.ImageFolder` reads it.
        split: any TFDS split expression: `train`, `train[:10%]`, `train+test`, `train[5:7shard]`.
        shuffle: whether the order is shuffled anew in every epoch; None: as `is_training`.
        is_training: training fills the last batch with further examples; evaluation yields every example exactly once.
        batch_size: examples of a rank's batch, >= 1. Required in training, and in evaluation with several workers.
        repeats: passes over the split in one epoch; 0 and 1 mean one.
        seed: of the order, >= 0.
        remainder: `Remainder` or its name; None: `wrap` in training, in evaluation `pad` on several ranks, else `keep`.
        preprocess: `TrainPreprocess` or `EvalPreprocess`: images are cut, resized and flipped while they are decoded,
            and `batches` yields them as one array. Needs batch_size. None: images come as they are stored.
        image_key: feature that holds the image; None: the dataset has none.
        target_key: feature that holds the target; None: there is none. Several keys, also as "cat,dog", name numbers:
            the label is the list of the positions of those that are > 0. Keys are taken literally first, then with "/"
            as nesting.
        image_mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        class_map: new labels for the target, by source label (int) or class name; or the path of such a dict (`.pkl`),
            or of a text file (`.txt`) with a class name in each line. None: the target's own.
        read: how examples are read.
        download: whether to prepare (download and build) a dataset that is not there, once, in a process of its own.

    Raises:
        ConfigError: an argument that cannot work, with what is there instead.
        DatasetNotFoundError: no such dataset, or it is not prepared under `root`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        name: str | os.PathLike[str],
        split: str = "train",
        shuffle: bool | None = None,
        is_training: bool = False,
        batch_size: int | None = None,
        repeats: int = 0,
        *,
        seed: int = 42,
        remainder: Remainder | str | None = None,
        preprocess: Preprocess | None = None,
        image_key: str | None = "image",
        target_key: str | Sequence[str] | None = "label",
        image_mode: str | None = "RGB",
        class_map: Mapping[Any, int] | str | os.PathLike[str] | None = None,
        read: ReadOptions = ReadOptions(),
        download: bool = False,
    ) -> None:
        if is_training and batch_size is None:
            raise ConfigError("Training needs batch_size: how many examples of a rank make a batch.")
        if not isinstance(shuffle, bool | None):
            raise ConfigError(f"shuffle={shuffle!r} must be True, False or None (as is_training).")
        if not isinstance(read, ReadOptions):
            raise ConfigError(f"read={read!r} must be ReadOptions, for example ReadOptions(mode='examples').")
        if image_mode not in CHANNELS:
            raise ConfigError(f"Unknown image_mode {image_mode!r}: choose 'RGB', 'L', 'RGBA' or None (as stored).")
        self.is_training = is_training
        self.shuffle = is_training if shuffle is None else shuffle
        self.batch_size = batch_size
        self.repeats = repeats
        self.seed = seed
        self.remainder = remainder
        self.image_key = image_key
        self.image_mode = image_mode
        self.preprocess = preprocess
        self.split = split
        self._builder = _opener.open(root, name, download=download)
        self._stream = SplitStream(split, split_files(self._builder, split), read)
        self._check_slices()
        features = self._builder.info.features
        self.target_key = parse_target_key(target_key, features)
        self._check_explicit_keys()
        self._check_preprocess()
        self._class_map = make_class_map(class_map, self.target_key, features, self.dataset_name, tfds.features)
        self.plan(World())  # What cannot work in any world is said now.

    def __repr__(self) -> str:
        return f"ParserTfds({self.dataset_name}, split={self.split!r}, num_examples={self.num_examples})"

    @staticmethod
    def split_names(root: str | os.PathLike[str] | None, name: str | os.PathLike[str]) -> list[str]:
        """Returns the splits of a prepared dataset.

        Raises:
            ConfigError: the name has no valid form.
            DatasetNotFoundError: no such dataset, or it is not prepared under `root`.
        """
        return list(_opener.open(root, name, download=False).info.splits)

    @property
    def dataset_name(self) -> str:
        """`name/config:version`, with what was found on disk."""
        return dataset_name(self._builder)

    @property
    def data_dir(self) -> Path:
        """The version directory that holds the shards and `dataset_info.json`."""
        return self._builder.data_path  # type: ignore[no-any-return] # TFDS's path class also reads remote files.

    @property
    def files(self) -> tuple[RecordRun, ...]:
        """The split as runs of records, one per TFDS file instruction, in the order that `index` counts."""
        return self._stream.files.runs

    @property
    def num_shards(self) -> int:
        """Files of the split that hold examples of it; every image of an image folder is one."""
        return self._stream.files.num_shards

    @property
    def num_examples(self) -> int:
        """Examples of the split."""
        return self._stream.files.num_examples

    @property
    def read(self) -> ReadOptions:
        """How examples are read."""
        return self._stream.read

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example over all splits of the dataset."""
        return self._stream.files.mean_example_bytes

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, by label; None when the target has no classes, or not one name for each."""
        if self._class_map is not None:
            return self._class_map.class_names
        return class_names(self.target_key, self._builder.info.features, tfds.features)

    @property
    def class_to_idx(self) -> dict[Any, int]:
        """Class name -> label, or the class map; empty when the target has no classes."""
        if self._class_map is not None:
            return dict(self._class_map.entries)
        return {name: label for label, name in enumerate(self.class_names or [])}

    @property
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value as the dataset declares it."""
        fields = {key: field_spec(connector) for key, connector in sorted(self._builder.info.features.items())}
        ledger = {"valid": FieldSpec((), np.bool_), "index": FieldSpec((), np.int64), "id": FieldSpec((), np.object_)}
        return ElementSpec(fields | ledger)

    @property
    def fingerprint(self) -> str:
        """Hex digest of name, version, split and shard lengths: equal where `index` means the same examples.

        Of an image folder it tells file names and sizes.
        """
        identity = (self.dataset_name, self.split, self._stream.files.identity)
        return hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()

    def ids(self, index: NDArray[np.int64]) -> list[str]:
        """Returns TFDS's ids, `<shard file>__<record>`, of examples given by index, int64 [n].

        The ids of an image folder are the paths below its root, `<split>/<label>/<image>`.
        """
        return self._stream.files.ids(index)

    def plan(self, world: World) -> EpochPlan:
        """Returns the arithmetic of an epoch for one place in the world.

        Raises:
            ConfigError: the number of examples, the batch size and the remainder cannot work together there.
        """
        try:
            return EpochPlan(
                num_examples=self.num_examples,
                world=world,
                batch_size=1 if self.batch_size is None else self.batch_size,
                remainder=self._remainder_in(world),
                is_training=self.is_training,
                repeats=self.repeats,
                shuffle=self.shuffle,
                seed=self.seed,
                blocks=self.read.blocks,
            )
        except ConfigError as error:
            raise ConfigError(f"{self.dataset_name}, split {self.split!r}: {error}") from None

    def with_batch_size(self, batch_size: int) -> "ParserTfds":
        """Returns this parser with another batch size.

        Raises:
            ConfigError: batch_size is no integer >= 1, or leaves no batch.
        """
        parser = copy.copy(self)
        parser.batch_size = check_integer("batch_size", batch_size, 1)
        parser.plan(World())
        return parser

    def with_read(self, read: ReadOptions) -> "ParserTfds":
        """Returns this parser, reading the same examples in another way."""
        parser = copy.copy(self)
        parser._stream = replace(self._stream, read=read)
        return parser

    def _remainder_in(self, world: World) -> Any:
        return EpochPlan.default_remainder(self.is_training, world) if self.remainder is None else self.remainder

    def read_mode(self, world: World) -> str:
        """Returns the read mode in a world: `index`, `files` or `examples`.

        Raises:
            ConfigError: a mode was asked for where it cannot keep its promises, or no mode can read the files.
        """
        return self._stream.read_mode(self.plan(world))

    def share(self, world: World, epoch: int = 0) -> Share:
        """Returns which stretches of `files` the pipeline at this place of the world reads in an epoch.

        Raises:
            ConfigError: the read mode is `index`: there, `plan(world).batch` says what is in every batch.
        """
        return self._stream.share(self.plan(world), epoch)

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
                raise ConfigError(f"fields={fields!r}: {name!r} is no field name.")
            if name not in LEDGER_FIELDS:
                self._fields.find(name)

    def batches(
        self,
        world: World = World(),
        epoch: int = 0,
        start_batch: int = 0,
        *,
        fields: Sequence[str] = DEFAULT_FIELDS,
        in_pieces: bool = False,
        make_canvas: MakeCanvas = ArrayCanvas,
        clock: Clock | None = None,
    ) -> Iterator[Batch]:
        """Yields the batches of one worker of one rank, to one thread.

        Args:
            world: the grid, and the place whose batches are wanted.
            epoch: which epoch, >= 0.
            start_batch: the rank's batch at which to begin. In mode `index` nothing of earlier ones is read; a stream
                passes over their encoded examples.
            fields: what to decode: `image`, `label`, and any feature of the dataset; the rest costs nothing.
            in_pieces: whether a batch may come as several, one after the other, each as soon as it is decoded;
                preprocessed images come in whole batches.
            make_canvas: makes the memory into which the preprocessed images of a batch are written.
            clock: what times are reported to.

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
        epoch = check_integer("epoch", epoch, 0)
        self.check_fields(fields)
        plan = self.plan(world)
        plan.worker_batches(start_batch)
        self._stream.read_mode(plan)
        if tensorflow_runtime.has_inherited_runtime():
            arguments = (self, world, epoch, start_batch, tuple(fields), in_pieces, make_canvas)
            return OneThreadIterator(fresh_process.iterate(_batches_of, *arguments), repr(self))
        content = self._content(fields, make_canvas, clock)
        if content.painted is not None or not in_pieces:
            batches = self._stream.batches(plan, epoch, start_batch, content)
        else:
            batches = self._stream.pieces(plan, epoch, start_batch, content)
        if "label" in content.columns and self._class_map is not None:
            batches = self._class_map.remap(batches)
        return OneThreadIterator(batches, repr(self))

    def _content(self, fields: Sequence[str], make_canvas: MakeCanvas, clock: Clock | None) -> Content:
        columns = {name: self._fields.column(name, self.image_mode) for name in fields if name not in LEDGER_FIELDS}
        painted = None
        if self.preprocess is not None and isinstance(image := columns.get("image"), ImageColumn):
            del columns["image"]
            painted = PaintedImages(image, self.preprocess, make_canvas)
        has_label = "label" in columns and self._fields.has_integer_target
        return Content(columns, has_label, painted, tf_example_pb2.Example.FromString, clock)

    @overload
    def __getitem__(self, key: slice) -> list[Example]: ...
    @overload
    def __getitem__(self, key: int | str) -> Example: ...
    def __getitem__(self, key: Any) -> Any:
        """Returns the example of an index or an id, or a list of those of a slice.

        It has image and label, as far as the dataset has them; a dataset without both has all its features. A negative
        index counts from the end; iterating ends with the split. For more than a few use `examples_by_index`.

        Raises:
            ConfigError: key is no index, id or slice, or the files are remote.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        fields = [name for name in DEFAULT_FIELDS if self.has_field(name)] or list(self._builder.info.features)
        if isinstance(key, slice):
            return self.examples_by_index(range(*key.indices(self.num_examples)), fields)
        return self.examples_by_index([key], fields)[0]

    def examples_by_index(
        self, indices_or_ids: Iterable[int | str], fields: Sequence[str] = DEFAULT_FIELDS
    ) -> list[Example]:
        """Returns examples in the order asked for, fetched together and decoded at once, without a pipeline.

        They are what `batches` yields, example by example. A training process does not load tensorflow for them: they
        are decoded in a process of its own, which stays until this one ends.

        Args:
            indices_or_ids: indices (negative ones count from the end) and TFDS ids, `<shard file>__<record>` (of an
                image folder: the path below its root), in any mix and order; also several times the same.
            fields: what to decode: `image`, `label`, and any feature of the dataset.

        Raises:
            ConfigError: a field that does not exist, something that is no index or id, or remote files.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
            WorkerError: the process that decodes died.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields={fields!r} must be a sequence of field names, such as ('image', 'label').")
        self.check_fields(fields)
        index = find_examples(self._stream.files, self.split, indices_or_ids)
        return read_examples(self, self._stream.files, self.read, index, fields)

    def _make_decoder(self) -> ExampleDecoder:
        return ExampleDecoder(self._stream.files, self._fields, self.image_mode, self._class_map, self.read)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Returns a name for every example, in the order of `index`, without loading tensorflow.

        The names are those of the feature `file_name`, `filename`, `image/filename`, `id` or `image_id`, which takes
        one pass over the shards; a dataset without any of them has its TFDS ids, `<shard file>__<record>`. The names
        of an image folder are the paths below its root.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the dataset's version directory (the root of an image folder).

        Raises:
            ConfigError: the shards are remote.
            ShardError: a shard is missing or damaged.
        """
        found = next(filter(None, (find_feature(self._builder.info.features, key) for key in _FILENAME_KEYS)), None)
        if found is None or found.connector.shape != ():
            names = self.ids(np.arange(self.num_examples))
        else:
            names = self._stream.files.names("/".join(found.path), tf_example_pb2.Example.FromString)
        if basename:
            names = [os.path.basename(name) for name in names]
        return [str(self.data_dir / name) for name in names] if absolute else names

    def _check_slices(self) -> None:
        """A slice such as [10:5] would make TFDS read a negative number of examples, and [10:9] all of them."""
        for part in tfds.core.ReadInstruction.from_spec(self.split).to_absolute(self._builder.info.splits):
            if part.from_ is not None and part.to is not None and part.from_ > part.to:
                raise ConfigError(
                    f"{self.dataset_name}: split {self.split!r} has a slice of {part.splitname!r} that begins at "
                    f"example {part.from_} and ends before it, at {part.to}."
                )

    def _check_preprocess(self) -> None:
        if self.preprocess is None:
            return
        if not isinstance(self.preprocess, TrainPreprocess | EvalPreprocess):
            raise ConfigError(
                f"preprocess={self.preprocess!r} must be a TrainPreprocess or an EvalPreprocess, for example "
                f"TrainPreprocess(size=224)."
            )
        if self.batch_size is None:
            raise ConfigError("A preprocess needs batch_size: images are written into the memory of their batch.")
        self._fields.find("image")
        if self.image_mode is None:
            raise ConfigError(
                "A preprocess needs image_mode 'RGB', 'L' or 'RGBA': with None, images may differ in their channels."
            )
        levels, channels = self.preprocess.fill, CHANNELS[self.image_mode]
        if isinstance(levels, tuple) and len(levels) != channels:
            raise ConfigError(
                f"The fill {levels} of the preprocess has {len(levels)} grey levels, and image_mode "
                f"{self.image_mode!r} has {channels} channels: give one level, or one for each."
            )
        for name in self.preprocess.also:
            found = self._fields.find(name).connector
            if not isinstance(found, tfds.features.Image):
                raise ConfigError(
                    f"{self.dataset_name}: also={self.preprocess.also} names {name!r}, which is no image but "
                    f"{found!r}. Only images go through the same crop."
                )

    def _check_explicit_keys(self) -> None:
        """A key that was set by hand must exist; the defaults may be absent until they are asked for."""
        for name, key in (("image", self.image_key), ("label", self.target_key)):
            if key not in (None, name):
                self._fields.find(name)

    @property
    def _fields(self) -> DatasetFields:
        features = self._builder.info.features
        return DatasetFields(self.dataset_name, features, self.image_key, self.target_key, tfds)


def _batches_of(
    parser: ParserTfds,
    world: World,
    epoch: int,
    start_batch: int,
    fields: Sequence[str],
    in_pieces: bool,
    make_canvas: MakeCanvas,
) -> Iterator[Batch]:
    return parser.batches(world, epoch, start_batch, fields=fields, in_pieces=in_pieces, make_canvas=make_canvas)


def registered_names() -> list[str]:
    """Returns the names of the datasets that TFDS knows how to build."""
    return _opener.registered_names()


def _download_and_prepare(module: str, name: str, data_dir: str) -> None:
    importlib.import_module(module)  # Registers datasets that TFDS itself does not know.
    tfds.builder(name, data_dir=data_dir).download_and_prepare()  # Returns at once where it is prepared.


_opener = DatasetOpener(tfds, _download_and_prepare)
