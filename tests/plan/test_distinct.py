"""unique: what numpy.unique gives, without what it imports."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zygote import forked_instead_of_fresh

from tfds_torch import demo
from tfds_torch.plan.order import unique


@given(st.lists(st.integers(-5, 5)))
def test_it_is_numpys_own(values: list[int]) -> None:
    array = np.array(values, np.int64)
    numpys = np.unique(array, return_index=True, return_inverse=True)
    for ours, theirs in zip(unique(array), numpys, strict=True):
        np.testing.assert_array_equal(ours, theirs)


SCRIPT = """
import sys
from tfds_torch import ParserTfds, World, demo

root = demo.prepare("digits")
for _ in ParserTfds(root, "digits", is_training=True, batch_size=32).batches(World()):
    pass
print("numpy.ma" in sys.modules)
"""


@pytest.mark.timeout(120)
def test_nothing_of_reading_imports_masked_arrays(run_python) -> None:
    with forked_instead_of_fresh():
        demo.prepare("digits", progress=False)  # In the cache, where the script finds it.
    done = run_python("-c", SCRIPT)
    assert done.stdout.strip() == "False", done.stderr
