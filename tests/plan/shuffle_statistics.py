"""Whether an order is as good as a fair shuffle: z-scores that hold for any implementation."""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Order = Callable[[int, int, int], NDArray[np.int64]]  # (num_examples, seed, pass_number) -> the whole order

# Uniformity. Every statistic below is a z-score: for a fair shuffle it is about normal with mean 0 and deviation 1, and
# with the seeds fixed it is one number for ever. |z| > 5 has a chance of one in two millions.

FAIR_Z, UNFAIR_Z = 5.0, 8.0


def z_of_chi_square(statistic: float, degrees: int) -> float:
    """Wilson and Hilferty's normal approximation."""
    c = 2 / (9 * degrees)
    return ((statistic / degrees) ** (1 / 3) - (1 - c)) / math.sqrt(c)


def each_permutation_is_equally_likely(shuffle: Order, num_examples: int = 5, per_cell: int = 40) -> float:
    """Chi-square over all N! permutations."""
    cells = dict.fromkeys(itertools.permutations(range(num_examples)), 0)
    for seed in range(per_cell * len(cells)):
        cells[tuple(shuffle(num_examples, seed, seed % 3).tolist())] += 1
    statistic = sum((count - per_cell) ** 2 for count in cells.values()) / per_cell
    return z_of_chi_square(statistic, len(cells) - 1)


def each_example_is_equally_likely_anywhere(shuffle: Order, num_examples: int = 50, num_seeds: int = 2500) -> float:
    """Chi-square of the table position x example, summed over seeds."""
    table = np.zeros((num_examples, num_examples))
    for seed in range(num_seeds):
        table[np.arange(num_examples), shuffle(num_examples, seed, 0)] += 1
    expected = num_seeds / num_examples
    statistic = ((table - expected) ** 2).sum() / expected * (num_examples - 1) / num_examples
    return z_of_chi_square(statistic, (num_examples - 1) ** 2)


def _table_z(num_examples: int, labels: NDArray[np.int64], orders: list[NDArray[np.int64]], *, summed: bool) -> float:
    """Chi-square of label of position x label of example: of each order, or of the sum over orders."""
    num_labels = int(labels.max()) + 1
    sizes = np.bincount(labels).astype(float)
    expected = np.outer(sizes, sizes) / num_examples
    tables = np.array([np.bincount(labels * num_labels + labels[o], minlength=num_labels**2) for o in orders])
    tables = tables.reshape(-1, num_labels, num_labels)
    if summed:
        tables, expected = tables.sum(axis=0, keepdims=True), expected * len(orders)
    statistic = ((tables - expected) ** 2 / expected).sum() * (num_examples - 1) / num_examples
    return z_of_chi_square(statistic, (num_labels - 1) ** 2 * len(tables))


def _orders(shuffle: Order, num_examples: int, num_seeds: int = 40) -> list[NDArray[np.int64]]:
    return [shuffle(num_examples, seed, 0) for seed in range(num_seeds)]


def blocks_mix_within_each_order(shuffle: Order, num_examples: int = 5003) -> float:
    """No block of positions prefers a block of examples, in any one order."""
    blocks = np.arange(num_examples) * 20 // num_examples
    return _table_z(num_examples, blocks, _orders(shuffle, num_examples), summed=False)


def blocks_mix_over_orders(shuffle: Order, num_examples: int = 5003) -> float:
    """No block of positions prefers a block of examples, on the average over orders."""
    blocks = np.arange(num_examples) * 20 // num_examples
    return _table_z(num_examples, blocks, _orders(shuffle, num_examples), summed=True)


def residues_mix_within_each_order(shuffle: Order, num_examples: int = 5003) -> float:
    """No residue class of positions prefers one of examples: shards read in turns, interleaved classes."""
    return _table_z(num_examples, np.arange(num_examples) % 16, _orders(shuffle, num_examples), summed=False)


def differences_at_all_lags_are_uniform(shuffle: Order, num_examples: int = 5003) -> float:
    """(example at i + lag) - (example at i) modulo N, for lags past sqrt(N), where a Feistel network shows its rows."""
    num_bins, lags = 20, range(1, 160)
    bins = np.arange(num_examples - 1) * num_bins // (num_examples - 1)  # The difference is never 0.
    expected = np.bincount(bins) * num_examples / (num_examples - 1)
    statistic = 0.0
    orders = _orders(shuffle, num_examples, 20)
    for one in orders:
        for lag in lags:
            found = np.bincount(bins[(np.roll(one, -lag) - one) % num_examples - 1], minlength=num_bins)
            statistic += ((found - expected) ** 2 / expected).sum()
    return z_of_chi_square(statistic, (num_bins - 1) * len(lags) * len(orders))


def neighbours_are_uncorrelated(shuffle: Order, num_examples: int = 100_003) -> float:
    """Serial correlation of each order, at lag 1."""
    orders = _orders(shuffle, num_examples, 10)
    r = np.array([np.corrcoef(one[:-1], one[1:])[0, 1] for one in orders])
    return z_of_chi_square(float((r**2).sum() * num_examples), len(orders))


def fixed_points_are_as_many_as_by_chance(shuffle: Order, num_examples: int = 5003) -> float:
    """Fixed points of an order are Poisson(1)."""
    orders = _orders(shuffle, num_examples, 200)
    found = sum(int((one == np.arange(num_examples)).sum()) for one in orders)
    return (found - len(orders)) / math.sqrt(len(orders))


def inversions_are_as_many_as_by_chance(shuffle: Order, num_examples: int = 4099) -> float:
    """The mean is N(N-1)/4, the variance N(N-1)(2N+5)/72."""
    orders = _orders(shuffle, num_examples, 12)
    n = num_examples
    found = np.array([sum(int((one[i + 1 :] < one[i]).sum()) for i in range(n)) for one in orders])
    return z_of_chi_square(
        float(((found - n * (n - 1) / 4) ** 2).sum() / (n * (n - 1) * (2 * n + 5) / 72)), len(orders)
    )


def the_first_example_is_uniform(shuffle: Order, num_examples: int = 5000) -> float:
    """Chi-square of the first example over many seeds."""
    found = np.bincount([shuffle(num_examples, seed, 1)[0] * 50 // num_examples for seed in range(1000)], minlength=50)
    return z_of_chi_square(float(((found - 20) ** 2 / 20).sum()), 49)


def passes_are_independent(shuffle: Order, num_examples: int = 5003) -> float:
    """Where an example stood in one pass says nothing about where it stands in the next."""
    blocks = np.arange(num_examples) * 20 // num_examples
    orders = [shuffle(num_examples, 42, number) for number in range(41)]
    moved = [following[np.argsort(one)] for one, following in itertools.pairwise(orders)]
    return _table_z(num_examples, blocks, moved, summed=False)


def seeds_are_independent(shuffle: Order, num_examples: int = 5003) -> float:
    """As `passes_are_independent`, for consecutive seeds."""
    return passes_are_independent(lambda n, seed, number: shuffle(n, number, seed), num_examples)


STATISTICS = [
    each_permutation_is_equally_likely,
    each_example_is_equally_likely_anywhere,
    blocks_mix_within_each_order,
    blocks_mix_over_orders,
    residues_mix_within_each_order,
    differences_at_all_lags_are_uniform,
    neighbours_are_uncorrelated,
    fixed_points_are_as_many_as_by_chance,
    inversions_are_as_many_as_by_chance,
    the_first_example_is_uniform,
    passes_are_independent,
    seeds_are_independent,
]
