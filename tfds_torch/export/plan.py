"""ExportPlan: which examples go into which shard, and how; equal plans give equal bytes, wherever they are written.

`export-<split>.json`, the manifest, holds the plan, and at the end size and checksum of every shard.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.printable import quoted

SHARDED = ("webdataset", "tfrecord", "array_record")
"""Formats whose exports are folders of shards."""
MOST_SHARDS = 1_000_000
DEFAULT_SHARD_BYTES = 256 * 2**20
"""Size of a shard where nothing is asked for and the mean size of an example is known."""
DEFAULT_SHARD_EXAMPLES = 10_000
"""Size of a shard where nothing is asked for and the mean size of an example is unknown."""
_NUMBER = re.compile("[0-9]{1,9}")
"""A number of a part, as text."""


@dataclass(frozen=True)
class ExportPlan:
    """The plan of an export. It is kept as JSON, and compared with the plan of an earlier export to the folder.

    Attributes:
        format: of the shards, one of SHARDED.
        dataset: its name in names of files: letters, digits and `_`.
        split: its name in names of files: letters, digits and `_`.
        source: the identity of the examples: name, split, fingerprint ...
        options: how they are stored, as JSON has it.
        bounds: shard n holds the places bounds[n] to bounds[n + 1] of the export's order.
    """

    format: str
    dataset: str
    split: str
    source: Mapping[str, Any]
    options: Mapping[str, Any]
    bounds: tuple[int, ...]

    @property
    def num_shards(self) -> int:  # noqa: D102
        return len(self.bounds) - 1

    @property
    def num_examples(self) -> int:
        """Examples of all shards."""
        return self.bounds[-1]

    def places(self, shard: int) -> range:
        """Return the places of a shard's examples."""
        return range(self.bounds[shard], self.bounds[shard + 1])

    def file_name(self, shard: int) -> str:
        """Return the name of a shard: WebDataset's usual form, or TFDS's."""
        name = f"{self.dataset}-{self.split}"
        if self.format == "webdataset":
            return f"{name}-{shard:06d}.tar"
        width = max(5, len(str(self.num_shards)))  # As TFDS has it.
        return f"{name}.{self.format}-{shard:0{width}d}-of-{self.num_shards:0{width}d}"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON has."""
        # Through JSON, so that a plan that was read again is equal.
        values: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "format": self.format,
                    "dataset": self.dataset,
                    "split": self.split,
                    "source": dict(self.source),
                    "options": dict(self.options),
                    "bounds": list(self.bounds),
                }
            )
        )
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ExportPlan":
        """Return the plan of `to_dict`'s values; raise KeyError, TypeError or ValueError for damaged ones."""
        if values["format"] not in SHARDED:
            raise ValueError(f"there is no format {quoted(values['format'])} of shards")
        for name in ("dataset", "split"):
            if not isinstance(values[name], str) or safe_name(values[name]) != values[name]:
                raise ValueError(f"{quoted(values[name])} is not a {name}'s name of letters, digits and _")
        bounds = values["bounds"]
        if not isinstance(bounds, list) or not all(type(bound) is int for bound in bounds):
            raise TypeError("bounds are not a list of integers")
        if not 2 <= len(bounds) <= MOST_SHARDS + 1:
            raise ValueError(f"{len(bounds):,} bounds are not those of 1 to {MOST_SHARDS:,} shards")
        if bounds[0] != 0 or any(start >= stop for start, stop in pairwise(bounds)):
            raise ValueError("bounds do not rise from 0")
        return cls(
            format=values["format"],
            dataset=values["dataset"],
            split=values["split"],
            source=dict(values["source"]),
            options=dict(values["options"]),
            bounds=tuple(bounds),
        )

    def differences(self, other: "ExportPlan") -> list[str]:
        """Return the unequal values, as `name is this one's, not the other's`."""
        mine, theirs = _flat(self), _flat(other)
        unequal = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        if not unequal and self.bounds != other.bounds:
            return ["the shards hold other ranges of examples"]
        return [f"{name} is {_short(mine.get(name))}, not {_short(theirs.get(name))}" for name in unequal]


class Part(NamedTuple):
    """Part `number`, counted from 1, of an export in `of` parts, which separate processes write, on any machines."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def suffix(self) -> str:
        """The suffix of its log's name."""
        return f"-part-{self.number}-of-{self.of}"

    def shards(self, num_shards: int) -> range:
        """Return the numbers of its shards: every `of`-th one."""
        return range(self.number - 1, num_shards, self.of)

    @classmethod
    def of_argument(cls, value: object) -> "Part":
        """Return the part that "3/16" or (3, 16) names; raise ConfigError where it names none."""
        words = value.split("/") if isinstance(value, str) else value
        if isinstance(words, list | tuple) and len(words) == 2:
            numbers = [int(one) if isinstance(one, str) and _NUMBER.fullmatch(one) else one for one in words]
            if all(type(one) is int for one in numbers) and 1 <= numbers[0] <= numbers[1]:
                return cls(*numbers)
        raise ConfigError(
            f"part={quoted(value)} (--part) must be K/N, such as 3/16: the K-th of N parts, counted from 1."
        )


@dataclass(frozen=True)
class ShardSizes:
    """How many shards are asked for, or how many examples and bytes a shard may have; None: not asked for."""

    num_shards: int | None = None
    max_count: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_shards", "max_count", "max_bytes"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, 1))  # A plan is JSON: no numpy's integers.
        if self.num_shards is not None and (self.max_count is not None or self.max_bytes is not None):
            raise ConfigError(
                "num_shards (--shards) is the number of shards, max_count and max_bytes limit their size: give the one "
                "or the others."
            )

    def bounds(
        self,
        num_examples: int,
        mean_bytes: int | None,
        sizes: Int64Array | None = None,
        end_bytes: int = 0,
        block_bytes: int = 1,
    ) -> tuple[int, ...]:
        """Return where shards begin and end, as in ExportPlan; raise ConfigError where there is no such division.

        Args:
            num_examples: of all shards, >= 1.
            mean_bytes: of an example; None: not known.
            sizes: int64 [num_examples], bytes of each one in a shard; needed where max_bytes is given.
            end_bytes: bytes of a file's end.
            block_bytes: a file is filled up to a multiple of so many bytes.
        """
        if self.max_bytes is not None and sizes is not None:
            bounds = _cut_by_bytes(sizes, self.max_bytes, end_bytes, block_bytes, self.max_count or num_examples)
        elif self.max_count is not None:
            bounds = (*range(0, num_examples, self.max_count), num_examples)
        else:
            num_shards = _usual_num_shards(num_examples, mean_bytes) if self.num_shards is None else self.num_shards
            if num_shards > num_examples:
                raise ConfigError(
                    f"num_shards={num_shards:,} (--shards) is more than the {num_examples:,} examples: no shard may be "
                    f"empty."
                )
            bounds = tuple(num_examples * shard // num_shards for shard in range(num_shards + 1))
        if len(bounds) - 1 > MOST_SHARDS:
            raise ConfigError(
                f"These would be {len(bounds) - 1:,} shards, and {MOST_SHARDS:,} is the most: ask for fewer "
                f"(num_shards, --shards), or allow larger ones (max_count, max_bytes; --max-count, --max-bytes)."
            )
        return bounds


def _usual_num_shards(num_examples: int, mean_bytes: int | None) -> int:
    """Return the number of shards of the usual size."""
    per_shard = DEFAULT_SHARD_EXAMPLES if mean_bytes is None else DEFAULT_SHARD_BYTES // max(1, mean_bytes)
    return -(-num_examples // max(1, per_shard))


def _cut_by_bytes(
    sizes: Int64Array, max_bytes: int, end_bytes: int, block_bytes: int, max_count: int
) -> tuple[int, ...]:
    """Return the bounds of shards that are filled one after the other, as far as both limits allow."""

    def file_bytes(content_bytes: int) -> int:
        return -(-(content_bytes + end_bytes) // block_bytes) * block_bytes

    room = max_bytes // block_bytes * block_bytes - end_bytes
    too_large = np.flatnonzero(sizes > room)
    if len(too_large):
        place, largest = int(too_large[0]), int(sizes.max())
        raise ConfigError(
            f"max_bytes={max_bytes:,} (--max-bytes): a shard with example {place} alone takes "
            f"{file_bytes(int(sizes[place])):,} bytes. Allow {file_bytes(largest):,} or more, for the "
            f"largest one, or leave that out."
        )
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        start = bounds[-1]
        before = int(ends[start - 1]) if start else 0
        bounds.append(min(int(np.searchsorted(ends, before + room, side="right")), start + max_count))
    return tuple(bounds)


def _flat(plan: ExportPlan) -> dict[str, Any]:
    """Return the values of a plan but its bounds, by the names that messages have for them."""
    values = plan.to_dict()
    return {
        **{name: values[name] for name in ("format", "dataset", "split")},
        **values["options"],
        **{f"source {name}": value for name, value in values["source"].items()},
    }


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def split_label(expression: str) -> str:
    """Return a split expression's name in names of files: `train[:10%]` is train, `train+test` train_test."""
    parts = [part.partition("[")[0].strip() for part in expression.split("+")]
    return safe_name("_".join(dict.fromkeys(parts))) or "all"


def safe_name(name: str) -> str:
    """Return a name of letters, digits and `_` alone."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)


# The manifest

PREFIX = "export-"
"""The beginning of names of manifests."""
_SUFFIX = ".json"


@dataclass(frozen=True)
class Shard:
    """A complete shard: its number, the size and crc32c of its file, and the bytes of its examples alone."""

    number: int
    num_bytes: int
    crc32c: int
    content_bytes: int

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Shard":
        """Return the shard with these attributes; values of other kinds raise any error of Python."""
        return cls(**{field.name: int(values[field.name]) for field in fields(cls)})


class Manifest(NamedTuple):
    """The content of a manifest.

    Attributes:
        shards: all of them; empty: the export is not complete.
        metadata: names of TFDS's metadata that the export writes.
    """

    plan: ExportPlan
    shards: list[Shard]
    metadata: list[str]


def manifest_name(split: str) -> str:
    """Return the name of a manifest's file, for a split as plans call it."""
    return f"{PREFIX}{split}{_SUFFIX}"


def is_manifest(name: str) -> bool:
    """Return whether a file of this name is a manifest."""
    return name.startswith(PREFIX) and name.endswith(_SUFFIX)


def manifests_in(folder: Path) -> list[Path]:
    """Return the manifests of a folder, by name; raise OSError where it is not a folder that may be read."""
    return [path for path in sorted(folder.iterdir()) if is_manifest(path.name)]


def manifest_content(plan: ExportPlan, shards: Sequence[Shard] | None, metadata: Sequence[str] = ()) -> bytes:
    """Return the manifest of a plan with its shards (None: it is not complete) and names of TFDS's metadata."""
    done = None if shards is None else [{"file": plan.file_name(shard.number), **asdict(shard)} for shard in shards]
    return json.dumps({"plan": plan.to_dict(), "shards": done, "metadata": list(metadata)}, indent=1).encode()


def read_manifest(path: Path) -> Manifest:
    """Return the content of a manifest; raise ConfigError where it cannot be read, or is damaged."""
    try:
        values = json.loads(path.read_bytes())
        plan = ExportPlan.from_dict(values["plan"])
        if "metadata" not in values:
            raise ValueError("an earlier version of tfds_torch wrote it")
        metadata = values["metadata"]
        shards = [Shard.from_dict(one) for one in values["shards"] or ()]
        if path.name != manifest_name(plan.split):
            raise ValueError(f"it is of the split {quoted(plan.split)}")
        if shards and [shard.number for shard in shards] != list(range(plan.num_shards)):
            raise ValueError(f"its shards are not {plan.num_shards:,} in order")
        if not (isinstance(metadata, list) and all(isinstance(one, str) for one in metadata)):
            raise TypeError("metadata is not a list of names")
        plan.to_dict()  # JSON that is nested too deeply is an error here, and not where plans are compared.
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read as the manifest of an export ({type(error).__name__}: {error}): choose another "
            f"folder, or remove this one."
        ) from None
    return Manifest(plan, shards, metadata)


# The outcome


@dataclass(frozen=True)
class ExportReport:
    """The outcome of an export.

    Attributes:
        path: of the file, or of the folder of shards.
        format: of the file or of the shards.
        num_samples: number of samples that it holds.
        num_bytes: size in bytes, of the file or of all shards.
        elapsed_s: how long the export took, seconds.
        num_workers: processes that wrote it; 0: another Executor wrote it.
        num_reencoded: samples with an image that should have kept its bytes, and could not.
        fields: name in the file -> how it is stored.
        verified: whether all of the file was read again and found right; None: it was not tried.
        unchecked: sentences about content that reading again could not check.
        num_shards: number of shards of the folder; None: it is one file.
        split: of a folder of shards: its name in names of files.
        num_kept: number of shards that an earlier export of the same plan had written.
        part: of the folder that was written, "3/16", whose samples, bytes and shards are counted; None: all of it.
        num_missing: number of shards that other parts have still to write.
    """

    path: str
    format: str
    num_samples: int
    num_bytes: int
    elapsed_s: float
    num_workers: int
    num_reencoded: int
    fields: dict[str, str]
    verified: bool | None = None
    unchecked: tuple[str, ...] = ()
    num_shards: int | None = None
    split: str | None = None
    num_kept: int = 0
    part: str | None = None
    num_missing: int = 0

    @property
    def samples_per_s(self) -> float:
        """Samples per second, of the whole export."""
        return self.num_samples / self.elapsed_s if self.elapsed_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON has."""
        return {**asdict(self), "samples_per_s": self.samples_per_s, "unchecked": list(self.unchecked)}
