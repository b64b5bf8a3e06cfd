"""The order of a shuffled stream depends on the parser's seed and the epoch, on nothing else in the process."""

import pytest
from tfds_fixtures import Datasets
from zygote import tensorflow_zygote

from tfds_torch import ParserTfds, ReadOptions, World


def orders(root: str, mode: str) -> list[list[int]]:
    """The orders of epoch 0 as it is, of epoch 0 under global seeds, and of epoch 1. Runs in a child."""
    import tensorflow as tf

    parser = ParserTfds(root, "shapes", "train[:64]", is_training=True, batch_size=16, read=ReadOptions(mode=mode))

    def order(epoch: int) -> list[int]:
        return [index for batch in parser.batches(World(), epoch, fields=("label",)) for index in batch.index.tolist()]

    found = [order(0)]
    for seed in (7, 8):
        tf.random.set_seed(seed)
        found += [order(0), order(0)]
    return [*found, order(1)]


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_tensorflows_global_seed_does_not_change_the_order(mode: str, datasets: Datasets) -> None:
    first, *again, next_epoch = tensorflow_zygote().call(orders, str(datasets.root), mode)
    assert sorted(first) == list(range(64))
    assert again == [first] * 4
    assert next_epoch != first
