"""Twenty tests of `make test-slim` where no process can import tensorflow; the rest needs an environment of its own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import without_tensorflow
from tfds_fixtures import Datasets, datasets

__all__ = ["datasets"]

QUICK = (
    "demo/test_preparation.py::test_a_prepared_dataset_is_returned_without_a_build",
    "loaders/test_multi_loader.py::test_the_order_does_not_depend_on_the_number_of_workers",  # 4
    "parsers/test_index_mode.py::test_a_shuffled_epoch_mixes_the_whole_split_and_one_in_blocks_some_of_it",
    "parsers/test_index_mode.py::test_global_batches_are_those_of_the_plan_for_any_number_of_ranks_and_workers",
    "torch_data/test_loader.py::test_batches_of_an_iterable_come_in_order_epoch_after_epoch_also_after_a_break",  # 3
    "torch_data/test_worlds.py::test_the_global_batches_are_the_same_in_every_world[quick]",
)


def test_quick_tests_pass_where_tensorflow_cannot_be_imported(
    datasets: Datasets, root: Path, run_python: Callable[..., Any]
) -> None:
    hook = root / "tests" / "hide_tensorflow"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(hook), str(root), os.environ.get("PYTHONPATH", "")]),
        without_tensorflow.DATASETS: str(datasets.root.parent),
        "PYTEST_XDIST_WORKER": "",
    }
    tests = [str(root / "tests" / one) for one in QUICK]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(root)]
    done = run_python("-m", "pytest", *options, *tests, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 passed" in done.stdout
