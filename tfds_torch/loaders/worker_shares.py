"""What each worker of a MultiLoader reads: a Parser's planned batches, a function's share, or all of an iterable."""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError
from tfds_torch.images.fast_resize import FastArrayBuffer
from tfds_torch.loaders.wire_tensors import is_tensor
from tfds_torch.parsers.parser import DEFAULT_FIELDS, Parser, stored_name
from tfds_torch.parsers.reading_names import name_of
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import num_local_ranks
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots


@dataclass(frozen=True)
class Start:
    """Where a worker begins an iteration.

    Attributes:
        world: the rank, and which of its workers this is.
        epoch: of the loader.
        start_batch: the rank's batch at which to begin.
    """

    world: World
    epoch: int
    start_batch: int


class Share(Protocol):
    """What is read. It travels to workers."""

    @property
    def parser(self) -> Parser | None:
        """Whose planned batches are read; None: another source."""

    @property
    def name(self) -> str:
        """What is read, for messages."""

    def items(self, start: Start, slots: SharedSlots | None, metrics: StageMetrics) -> Iterator[Any]:
        """Begins an iteration in a worker."""


@dataclass(frozen=True)
class ParserShare:
    """The batches that a parser plans for a worker.

    Attributes:
        parser: where they come from.
        fields: what they consist of.
    """

    parser: Parser
    fields: Sequence[str]

    @property
    def name(self) -> str:
        """What is read, for messages."""
        return name_of(self.parser)

    def items(self, start: Start, slots: SharedSlots | None, metrics: StageMetrics) -> Iterator[Any]:
        """Begins an iteration; images that are preprocessed are written into slots, if there are any."""
        local = num_local_ranks(os.environ) if "LOCAL_WORLD_SIZE" in os.environ else None
        make_buffer = None if self.parser.preprocess is None else BatchMemory(slots)
        context = ReadContext(make_buffer, metrics, local, is_read_ahead=True)
        return self.parser.batches(start.world, start.epoch, start.start_batch, fields=self.fields, context=context)


@dataclass(frozen=True)
class FunctionShare:
    """What a function returns for a worker's place in the world.

    Attributes:
        function: the user's.
    """

    function: Callable[[World], Iterable[Any]]
    parser: ClassVar[None] = None

    @property
    def name(self) -> str:
        """What is read, for messages."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def items(self, start: Start, slots: SharedSlots | None, metrics: StageMetrics) -> Iterator[Any]:
        """Begins an iteration."""
        return self.iterate(start.world)

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
class WholeShare:
    """All of an iterable, in every worker.

    Attributes:
        iterable: the user's.
    """

    iterable: Iterable[Any]
    parser: ClassVar[None] = None

    @property
    def name(self) -> str:
        """What is read, for messages."""
        return type(self.iterable).__name__

    def items(self, start: Start, slots: SharedSlots | None, metrics: StageMetrics) -> Iterator[Any]:
        """Begins an iteration."""
        return iter(self.iterable)


class BatchMemory:
    """Makes the memory of a batch's images: in a free slot of this worker, else of its own.

    Args:
        slots: of the workers; None: there are none.
    """

    def __init__(self, slots: SharedSlots | None) -> None:
        self._slots = slots

    def __call__(self, shape: tuple[int, int, int, int]) -> FastArrayBuffer:
        """Returns a buffer of [B, H, W, C]."""
        memory = None if self._slots is None else self._slots.take(math.prod(shape))
        return FastArrayBuffer(np.empty(shape, np.uint8) if memory is None else memory.reshape(shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMemory, (None,)  # Memory is shared by inheritance only.


def share_of(source: Any, num_workers: int, fields: Sequence[str] | None) -> Share:
    """Returns what workers read of a source.

    Args:
        source: a Parser, a function of the world, or an iterable.
        num_workers: how many there are.
        fields: of a Parser's batches; None: image and label, as far as it has them, else all.

    Raises:
        ConfigError: it is none of these, or has no such fields.
    """
    if isinstance(source, Parser):
        if isinstance(fields, str):
            raise ConfigError(f"MultiLoader: fields={fields!r} must be a sequence of field names, such as ('image',).")
        asked = _usual_fields(source) if fields is None else tuple(fields)
        source.check_fields(asked)
        return ParserShare(source, asked)
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
        return WholeShare(source)
    if callable(source):
        return FunctionShare(source)
    raise ConfigError(
        f"MultiLoader: source is {_describe(source)}. It must be a Parser, a function that takes a World and returns "
        f"the items of that worker, or an iterable."
    )


def rebuild_batch(fields: Any, parser: Parser | None) -> Batch:
    """Returns a Batch that a worker has sent as a dict; the ids of a parser's examples are computed when looked at.

    Raises:
        TypeError: it is not that of a Batch.
    """
    return Batch(**(fields if parser is None else {**fields, "id": parser.ids(fields["index"])}))


def take_apart(batch: Batch, has_parser: bool) -> dict[str, Any]:
    """Returns a Batch as a dict that travels; with a parser at the other end, without its ids."""
    names = ("image", "label", "valid", "index", "features", "epoch", "batch")
    fields = {name: getattr(batch, name) for name in names}
    return fields if has_parser else {**fields, "id": list(batch.id)}


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
