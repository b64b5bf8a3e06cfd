"""DatasetParser: a dataset and an order, in batches. The parser of each format is a constructor of it."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch, Example
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.read_mode import assign, find_read_mode
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.engines.tf_data import read_in_stream_mode
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.options import EpochOptions, check_has_batch_size, check_single_examples
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, ElementSpec
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.parsers.transformed import OnlyInEpochsError
from tfds_torch.plan.deal import Assignment
from tfds_torch.plan.drawn import Drawn, make_draw_weights
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.mixed import Member, Mixed, refuse_groups
from tfds_torch.plan.order import Int64Array, Order
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import SIZES, make_segments
from tfds_torch.plan.world import World
from tfds_torch.runtime.one_thread import OneThreadIterator
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FileInstruction, Source


class DatasetParser:
    """A dataset, an order of its examples, and how they are divided into batches.

    It can be pickled, and used from several processes. The dataset answers whatever needs no epoch: `parser[i]`,
    `targets`, `columns`, fields, classes; a parser passes such calls on to it.

    Args:
        dataset: the examples.
        epoch: the options of an epoch.
        order: the order of the examples; None for passes over them, as `epoch` says.

    Attributes:
        dataset: the examples.
        epoch: the options of an epoch.
        order: which example comes in which place.

    Raises:
        ConfigError: dataset, order and epoch cannot work together in any world.
    """

    dataset: Dataset

    def __init__(self, dataset: Dataset, epoch: EpochOptions, order: Order | None = None) -> None:
        self.dataset, self.epoch = dataset, epoch
        if order is None:
            shuffle, blocks = epoch.is_shuffled, dataset.read.blocks
            order = Passes(len(dataset.source), epoch.seed, shuffle, blocks, dataset.selected, epoch.epoch_size)
        self.order = order
        self._check()

    def _check(self) -> None:
        """Raise ConfigError for options that cannot work in any world."""
        for preprocess in (self.dataset.preprocess, *self.dataset.cameras.values()):
            check_has_batch_size(preprocess, self.batch_size)
        self.plan(World())
        if self.dataset.is_by_number:
            self.read_mode(World())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset_name}, split={quoted(self.split)}, num_examples={self.num_examples})"
        )

    # The epoch

    @property
    def is_training(self) -> bool:
        """Whether an epoch is one of training; in evaluation every example comes exactly once."""
        return self.epoch.is_training

    @property
    def batch_size(self) -> int | None:
        """Examples of a rank's batch; None: unknown (evaluation only)."""
        return self.epoch.batch_size

    @property
    def repeats(self) -> int:
        """How many times as long as the order's own epoch an epoch is; 0 and 1 mean once."""
        return self.epoch.repeats

    @property
    def remainder(self) -> Remainder | str | None:
        """What happens to an incomplete last batch; None: as `EpochPlan.default_remainder` says."""
        return self.epoch.remainder

    @property
    def epoch_size(self) -> int:
        """Examples of an epoch, without repeats and without the fill of its last batch."""
        return self.order.num_slots

    @property
    def seed(self) -> int:
        """The seed of the order, and of the random numbers of examples."""
        return self.order.seed

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has another order."""
        return self.order.shuffle

    @property
    def has_weights(self) -> bool:
        """Whether some examples come more often than others, as in mixtures with weights, `balanced` and `weighted`."""
        return not isinstance(self.order, Passes)

    @property
    def fingerprint(self) -> str:
        """Hex digest of name, version, split and shard lengths: equal where `index` means the same examples.

        An image folder has file names and sizes instead of shard lengths; a decoded cache with smaller images adds
        their size, a subset its numbers, and weights their values.
        """
        order = self.order.identity()
        return self.dataset.digest({name: order[name] for name in ("subset", "weights", "members") if name in order})

    def plan(self, world: World, *, first_example: int = 0) -> EpochPlan:
        """Return the arithmetic of an epoch for one place in the world.

        Args:
            world: the grid, and the place in it.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; the plan is that of the rest.

        Raises:
            ConfigError: the number of examples, the batch size and the remainder cannot work together there.
        """
        default = EpochPlan.default_remainder(self.is_training, world)
        if self.has_weights and self.read.block_groups > 1:
            refuse_groups(self.dataset_name, self.read.block_groups)
        try:
            return EpochPlan(
                order=self.order,
                world=world,
                batch_size=1 if self.batch_size is None else self.batch_size,
                remainder=default if self.remainder is None else self.remainder,  # type: ignore[arg-type] # A name, too.
                is_training=self.is_training,
                repeats=self.repeats,
                first_example=first_example,
            )
        except ConfigError as error:
            raise ConfigError(f"{self.dataset_name}, split {quoted(self.split)}: {error}") from None

    def read_mode(self, world: World) -> str:
        """Return the read mode in a world: `index`, `files` or `examples`.

        Args:
            world: the grid, and a place in it.

        Raises:
            ConfigError: a mode was asked for where it cannot keep its promises, or no mode can read the files.
        """
        return find_read_mode(self.source, self.split, self.plan(world), self.read)

    def assignment(self, world: World, epoch: int = 0) -> Assignment:
        """Return which ranges of `files` the pipeline at a place of the world reads in an epoch.

        Args:
            world: the grid, and the place of the pipeline.
            epoch: number of the epoch, >= 0.

        Raises:
            ConfigError: the read mode is `index`: there, `plan(world).batch` returns the examples of every batch.
        """
        return assign(self.source, self.plan(world), epoch, self.read_mode(world))

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
        """Yield the batches of one worker of one rank, to one thread.

        Args:
            world: the grid, and the place whose batches are wanted.
            epoch: number of the epoch, >= 0.
            start_batch: the rank's batch at which to begin. In mode `index` nothing of earlier ones is read; a stream
                passes over their encoded examples.
            fields: the fields to decode: `image`, `label`, and any feature of the dataset; the rest is not decoded.
            in_pieces: whether a batch may come as several, one after the other, each as soon as it is decoded;
                preprocessed images come in whole batches.
            context: the memory of batches, metrics, the ranks of this machine.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; batches are dealt and counted from there on. In mode `index` only.

        Raises:
            ConfigError: a field does not exist, or the plan cannot work in this world.
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
        mode = find_read_mode(self.source, self.split, plan, self.read)
        in_pieces = in_pieces and self.preprocess is None
        in_buffers = context.make_buffer is not None and context.has_one_size and not in_pieces
        content = self.dataset.content(fields, in_buffers=in_buffers, has_cameras=not in_pieces)
        request = self.dataset.request(
            ReadRequest(self.source, plan, epoch, start_batch, content, self.read, in_pieces=in_pieces, context=context)
        )
        batches = read_in_index_mode(request) if mode == "index" else read_in_stream_mode(request, mode)
        # A loader's worker, which reads ahead, has no other thread.
        return batches if context.is_read_ahead else OneThreadIterator(batches, repr(self))

    # Other parsers of the same examples

    def with_order(self, order: Order) -> Self:
        """Return this parser with another order of its examples.

        Args:
            order: the new order. Its `num_examples` is that of the split, its `subset` is `selected` of this parser.

        Raises:
            ConfigError: the order is of other examples; it cannot work with the parser's other arguments; or the files
                are read as streams.
        """
        if order.subset != self.selected:
            others = "all of them" if order.subset is None else f"{len(order.subset):,} of them"
            raise ConfigError(
                f"{self.dataset_name} is read for {self.num_examples:,} of {len(self.source):,} examples, and the "
                f"order {type(order).__name__} has {others}. Give it the same subset, parser.selected."
            )
        if order.num_examples != len(self.source):
            raise ConfigError(
                f"{self.dataset_name} has {len(self.source):,} examples, and the order {type(order).__name__} numbers "
                f"{order.num_examples:,}."
            )
        parser = self._with(order=order)
        parser.read_mode(World())
        return parser

    def with_batch_size(self, batch_size: int) -> Self:
        """Return this parser with another batch size.

        Args:
            batch_size: number of examples of a rank's batch, >= 1.

        Raises:
            ConfigError: batch_size is not an integer >= 1, or leaves no batch.
        """
        return self._with(epoch=replace(self.epoch, batch_size=batch_size))

    def with_read(self, read: ReadOptions) -> Self:
        """Return this parser, reading the same examples in another way.

        Args:
            read: the new options for reading.

        Raises:
            ConfigError: these examples cannot be read with these options.
        """
        dataset, order = self.dataset.with_read(read), self.order
        return self._with(
            dataset=dataset, order=replace(order, blocks=dataset.read.blocks) if isinstance(order, Passes) else order
        )

    def with_preprocess(self, preprocess: Preprocess | None) -> Self:
        """Return this parser with another preprocess.

        Args:
            preprocess: how images are cut, resized and flipped while they are decoded; None: they keep their size.

        Raises:
            ConfigError: it does not fit the dataset, or needs a batch_size or an image_mode that the parser lacks.
        """
        return self._with(dataset=self.dataset.with_preprocess(preprocess))

    def with_transform(self, transform: Any) -> Self:
        """Return this parser with other transforms of whole examples; see `Transform`.

        Members of a mixture keep their transforms: `as_stored` leaves out all.

        Args:
            transform: functions over whole examples, as in ParserTfds; None: no transform.

        Raises:
            ConfigError: a value is not a transform, or a transform reads a field that is not there.
        """
        return self._with(dataset=self.dataset.with_transform(transform))

    def as_stored(self) -> Self:
        """Return this parser without transforms, also without those of the members of a mixture."""
        return self._with(dataset=self.dataset.as_stored(()))

    def subset(self, indices: Any) -> Self:
        """Return this parser with some of its examples only: a pass has each of them once.

        `index` stays the number in the split, and ids stay. `parser[i]` and `len(parser)` count within the subset. It
        can be pickled, cut again, mixed, and resumed by parsers of the same subset only.

        Args:
            indices: numbers of examples in the split, in any order, each once, all of them this parser's; or a mask,
                bool [n], of this parser's examples in the order of `indices`.

        Raises:
            ConfigError: indices are neither numbers nor a mask; the files are read as streams; the parser is a mixture
                with weights, whose members can be subsets instead; or no example is left to train on.
        """
        passes, dataset = self._passes("subset"), self.dataset.subset(indices)
        parser = self._with(dataset=dataset, order=replace(passes, subset=dataset.selected))
        parser.read_mode(World())
        return parser

    def balanced(self, by: str = "label", temperature: float | None = None, *, epoch_size: int | None = None) -> Self:
        """Return this parser with its classes mixed: every example comes once in each pass of its class.

        Any global batch has within 2 of the share of each class; see docs/mixtures.md. It resumes exactly. Classes are
        the labels that transforms make, or, where these need the image or random numbers, those that are stored.

        Args:
            by: the field that holds the class: `label`, integers.
            temperature: None for all classes alike. T > 0: classes by their sizes, to the power 1/T; 1 leaves them as
                they are, a larger T makes small classes more frequent.
            epoch_size: examples of an epoch; None: as many as the parser has.

        Raises:
            ConfigError: the parser is for evaluation, a mixture with weights, or balanced already; the field does not
                hold one integer for each example, or some labels are missing; or an argument is out of range.
        """
        passes = self._passes("balanced")
        if self.read.block_groups > 1:
            refuse_groups(f"balanced: {self.dataset_name}", self.read.block_groups)
        if not isinstance(by, str) or by != "label":
            raise ConfigError(f"balanced: by={quoted(by)} must be 'label', the field of the classes.")
        try:
            targets = self.targets()
        except OnlyInEpochsError:  # A transform that needs the image: the classes are those of the files.
            targets = self.targets(stored=True)
        if not isinstance(targets, np.ndarray) or targets.ndim != 1 or targets.dtype.kind not in "iu":
            raise ConfigError(
                f"{self.dataset_name}: balanced() needs one integer as the label of an example. Mix subsets by hand: "
                f"ParserMixture({{name: parser.subset(...)}}, weights)."
            )
        num_none = int(np.count_nonzero(targets == PAD_LABEL))
        if num_none:
            raise ConfigError(
                f"{self.dataset_name}: balanced() mixes classes, and {num_none:,} of {len(targets):,} labels are "
                f"{PAD_LABEL}: no label, as of an optional feature that is None. Leave them out: "
                f"parser.subset(parser.targets() != {PAD_LABEL}).balanced()."
            )
        return self.with_order(self._mix_classes(passes, targets, temperature, epoch_size))

    def weighted(self, weights: Any, *, epoch_size: int | None = None) -> Self:
        """Return this parser with examples that are drawn by weights, with replacement.

        Shares are right in expectation only; `balanced` and ParserMixture keep them exactly. Draws depend on the seed
        and the position alone, so that the parser resumes exactly, in any world.

        Args:
            weights: a weight >= 0 for each of this parser's examples, [n], in the order of `indices`.
            epoch_size: examples of an epoch; None: as many as the parser has.

        Raises:
            ConfigError: the parser is for evaluation, or does not shuffle; or weights are negative, not finite, all 0,
                or not one for each example.
        """
        passes = self._passes("weighted")
        numbers = make_draw_weights(weights, self.num_examples)
        if not passes.shuffle and self.is_training:
            raise ConfigError(
                "shuffle=False beside weights of examples, which are drawn at random. Leave shuffle out, or choose "
                "examples with subset()."
            )
        size = self.epoch_size if epoch_size is None else epoch_size
        return self.with_order(Drawn(passes.n, numbers, size, passes.seed, passes.subset))

    def _passes(self, name: str) -> Passes:
        """Return the passes from which a method makes another order; raise ConfigError where the order has weights."""
        if not isinstance(self.order, Passes):
            raise ConfigError(
                f"{name}: {self.dataset_name} has weights already. Choose from the parser without them; a mixture "
                f"takes subsets as members."
            )
        return self.order

    def _mix_classes(self, passes: Passes, targets: Any, temperature: float | None, epoch_size: int | None) -> Mixed:
        """Return the order in which the classes are mixed, each a subset of the split."""
        labels, places = np.unique(targets, return_inverse=True)
        order, counts = np.argsort(places, kind="stable"), np.bincount(places, minlength=len(labels))
        parts = np.split(self.indices[order], np.cumsum(counts)[:-1])
        names = [str(label) for label in labels.tolist()]
        blocks = passes.blocks if passes.shuffle else None
        members = tuple(Member(name, passes.n, blocks, Subset(part)) for name, part in zip(names, parts, strict=True))
        sizes = dict(zip(names, counts.tolist(), strict=True))
        weights = dict.fromkeys(names, 1) if temperature is None else SIZES
        segments, _ = make_segments(sizes, weights, 1.0 if temperature is None else temperature)
        size = self.epoch_size if epoch_size is None else epoch_size
        return Mixed(members, segments, size, passes.seed, passes.shuffle, passes.n, passes.subset)

    def _with(self, **values: Any) -> Self:
        """Return this parser with other values of some attributes, checked together."""
        parser = copy.copy(self)
        vars(parser).update(values)
        parser._check()
        return parser

    # Single examples

    @overload
    def __getitem__(self, key: slice) -> list[Example]: ...
    @overload
    def __getitem__(self, key: int | str) -> Example: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the example of an index or an id, or a list of the examples of a slice; see `Dataset`."""
        return self.dataset.at(key, self.seed)

    def numbers_at(self, places: Iterable[int | str]) -> list[int | str]:
        """Return the numbers of examples in the split by their places in this parser; see `Dataset`.

        Args:
            places: integers, -num_examples <= i < num_examples; ids are left as they are.

        Raises:
            ExampleNotFoundError: there is no such place.
        """
        return self.dataset.numbers_at(places)

    def examples_by_index(
        self,
        indices_or_ids: Iterable[int | str],
        fields: Sequence[str] = DEFAULT_FIELDS,
        *,
        epoch: int | None = None,
        context: ReadContext = ReadContext(),
    ) -> list[Example]:
        """Return examples in the order asked for, fetched together and decoded in this process.

        They are the examples of `batches`, one by one: without the preprocess, or with it where `epoch` is not None.

        Args:
            indices_or_ids: indices in the split, as the field `index` has them (negative ones count from the end), and
                TFDS ids, `<shard file>__<record>` (of an image folder: the path below its root), in any mix and order;
                also several times the same.
            fields: the fields to decode: `image`, `label`, and any feature of the dataset.
            epoch: number of an epoch, >= 0: images get the crops of the first pass of that epoch. None for whole
                images, whatever the preprocess.
            context: the memory of preprocessed images, and metrics.

        Raises:
            ConfigError: a field does not exist, a key is neither an index nor an id, or files can only be streamed; the
                sample keys of the epoch do not fit into int64; or there is an epoch and a preprocess that makes views.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        keys = self.dataset.find(indices_or_ids, fields)
        if epoch is not None:
            check_single_examples(self.dataset_name, self.preprocess)
            keys = keys + self._first_pass(epoch, keys) * max(1, len(self.source))
        content = self.dataset.content(fields, is_preprocessed=epoch is not None, in_batches=False)
        return self.dataset.decode(keys, content, self.seed, context)

    def _first_pass(self, epoch: int, index: Int64Array) -> Int64Array:
        """Return the pass of each example, int64 [n], in which an epoch begins."""
        plan = self.plan(World())
        return self.order.passes_from(plan.check_epoch(epoch) * plan.num_own_slots, index)

    # Calls that are passed on

    @property
    def source(self) -> Source:
        """The encoded examples, by number."""
        return self.dataset.source

    @property
    def dataset_name(self) -> str:
        """`name/config:version`, with what was found on disk."""
        return self.dataset.source.name

    @property
    def split(self) -> str:
        """The split expression."""
        return self.dataset.split

    @property
    def files(self) -> Sequence[FileInstruction]:
        """The split as TFDS's file instructions, none of them empty, in the order that `index` counts."""
        return self.dataset.source.instructions

    @property
    def num_shards(self) -> int:
        """Files of the split that hold examples of it; every image of an image folder is one."""
        return self.dataset.num_shards

    @property
    def num_examples(self) -> int:
        """Examples of the split, or of the subset."""
        return self.dataset.num_examples

    def __len__(self) -> int:
        """Return the number of examples of the split, or of the subset: with `parser[i]`, a random-access source."""
        return self.dataset.num_examples

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example over all splits of the dataset, bytes."""
        return self.dataset.source.mean_example_bytes

    @property
    def indices(self) -> Int64Array:
        """The numbers of the examples in the split, int64 [n], in the order of the dataset, or of the subset."""
        return self.dataset.indices

    @property
    def selected(self) -> Subset | None:
        """The examples of a subset; None: all of the split."""
        return self.dataset.selected

    @property
    def read(self) -> ReadOptions:
        """How the files are read."""
        return self.dataset.decoding.read

    @property
    def preprocess(self) -> Preprocess | None:
        """How images are cut and resized while they are decoded; None where they come as stored."""
        return self.dataset.decoding.preprocess

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, by label; None when the target has no classes, or not one name for each."""
        return self.dataset.class_names

    @property
    def class_to_idx(self) -> dict[Any, int]:
        """Class name -> label, or the class map; empty when the target has no classes, or they are unknown."""
        return self.dataset.class_to_idx

    @property
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value as the dataset declares it."""
        return self.dataset.element_spec

    def provenance(self) -> Provenance:
        """Return where the examples lie, what records their number, and whether other code can read them."""
        found = self.dataset.provenance()
        return found if self.selected is None or found.members else replace(found, promised_by="the subset")

    def check_fields(self, fields: Sequence[str]) -> None:
        """Raise ConfigError where one of `fields` does not exist, or `image` or `label` names no suitable feature."""
        self.dataset.check_fields(fields)

    def ids(self, index: NDArray[np.int64]) -> Sequence[str]:
        """Return the ids of examples; each is computed when it is looked at; see `Dataset`.

        Args:
            index: numbers of examples in the split, int64 [n].
        """
        return self.dataset.source.ids(index)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example of the split, in the order of `index`; see `Dataset`.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the folder of the files.

        Raises:
            ConfigError: names are among the features, and the shards can only be streamed.
            ShardError: a shard is missing or damaged.
        """
        return self.dataset.filenames(basename, absolute)

    def targets(self, *, stored: bool = False) -> Any:
        """Return the targets of this parser's examples, in the order of `indices`; no image is decoded; see `Dataset`.

        Args:
            stored: whether to return the targets that the dataset stores, also where a transform makes others.

        Returns:
            int64 [n] where each is one integer, else a list.

        Raises:
            ConfigError: there is no field `label`, the files are read as streams, a label is not in the class map, or a
                transform that may make `label` belongs to an epoch.
            ShardError, CorruptRecordError: as reading raises them.
        """
        return self.dataset.targets(stored=stored)

    def columns(self, fields: Sequence[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
        """Return fields of windows of episodes as arrays over all of them, in the order of `indices`; see `Dataset`.

        Args:
            fields: names of fields, as in `batches`: numbers and texts of steps or of episodes; `episode`, `step`, and
                `<name>_pad`.
            stored: whether to return the fields that the dataset stores, also where a Transform makes others.

        Returns:
            Name -> array [n, ...] of the declared dtype, or of the dtype that a function returns.

        Raises:
            ConfigError: there are no windows; a field does not exist, is an image, or has no fixed size; a function
                failed, or returns other steps than the window's own.
            ShardError, CorruptRecordError: as reading raises them.
        """
        return self.dataset.columns(fields, stored=stored)
