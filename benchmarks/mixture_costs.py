"""The suite `mixture`: what it costs to read several datasets as one, and how exactly they are mixed.

The members of a mixture are equal parts of one dataset, so that an epoch of it has every image once, as one of the
dataset has. What differs is how an example is found, and that a batch is read from many datasets.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.comparison import Comparison, compare
from benchmarks.figures import CPU, FIRST_BATCH, MEMORY, SPEED, START, VERY_FIRST_BATCH
from benchmarks.index_costs import SLICE, SLICE_COLUMNS, slice_figures
from benchmarks.peers import mixed_draws
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import GRAIN, IMAGE_SHAPE, OURS, PLAIN, Peer, Run, Task
from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.mixture_order import MixtureMember, MixtureOrder, make_table
from tfds_torch.plan.mixture_weights import MOST_PERIOD, Segment
from tfds_torch.runtime import subprocess_call

ONE, FEW, MANY = "1", "2", "64"
"""Rows by the number of members; 1 is the dataset itself."""

NUM_MANY = int(MANY)
_PEERS = (
    Peer(ONE, "one dataset", "benchmarks.peers.ours:load"),
    *(
        Peer(name, f"{name} members", "benchmarks.peers.ours:load_mixture", changes={"num_members": int(name)})
        for name in (FEW, MANY)
    ),
)

# How fast, and in how much memory

_TURNS_FOR_A_REPEAT = 4
_PNGS_FOR_A_PHOTO = 5
_PARTS = "The members are equal parts of the dataset, weighted by their sizes, so that all rows read the same images."
_PHOTOS = "{num_examples:,} photographs an epoch, with the work of the suite `jpeg`"


def _speed(name: str, title: str, work: str, **fields: Any) -> Comparison:
    table = Table(
        name,
        title,
        f"{work}. {_PARTS}",
        "read from",
        [
            SPEED,
            Column("by_one", "x one dataset, turn by turn", "{:.3f}", ratio=Ratio(SPEED.key, by=ONE)),
            replace(CPU, has_spread=False),
            Column("cpu_by_one", "x one dataset's", "{:.3f}", has_spread=False, ratio=Ratio(CPU.key, by=ONE)),
            replace(FIRST_BATCH, has_spread=False),
        ],
    )
    return Comparison(table, _PEERS, turns_for_a_repeat=_TURNS_FOR_A_REPEAT, **fields)


SPEEDS = (
    _speed("workers", "photographs a second", f"{_PHOTOS}, in {{num_workers}} workers"),
    _speed("in_process", "photographs a second, no workers", f"{_PHOTOS}, without workers", task={"num_workers": 0}),
    _speed(
        "small",
        "small images a second",
        "{num_examples:,} images an epoch, with the work of the suite `png32`, in {num_workers} workers. Decoding "
        "takes so little that the cost of a mixture is a larger share",
        task={"image_shape": (3, 32, 32), "work": PLAIN},
        dataset="cifar10",
        num_for_a_photo=_PNGS_FOR_A_PHOTO,
    ),
)
_MEGABYTES, _, _TRAINING_MEGABYTES, _MEGABYTES_OF_PARTS = MEMORY
PROCESSES = Comparison(
    Table(
        "processes",
        "how training begins, and in how much memory",
        f"{_PHOTOS}, in {{num_workers}} workers, each row in a fresh process. {_PARTS} Memory is the proportional set "
        f"size (PSS) of all processes at its greatest in one more epoch.",
        "read from",
        [
            _MEGABYTES,
            Column("by_few", "x 2 members", "{:.2f}", has_spread=False, ratio=Ratio(_MEGABYTES.key, by=FEW)),
            _TRAINING_MEGABYTES,
            _MEGABYTES_OF_PARTS,
            replace(START, has_spread=False),
            replace(VERY_FIRST_BATCH, has_spread=False),
        ],
    ),
    _PEERS,
    is_fresh=True,
)


# What the order costs

_NUM_TABLES, _NUM_SLICES, _NUM_LENGTHS = 20, 200, 10
_SEED = 42
_NEAR, _FAR = 10**6, 10**12
_LEAST_SIZE, _MOST_SIZE = 10_000, 1_000_000

TABLE = Table(
    "table",
    "building the table of a mixture's order",
    f"The slots of one period, {_NUM_TABLES} times with other seeds. Each process builds it once.",
    "period",
    [Column("build_ms", "building, ms", "{:.1f}")],
)
SLICES = Table(
    "slices",
    f"a slice of {SLICE:,} slots of a mixture's order",
    f"Member, pass and example of each slot: {NUM_MANY} members of {_LEAST_SIZE:,} to {_MOST_SIZE:,} examples, in a "
    f"period of {MOST_PERIOD:,} slots; {_NUM_SLICES} slices, one after the other. Memory is what numpy and Python "
    f"allocate for one, the result included.",
    "begins at slot",
    [
        *SLICE_COLUMNS,
        Column("growth", "x the time at 10^6", "{:.2f}", has_spread=False, ratio=Ratio("slice_ms", by="10^6")),
    ],
)
LENGTHS = Table(
    "lengths",
    "the length of a mixture, before anything is read",
    f"{_NUM_LENGTHS} mixtures of ready members, each of which has all photographs. Making: `ParserMixture`, "
    f"`ImageDataset` and `create_loader`; the weights need a period of {MOST_PERIOD:,} slots, and its table says where "
    f"an epoch ends.",
    "members",
    [
        Column("len_ms", "len(loader), ms", "{:.3f}"),
        Column("make_ms", "making the loader, ms", "{:.1f}"),
    ],
)


def whole_weights(num_members: int) -> list[int]:
    """Returns uneven weights whose sum is the longest period, 65,536, with the least one 1: about 1 : 3 : 5 : ...

    Args:
        num_members: a power of 2, from 2 to 128.
    """
    unit = MOST_PERIOD // num_members**2
    weights = [unit * (2 * number + 1) for number in range(num_members)]
    weights[-1] += weights[0] - 1
    weights[0] = 1
    return weights


def measure_table() -> Table:
    """Builds tables of the longest period, each with another seed: a process keeps those that it has."""
    make_table.cache_clear()
    make_table((1, 1), _SEED)  # The first one also loads code.
    samples: dict[str, dict[str, list[float]]] = {}
    for name in (FEW, MANY):
        counts, times = tuple(whole_weights(int(name))), []
        for seed in range(_NUM_TABLES):
            began_s = time.perf_counter()
            make_table(counts, seed)
            times.append((time.perf_counter() - began_s) * 1e3)
        samples[name] = {"build_ms": times}
    return TABLE.fill(samples, {name: f"{name} members, {MOST_PERIOD:,} slots" for name in samples})


def measure_slices() -> Table:
    """Looks up slices near the beginning and far from it."""
    segment = Segment(0, tuple(whole_weights(NUM_MANY)))
    # The second segment begins at once; the third one in the middle of the slices, and within one of them.
    middle = _FAR + _NUM_SLICES // 2 * SLICE + SLICE // 2
    schedule = (segment, Segment(_NEAR, segment.counts[::-1]), Segment(middle, segment.counts))
    cases: dict[str, tuple[str, int, MixtureOrder]] = {
        "10^6": ("10^6", _NEAR, make_order((segment,))),
        "10^12": ("10^12", _FAR, make_order((segment,))),
        "schedule": ("10^12, a schedule of 3 segments", _FAR, make_order(schedule)),
        "files": ("10^12, not shuffled", _FAR, make_order((segment,), shuffle=False)),
    }
    samples = {}
    for name, (_, start, order) in cases.items():
        samples[name] = slice_figures(order.at, range(start, start + _NUM_SLICES * SLICE, SLICE))
    return SLICES.fill(samples, {name: title for name, (title, _, _) in cases.items()})


def make_order(segments: tuple[Segment, ...], *, shuffle: bool = True) -> MixtureOrder:
    """Returns an order of many members, from small ones to large ones."""
    sizes = np.geomspace(_LEAST_SIZE, _MOST_SIZE, NUM_MANY).astype(int).tolist()
    members = tuple(MixtureMember(str(number), size) for number, size in enumerate(sizes))
    return MixtureOrder(members, segments, _NEAR, _SEED, shuffle)


def measure_lengths(run: Run) -> Table:
    """Makes mixtures of ready members, and asks for their lengths."""
    settings = run.settings
    run.show_progress("lengths of mixtures")
    task = Task(str(run.data_dir), None, settings.num_photos, settings.batch_size, num_workers=0)
    return LENGTHS.fill(collect(subprocess_call.iterate(ask_for_lengths, task, _NUM_LENGTHS)))


def ask_for_lengths(task: Task, num_rounds: int) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yields the columns of mixtures of few and of many members, in turns.

    Each round has another seed, and so other tables. The first one, which loads code, is not yielded.
    """
    from tfds_torch import ImageDataset, ParserMixture, ParserTfds, TrainPreprocess, create_loader

    preprocess = TrainPreprocess(size=IMAGE_SHAPE[-1])
    mixtures = {
        name: {f"member {number}": ParserTfds(task.data_dir, task.dataset) for number in range(int(name))}
        for name in (FEW, MANY)
    }
    for seed in range(1 + num_rounds):
        for name, members in mixtures.items():
            weights = dict(zip(members, whole_weights(len(members)), strict=True))
            began_s = time.perf_counter()
            parser = ParserMixture(
                members,
                weights,
                is_training=True,
                batch_size=task.batch_size,
                seed=seed,
                preprocess=preprocess,
                stop="all_exhausted",
            )
            loader = create_loader(ImageDataset(parser))
            made_s = time.perf_counter()
            len(loader)
            took_s = time.perf_counter() - made_s
            loader.close()
            if seed:
                yield name, {"make_ms": (made_s - began_s) * 1e3, "len_ms": took_s * 1e3}


# How exact the proportions are

_NUM_DRAWN = 1_000_000
_DECIMAL, _WHOLE, _FINE = "decimal", "whole", "fine"
WEIGHTS: Mapping[str, Sequence[float]] = {
    _DECIMAL: (0.7, 0.3),
    _WHOLE: whole_weights(NUM_MANY),
    _FINE: [math.sqrt(number) for number in range(1, NUM_MANY + 1)],
}
_DRAWS = {
    OURS: ("tfds_torch", mixed_draws.draw_ours),
    GRAIN: ("Grain's mix", mixed_draws.draw_grain),
    "torchdata": ("torchdata's MultiNodeWeightedSampler", mixed_draws.draw_torchdata),
    "independent": ("independent draws (numpy)", mixed_draws.draw_independently),
}
DEVIATIONS = Table(
    "deviations",
    "how far the members are off their weights",
    f"By how many examples any member of any prefix of n examples, up to {_NUM_DRAWN:,}, differs at most from n x "
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
    for name, (title, draw) in _DRAWS.items():
        run.show_progress(f"deviation from the weights, {title}")
        num_seeds = 1 if name == GRAIN else run.settings.num_repeats  # Grain's has none.
        try:
            found = subprocess_call.iterate(deviations, draw, WEIGHTS, _NUM_DRAWN, num_seeds)
            samples |= collect((name, figures) for figures in found)
        except TfdsTorchError as error:
            missing[name], samples[name] = str(error).strip().splitlines()[-1], {}
    return DEVIATIONS.fill(samples, {name: title for name, (title, _) in _DRAWS.items()}, missing)


def deviations(
    draw: mixed_draws.Draw, kinds: Mapping[str, Sequence[float]], num_examples: int, num_seeds: int
) -> Iterator[dict[str, float]]:
    """Yields the largest deviation by each kind of weights, for each seed."""
    for seed in range(num_seeds):
        yield {
            kind: mixed_draws.largest_deviation(draw(weights, num_examples, seed), weights)
            for kind, weights in kinds.items()
        }


def measure_mixture(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite."""
    for comparison in (*SPEEDS, PROCESSES):
        yield compare(comparison, run)
    run.show_progress("the order of a mixture")
    yield measure_table()
    yield measure_slices()
    yield measure_lengths(run)
    yield measure_deviations(run)
