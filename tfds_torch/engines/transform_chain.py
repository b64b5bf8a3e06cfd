"""Chains: the functions that decoded examples go through before they become a batch, for the fields asked for.

`plan_steps` finds which transforms of a parser are needed, and the fields that are decoded for them. A TransformChain
calls those of one dataset, one example at a time; Chains are all chains of a parser, also of a mixture's members.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.chunks import WrittenImages
from tfds_torch.engines.example_table import ExampleTable
from tfds_torch.engines.fields import Decoded, Samples, describe
from tfds_torch.engines.forms import Forms, form_of, show_form
from tfds_torch.engines.request import ReadContext
from tfds_torch.engines.transforms import Transform
from tfds_torch.errors import ConfigError
from tfds_torch.images.batch_buffer import MakeBatchBuffer
from tfds_torch.plan.order import draw_function_seeds
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import array_of_tensor, is_tensor
from tfds_torch.runtime.user_random import FIRST_OF_PARSER, borrowed_generators, calling, rng_of, seed_generators
from tfds_torch.storage.source import Source

OF_EXAMPLES = ("index", "id")
"""Fields that a function may read although the dataset does not store them."""

_CHANNELS = (1, 3, 4)


class Step(NamedTuple):
    """A transform in a chain.

    Attributes:
        transform: the transform.
        number: number of its random numbers among those of an example's functions.
        reads: the fields that it gets; where it does not declare them, those that are there.
        keeps: the fields that it returns and that are needed behind it.
    """

    transform: Transform
    number: int
    reads: tuple[str, ...]
    keeps: frozenset[str]


def plan_steps(
    transforms: Sequence[Transform], asked: Iterable[str], is_stored: Callable[[str], bool], first_number: int = 0
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the transforms that are needed for some fields, and the fields that are decoded for them.

    A transform whose `gives` nobody needs is left out, with the fields that only it reads.

    Args:
        transforms: the transforms, in the order of their calls.
        asked: the fields that are wanted behind them, without those that belong to batches.
        is_stored: returns whether the dataset has a field.
        first_number: number of the first transform's random numbers, among those of parsers.
    """
    needed, steps = list(dict.fromkeys(asked)), list[Step]()
    for place, one in reversed(list(enumerate(transforms))):
        if not any(map(one.may_give, needed)):
            continue
        keeps, before = frozenset(needed), transforms[:place]
        there = [name for name in needed if is_stored(name) or any(other.may_give(name) for other in before)]
        reads = one.reads_of(there)
        if one.reads is None:
            needed = list(reads)
        else:
            passed = (name for name in needed if name not in one.named)  # It need not return what it may return.
            needed = list(dict.fromkeys([*passed, *(name for name in reads if name not in OF_EXAMPLES)]))
        steps.append(Step(one, FIRST_OF_PARSER + first_number + place, reads, keeps))
    return tuple(reversed(steps)), tuple(name for name in needed if is_stored(name))


@dataclass(frozen=True)
class Run:
    """Some examples that go through chains.

    Attributes:
        samples: keys and seed of the random numbers.
        index: int64 [n], positions of the examples in the split.
        ids: ids of the n examples, for errors.
        context: memory and metrics that the run supplies.
        is_noted: whether this thread notes which example it is at.
        added: fields that functions added without declaring them, in the order in which they came.
    """

    samples: Samples
    index: NDArray[np.int64]
    ids: Sequence[str]
    context: ReadContext
    is_noted: bool
    added: dict[str, None] = field(default_factory=dict)

    def note(self, row: int) -> None:
        """Note the example whose functions are called now."""
        if self.is_noted and self.context.metrics is not None:
            self.context.metrics.at_work.note(int(self.index[row]))

    def note_passed(self) -> None:
        """Note that its functions have returned."""
        if self.is_noted and self.context.metrics is not None:
            self.context.metrics.at_work.note_passed()


@dataclass(frozen=True)
class TransformChain:
    """The transforms of one dataset, for the fields that are asked for.

    Attributes:
        dataset: its name, for messages.
        steps: the transforms that are needed, in the order of their calls.
        inner: the fields that are decoded for them, and for the fields that are asked for.
        asked: the fields that are wanted behind them.
        images: field that is an image -> number of its axes.
        forms: forms of the values that transforms return; None: any form will do, as for whole images where there is a
            preprocess.
        reserved: the fields that say which example it is; a transform must not change them.
        columns: field -> its column, where that has another name.
        member: number of the member of a mixture to which the chain belongs; None: it is for all examples.
    """

    dataset: str
    steps: tuple[Step, ...]
    inner: tuple[str, ...]
    asked: tuple[str, ...]
    images: Mapping[str, int]
    forms: Forms | None
    reserved: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)
    member: int | None = None

    @property
    def may_use_threads(self) -> bool:
        """Whether all of them draw from their own generator alone."""
        return all(step.transform.threads for step in self.steps)

    def gives(self, name: str) -> bool:
        """Return whether the functions may return a field."""
        return any(step.transform.may_give(name) for step in self.steps)

    def touches(self, name: str) -> bool:
        """Return whether the functions read a field, or may return it."""
        return self.gives(name) or any(name in step.reads for step in self.steps)

    def run(self, table: ExampleTable, rows: Sequence[int], run: Run) -> None:
        """Call the functions for some of the examples of a table.

        Raises:
            ConfigError: a function failed, or returned something that cannot be used.
        """
        seeds = [draw_function_seeds(run.samples.keys, run.samples.seed, step.number).tolist() for step in self.steps]
        for row in rows:
            run.note(row)
            added: list[str] = []
            for step, own in zip(self.steps, seeds, strict=True):
                self._call(step, table, row, own[row], added, run)
            if added and self.member is None:
                run.added.update(dict.fromkeys(added))
            for name in self.asked if self.columns else ():
                if name in self.columns:
                    table.move(self.columns[name], name, row)
            run.note_passed()

    def _call(self, step: Step, table: ExampleTable, row: int, seed: int, added: list[str], run: Run) -> None:
        """Call one function for one example, and put its fields into the table; `added` are new names so far."""
        transform = step.transform
        example = self._example(step, table, row, added, run)
        given = {name: example[name] for name in self.reserved if name in example}
        names = tuple(example)  # The function may change its dictionary.
        if run.context.seeds_items and not transform.threads:
            seed_generators(seed)
        try:
            found = transform(example, rng_of(seed) if transform.takes_rng else None)
        except MemoryError:
            raise
        except Exception as error:  # It is the user's.
            told = "" if isinstance(error, ConfigError) else _tell(step, names)  # That says what to do.
            raise self._failed(step, run.ids[row], f"It failed: {describe(error)}{told}") from error
        fault = self._find_fault(transform, found, given)
        if fault is not None:
            raise self._failed(step, run.ids[row], fault)
        for name, value in found.items():
            if name in given or not transform.may_give(name):
                continue
            whole = next((one for one in self.asked if name.startswith(f"{one}/") and one not in found), None)
            if whole is not None:
                why = (
                    f"It returned {quoted(name)}, and {quoted(whole)} is asked for as a whole. Ask for its parts, by "
                    f"names such as {quoted(name)}; or return all of {quoted(whole)}."
                )
                raise self._failed(step, run.ids[row], why)
            if name not in step.keeps and name not in added:
                if transform.gives is not None or name in names:
                    continue
                added.append(name)
            own = self._checked(step, name, value, row, run)
            table.put(name if name in self.asked else self.columns.get(name, name), row, own)

    def _example(self, step: Step, table: ExampleTable, row: int, added: Sequence[str], run: Run) -> dict[str, Any]:
        """Return the fields of an example that a function gets: copies."""
        example: dict[str, Any] = {}
        gets_all = step.transform.reads is None
        for name in dict.fromkeys([*step.reads, *added]) if gets_all and added else step.reads:
            if name in OF_EXAMPLES:
                example[name] = run.ids[row] if name == "id" else int(run.index[row])
            elif (column := self._column(name, table, row)) is not None:
                example[name] = table.copy(column, row)
            elif not gets_all:
                why = f"It reads {quoted(name)}, which no transform before it gave."
                raise self._failed(step, run.ids[row], why)
        return example

    def _column(self, name: str, table: ExampleTable, row: int) -> str | None:
        """Return the column in which a field of an example lies now; None: the example does not have it."""
        other = self.columns.get(name)
        if other is not None and table.has(other, row) and not table.is_put(name, row):
            return other
        return name if table.has(name, row) else None

    def _find_fault(self, transform: Transform, found: Any, given: Mapping[str, Any]) -> str | None:
        """Return the fault of the result of a function, a sentence; None: it has none.

        Args:
            transform: the transform of the function.
            found: the result of the function.
            given: the reserved fields that the function got.
        """
        if not isinstance(found, Mapping):
            kind = "None" if found is None else f"a {type(found).__name__}"
            return f"It returned {kind}: return a dictionary of fields."
        for name in found:
            if not isinstance(name, str):
                return f"It returned {quoted(name)}, which is no name of a field."
        for name in transform.named:
            if name not in found:
                return f"It returned {quoted(list(found))}, and gives= names {quoted(name)}."
        for name in self.reserved.intersection(found):
            if name not in given or not np.array_equal(found[name], given[name]):
                return f"It returned {quoted(name)}, which says which example it is. Give the field another name."
        return None

    def _checked(self, step: Step, name: str, value: Any, row: int, run: Run) -> Any:
        """Return a value that a function gave, as numpy has it; raise ConfigError where it cannot be used."""
        value, fault = _as_numpy(value), None
        axes = self.images.get(name)
        if axes is not None and isinstance(value, np.ndarray) and value.ndim == axes - 1:
            value = value[..., None]
        if axes is not None and not _is_image(value, axes):
            form = show_form(form_of(value))
            fault = (
                f"It returned {quoted(name)} as {form}. Images are [H, W, C] here, as the function gets them; the "
                f"dataset makes them channels first."
            )
        elif is_tensor(type(value)):
            fault = f"It returned {quoted(name)} as a tensor that numpy cannot have: {value.dtype} on {value.device}."
        elif self.forms is not None:
            declared = step.transform.named.get(name)
            fault = self.forms.find_fault(step.number, name, value, declared, lambda: run.ids[row])
        if fault is not None:
            raise self._failed(step, run.ids[row], fault)
        return value

    def _failed(self, step: Step, id: str, reason: str) -> ConfigError:
        name = step.transform.name
        return ConfigError(
            f"{self.dataset}: the transform {name} cannot be used for the example {quoted(id)}. {reason}"
        )


def _tell(step: Step, names: Sequence[str]) -> str:
    """Return the fields that a function got, for the message where it failed."""
    got = f" It got the fields {', '.join(names)}." if names else " It got no field."
    if step.transform.reads is None:
        got += " It gets the fields that are asked for: Transform(function, reads=[...]) names others."
    return got


def _is_image(value: Any, axes: int) -> bool:
    """Return whether a value is an image with its channels last, as far as that can be seen."""
    if not isinstance(value, np.ndarray) or value.ndim != axes:
        return False
    return value.shape[-3] not in _CHANNELS or value.shape[-1] in _CHANNELS


def _as_numpy(value: Any) -> Any:
    """Return numbers, tensors and PIL images as arrays; texts, bytes, lists and dictionaries as they are."""
    if isinstance(value, np.ndarray | str | bytes | list | tuple | dict) or value is None:
        return value
    if is_tensor(type(value)):
        array = array_of_tensor(value)
        return value if array is None else array
    is_array = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    return np.asarray(value) if is_array or isinstance(value, int | float | complex) else value


@dataclass(frozen=True)
class Chains:
    """The chains of a dataset: its own chain; of a mixture, the chains of its members and its own one behind them.

    Attributes:
        parts: the chains, in the order of their calls; chains of different members have different examples.
        inner: the fields that are decoded for them, and for the fields that are asked for.
        asked: the fields that are wanted at the end.
        explain: field -> why the dataset has none, a sentence.
        channels_first: columns whose values are images [..., C, H, W].
        lists: fields that are lists in every batch, whatever the values.
        member: the column with the member of each example, int64 [n]; None: there is one dataset.
    """

    parts: tuple[TransformChain, ...]
    inner: tuple[str, ...]
    asked: tuple[str, ...]
    explain: Callable[[str], str]
    channels_first: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    member: str | None = None

    @property
    def in_threads(self) -> bool:
        """Whether they run where chunks are decoded, instead of where batches are taken."""
        return all(part.may_use_threads for part in self.parts)

    def gives(self, name: str) -> bool:
        """Return whether the functions may return a field."""
        return any(part.gives(name) for part in self.parts)

    def touches(self, name: str) -> bool:
        """Return whether the functions read a field, or may return it."""
        return any(part.touches(name) for part in self.parts)

    def apply(
        self,
        columns: Decoded,
        samples: Samples,
        index: NDArray[np.int64],
        source: Source,
        context: ReadContext,
        make_buffer: MakeBatchBuffer | None = None,
    ) -> Decoded:
        """Return the columns of examples after all functions of the chains.

        Args:
            columns: field -> n values.
            samples: keys and seed of the random numbers of the n examples.
            index: int64 [n], positions of the examples in the split.
            source: the source of the examples, for their ids.
            context: memory and metrics that the run supplies.
            make_buffer: makes the memory of images that functions return, where the examples are a whole batch.

        Raises:
            ConfigError: a function failed, or returned something that cannot be used.
        """
        began_at = time.monotonic()
        run = Run(samples, index, source.ids(index), context, is_noted=not self.in_threads)
        table = ExampleTable(columns, len(index), self.channels_first, make_buffer)
        needs_generators = context.seeds_items and not self.in_threads
        with borrowed_generators() if needs_generators else nullcontext(), calling():
            for part in self.parts:
                part.run(table, self._rows_of(part, columns, len(index)), run)
        if context.metrics is not None:
            context.metrics.add("transform", time.monotonic() - began_at)
        names = dict.fromkeys([*self.asked, *run.added])
        return {name: self._column(table, name, run) for name in names}

    def _rows_of(self, part: TransformChain, columns: Decoded, size: int) -> Sequence[int]:
        if part.member is None or self.member is None:
            return range(size)
        found: list[int] = np.flatnonzero(np.asarray(columns[self.member]) == part.member).tolist()
        return found

    def _column(self, table: ExampleTable, name: str, run: Run) -> Any:
        lacking = next((row for row in range(table.size) if not table.has(name, row)), None)
        if lacking is not None:
            of = (
                f"{self.parts[-1].dataset}: no transform gave {quoted(name)} for the example {quoted(run.ids[lacking])}"
            )
            if name in run.added and name not in self.asked:
                raise ConfigError(f"{of}, and one did for others. Give it for all; None stands for no value.")
            raise ConfigError(f"{of}, and the dataset does not have it. {self.explain(name)}")
        values = table.column(name)
        if name in self.lists and not isinstance(values, WrittenImages):
            return list(values)
        if self.member is not None and isinstance(values, list) and name not in self.parts[-1].images:
            _check_agree(name, values, run)
        return values


def _check_agree(name: str, values: Sequence[Any], run: Run) -> None:
    """Raise ConfigError where the members of a mixture do not make one array of a field."""
    forms = [form_of(value) for value in values]
    other = next((row for row, form in enumerate(forms) if form != forms[0]), None)
    if other is not None:
        raise ConfigError(
            f"The field {quoted(name)} is {show_form(forms[0])} in the example {quoted(run.ids[0])}, and "
            f"{show_form(forms[other])} in {quoted(run.ids[other])}: members must have equal fields. Give the parsers "
            f"transforms that make their values alike."
        )
