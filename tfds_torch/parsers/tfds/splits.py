"""Split expressions: the examples that they name, and cuts that TFDS rounds to something else.

Source: https://www.tensorflow.org/datasets/splits
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted

_TWO_ENDS = re.compile(r"([\w-]+)\[(-?[\d_.]+)(%|shard)?:(-?[\d_.]+)(%|shard)?\]")


def check_slices(split: str, splits: Mapping[str, Any], dataset: str) -> list[str]:
    """Returns the names of the splits of an expression.

    A slice such as [10:5] would make TFDS read a negative number of examples, and [10:9] all of them.

    Raises:
        ConfigError: a slice begins behind its end, or `_check_cuts` refuses it.
    """
    _check_cuts(split, splits, dataset)
    names = []
    for part in tfds.core.ReadInstruction.from_spec(split).to_absolute(splits):
        names.append(part.splitname)
        if part.from_ is not None and part.to is not None and part.from_ > part.to:
            raise ConfigError(
                f"{dataset}: split {quoted(split)} has a slice of {quoted(part.splitname)} that begins at example "
                f"{part.from_} and ends before it, at {part.to}."
            )
    return names


def _check_cuts(split: Any, splits: Mapping[str, Any], dataset: str) -> None:
    """Refuses cuts that TFDS's arithmetic makes something else of: a part of 1 % of 30 examples, and the rest, [1%:].

    Raises:
        ConfigError: a bound that is not the start or the end of its split is rounded to it, shards end before the first
            one, or one unit stands for two ends.
    """
    if isinstance(split, str):
        for part in split.split("+"):
            _check_units(part.strip(), splits, dataset)
        _check_cuts(tfds.core.ReadInstruction.from_spec(split), splits, dataset)
    elif not isinstance(split, tfds.core.ReadInstruction):
        for inner in vars(split).values():  # A sum, or a part of tfds.even_splits.
            if isinstance(inner, str | tfds.core.splits.AbstractSplit):
                _check_cuts(inner, splits, dataset)
    elif split.split_name in splits:
        info = splits[split.split_name]
        if split.unit == "%" and split.rounding == "closest":
            for bound in filter(None, (split.from_, split.to)):
                _check_percent(split, bound, info.num_examples, dataset)
        if split.unit == "shard" and split.to is not None:
            _check_last_shard(split, info.num_shards, dataset)


def _check_units(part: str, splits: Mapping[str, Any], dataset: str) -> None:
    """Refuses [10:50%]: TFDS takes both ends as percent. 0 is the same in every unit."""
    found = _TWO_ENDS.fullmatch(part)
    if found is None:
        return
    name, start, first, stop, last = found.groups(default="")
    if first == last or float(stop if first else start) == 0:
        return
    of_all = f", or two numbers of its {splits[name].num_examples} examples" if name in splits else ""
    unit = first or last
    raise ConfigError(
        f"{dataset}: split {quoted(part)} has a unit at one end only, and TFDS takes both as {unit}. Write "
        f"'{name}[{start}{unit}:{stop}{unit}]'{of_all}."
    )


def _check_percent(cut: Any, percent: float, num_examples: int, dataset: str) -> None:
    asked = percent * num_examples / 100
    bound = round(asked) + num_examples * (round(asked) < 0)  # As TFDS counts: -0.3 examples are 0 from the start.
    exact = asked + num_examples * (asked < 0)
    if 0 < bound < num_examples or math.isclose(bound, exact, abs_tol=1e-6):
        return
    name, one = cut.split_name, 1 if exact < num_examples / 2 else -1
    raise ConfigError(
        f"{dataset}: split {_shown(cut)}: {percent:g} % of the {num_examples} examples of {quoted(name)} are "
        f"{asked:.3g}, which TFDS rounds to {'all of them' if bound else 'the start of the split'}. Write examples, as "
        f"in '{name}[:{one}]' and '{name}[{one}:]'."
    )


def _check_last_shard(cut: Any, num_shards: int, dataset: str) -> None:
    """Refuses [:0shard], which TFDS takes as all shards, and [:-9shard] of 8 shards, as 7 of them."""
    is_last_shard = (cut.from_, cut.to) == (-1, 0)  # What TFDS makes of [-1shard].
    if is_last_shard or cut.to > 0 or -num_shards <= cut.to < 0:
        return
    taken = "all of them" if cut.to == 0 else f"the first {2 * num_shards + cut.to}"
    raise ConfigError(
        f"{dataset}: split {_shown(cut)} ends at shard {cut.to} of the {num_shards} of {quoted(cut.split_name)}, which "
        f"TFDS takes as {taken}. Write '{cut.split_name}[:1shard]' for the first shard, and '{cut.split_name}[:0]' for "
        f"no example."
    )


def _shown(cut: Any) -> str:
    """Returns a ReadInstruction as an expression."""
    unit = "" if cut.unit == "abs" else cut.unit
    start, stop = ("" if bound is None else f"{bound:g}{unit}" for bound in (cut.from_, cut.to))
    return quoted(f"{cut.split_name}[{start}:{stop}]")


def split_expression(split: object, splits: Mapping[str, Any], dataset: str) -> str:
    """Returns a split as a TFDS split expression: a text as it is, a split object by the examples that it stands for.

    Objects that stand for the same examples give one expression: neighbouring slices are joined, empty ones left out.

    Raises:
        ConfigError: it is something else, or names examples that the dataset does not have.
    """
    if isinstance(split, str):
        return str(split)  # `tfds.Split.TRAIN` is a text of a type of its own.
    if not isinstance(split, tfds.core.splits.AbstractSplit):
        raise ConfigError(
            f"split={quoted(split)} must be a TFDS split expression, such as 'train' or 'train[:10%]', one of those "
            f"that tfds.even_splits lists, a tfds.core.ReadInstruction, or a sum of these."
        )
    there = ", ".join(f"{name} ({info.num_examples} examples)" for name, info in splits.items())
    try:
        parts = [(str(part.splitname), part.from_, part.to) for part in split.to_absolute(splits)]
    except Exception as error:  # TFDS takes any value into a split object, and looks at it here.
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(f"{dataset}: split {quoted(split)}: {reason}. The splits are: {there}.") from None
    _check_cuts(split, splits, dataset)
    slices: list[tuple[str, int, int]] = []
    for name, from_, to in parts:
        start, stop = from_ or 0, splits[name].num_examples if to is None else to
        if not (start == int(start) and stop == int(stop) and 0 <= start <= stop <= splits[name].num_examples):
            raise ConfigError(
                f"{dataset}: split {quoted(split)} asks for the examples {start} to {stop} of {quoted(name)}, which "
                f"is not a slice of it. The splits are: {there}."
            )
        if slices and slices[-1][0] == name and slices[-1][2] == start:
            start = slices.pop()[1]
        slices.append((name, int(start), int(stop)))
    kept = [one for one in slices if one[1] < one[2]] or slices[:1]
    return "+".join(_expression(name, start, stop, splits[name].num_examples) for name, start, stop in kept)


def _expression(name: str, start: int, stop: int, num_examples: int) -> str:
    if (start, stop) == (0, num_examples):
        return name
    return f"{name}[{start or ''}:{'' if stop == num_examples else stop}]"
