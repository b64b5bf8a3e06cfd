"""Splits: the examples that an expression names, the cuts that TFDS would change, and the names of shards.

Shards have the names that TFDS makes, but in bounded time and memory: TFDS hands the templates of dataset_info.json to
`str.format`, which accepts format specs (`{SHARD_INDEX:>999999999}` makes names of a GB) and attributes of the values
that it fills in; and TFDS makes a path object of every name.

Source: https://www.tensorflow.org/datasets/splits
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import is_local

_LONGEST_TEMPLATE = 1000  # Characters.
_LONGEST_NAME = 255  # Bytes of a file's name, on the file systems of all operating systems.
_split_braces = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])").finditer
_PLACEHOLDERS = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")
_BY_SHARD = {"SHARD_INDEX", "SHARD_X_OF_Y"}
_LEAST_DIGITS = 5
_TWO_ENDS = re.compile(r"([\w-]+)\[(-?[\d_.]+)(%|shard)?:(-?[\d_.]+)(%|shard)?\]")


def check_slices(split: str, splits: Mapping[str, Any], dataset: str) -> list[str]:
    """Return the names of the splits of an expression.

    A slice like [10:5] would make TFDS read a negative number of examples, and [10:9] all of them.

    Raises:
        ConfigError: a slice begins after its end, or `_check_cuts` refuses a cut.
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
    """Refuse cuts that TFDS would change: of 30 examples it reads [:1%] as none, and the rest, [1%:], as all.

    Raises:
        ConfigError: a bound inside of a split is rounded to its start or end, a slice of shards ends before the first
            one, or only one end of a slice has a unit.
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
    """Refuse [10:50%], because TFDS takes both ends as percent; 0 may lack a unit, since it is the same in all."""
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
    """Refuse [:0shard], which TFDS takes as all shards, and [:-9shard] of 8 shards, which it takes as 7."""
    is_last_shard = (cut.from_, cut.to) == (-1, 0)  # TFDS parses [-1shard] as this.
    if is_last_shard or cut.to > 0 or -num_shards <= cut.to < 0:
        return
    taken = "all of them" if cut.to == 0 else f"the first {2 * num_shards + cut.to}"
    raise ConfigError(
        f"{dataset}: split {_shown(cut)} ends at shard {cut.to} of the {num_shards} of {quoted(cut.split_name)}, which "
        f"TFDS takes as {taken}. Write '{cut.split_name}[:1shard]' for the first shard, and '{cut.split_name}[:0]' for "
        f"no example."
    )


def _shown(cut: Any) -> str:
    """Return a ReadInstruction as an expression."""
    unit = "" if cut.unit == "abs" else cut.unit
    start, stop = ("" if bound is None else f"{bound:g}{unit}" for bound in (cut.from_, cut.to))
    return quoted(f"{cut.split_name}[{start}:{stop}]")


def split_expression(split: object, splits: Mapping[str, Any], dataset: str) -> str:
    """Return a split as a TFDS split expression: a text as it is, an object as the slices that it stands for.

    Objects that stand for the same examples have one expression: neighbouring slices are joined, empty ones left out.

    Raises:
        ConfigError: `split` is neither a text nor such an object, or names examples that the dataset does not have.
    """
    if isinstance(split, str):
        return str(split)  # `tfds.Split.TRAIN` is of a subclass of str.
    if not isinstance(split, tfds.core.splits.AbstractSplit):
        raise ConfigError(
            f"split={quoted(split)} must be a TFDS split expression, like 'train' or 'train[:10%]', one of those "
            f"that tfds.even_splits lists, a tfds.core.ReadInstruction, or a sum of these."
        )
    there = ", ".join(f"{name} ({info.num_examples} examples)" for name, info in splits.items())
    try:
        parts = [(str(part.splitname), part.from_, part.to) for part in split.to_absolute(splits)]
    except Exception as error:  # TFDS accepts any value in a split object, and checks it only here.
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


class BadTemplateError(Exception):
    """A template from which no names of shards can be made; the message is a whole sentence."""


def shard_names(template: str, values: dict[str, str], num_shards: int) -> list[str]:
    """Return the names of a split's shards, in their order, relative to the dataset's directory."""
    parts = _parse(template or tfds.core.naming.DEFAULT_FILENAME_TEMPLATE, values)
    if num_shards > 1 and not any(is_placeholder and text in _BY_SHARD for is_placeholder, text in parts):
        raise _bad(template, f"gives all of its {num_shards} shards the same name")
    digits = max(len(str(num_shards)), _LEAST_DIGITS)
    of_all = f"{num_shards:0{digits}d}"
    # Names differ by the number of the shard alone: one pattern makes them, with all texts of the template escaped.
    pattern = "".join(
        text.replace("%", "%%")
        if not is_placeholder
        else {
            "SHARD_INDEX": "%(n)s",
            "NUM_SHARDS": of_all,
            "SHARD_X_OF_Y": f"%(n)s-of-{of_all}",
        }.get(text, values.get(text, "").replace("%", "%%"))
        for is_placeholder, text in parts
    )
    longest = max((len(part.encode(errors="replace")) for part in (pattern % {"n": of_all}).split("/")), default=0)
    if longest > _LONGEST_NAME:
        raise _bad(template, f"makes names of {longest} bytes, and {_LONGEST_NAME} is the most of a file's name")
    return [pattern % {"n": f"{number:0{digits}d}"} for number in range(num_shards)]


def _parse(template: str, values: dict[str, str]) -> list[tuple[bool, str]]:
    """Return the parts of a template, in order: whether each is a placeholder, and its name or the text."""
    if len(template) > _LONGEST_TEMPLATE:
        raise _bad(template, f"has {len(template):,} characters, and {_LONGEST_TEMPLATE:,} is the most")
    if "\0" in template:
        raise _bad(template, "holds a null character")
    parts: list[tuple[bool, str]] = []
    end = 0
    for found in _split_braces(template):
        parts.append((False, template[end : found.start()]))
        end, name = found.end(), found[1]
        if found[2]:
            raise _bad(template, "has a brace that is not closed, or not opened")
        if name is None:
            parts.append((False, found[0][0]))
            continue
        if name not in _PLACEHOLDERS or (name not in values and name in _PLACEHOLDERS[:3]):
            raise _bad(template, f"has the placeholder {{{quoted(name)[1:-1]}}}, which TFDS does not write")
        parts.append((True, name))
    return [*parts, (False, template[end:])]


def _bad(template: str, what: str) -> BadTemplateError:
    known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
    return BadTemplateError(f"The filepathTemplate {quoted(template)} {what}. The placeholders are {known}.")


@dataclass(frozen=True, eq=False)
class NamedSplit(tfds.core.SplitInfo):  # type: ignore[misc]
    """TFDS's `SplitInfo`, with the paths of its shards made by `shard_names`.

    Attributes:
        folder: path or URL of the folder that the names are relative to; the template's own folder is ignored.
    """

    folder: str = ""

    @property
    def filepaths(self) -> list[str]:
        """The paths or URLs of all shards, in order, which sorting keeps: their numbers have equally many digits.

        Raises:
            BadTemplateError: the template is not one of TFDS's, or a file lies outside of the folder.
        """
        cached: list[str] | None = self.__dict__.get("_filepaths")
        if cached is None:
            cached = self._make_paths()
            object.__setattr__(self, "_filepaths", cached)  # The dataclass is frozen.
        return cached

    def _make_paths(self) -> list[str]:
        template = self.filename_template
        values = {"DATASET": template.dataset_name, "SPLIT": template.split, "FILEFORMAT": template.filetype_suffix}
        names = shard_names(
            template.template, {key: value for key, value in values.items() if value}, len(self.shard_lengths)
        )
        if not names:
            return []
        # Names differ by digits alone: all lie in folders of the same depth, inside or outside as the first one does.
        folder = os.path.abspath(self.folder) if is_local(self.folder) else "/url"
        path = os.path.normpath(os.path.join(folder, names[0]))
        if os.path.commonpath([path, folder]) != folder:
            raise BadTemplateError(
                f"dataset_info.json in {self.folder} names the file {path if is_local(self.folder) else names[0]}, "
                f"which does not lie there. Only files of the dataset's own directory are read: check its "
                f"filepathTemplate."
            )
        if path != f"{folder}/{names[0]}":
            names = [os.path.relpath(os.path.join(folder, name), folder) for name in names]
        return [f"{folder if is_local(self.folder) else self.folder.rstrip('/')}/{name}" for name in names]


@dataclass(frozen=True, eq=False)
class JoinedSplit(NamedSplit):
    """A split that lies in several directories, one after the other.

    Attributes:
        parts: the split of each directory, in order.
    """

    parts: tuple[NamedSplit, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[NamedSplit]) -> "JoinedSplit":
        """Join splits of one name, in the order given."""
        lengths = [length for part in parts for length in part.shard_lengths]
        first, num_bytes = parts[0], sum(part.num_bytes for part in parts)
        return cls(first.name, lengths, num_bytes, first.filename_template, parts=tuple(parts))

    def _make_paths(self) -> list[str]:
        return [path for part in self.parts for path in part.filepaths]
