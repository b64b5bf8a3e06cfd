"""RunTable: from an example's index to its file and record."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records.made_shards import DATASET

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.records.record_run import RecordRun
from tfds_torch.records.run_table import RunTable

NUM_IN_SHARD = 9


@st.composite
def runs_of_a_split(draw: st.DrawFn) -> list[RecordRun]:
    runs: list[RecordRun] = []
    for _ in range(draw(st.integers(1, 8))):
        skip = draw(st.integers(0, NUM_IN_SHARD))
        take = draw(st.integers(0, NUM_IN_SHARD - skip))
        first = sum(run.take for run in runs)
        runs.append(RecordRun(f"/data/shard-{draw(st.integers(0, 3))}", skip, take, first, NUM_IN_SHARD))
    return runs


@given(runs=runs_of_a_split())
def test_every_example_is_where_counting_through_the_runs_finds_it(runs: list[RecordRun]) -> None:
    expected = [(run.path, run.skip + number) for run in runs for number in range(run.take)]
    table = RunTable(runs, DATASET)
    file, record = table.find(np.arange(len(table)))
    assert [
        (table.files[place], number) for place, number in zip(file.tolist(), record.tolist(), strict=True)
    ] == expected
    assert file.dtype == record.dtype == np.int64
    assert table.files == tuple(dict.fromkeys(run.path for run in runs))


def test_indices_may_come_in_any_order_and_twice() -> None:
    table = RunTable([RecordRun("/a", 2, 3, 0, 5), RecordRun("/b", 0, 2, 3, 2), RecordRun("/a", 0, 2, 5, 5)], DATASET)
    file, record = table.find(np.array([6, 0, 4, 0]))
    assert (file.tolist(), record.tolist()) == ([0, 0, 1, 0], [1, 2, 1, 2])


@pytest.mark.parametrize("index", [-1, 5, 2**62])
def test_an_index_outside_the_split_is_an_error_that_names_it(index: int) -> None:
    table = RunTable([RecordRun("/a", 0, 5, 0, 5)], DATASET)
    with pytest.raises(ExampleNotFoundError) as caught:
        table.find(np.array([0, index, 1]))
    assert str(caught.value) == (
        f"fake/plain:1.0.0 has no example {index} here: the split has 5 examples, counted from 0."
    )
    assert isinstance(caught.value, ConfigError)


def test_a_split_without_runs_has_no_examples() -> None:
    table = RunTable([], DATASET)
    assert len(table) == 0
    assert [found.tolist() for found in table.find(np.array([], np.int64))] == [[], []]
    with pytest.raises(ExampleNotFoundError, match="no example 0 here: the split has 0 examples"):
        table.find(np.array([0]))


def test_a_remote_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gs://bucket/shard is not a file of this machine.* Copy the dataset"):
        RunTable([RecordRun("gs://bucket/shard", 0, 5, 0, 5)], DATASET)


@pytest.mark.parametrize(
    "runs",
    [
        [RecordRun("/a", 0, 5, 1, 5)],
        [RecordRun("/a", 0, 6, 0, 5)],
        [RecordRun("/a", -1, 2, 0, 5)],
        [RecordRun("/a", 3, -1, 0, 5)],
        [RecordRun("/a", 0, 2, 0, 5), RecordRun("/a", 2, 2, 2, 6)],
        [RecordRun("/a", 0, 2, 0, 5), RecordRun("/a", 2, 2, 3, 5)],
    ],
)
def test_runs_that_contradict_each_other_are_refused(runs: list[RecordRun]) -> None:
    with pytest.raises(ConfigError, match=r"RecordRun\(.*\) does not continue the runs before it, or leaves its file"):
        RunTable(runs, DATASET)
