"""Suite: what is measured, how, and how much of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.section import Section
from tfds_torch.bench.targets import Target
from tfds_torch.bench.task import BASELINE_REVISION, Peer
from tfds_torch.bench.turns import Say

HALF = "train[:50%]"
"""Split of an epoch of half of the photographs."""

_MOST_SHARDS = 8


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        num_photos: examples of an epoch of photographs; other sizes go with it.
        batch_size: examples of a batch.
        num_workers: loader processes of a contestant.
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
    def num_half(self) -> int:
        """Photographs of an epoch in those suites that compare this package with itself only, in `HALF`."""
        return self.num_photos // 2

    @property
    def num_shards(self) -> int:
        """Files of a dataset that is measured."""
        return min(_MOST_SHARDS, self.num_photos)


@dataclass(frozen=True)
class Run:
    """What a suite is asked for.

    Attributes:
        peers: who takes part; a suite that measures this package alone ignores it.
        settings: how much.
        data_dir: holds the dataset `photos`.
        say: tells the user what is being done.
    """

    peers: Sequence[Peer]
    settings: Settings
    data_dir: Path
    say: Say


@dataclass(frozen=True)
class Found:
    """What a suite measured.

    Attributes:
        targets: our own, judged.
        outcomes: what contestants did, where there are some.
        sections: tables of other figures.
        versions: of contestants that have an environment of their own: distribution -> version.
    """

    targets: Sequence[Target]
    outcomes: Sequence[Outcome] = ()
    sections: Sequence[Section] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        name: how the command line calls it.
        title: what it measures, in a line.
        method: how, in a paragraph.
        measure: does it.
        configured: where to read how, and why so.
        peers: who takes part; nobody where this package is measured alone, or all take part always.
        distributions: packages that those who always take part are made of, for the list of versions.
    """

    name: str
    title: str
    method: str
    measure: Callable[[Run], Found]
    configured: str
    peers: Sequence[Peer] = ()
    distributions: Sequence[str] = ()
