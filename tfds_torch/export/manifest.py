"""The manifest of a sharded export, `export-<split>.json`: its plan, and at the end what every shard holds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.export.plan import ExportPlan
from tfds_torch.export.shard_file import write_for_good
from tfds_torch.runtime.printable import quoted

PREFIX = "export-"
"""What names of manifests begin with."""
_SUFFIX = ".json"


@dataclass(frozen=True)
class Shard:
    """What a complete shard holds.

    Attributes:
        number: of the shard.
        num_bytes: its size.
        crc32c: of all of it.
        content_bytes: of its examples, without what frames them.
    """

    number: int
    num_bytes: int
    crc32c: int
    content_bytes: int


def manifest_name(split: str) -> str:
    """Returns the name of a manifest's file, for a split as plans call it."""
    return f"{PREFIX}{split}{_SUFFIX}"


def manifests_in(folder: Path) -> list[Path]:
    """Returns the manifests of a folder, by name.

    Raises:
        OSError: it is no folder, or may not be read.
    """
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(PREFIX) and path.name.endswith(_SUFFIX)]


def write_manifest(path: Path, plan: ExportPlan, shards: Sequence[Shard] | None, metadata: Sequence[str] = ()) -> None:
    """Writes a plan, its shards, and the names of its other files.

    Args:
        path: of the manifest.
        plan: of the export.
        shards: all of them; None: the export is not complete.
        metadata: names of TFDS's metadata that the export writes.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    told = None if shards is None else [{"file": plan.file_name(shard.number), **asdict(shard)} for shard in shards]
    content = {"plan": plan.to_dict(), "shards": told, "metadata": list(metadata)}
    write_for_good(path, json.dumps(content, indent=1).encode())


def read_manifest(path: Path) -> tuple[ExportPlan, list[Shard]]:
    """Returns an export's plan, and its shards; none, as long as it is not complete.

    Raises:
        ConfigError: it cannot be read, or is damaged.
    """
    try:
        values = json.loads(path.read_bytes())
        plan = ExportPlan.from_dict(values["plan"])
        shards = [shard_of(one) for one in values["shards"] or ()]
        if path.name != manifest_name(plan.split):
            raise ValueError(f"it tells of the split {quoted(plan.split)}")
        if shards and [shard.number for shard in shards] != list(range(plan.num_shards)):
            raise ValueError(f"it does not tell of {plan.num_shards:,} shards in order")
        plan.to_dict()  # What is nested too deeply is told here, and not where plans are compared.
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from None
    return plan, shards


def read_metadata_names(path: Path) -> list[str] | None:
    """Returns the names of TFDS's metadata that an export writes; None: an older version wrote the manifest.

    Raises:
        ConfigError: it cannot be read, or is damaged.
    """
    try:
        names = json.loads(path.read_bytes()).get("metadata")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise TypeError("metadata is not a list of names")
    except (OSError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from None
    return names


def shard_of(values: Mapping[str, Any]) -> Shard:
    """Returns a shard from its attributes; raises whatever values of other kinds raise."""
    return Shard(*(int(values[name]) for name in ("number", "num_bytes", "crc32c", "content_bytes")))


def _damaged(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read as the manifest of an export ({type(error).__name__}: {error}): choose another folder, "
        f"or remove this one."
    )
