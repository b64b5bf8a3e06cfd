"""What each worker of a MultiLoader reads: a Parser's planned batches, a function's items, or all of an iterable."""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError
from tfds_torch.images.fast_resize import FastArrayBuffer
from tfds_torch.loaders.wire_tensors import is_tensor
from tfds_torch.parsers.parser import DEFAULT_FIELDS, Parser, stored_name
from tfds_torch.parsers.reading_names import name_of
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import num_local_ranks
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots


class WorkerBatch(NamedTuple):
    """An item, as the training loop gets it but for the device, and the number of examples in it."""

    batch: Any
    num_examples: int


class WorkerSource(Protocol):
    """What workers read. It travels to them."""

    @property
    def name(self) -> str:
        """What is read, for messages."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Name -> what the user gave, for the message where it cannot be pickled."""

    def prepare(self, worker: int, num_workers: int) -> None:
        """Prepares a worker's process, once, before it reads."""

    def items(
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        """Begins an iteration.

        Args:
            world: the rank, and which of its workers this is.
            start: where the iteration begins.
            slots: in which arrays may be made, to be handed over without a copy; None: there are none.
            metrics: what times are reported to: `fetch`, and the stages within it.
        """


class CountedItems(Iterator[WorkerBatch]):
    """Yields items with the number of examples in each, and reports how long each took."""

    def __init__(self, items: Iterator[Any], metrics: StageMetrics) -> None:
        self._items, self._metrics = items, metrics

    def __next__(self) -> WorkerBatch:
        begun_at = time.monotonic()
        try:
            item = next(self._items)
        finally:
            self._metrics.add("fetch", time.monotonic() - begun_at)
        return WorkerBatch(item, count_examples(item))

    def close(self) -> None:
        """Ends the iteration."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


class _Unprepared:
    """What sources have in common that open everything when it is read."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Name -> what the user gave, for the message where it cannot be pickled."""
        return {f"MultiLoader: {name}": value for name, value in vars(self).items()}

    def prepare(self, worker: int, num_workers: int) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class ParserSource(_Unprepared):
    """The batches that a parser plans for a worker, with the fields that they consist of."""

    parser: Parser
    fields: Sequence[str]

    @property
    def name(self) -> str:
        """What is read, for messages."""
        return name_of(self.parser)

    def items(  # noqa: D102
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        local = num_local_ranks(os.environ) if "LOCAL_WORLD_SIZE" in os.environ else None
        make_buffer = None if self.parser.preprocess is None else BatchMemory(slots)
        context = ReadContext(make_buffer, metrics, local, is_read_ahead=True)
        batches = self.parser.batches(
            world,
            start.epoch,
            start.start_batch,
            fields=self.fields,
            context=context,
            first_example=start.first_example,
        )
        return CountedItems(batches, metrics)


@dataclass(frozen=True)
class FunctionSource(_Unprepared):
    """What the user's function returns for a worker's place in the world."""

    function: Callable[[World], Iterable[Any]]

    @property
    def name(self) -> str:
        """What is read, for messages."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def items(  # noqa: D102
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        return CountedItems(self.iterate(world), metrics)

    def iterate(self, world: World) -> Iterator[Any]:
        """Returns the items of a worker.

        Raises:
            ConfigError: the function has returned something else.
        """
        found = self.function(world)
        try:
            return iter(found)
        except TypeError:
            raise ConfigError(
                f"{self.name}({world}) returned {found!r}, which cannot be iterated: it must return the items of that "
                f"worker."
            ) from None


@dataclass(frozen=True)
class ReplicatedSource(_Unprepared):
    """All of the user's iterable, in every worker."""

    iterable: Iterable[Any]

    @property
    def name(self) -> str:
        """What is read, for messages."""
        return type(self.iterable).__name__

    def items(  # noqa: D102
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        return CountedItems(iter(self.iterable), metrics)


class BatchMemory:
    """Makes the memory of a batch's images: in a free slot of this worker, else of its own."""

    def __init__(self, slots: SharedSlots | None) -> None:
        self._slots = slots

    def __call__(self, shape: tuple[int, int, int, int]) -> FastArrayBuffer:
        """Returns a buffer of [B, H, W, C]."""
        memory = None if self._slots is None else self._slots.take(math.prod(shape))
        return FastArrayBuffer(np.empty(shape, np.uint8) if memory is None else memory.reshape(shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMemory, (None,)  # Memory is shared by inheritance only.


def source_of(source: Any, num_workers: int, fields: Sequence[str] | None) -> WorkerSource:
    """Returns what workers read of a Parser, a function of the world, or an iterable.

    Raises:
        ConfigError: it is none of these, or has no such fields.
    """
    if isinstance(source, Parser):
        if isinstance(fields, str):
            raise ConfigError(f"MultiLoader: fields={fields!r} must be a sequence of field names, such as ('image',).")
        asked = _usual_fields(source) if fields is None else tuple(fields)
        source.check_fields(asked)
        return ParserSource(source, asked)
    if fields is not None:
        raise ConfigError(f"MultiLoader: fields={fields!r} are for a Parser, and source is {_describe(source)}.")
    if isinstance(source, str | bytes | Mapping | Iterator):
        reason = "can be read once only" if isinstance(source, Iterator) else "is not a source of items"
        raise ConfigError(
            f"MultiLoader: source is {_describe(source)}, which {reason}. Give it a Parser, a function that takes a "
            f"World and returns the items of that worker, or an iterable that can be read again."
        )
    if isinstance(source, Iterable) and not isinstance(source, type):
        if num_workers > 1:
            warnings.warn(
                f"MultiLoader: each of the {num_workers} workers reads all of {type(source).__name__}, so that every "
                f"item comes {num_workers} times, unless it looks at WORKER and NUM_WORKERS in the environment. Give a "
                f"function that takes a World and returns the items of that worker, or use one worker.",
                UserWarning,
                stacklevel=4,
            )
        return ReplicatedSource(source)
    if callable(source):
        return FunctionSource(source)
    raise ConfigError(
        f"MultiLoader: source is {_describe(source)}. It must be a Parser, a function that takes a World and returns "
        f"the items of that worker, or an iterable."
    )


def count_examples(item: Any) -> int:
    """Returns B of an item that is a batch: the length of its first array, or of its first list; else 1."""
    if isinstance(item, Batch):
        return len(item)
    values = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list | tuple) else [item]
    arrays = [value for value in values if isinstance(value, np.ndarray) or is_tensor(type(value))]
    sizes = [array.shape[0] for array in arrays if array.ndim]
    sizes = sizes or [len(value) for value in values if isinstance(value, list)]
    return sizes[0] if sizes else 1


def _usual_fields(parser: Parser) -> tuple[str, ...]:
    found = tuple(name for name in DEFAULT_FIELDS if _has_field(parser, name))
    return found or tuple(stored_name(name) if name in DEFAULT_FIELDS else name for name in parser.element_spec.fields)


def _has_field(parser: Parser, name: str) -> bool:
    try:
        parser.check_fields([name])
    except ConfigError:
        return False
    return True


def _describe(source: Any) -> str:
    shown = repr(source)
    return f"{shown[:80]}{'...' * (len(shown) > 80)} ({type(source).__name__})"
