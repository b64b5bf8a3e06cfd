"""The suite `mixture`: what it costs to read several datasets as one, and how exactly they are mixed.

The members of a mixture are equal parts of one dataset, so that an epoch of it has every image once, as one of the
dataset has. What differs is how an example is found, and that a batch is read from many datasets.

Whose example comes next, by other ways to mix: Grain's `MapDataset.mix` over ranges, element by element; torchdata's
`MultiNodeWeightedSampler` over iterators that repeat their member's number for ever (`CYCLE_FOREVER`), on one rank;
numpy's `Generator.choice` with the weights as probabilities. Each gets the weights as they are, and rounds them in its
own way. All else is a default.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import Any

import numpy as np

from benchmarks.suites.epochs import TURNS
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.turns import (
    CPU,
    FIRST_BATCH,
    OURS,
    PNG,
    PNGS_FOR_A_PHOTO,
    SPEED,
    Peer,
    Run,
    Suite,
    compare,
    last_line,
)
from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.weights import MOST_PERIOD, make_segments
from tfds_torch.runtime import subprocess_call

ONE, FEW, MANY = "1", "2", "64"
"""Rows by the number of members; 1 is the dataset itself."""

NUM_MANY = int(MANY)
_ROUNDS_FOR_A_REPEAT = 4
_PEERS = (
    Peer(ONE, "one dataset", "ours"),
    *(
        Peer(name, f"{name} members", "ours", options={"source": "mixture", "num_members": int(name)})
        for name in (FEW, MANY)
    ),
)
_PARTS = "The members are equal parts of the dataset, weighted by their sizes, so that all rows read the same images."
_PHOTOS = "{num_examples:,} photographs an epoch, with the work of the suite `jpeg`"


def _speed(name: str, title: str, work: str) -> Table:
    columns = [
        SPEED,
        Column("by_one", "x one dataset, turn by turn", "{:.3f}", ratio=Ratio(SPEED.key, by=ONE)),
        replace(CPU, has_spread=False),
        Column("cpu_by_one", "x one dataset's", "{:.3f}", has_spread=False, ratio=Ratio(CPU.key, by=ONE)),
        replace(FIRST_BATCH, has_spread=False),
    ]
    return Table(name, title, f"{work}. {_PARTS}", "read from", columns)


WORKERS = _speed("workers", "photographs a second", f"{_PHOTOS}, in {{num_workers}} workers")
IN_PROCESS = _speed("in_process", "photographs a second, no workers", f"{_PHOTOS}, without workers")
SMALL_IMAGES = _speed(
    "small",
    "small images a second",
    "{num_examples:,} images an epoch, with the work of the suite `png32`, in {num_workers} workers. Decoding takes so "
    "little that the cost of a mixture is a larger share",
)
# How exact the proportions are

Draw = Callable[[Sequence[float], int, int], Int64Array]
"""Weights by member, number of examples, seed -> the member of each example, int64 [n]."""

_A_MEMBER = 1 << 40  # Numbers of a range: so many that none ends.
_DRAWN_FOR_A_PHOTO, _MOST_DRAWN = 250, 1_000_000
_DECIMAL, _WHOLE, _FINE = "decimal", "whole", "fine"
WEIGHTS: Mapping[str, Sequence[float]] = {
    _DECIMAL: (0.7, 0.3),
    _WHOLE: [1, *range(48, 2032, 32), 2047],
    _FINE: [math.sqrt(number) for number in range(1, NUM_MANY + 1)],
}


def draw_ours(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """Returns the member of each of the first examples, int64 [num_examples]: those of a ParserMixture."""
    sizes = {str(number): _A_MEMBER for number in range(len(weights))}
    segments, _ = make_segments(sizes, dict(zip(sizes, weights, strict=True)))
    members = tuple(Member(name, size) for name, size in sizes.items())
    return Mixed(members, segments, num_examples, seed, shuffle=False).deal(np.arange(num_examples))[0]


def draw_grain(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """As `draw_ours`; Grain's proportions need no seed."""
    import grain

    ranges = [grain.MapDataset.range(number * _A_MEMBER, (number + 1) * _A_MEMBER) for number in range(len(weights))]
    mixed = grain.MapDataset.mix(ranges, weights)
    return np.fromiter((mixed[slot] for slot in range(num_examples)), np.int64, num_examples) // _A_MEMBER


def draw_torchdata(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """As `draw_ours`."""
    from torchdata.nodes import IterableWrapper, MultiNodeWeightedSampler, StopCriteria

    node = MultiNodeWeightedSampler(
        {str(number): IterableWrapper(repeat(number)) for number in range(len(weights))},
        {str(number): float(weight) for number, weight in enumerate(weights)},
        stop_criteria=StopCriteria.CYCLE_FOREVER,
        rank=0,
        world_size=1,
        seed=seed,
    )
    node.reset()
    return np.fromiter(islice(node, num_examples), np.int64, num_examples)


def draw_independently(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """As `draw_ours`."""
    shares = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(len(weights), num_examples, p=shares)


_DRAWS: Mapping[str, tuple[str, Draw]] = {
    OURS: ("tfds_torch", draw_ours),
    "grain": ("Grain's mix", draw_grain),
    "torchdata": ("torchdata's MultiNodeWeightedSampler", draw_torchdata),
    "independent": ("independent draws (numpy)", draw_independently),
}
DEVIATIONS = Table(
    "deviations",
    "how far the members are off their weights",
    f"By how many examples any member of any prefix of n examples, up to {{num_drawn:,}}, differs at most from n x "
    f"weight, the weights as they were asked for. Whole numbers: 1, 48, 80 and so on to 2,047, which add up to "
    f"{MOST_PERIOD:,}. Roots: the square roots of 1 to {NUM_MANY}. This package rounds weights to 1/{MOST_PERIOD:,}, "
    f"which is exact in the first two columns; Grain to hundredths of the least one (0.7, 0.3 to 233, 100), which "
    f"is exact in the second one. The others draw by the weights themselves. One draw with each seed.",
    "mixed by",
    [
        Column(_DECIMAL, "2 members, 0.7 and 0.3", "{:,.4g}"),
        Column(_WHOLE, f"{NUM_MANY} members, whole numbers", "{:,.4g}"),
        Column(_FINE, f"{NUM_MANY} members, roots", "{:,.4g}"),
    ],
)


def measure_deviations(run: Run) -> Table:
    """Draws by all kinds of weights in every way; one that is not installed is missing."""
    samples: dict[str, dict[str, list[float | None]]] = {}
    missing: dict[str, str] = {}
    num_drawn = min(_MOST_DRAWN, _DRAWN_FOR_A_PHOTO * run.settings.num_photos)
    for name, (title, draw) in _DRAWS.items():
        run.show_progress(f"deviation from the weights, {title}")
        num_seeds = 1 if name == "grain" else run.settings.num_repeats  # Grain's has none.
        try:
            found = subprocess_call.iterate(deviations, draw, num_drawn, num_seeds)
            samples |= collect((name, figures) for figures in found)
        except TfdsTorchError as error:
            missing[name], samples[name] = last_line(error), {}
    titles = {name: title for name, (title, _) in _DRAWS.items()}
    return DEVIATIONS.fill(samples, titles, missing, num_drawn=num_drawn)


def deviations(draw: Draw, num_examples: int, num_seeds: int) -> Iterator[dict[str, float]]:
    """Yields the largest deviation by each kind of weights, for each seed."""
    for seed in range(num_seeds):
        yield {kind: largest_deviation(draw(weights, num_examples, seed), weights) for kind, weights in WEIGHTS.items()}


def largest_deviation(member: Int64Array, weights: Sequence[float]) -> float:
    """Returns by how much any prefix of n examples differs at most from n x weight, for any member.

    Args:
        member: int64 [n], whose each example is.
        weights: by member; they need not add up to 1.
    """
    found, numbers, total = 0.0, np.arange(1, len(member) + 1), sum(weights)
    for number, weight in enumerate(weights):
        found = max(found, float(np.abs(np.cumsum(member == number) - numbers * (weight / total)).max()))
    return found


def _measure(run: Run) -> Iterator[Table]:
    settings: dict[str, Any] = {"rounds_for_a_repeat": _ROUNDS_FOR_A_REPEAT}
    task = run.task(run.data_dir(), run.settings.num_photos)
    yield compare(run, WORKERS, _PEERS, task, **settings)
    yield compare(run, IN_PROCESS, _PEERS, replace(task, num_workers=0), **settings)
    number = run.settings.num_photos * PNGS_FOR_A_PHOTO
    small = run.task(run.data_dir("cifar10", number), number, dataset="cifar10", **PNG)
    yield compare(run, SMALL_IMAGES, _PEERS, small, **settings)
    yield measure_deviations(run)


SUITE = Suite(
    "mixture",
    "several datasets read as one, by weights",
    f"""This package alone: images as one dataset, and as the members of a mixture; then how far the members are off
    their weights, beside other ways to mix. {TURNS}""",
    _measure,
)
