"""ShardRequest: what is asked of an export to a folder of shards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfds_torch.export.plan import ShardSizes


@dataclass(frozen=True)
class ShardRequest:
    """What is asked of a sharded export.

    Attributes:
        format: one of SHARDED.
        sizes: of the shards.
        key: what WebDataset's members are called by; None: by number.
        skipped: fields that are left out.
        names: of fields -> their new names.
        indices: numbers of examples, in the export's order; None: all.
        shuffle_seed: of a shuffle of them; None: none.
    """

    format: str
    sizes: ShardSizes = field(default_factory=ShardSizes)
    key: str | None = None
    skipped: tuple[str, ...] = ()
    names: Mapping[str, str] | None = None
    indices: Iterable[int] | None = None
    shuffle_seed: int | None = None
