"""The order of a shuffled stream depends on the parser's seed and the epoch, on nothing else in the process."""

SCRIPT = """
import tensorflow as tf
from tfds_torch import ParserTfds, World, demo

root = demo.prepare("photos", num_examples=64, num_shards=4)
parser = ParserTfds(root, "photos", is_training=True, batch_size=16)


def order(epoch):
    return [index for batch in parser.batches(World(), epoch, fields=("label",)) for index in batch.index.tolist()]


orders = [order(0)]
for seed in (7, 8):
    tf.random.set_seed(seed)
    orders += [order(0), order(0)]
assert all(other == orders[0] for other in orders), orders
assert order(1) != orders[0]
"""


def test_tensorflows_global_seed_does_not_change_the_order(run_python):
    result = run_python("-c", SCRIPT)
    assert result.returncode == 0, result.stderr
