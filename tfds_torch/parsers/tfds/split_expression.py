"""A split as a TFDS split expression, which messages, states and other processes can hold."""

from collections.abc import Mapping
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted


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
