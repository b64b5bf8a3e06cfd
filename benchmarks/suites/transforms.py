"""The suite `transform`: functions over whole examples, against the same functions in a dataset of torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.protocol import PLAIN
from benchmarks.suites.epochs import TURNS
from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import CPU, NUM_EXAMPLES, SPEED, Peer, Run, Suite, compare

_SCRIPT = "whole_examples"
_FROM_MEMORY = 8
"""Examples in memory for a photograph."""


@dataclass(frozen=True)
class _Comparison:
    """A table of the suite.

    Attributes:
        peers: way -> title; the last one is what the others are divided by.
        is_in_memory: whether the images lie there, rather than in the files of photographs.
    """

    name: str
    title: str
    note: str
    peers: dict[str, str]
    is_in_memory: bool = False

    def measure(self, run: Run) -> Table:
        """Lets the peers do the same work in turns."""
        number = run.settings.num_photos * (_FROM_MEMORY if self.is_in_memory else 1)
        base = [*self.peers][-1]
        ratio = Column("by_base", f"x {self.peers[base]}", "{:.2f}", ratio=Ratio(SPEED.key, by=base))
        columns: Sequence[Column] = (SPEED, ratio, CPU, NUM_EXAMPLES)
        table = Table(self.name, self.title, self.note, "way", columns)
        peers = [
            Peer(way, title, _SCRIPT, options={"way": way}, files="tars" if way == "torch_rand_augment" else "")
            for way, title in self.peers.items()
        ]
        data_dir = "" if self.is_in_memory else run.data_dir()
        return compare(run, table, peers, run.task(data_dir, number, work=PLAIN))


_COMPARISONS = (
    _Comparison(
        "function",
        "a function of image and boxes, of images in memory",
        "The function flips in numpy, and shifts by up to 24 pixels.",
        {"flip": "Transform", "flip_threads": "Transform, threads=True", "torch_flip": "torch dataset"},
        is_in_memory=True,
    ),
    _Comparison(
        "nothing",
        "a function that does nothing, behind photographs",
        "It returns what it gets.",
        {"nothing": "Transform that does nothing", "none": "no transform"},
    ),
    _Comparison(
        "dictionaries",
        "dictionaries, of images in memory",
        "Batches of image and boxes, without a function.",
        {"dictionaries": "dictionaries", "tuples": "tuples"},
        is_in_memory=True,
    ),
    _Comparison(
        "rand_augment",
        "timm's RandAugment, of photographs",
        "rand-m5: as a Transform behind TrainPreprocess; and within timm's own transform, of files in memory.",
        {"rand_augment": "Transform", "torch_rand_augment": "timm's transform in a torch dataset"},
    ),
)


def _measure(run: Run) -> Iterator[Table]:
    for comparison in _COMPARISONS:
        yield comparison.measure(run)


SUITE = Suite(
    "transform",
    "functions over whole examples",
    f"""Batches uint8 [B, 3, 224, 224] go to the training process, which does nothing else. {TURNS}""",
    _measure,
)
