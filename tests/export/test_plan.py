"""ExportPlan and SampleOrder: which examples go into which shard, in what order, and how two plans differ."""

import json
import math
import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.errors import ConfigError
from tfds_torch.export.plan import DEFAULT_SHARD_BYTES, ExportPlan, ShardSizes, safe_name, split_label
from tfds_torch.export.samples import SampleOrder

PLAN = ExportPlan(
    "tfrecord", "photos", "train", {"name": "photos:1.0.0", "files": "ab"}, {"num_shards": 2, "fields": {}}, (0, 5, 9)
)


@given(num_examples=st.integers(1, 500), data=st.data())
def test_shards_are_even_and_hold_all_examples_once(num_examples: int, data: st.DataObject) -> None:
    num_shards = data.draw(st.integers(1, num_examples))
    bounds = ShardSizes(num_shards=num_shards).bounds(num_examples, 100)
    lengths = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(lengths)) == (0, num_examples, num_shards)
    assert lengths.min() >= 1
    assert lengths.max() - lengths.min() <= 1


def file_bytes(content_bytes: int, end: int, block: int) -> int:
    return math.ceil((content_bytes + end) / block) * block


@given(
    sizes=st.lists(st.integers(2, 50_000), min_size=1),
    end=st.sampled_from([0, 1024]),
    block=st.sampled_from([1, 10240]),
)
def test_the_largest_example_tells_how_many_bytes_must_be_allowed(sizes: list[int], end: int, block: int) -> None:
    least = file_bytes(max(sizes), end, block)
    for max_bytes in (1, least // 2, least - 1):
        with pytest.raises(ConfigError, match=rf"\. Allow {least:,} or more"):
            ShardSizes(max_bytes=max_bytes).bounds(len(sizes), None, np.array(sizes), end, block)
    assert ShardSizes(max_bytes=least).bounds(len(sizes), None, np.array(sizes), end, block)[-1] == len(sizes)


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=80),
    max_count=st.none() | st.integers(1, 9),
    end=st.integers(0, 5),
    block=st.integers(1, 5),
)
def test_shards_are_filled_as_far_as_both_limits_allow(
    sizes: list[int], max_count: int | None, end: int, block: int
) -> None:
    asked = ShardSizes(max_bytes=60, max_count=max_count)
    bounds = asked.bounds(len(sizes), None, np.array(sizes), end, block)
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    for start, stop in pairwise(bounds):
        assert stop > start
        assert file_bytes(sum(sizes[start:stop]), end, block) <= 60
        assert stop - start <= (max_count or len(sizes))
        one_more_fits = stop < len(sizes) and file_bytes(sum(sizes[start : stop + 1]), end, block) <= 60
        assert not one_more_fits or stop - start == max_count


@pytest.mark.parametrize(
    ("num_examples", "mean_bytes", "num_shards"),
    [(10, 100, 1), (4000, DEFAULT_SHARD_BYTES // 1000, 4), (4001, DEFAULT_SHARD_BYTES // 1000, 5), (3, 2**40, 3)],
)
def test_where_nothing_is_asked_for_shards_are_of_a_usual_size(
    num_examples: int, mean_bytes: int, num_shards: int
) -> None:
    assert len(ShardSizes().bounds(num_examples, mean_bytes)) - 1 == num_shards
    assert len(ShardSizes().bounds(20_001, None)) - 1 == 3


def test_a_plan_that_was_kept_as_json_is_the_same() -> None:
    again = ExportPlan.from_dict(json.loads(json.dumps(PLAN.to_dict())))
    assert again.differences(PLAN) == []
    assert again == PLAN
    assert [list(again.places(shard)) for shard in range(again.num_shards)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]


def test_names_of_shards_are_those_that_readers_look_for() -> None:
    assert PLAN.file_name(1) == "photos-train.tfrecord-00001-of-00002"
    tar = ExportPlan("webdataset", "photos", "train", {}, {}, (0, 5, 9))
    assert tar.file_name(1) == "photos-train-000001.tar"
    many = ExportPlan("tfrecord", "photos", "train", {}, {}, tuple(range(128_001)))
    assert many.file_name(3) == "photos-train.tfrecord-000003-of-128000"


def test_differences_name_all_unequal_values() -> None:
    other = replace(PLAN, source={"name": "photos:2.0.0"}, options={"num_shards": 3, "fields": {}}, bounds=(0, 3, 6, 9))
    assert PLAN.differences(other) == [
        "num_shards is 2, not 3",
        'source name is "photos:1.0.0", not "photos:2.0.0"',
        'source files is "ab", not null',
    ]
    tars = replace(PLAN, format="webdataset")
    assert PLAN.differences(tars) == ['format is "tfrecord", not "webdataset"']
    assert PLAN.differences(replace(PLAN, bounds=(0, 4, 9))) == ["the shards hold other ranges of examples"]


@pytest.mark.parametrize(
    ("expression", "label"),
    [
        ("train", "train"),
        ("train[:10%]", "train"),
        ("train+test", "train_test"),
        ("train[:5]+train[9:]", "train"),
        ("", "all"),
    ],
)
def test_a_split_expression_has_a_name_for_files(expression: str, label: str) -> None:
    assert split_label(expression) == label
    assert safe_name("coco/2017: grün") == "coco_2017__gr_n"


# The order of samples

ORDERS = {
    "whole": (SampleOrder(7), list(range(7))),
    "chosen": (SampleOrder(7, [6, 0, 6]), [6, 0, 6]),
    "a mask's": (SampleOrder(7, np.flatnonzero(np.arange(7) % 2)), [1, 3, 5]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_numbers_are_found_by_place_and_places_by_number(name: str) -> None:
    order, numbers = ORDERS[name]
    assert len(order) == len(numbers)
    assert order.at(range(1, len(order))).tolist() == numbers[1:]
    assert order.at(range(len(order))).dtype == np.int64
    assert [order.number_at(place) for place in range(len(order))] == numbers
    assert [order.places_of(number) for number in range(7)] == [
        [place for place, one in enumerate(numbers) if one == number] for number in range(7)
    ]
    assert order.has_repeats == (len(set(numbers)) < len(numbers))


def test_a_shuffle_is_of_the_chosen_samples_and_of_its_seed() -> None:
    chosen = SampleOrder(100, range(50, 100), shuffle_seed=3)
    numbers = chosen.at(range(50)).tolist()
    assert sorted(numbers) == list(range(50, 100)) != numbers
    assert chosen.digest() == SampleOrder(100, numbers).digest() != SampleOrder(100, range(50, 100)).digest()
    assert SampleOrder(100, range(50, 100), shuffle_seed=4).digest() != chosen.digest()
    assert not chosen.has_repeats


def test_all_samples_in_order_take_no_memory() -> None:
    order = SampleOrder(10**12)
    assert order.at(range(10**12 - 2, 10**12)).tolist() == [10**12 - 2, 10**12 - 1]
    assert (order.number_at(10**11), order.places_of(10**11), order.has_repeats) == (10**11, [10**11], False)
    assert len(pickle.dumps(order)) < 300


@pytest.mark.parametrize("indices", [[7], [-1], "12", [1.5], [True], [2**63], np.array([2**63], np.uint64)])
def test_what_is_no_index_of_a_sample_is_refused(indices: object) -> None:
    with pytest.raises(ConfigError, match="indices"):
        SampleOrder(7, indices)  # type: ignore[arg-type]
