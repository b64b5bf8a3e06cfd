"""Suite: what is measured, how, and how much of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.tables import Table
from benchmarks.targets import Target
from benchmarks.task import BASELINE_REVISION, Peer
from benchmarks.turns import Say

_MOST_SHARDS = 8


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        num_photos: examples of an epoch of photographs; other sizes go with it.
        batch_size: examples of a batch.
        num_workers: loader processes of a competitor.
        num_repeats: measured epochs, or fresh processes.
        timeout_s: what an epoch may take, seconds.
        baseline: the git revision of this package that takes part as the baseline.
    """

    num_photos: int
    batch_size: int
    num_workers: int
    num_repeats: int
    timeout_s: float
    baseline: str = BASELINE_REVISION

    @property
    def num_shards(self) -> int:
        """Files of a dataset that is measured."""
        return min(_MOST_SHARDS, self.num_photos)


@dataclass(frozen=True)
class Run:
    """What a suite is asked for.

    Attributes:
        peers: who takes part, where the suite's competitors can be chosen.
        settings: how much.
        data_dir: holds the dataset `photos`.
        say: tells the user what is being done.
        versions: distribution -> version, of competitors with an environment of their own; filled by the suite.
    """

    peers: Sequence[Peer]
    settings: Settings
    data_dir: Path
    say: Say
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        name: how the command line calls it.
        title: what it measures, in a line.
        method: how, in a paragraph.
        measure: yields its tables.
        targets: our own.
        peers: competitors that the command line may choose from; none where all take part always.
        distributions: packages that those who always take part are made of, for the list of versions.
        configured: where to read how it is measured, and why so.
    """

    name: str
    title: str
    method: str
    measure: Callable[[Run], Iterator[Table]]
    targets: Sequence[Target] = ()
    peers: Sequence[Peer] = ()
    distributions: Sequence[str] = ()
    configured: str = "benchmarks.peers"
