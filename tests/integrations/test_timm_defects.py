"""What is wrong with timm's reader, and right here: every promise is held against the real one of both.

The cases of timm are expected to fail, and only by the promise itself: a measurement that goes wrong is another error.
When timm mends a defect, its case says so by passing: `make campaign`.
"""

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from integrations import timm_defects
from integrations.timm_defects import NUM_EXAMPLES, NUM_PICTURES, PICTURE_SIDE, REPEATS, Batches
from tfds_torch.runtime import subprocess_call

Measure = Callable[..., Any]
ALL = list(range(NUM_EXAMPLES))
ALONE = [timm_defects.train_on_pictures, timm_defects.list_ops]
"""What is measured in a process of its own: memory among it."""
OTHERS = [function for function in timm_defects.MEASUREMENTS if function not in ALONE]


class MeasurementError(Exception):
    """A measurement that went wrong, or that would pass or fail a promise for another reason."""


def on_both(defect: int, how: str) -> pytest.MarkDecorator:
    """Runs a test with `reader` "ours" and "timm", where the latter must fail.

    What timm's reader does is no promise of ours.
    """
    reason = f"timm 1.0.31, defect {defect}: {how}"
    fails = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
    ours = pytest.param("ours", marks=pytest.mark.slow)
    return pytest.mark.parametrize("reader", [ours, pytest.param("timm", marks=[fails, pytest.mark.campaign])])


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """`measure(reader, function)`: what a function of timm_defects.py found there; a list if it has several ranks."""
    root = tmp_path_factory.mktemp("defects")
    timm_defects.write_datasets(root)
    measured: dict[tuple[str, Callable[..., Any]], list[Any]] = {}

    def result_of(reader: str, function: Callable[..., Any]) -> Any:
        functions = ALONE if function in ALONE else OTHERS
        if (reader, function) not in measured:
            found = subprocess_call.call(timm_defects.measure_all, reader, str(root), functions)
            measured.update({(reader, one): found[one.__name__] for one in functions})
        results = measured[reader, function]
        for result in results:
            check(not isinstance(result, str), result)
        return results if len(results) > 1 else results[0]

    return result_of


def check(condition: bool, found: Any) -> None:
    """Keeps a promise from failing, or passing, by accident."""
    if not condition:
        raise MeasurementError(found)


def shards_by_worker(batches: Batches) -> list[set[int]]:
    """Returns the shards that each of two workers read in an epoch of `uneven`."""
    ends = list(accumulate(timm_defects.UNEVEN_SHARDS))
    shards: list[set[int]] = [set(), set()]
    for worker, labels in batches:
        shards[worker] |= {next(i for i, end in enumerate(ends) if label < end) for label in labels}
    check(all(shards), shards)
    return shards


@on_both(1, "TFDS deals the shards before it shuffles them")
def test_shards_move_between_workers_from_epoch_to_epoch(measure: Measure, reader: str) -> None:
    epochs = [shards_by_worker(epoch) for epoch in measure(reader, timm_defects.train_epochs)["set by hand"]]
    read_by_first, read_by_second = (set().union(*shards) for shards in zip(*epochs, strict=True))
    check(len(read_by_first | read_by_second) == len(timm_defects.UNEVEN_SHARDS), epochs)
    assert len(read_by_first & read_by_second) >= len(timm_defects.UNEVEN_SHARDS) / 2


@on_both(2, "without workers every rank takes itself for pipeline 0")
def test_ranks_without_workers_share_out_the_examples(measure: Measure, reader: str) -> None:
    first, second = (rank[0] for rank in measure(reader, timm_defects.evaluate_rank))
    check(bool(first and second), (first, second))
    assert not set(first) & set(second)
    assert sorted(first + second) == ALL


@on_both(3, "even_splits deals out each summand by itself")
def test_the_sum_of_two_splits_is_dealt_out_evenly(measure: Measure, reader: str) -> None:
    batches = measure(reader, timm_defects.evaluate_sum)
    check(sorted(timm_defects.labels_of(batches)) == list(range(10)), batches)
    assert Counter(worker for worker, _ in batches) == {0: 5, 1: 5}


@on_both(3, "even_splits leaves a worker nothing, which TFDS refuses")
def test_the_sum_of_two_halves_can_be_read_by_several_workers(measure: Measure, reader: str) -> None:
    found = measure(reader, timm_defects.evaluate_sum_of_cuts)
    assert found["error"] == ""
    assert sorted(found["labels"]) == [0, 2]


@on_both(4, "empty shards are counted, and then there are not enough")
def test_empty_shards_do_not_count_as_shards(measure: Measure, reader: str) -> None:
    found = measure(reader, timm_defects.train_with_empty_shards)
    assert found["error"] == ""
    assert set(found["labels"]) == set(range(sum(timm_defects.GAP_SHARDS)))


@on_both(5, "what is shuffled is decoded, and thrown away at the end of the epoch")
@pytest.mark.parametrize("epoch", [0, 1])
def test_few_images_are_decoded_before_the_first_example_of_an_epoch(measure: Measure, reader: str, epoch: int) -> None:
    found = measure(reader, timm_defects.train_on_pictures)
    check(found["decoded"] >= found["examples"] == NUM_PICTURES, found)
    check(found["decoded at first"][epoch] > 0, found)
    assert found["decoded at first"][epoch] < NUM_PICTURES / 8


@on_both(5, "the buffers of shuffle and prefetch hold decoded images")
def test_training_does_not_hold_the_decoded_images_in_memory(measure: Measure, reader: str) -> None:
    found = measure(reader, timm_defects.train_on_pictures)
    check(found["examples"] == NUM_PICTURES, found)
    assert found["memory"] < NUM_PICTURES * PICTURE_SIDE**2 * 3 / 2


@on_both(6, "persistent workers keep their seed")
def test_persistent_workers_shuffle_every_epoch_anew_without_set_epoch(measure: Measure, reader: str) -> None:
    first, second = measure(reader, timm_defects.train_epochs)["by themselves"]
    check(len(first) == len(second) == 16, (first, second))
    assert first != second


@on_both(7, "every worker makes a short batch of its own")
def test_an_evaluation_with_workers_announces_the_batches_that_come(measure: Measure, reader: str) -> None:
    found = measure(reader, timm_defects.evaluate_with_workers)
    check(found["came"] >= 9, found)
    assert found == {"announced": 9, "came": 9}


@on_both(8, "the last example of the shorter share is counted again")
def test_padding_that_makes_ranks_equal_is_not_counted(measure: Measure, reader: str) -> None:
    first, second = (rank[1] for rank in measure(reader, timm_defects.evaluate_rank))
    check(set(first + second) == set(ALL), (first, second))
    assert sorted(first + second) == ALL


@on_both(9, "filenames() builds the pipeline where it is called")
def test_filenames_do_not_run_tensorflow_in_the_training_process(measure: Measure, reader: str) -> None:
    found = measure(reader, timm_defects.ask_filenames)
    check(bool(found["names"]), found)
    assert not found["tensorflow runs"]


@on_both(9, "the pipeline of filenames() is that of pipeline 0, once create_loader has announced workers")
def test_filenames_name_every_example(measure: Measure, reader: str) -> None:
    found = measure(reader, timm_defects.ask_filenames)
    check(bool(found["names"]), found)
    assert found["names"] == [f"{number}.jpg" for number in ALL]


@on_both(10, "a repeated evaluation has no end")
def test_an_evaluation_with_repeats_ends(measure: Measure, reader: str) -> None:
    assert measure(reader, timm_defects.evaluate_repeats) <= REPEATS * NUM_EXAMPLES


@on_both(11, "every worker repeats its share until it has delivered a number of examples")
def test_an_epoch_of_training_covers_the_dataset_once(measure: Measure, reader: str) -> None:
    labels = measure(reader, timm_defects.train_on_one_shard)
    check(len(labels) == 64, labels)  # 16 batches: three examples come twice, at least.
    assert set(labels) == set(ALL)


@on_both(12, "TFDS caches small datasets, after the decoder")
def test_decoded_images_are_not_cached(measure: Measure, reader: str) -> None:
    ops = measure(reader, timm_defects.list_ops)
    # Ours leave the graph encoded.
    check(any("TFRecord" in op for op in ops) and any("Decode" in op for op in ops) == (reader == "timm"), ops)
    assert not [op for op in ops if "Cache" in op]
