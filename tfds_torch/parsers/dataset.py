"""SplitDescription: what a parser knows of its split before it reads an example."""

import copy
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.options import BLOCKS_OF_SOURCE, ReadOptions
from tfds_torch.engines.read_mode import assign, find_read_mode
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import jpeg
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.box_rows import check_box_fields
from tfds_torch.parsers.class_map import ClassMap, load_class_map
from tfds_torch.parsers.options import ParserOptions, check_preprocess
from tfds_torch.parsers.parser_fields import ParserFields
from tfds_torch.parsers.undecoded import works_on_pixels
from tfds_torch.plan.deal import Assignment
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.mixed import refuse_groups
from tfds_torch.plan.order import Order
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.source import FileInstruction, Source

_Self = TypeVar("_Self", bound="SplitDescription")


class SplitDescription(ParserFields):
    """A split, its fields, its classes and its plan; nothing of its examples is read.

    A subclass sets what its own methods need before it calls this constructor, which checks all arguments.

    Args:
        source: the examples of the split; its files are opened where the first example is read.
        split: the split expression.
        options: the arguments that every parser takes.
        image_key: the stored field behind `image`; None: there is none.
        target_key: the stored field behind `label`, or a tuple of several; None: there is none.
        subset: the examples of a pass; None: all of the split.
        order: of the examples; None: passes over them, as the options say.
    """

    def __init__(
        self,
        source: Source,
        split: str,
        options: ParserOptions,
        image_key: str | None,
        target_key: str | tuple[str, ...] | None,
        *,
        subset: Subset | None = None,
        order: Order | None = None,
    ) -> None:
        self.split = split
        self.is_training = options.is_training
        self.batch_size = options.batch_size
        self.repeats = options.repeats
        self.remainder = options.remainder
        self.preprocess = options.preprocess
        self.image_mode = options.image_mode
        self._set_read(options.read, source)
        if order is None:
            shuffle = options.is_training if options.shuffle is None else options.shuffle
            order = Passes(len(source), options.seed, shuffle, self.read.blocks, subset, options.epoch_size)
        self._order = order
        self.image_key, self.target_key = image_key, target_key
        self._check_keys()
        self._decode = dict(options.decode or {})
        self._undecoded = self._find_undecoded()
        if self.read.jpeg_decoder == "auto" and image_key is not None and not self.is_undecoded("image"):
            jpeg.warn_of_problems()
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

    # What a format's parser knows of its files.

    @property
    @abstractmethod
    def _folder(self) -> str:
        """The folder that absolute file names begin with."""

    def _file_names(self) -> list[str]:
        """Returns a name for every example, in the order of `index`."""
        return list(self.ids(np.arange(len(self._source))))

    def _source_for(self, read: ReadOptions) -> Source:
        """Returns the source as other options read it."""
        return self._source

    def _set_read(self, read: ReadOptions, source: Source) -> None:
        """Sets how examples are read: in blocks, where the source is best read in some and the options leave it so."""
        is_by_index = read.mode in ("auto", "index")
        if is_by_index and read.block_records == BLOCKS_OF_SOURCE and source.block_records is not None:
            read = replace(read, block_records=source.block_records)
        self.read = read
        self._source = source.in_blocks(None if read.blocks is None else read.blocks.block_records)

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
        for name in ("image", *self.preprocess.also_kinds):
            if self.is_undecoded(name):
                raise works_on_pixels(self.dataset_name, name, self.preprocess)
        for name in self.preprocess.also_kinds:
            stored, is_image = self._find_stored(name)
            if not is_image:
                raise ConfigError(
                    f"{self.dataset_name}: also={self.preprocess.also} names {quoted(name)}, which is not an image but "
                    f"{quoted(stored)}. Only images go through the same crop."
                )
        check_box_fields(self.preprocess, self._find_stored, self.dataset_name)

    def _goes_along(self, name: str) -> bool:
        """Whether the preprocess names a field as an image that goes through the crop of the image."""
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
            return len(self._source)
        return len({instruction.path for instruction in self.files})

    @property
    def num_examples(self) -> int:
        """Examples of the split, or of the subset."""
        return len(self._source) if self.selected is None else len(self.selected)

    def __len__(self) -> int:
        """Examples of the split, or of the subset: with `parser[i]`, a random-access source."""
        return self.num_examples

    @property
    def epoch_size(self) -> int:
        """Examples of an epoch, without repeats and without what fills its last batch."""
        return self._order.num_slots

    @property
    def seed(self) -> int:
        """The seed of the order, and of the random numbers of examples."""
        return self._order.seed

    @property
    def shuffle(self) -> bool:
        """Whether every epoch has an order of its own."""
        return self._order.shuffle

    @property
    def has_weights(self) -> bool:
        """Whether some examples come more often than others: of a mixture with weights, `balanced` and `weighted`."""
        return not isinstance(self._order, Passes)

    @property
    def has_windows(self) -> bool:
        """Whether examples are windows of episodes: of a mixture, whether those of all members are."""
        return isinstance(self._source, WindowSource)

    @property
    def has_optional_label(self) -> bool:
        """Whether examples may have no label, which is -100, or NaN among floats: an optional feature of TFDS."""
        return False

    @property
    def indices(self) -> NDArray[np.int64]:
        """The numbers of the examples in the split, int64 [n], in the order of the dataset, or of the subset."""
        return np.arange(len(self._source), dtype=np.int64) if self.selected is None else self.selected.numbers

    @property
    def order(self) -> Order:
        """Which example comes in which place."""
        return self._order

    @property
    def selected(self) -> Subset | None:
        """The examples of a subset; None: all of the split."""
        return self._order.subset

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
        their size, a subset its numbers, and weights their values.
        """
        order = self._order.identity()
        chosen = {name: order[name] for name in ("subset", "weights", "members") if name in order}
        return digest_of(self.dataset_name, self.split, self._source.identity, chosen)

    def ids(self, index: NDArray[np.int64]) -> Sequence[str]:
        """Returns TFDS's ids, `<shard file>__<record>`, of examples given by index, int64 [n]; computed when looked at.

        The ids of an image folder are the paths below its root, `<split>/<label>/<image>`.
        """
        return self._source.ids(index)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Returns a name for every example of the split, in the order of `index`: its id.

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
        if self.has_weights and self.read.block_groups > 1:
            refuse_groups(self.dataset_name, self.read.block_groups)
        try:
            return EpochPlan(
                order=self._order,
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

    def with_order(self: _Self, order: Order) -> _Self:
        """Return this parser with another order of its examples.

        Args:
            order: `num_examples` is that of the split. Of a subset, its `subset` is `selected` of this parser.

        Raises:
            ConfigError: the order is of other examples; it cannot work with the parser's other arguments; or the files
                are read as streams.
        """
        if order.subset != self.selected:
            others = "all of them" if order.subset is None else f"{len(order.subset):,} of them"
            raise ConfigError(
                f"{self.dataset_name} is read for {self.num_examples:,} of {len(self._source):,} examples, and the "
                f"order {type(order).__name__} has {others}. Give it the same subset, parser.selected."
            )
        parser = self._ordered(order)
        parser.read_mode(World())
        return parser

    def _ordered(self: _Self, order: Order) -> _Self:
        """Return this parser with another order, which may select other examples."""
        if order.num_examples != len(self._source):
            raise ConfigError(
                f"{self.dataset_name} has {len(self._source):,} examples, and the order {type(order).__name__} numbers "
                f"{order.num_examples:,}."
            )
        parser = self._with(_order=order)
        parser.plan(World())
        return parser

    def with_batch_size(self: _Self, batch_size: int) -> _Self:
        """Return this parser with another batch size.

        Raises:
            ConfigError: batch_size is not an integer >= 1, or leaves no batch.
        """
        parser = self._with(batch_size=check_integer("batch_size", batch_size, 1))
        parser.plan(World())
        return parser

    def with_read(self: _Self, read: ReadOptions) -> _Self:
        """Return this parser, reading the same examples in another way."""
        parser = self._with()
        parser._set_read(read, self._source_for(read))
        if isinstance(self._order, Passes):
            parser._order = replace(self._order, blocks=parser.read.blocks)
        return parser

    def with_preprocess(self: _Self, preprocess: Preprocess | None) -> _Self:
        """Return this parser with another preprocess.

        Raises:
            ConfigError: it does not fit the dataset, or needs a batch_size or an image_mode that the parser lacks.
        """
        parser = self._with(preprocess=preprocess)
        parser._check_preprocess()
        return parser

    def _with(self: _Self, **values: Any) -> _Self:
        """Return this parser with other values of some attributes, unchecked."""
        parser = copy.copy(self)
        vars(parser).update(values)
        return parser
