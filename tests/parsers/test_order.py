"""The order of a shuffled stream depends on the parser's seed and the epoch, on nothing else in the process."""

from collections.abc import Callable
from typing import Any

from tfds_fixtures import Datasets

SCRIPT = """
import sys

import tensorflow as tf
from tfds_torch import ParserTfds, ReadOptions, World

parsers = [
    ParserTfds(sys.argv[1], "shapes", "train[:64]", is_training=True, batch_size=16, read=ReadOptions(mode=mode))
    for mode in ("files", "examples")
]


def order(parser, epoch):
    return [index for batch in parser.batches(World(), epoch, fields=("label",)) for index in batch.index.tolist()]


for parser in parsers:
    orders = [order(parser, 0)]
    for seed in (7, 8):
        tf.random.set_seed(seed)
        orders += [order(parser, 0), order(parser, 0)]
    assert all(other == orders[0] for other in orders), orders
    assert order(parser, 1) != orders[0]
"""


def test_tensorflows_global_seed_does_not_change_the_order(run_python: Callable[..., Any], datasets: Datasets) -> None:
    result = run_python("-c", SCRIPT, str(datasets.root))
    assert result.returncode == 0, result.stderr
