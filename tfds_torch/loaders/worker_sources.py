"""What each worker of a MultiLoader reads: a Parser's planned batches, a function's items, or all of an iterable."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError
from tfds_torch.loaders.worker import BatchMemory, CountedItems, WorkerBatch, WorkerSource
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, Parser, dataset_of, has_windows, name_of, stored_name
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import num_local_ranks
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots


class _Source:
    """The common part of a MultiLoader's sources, which open everything when they are read."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Name -> what the user gave, for the message where it cannot be pickled."""
        return {f"MultiLoader: {name}": value for name, value in vars(self).items()}

    def prepare(self, worker: int, num_workers: int) -> None:
        """Do nothing."""

    def items(
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        return CountedItems(self.iterate(world), metrics)

    def iterate(self, world: World) -> Iterator[Any]:
        """Return the items of a worker."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParserSource(_Source):
    """The batches that a parser plans for a worker, with the fields that they consist of."""

    parser: Parser
    fields: Sequence[str]

    @property
    def name(self) -> str:
        """The source's name, for messages."""
        return name_of(self.parser)

    def items(  # noqa: D102
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        local = num_local_ranks(os.environ) if "LOCAL_WORLD_SIZE" in os.environ else None
        has_one_size = self.parser.preprocess is not None
        context = ReadContext(BatchMemory(slots), metrics, local, is_read_ahead=True, has_one_size=has_one_size)
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
class FunctionSource(_Source):
    """The items that the user's function returns for a worker's place in the world."""

    function: Callable[[World], Iterable[Any]]

    @property
    def name(self) -> str:
        """The source's name, for messages."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def iterate(self, world: World) -> Iterator[Any]:
        """Return the items of a worker."""
        found = self.function(world)
        try:
            return iter(found)
        except TypeError:
            raise ConfigError(
                f"{self.name}({world}) returned {found!r}, which cannot be iterated: it must return the items of that "
                f"worker."
            ) from None


@dataclass(frozen=True)
class ReplicatedSource(_Source):
    """All of the user's iterable, in every worker."""

    iterable: Iterable[Any]

    @property
    def name(self) -> str:
        """The source's name, for messages."""
        return type(self.iterable).__name__

    def iterate(self, world: World) -> Iterator[Any]:  # noqa: D102
        return iter(self.iterable)


def source_of(source: Any, fields: Sequence[str] | None) -> WorkerSource:
    """Return the workers' source for a Parser, a function of the world, or an iterable."""
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
        return ReplicatedSource(source)
    if callable(source):
        return FunctionSource(source)
    raise ConfigError(
        f"MultiLoader: source is {_describe(source)}. It must be a Parser, a function that takes a World and returns "
        f"the items of that worker, or an iterable."
    )


def _usual_fields(parser: Parser) -> tuple[str, ...]:
    if has_windows(parser):
        return tuple(parser.element_spec.fields)
    found = tuple(name for name in DEFAULT_FIELDS if _has_field(parser, name))
    return found or tuple(stored_name(name) if name in DEFAULT_FIELDS else name for name in parser.element_spec.fields)


def _has_field(parser: Parser, name: str) -> bool:
    dataset = dataset_of(parser)
    if dataset is not None:
        return dataset.has_field(name)
    try:
        parser.check_fields([name])
    except ConfigError:
        return False
    return True


def _describe(source: Any) -> str:
    shown = repr(source)
    return f"{shown[:80]}{'...' * (len(shown) > 80)} ({type(source).__name__})"
