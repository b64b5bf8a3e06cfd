"""The manifest of a sharded export, `export-<split>.json`: its plan, and at the end what every shard holds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from tfds_torch.errors import ConfigError
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.shard_file import write_for_good
from tfds_torch.runtime.printable import quoted

PREFIX = "export-"
"""What names of manifests begin with."""
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
        """Returns the shard with these attributes; values of other kinds raise any error of Python."""
        return cls(*(int(values[field.name]) for field in fields(cls)))


class Manifest(NamedTuple):
    """The content of a manifest.

    Attributes:
        shards: all of them; empty: the export is not complete.
        metadata: names of TFDS's metadata that the export writes; None: unknown (an older version wrote the manifest).
    """

    plan: ExportPlan
    shards: list[Shard]
    metadata: list[str] | None


def manifest_name(split: str) -> str:
    """Returns the name of a manifest's file, for a split as plans call it."""
    return f"{PREFIX}{split}{_SUFFIX}"


def manifests_in(folder: Path) -> list[Path]:
    """Returns the manifests of a folder, by name; an OSError where it is not a folder that may be read."""
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(PREFIX) and path.name.endswith(_SUFFIX)]


def write_manifest(path: Path, plan: ExportPlan, shards: Sequence[Shard] | None, metadata: Sequence[str] = ()) -> None:
    """Writes a plan, its shards (None: the export is not complete), and the names of TFDS's metadata beside them."""
    done = None if shards is None else [{"file": plan.file_name(shard.number), **asdict(shard)} for shard in shards]
    content = {"plan": plan.to_dict(), "shards": done, "metadata": list(metadata)}
    write_for_good(path, json.dumps(content, indent=1).encode())


def read_manifest(path: Path) -> Manifest:
    """Returns the content of a manifest; a ConfigError: it cannot be read, or is damaged."""
    try:
        values = json.loads(path.read_bytes())
        plan, metadata = ExportPlan.from_dict(values["plan"]), values.get("metadata")
        shards = [Shard.from_dict(one) for one in values["shards"] or ()]
        if path.name != manifest_name(plan.split):
            raise ValueError(f"it is of the split {quoted(plan.split)}")
        if shards and [shard.number for shard in shards] != list(range(plan.num_shards)):
            raise ValueError(f"its shards are not {plan.num_shards:,} in order")
        if metadata is not None and not (isinstance(metadata, list) and all(isinstance(one, str) for one in metadata)):
            raise TypeError("metadata is not a list of names")
        plan.to_dict()  # JSON that is nested too deeply is an error here, and not where plans are compared.
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read as the manifest of an export ({type(error).__name__}: {error}): choose another "
            f"folder, or remove this one."
        ) from None
    return Manifest(plan, shards, metadata)
