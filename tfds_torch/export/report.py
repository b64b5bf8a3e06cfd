"""ExportReport: what an export has written."""

from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class ExportReport:
    """What an export has written.

    Attributes:
        path: of the file, or of the folder of shards.
        format: of the file or of the shards.
        num_samples: that it holds.
        num_bytes: its size, or that of all shards.
        elapsed_s: how long the export took, seconds.
        num_workers: processes that wrote it; 0: those of an Apache Beam runner.
        num_reencoded: samples with an image that should have kept its bytes, and could not.
        fields: name in the file -> how it is stored.
        verified: whether all of the file was read again and found right; None: it was not tried.
        unchecked: what the reading again could not check, in sentences.
        num_shards: of the folder; None: it is one file.
        split: of a folder of shards: its name in names of files.
        num_kept: shards that an earlier export of the same plan had written.
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

    @property
    def samples_per_s(self) -> float:
        """Samples a second, of the whole export."""
        return self.num_samples / self.elapsed_s if self.elapsed_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as values that JSON has."""
        return {**asdict(self), "samples_per_s": self.samples_per_s, "unchecked": list(self.unchecked)}


def describe_field(field: object) -> str:
    """Returns how a field is stored, in short: an image's mode, and what else is not as usual."""
    if not is_dataclass(field):
        return repr(field)
    parts = []
    for place, one in enumerate(fields(field)):
        value = getattr(field, one.name)
        if one.repr and (place == 0 or one.default is MISSING or value != one.default):
            parts.append(f"{one.name}={str(value) if one.name == 'dtype' else repr(value)}")
    return f"{type(field).__name__}({', '.join(parts)})"
