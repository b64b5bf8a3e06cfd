"""Selection: a parser's examples chosen by number, by class or by weight."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.parsers.dataset import SplitDescription
from tfds_torch.parsers.examples import examples_at_once
from tfds_torch.parsers.kept_values import kept_path, load_kept, store_kept
from tfds_torch.plan.drawn import Drawn, make_draw_weights
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.plan.mixed import Member, Mixed, refuse_groups
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.subset import Subset, make_subset
from tfds_torch.plan.weights import SIZES, make_segments
from tfds_torch.plan.world import World
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Source

_Self = TypeVar("_Self", bound="Selection")


class Selection(SplitDescription):
    """What a parser offers to those who want some of its examples, or some more often than others."""

    def subset(self: _Self, indices: Any) -> _Self:
        """Returns this parser with some of its examples only: a pass has each of them once.

        `index` stays the number in the split, and ids stay. `parser[i]` and `len(parser)` count within the subset. It
        can be pickled, cut again, mixed, and resumed by parsers of the same subset only.

        Args:
            indices: numbers of examples in the split, in any order, each once, all of them this parser's; or a mask,
                bool [n], of this parser's examples in the order of `indices`.

        Raises:
            ConfigError: indices are neither; the files are read as streams; a mixture with weights, whose members can
                be subsets instead; or nothing is left to train on.
        """
        there = len(self._source) if self.selected is None else self.selected.numbers
        parser = self._ordered(replace(self._passes("subset"), subset=make_subset(indices, there)))
        parser.read_mode(World())
        return parser

    def balanced(
        self: _Self, by: str = "label", temperature: float | None = None, *, epoch_size: int | None = None
    ) -> _Self:
        """Returns this parser with its classes mixed: every example comes once in each pass of its class.

        Any global batch has within 2 of the share of each class; see docs/mixtures.md. It resumes exactly.

        Args:
            by: the field that holds the class: `label`, integers.
            temperature: None: all classes alike. T > 0: classes by their sizes, to the power 1/T; 1 leaves them as they
                are, a larger T makes small classes more frequent.
            epoch_size: examples of an epoch; None: as many as the parser has.

        Raises:
            ConfigError: evaluation; the field is not of integers; the parser is a mixture, or balanced already; or an
                argument out of range.
        """
        passes = self._passes("balanced")
        if self.read.block_groups > 1:
            refuse_groups(f"balanced: {self.dataset_name}", self.read.block_groups)
        if not isinstance(by, str) or by != "label":
            raise ConfigError(f"balanced: by={quoted(by)} must be 'label', the field of the classes.")
        targets = self.targets()
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
        return self._ordered(self._mix_classes(passes, targets, temperature, epoch_size))

    def weighted(self: _Self, weights: Any, *, epoch_size: int | None = None) -> _Self:
        """Returns this parser with examples that are drawn by weights, with replacement.

        Shares are right in expectation only; `balanced` and ParserMixture keep them exactly. Draws depend on the seed
        and the position alone, so that it resumes exactly, in any world.

        Args:
            weights: a weight >= 0 for each of this parser's examples, [n], in the order of `indices`.
            epoch_size: examples of an epoch; None: as many as the parser has.

        Raises:
            ConfigError: evaluation, or no shuffle; weights that are negative, not finite, all 0, or not one for each.
        """
        passes = self._passes("weighted")
        numbers = make_draw_weights(weights, self.num_examples)
        if not passes.shuffle and self.is_training:
            raise ConfigError(
                "shuffle=False beside weights of examples, which are drawn at random. Leave shuffle out, or choose "
                "examples with subset()."
            )
        size = self.epoch_size if epoch_size is None else epoch_size
        return self._ordered(Drawn(passes.n, numbers, size, passes.seed, passes.subset))

    def targets(self) -> Any:
        """Returns the targets of this parser's examples, in the order of `indices`; no image is decoded.

        Those of a whole split are read once and kept in the user's cache folder, as long as the files are the same.

        Returns:
            int64 [n] where each is one integer, else a list. Of an optional feature of TFDS, None is -100, and among
            floats NaN.

        Raises:
            ConfigError: there is no field `label`, or the files are read as streams.
            ShardError, CorruptRecordError: as reading raises them.
        """
        self.check_fields(["label"])
        if self._source.obstacle is not None:
            raise ConfigError(f"targets: {self.dataset_name} is read as a stream: {self._source.obstacle}.")
        kept = cache_file(self._source, self._stored_target) if self._has_stored_targets else None
        found: Any = None if kept is None else load_targets(kept, len(self._source))
        if found is not None:
            found = found[self.indices]
        else:
            decoder = {"label": self._field("label")}
            content = Content(decoder, has_label=self._has_integer_target)
            found = read_targets(self._source, content, self.indices, self.read.threads_of_worker(1))
            is_plain = isinstance(found, np.ndarray) and found.dtype == np.int64 and found.ndim == 1
            if kept is not None and is_plain and self.selected is None:
                store_targets(kept, found)
        if self._class_map is None:
            return found
        if isinstance(found, np.ndarray) and found.ndim == 1:
            return map_targets(self._class_map, found, self._source, self.indices)
        return self._class_map.remap_values(found, list(self._source.ids(self.indices)))

    def columns(self, fields: Sequence[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
        """Returns fields of windows of episodes as arrays over all of them, in the order of `indices`.

        A row is what a window's own step has, whatever the offsets of the field; with `Windows(stride=1)` that is every
        step of every episode. A condition over columns is so a mask for `subset`. Only the bytes of these fields are
        read, each compared with its checksum, and no image is.

        A field that a WindowTransform gives is what batches hold: its function is called for every window, with all
        that it reads. Where the value has the steps of the field's offsets (those of the fields that it is made of,
        where the dataset has none of its name), a row is the one of the window's own step.

        Args:
            fields: numbers and texts of steps, or of episodes, whose value is repeated; `episode`, `step`, and
                `<name>_pad`, bool [n, T]. Names as in `batches`.
            stored: whether fields are those that the dataset stores, also where a WindowTransform gives others.

        Returns:
            Name -> array [n, ...] of the declared dtype, or of what a function gives. Texts, as the dataset declares
            them or `Windows(texts=...)` names them, are objects [n] of str, equal ones the same object; other bytes are
            objects [n] of bytes.

        Raises:
            ConfigError: the parser has no windows; a field does not exist, is an image, or has no fixed size; a
                function failed, or gives other steps than the window's own.
            ShardError, CorruptRecordError: as reading raises them.
        """
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
            raise ConfigError(f"columns: fields={quoted(fields)} must be a list of the names of fields.")
        names = list(dict.fromkeys(fields))
        return (self.as_stored(names) if stored else self).columns_at(names, self.indices)

    def as_stored(self: _Self, fields: Sequence[str]) -> _Self:
        """Returns this parser without functions of the user's that make fields of windows.

        Raises:
            ConfigError: one of these fields is only given by such a function.
        """
        return self

    def columns_at(self, fields: Sequence[str], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Returns fields of windows by their numbers, int64 [n], in the order asked."""
        raise ConfigError(
            f"{self.dataset_name}: columns are fields of the steps of episodes, and the examples of this parser are "
            f"whole records. Give ParserTfds windows=Windows('steps'). Labels of whole records are parser.targets()."
        )

    def number_of_none(self, field: str) -> float | None:
        """Returns the number that stands for None in a column; None: the field is not optional, or it is unknown."""
        return None

    def column_keys(self, field: str) -> tuple[str, ...] | None:
        """Returns the stored fields that a column is made of: its name is the user's, and says nothing.

        None: a function of the user's makes it, of which nobody knows whether it is the same one next time.
        """
        return self.encoded_field(field).decoder.keys

    @property
    def _stored_target(self) -> object:
        """What is stored behind `label`: the name of its feature, or of several."""
        return self.target_key

    @property
    def _has_stored_targets(self) -> bool:
        """Whether what is stored alone says what the targets are, so that they can be kept from run to run."""
        return True

    def _passes(self, name: str) -> Passes:
        """Return the order that a method makes another one of."""
        if not isinstance(self._order, Passes):
            raise ConfigError(
                f"{name}: {self.dataset_name} has weights already. Choose from the parser without them; a mixture "
                f"takes subsets as members."
            )
        return self._order

    def _mix_classes(self, passes: Passes, targets: Any, temperature: float | None, epoch_size: int | None) -> Mixed:
        """Returns the order in which the classes are mixed, each a subset of the split."""
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


def cache_file(source: Source, target_key: object) -> Path:
    """Returns where the targets of a split are kept: another place once a file has changed."""
    return kept_path("targets", (2, source.name, source.identity, source.stamps, target_key), ".npy")


def read_targets(source: Source, content: Content, index: Int64Array, num_threads: int) -> NDArray[Any] | list[Any]:
    """Returns the labels of examples, int64 [n], in the order asked: an array where each is one number, else a list."""
    found = read_examples(source, content, index, num_threads, examples_at_once(source))
    parts = [decoded["label"] for _, decoded in found]
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def map_targets(class_map: ClassMap, targets: NDArray[np.int64], source: Source, index: Int64Array) -> Int64Array:
    """Returns the new labels of integers, int64 [n]: each different one is looked up once."""
    values, firsts, places = np.unique(targets, return_index=True, return_inverse=True)
    new = class_map.remap_values(values, list(source.ids(index[firsts])))
    mapped: Int64Array = np.asarray(new, np.int64)[places]
    return mapped


def load_targets(file: Path, size: int) -> Int64Array | None:
    """Returns the targets that are kept, int64 [size]; None: there are none, or they are not whole or not one's own."""
    content = load_kept(file)
    if content is None:
        return None
    try:
        targets = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError):
        return None
    return targets if targets.dtype == np.int64 and targets.shape == (size,) else None


def store_targets(file: Path, targets: Int64Array) -> None:
    """Keeps targets, int64 [n]; without a writable cache folder they are read again next time."""
    body = io.BytesIO()
    np.save(body, targets)
    store_kept(file, body.getvalue(), "Targets")
