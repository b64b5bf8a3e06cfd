"""Orders for tests: any small one, and the row of its slots."""

import numpy as np
from hypothesis import strategies as st

from tfds_torch.plan.drawn import Drawn, make_draw_weights
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.order import Int64Array, Order
from tfds_torch.plan.passes import BlockShuffle, Passes
from tfds_torch.plan.subset import Subset, make_subset
from tfds_torch.plan.weights import Segment

SEEDS = st.integers(0, 2**40)
BLOCKS = st.builds(BlockShuffle, st.integers(1, 20), st.integers(1, 8))
GROUPED = st.builds(BlockShuffle, st.integers(1, 20), st.integers(1, 12), st.integers(1, 6))


def numbers(stop: int, start: int = 0) -> Int64Array:
    """Returns start..stop-1."""
    return np.arange(start, stop, dtype=np.int64)


def row_of(order: Order, stop: int, start: int = 0) -> list[tuple[int, int]]:
    """Returns (pass, example) of slots start..stop-1."""
    pass_number, example = order.at(numbers(stop, start))
    return list(zip(pass_number.tolist(), example.tolist(), strict=True))


def selected_of(order: Order) -> list[int]:
    """Returns the examples that a row may have."""
    return list(range(order.num_examples)) if order.subset is None else order.subset.numbers.tolist()


@st.composite
def subsets(draw: st.DrawFn, num_examples: int) -> Subset:
    """Any subset with an example, in any order."""
    return make_subset(draw(st.permutations(range(num_examples)))[: draw(st.integers(1, num_examples))], num_examples)


@st.composite
def passes(draw: st.DrawFn, max_examples: int = 60) -> Passes:
    """Passes over any examples or a subset, shuffled or not, in blocks and groups or not, of an epoch size or not."""
    size = draw(st.integers(1, max_examples))
    subset, epoch_size = draw(st.none() | subsets(size)), draw(st.none() | st.integers(1, 2 * max_examples))
    return Passes(size, draw(SEEDS), draw(st.booleans()), draw(st.none() | GROUPED), subset, epoch_size)


@st.composite
def counts_of_periods(draw: st.DrawFn, num_members: int, most: int = 12) -> tuple[int, ...]:
    """Whole slots of a period for each member; some may have none."""
    counts = draw(st.lists(st.integers(0, most), min_size=num_members, max_size=num_members))
    if not any(counts):
        counts[draw(st.integers(0, num_members - 1))] = 1
    return tuple(counts)


@st.composite
def mixtures(draw: st.DrawFn, max_examples: int = 30, max_segment: int = 80) -> Mixed:
    """Any mixture of a few small members, of splits of their own or parts of one, of one to three segments."""
    num_members = draw(st.integers(1, 4))
    blocks = [draw(st.none() | BLOCKS) for _ in range(num_members)]
    split, selected = None, None
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, max_examples)) for _ in range(num_members)]
        subsets_: list[Subset | None] = [draw(st.none() | subsets(size)) for size in sizes]
    else:
        split = draw(st.integers(num_members, num_members + max_examples))
        order = draw(st.permutations(range(split)))
        cuts = sorted(draw(st.sets(st.integers(1, split), min_size=num_members, max_size=num_members)))
        sizes = [split] * num_members
        parts = zip([0, *cuts[:-1]], cuts, strict=True)
        subsets_ = [make_subset(sorted(order[start:stop]), split) for start, stop in parts]
        selected = make_subset(sorted(order[: cuts[-1]]), split)
    members = tuple(Member(f"m{at}", sizes[at], blocks[at], subsets_[at]) for at in range(num_members))
    segments, start = [], 0
    for _ in range(draw(st.integers(1, 3))):
        segments.append(Segment(start, draw(counts_of_periods(num_members))))
        start += draw(st.integers(1, max_segment))
    size = draw(st.integers(1, 120))
    return Mixed(members, tuple(segments), size, draw(SEEDS), draw(st.booleans()), split, selected)


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Draws by any weights, of all examples or of a subset."""
    size = draw(st.integers(1, 20))
    subset = draw(st.none() | subsets(size))
    number = size if subset is None else len(subset)
    weights = draw(st.lists(st.integers(0, 3), min_size=number, max_size=number).filter(any))
    return Drawn(size, make_draw_weights(weights, number), draw(st.integers(1, 90)), draw(SEEDS), subset)


def orders() -> st.SearchStrategy[Order]:
    """Any order."""
    return st.one_of(passes(), mixtures(), drawn())
