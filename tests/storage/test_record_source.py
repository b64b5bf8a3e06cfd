"""InstructionTable: from an example's index to its file and record."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage.made_shards import DATASET

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.source import FileInstruction

NUM_IN_SHARD = 9


@st.composite
def instructions_of_a_split(draw: st.DrawFn) -> list[FileInstruction]:
    instructions: list[FileInstruction] = []
    for _ in range(draw(st.integers(1, 8))):
        skip = draw(st.integers(0, NUM_IN_SHARD))
        take = draw(st.integers(0, NUM_IN_SHARD - skip))
        first = sum(item.take for item in instructions)
        instructions.append(FileInstruction(f"/data/shard-{draw(st.integers(0, 3))}", skip, take, first, NUM_IN_SHARD))
    return instructions


@given(instructions=instructions_of_a_split())
def test_every_example_is_where_counting_through_the_instructions_finds_it(instructions: list[FileInstruction]) -> None:
    expected = [(item.path, item.skip + number) for item in instructions for number in range(item.take)]
    table = InstructionTable(instructions, DATASET)
    file, record = table.find(np.arange(len(table)))
    assert [
        (table.files[place], number) for place, number in zip(file.tolist(), record.tolist(), strict=True)
    ] == expected
    assert file.dtype == record.dtype == np.int64
    assert table.files == tuple(dict.fromkeys(item.path for item in instructions))


def test_indices_may_come_in_any_order_and_twice() -> None:
    table = InstructionTable(
        [FileInstruction("/a", 2, 3, 0, 5), FileInstruction("/b", 0, 2, 3, 2), FileInstruction("/a", 0, 2, 5, 5)],
        DATASET,
    )
    file, record = table.find(np.array([6, 0, 4, 0]))
    assert (file.tolist(), record.tolist()) == ([0, 0, 1, 0], [1, 2, 1, 2])


@pytest.mark.parametrize("index", [-1, 5, 2**62])
def test_an_index_outside_the_split_is_an_error_that_names_it(index: int) -> None:
    table = InstructionTable([FileInstruction("/a", 0, 5, 0, 5)], DATASET)
    with pytest.raises(ExampleNotFoundError) as caught:
        table.find(np.array([0, index, 1]))
    assert str(caught.value) == (
        f"fake/plain:1.0.0 has no example {index} here: the split has 5 examples, counted from 0."
    )
    assert isinstance(caught.value, ConfigError)


def test_a_split_without_instructions_has_no_examples() -> None:
    table = InstructionTable([], DATASET)
    assert len(table) == 0
    assert [found.tolist() for found in table.find(np.array([], np.int64))] == [[], []]
    with pytest.raises(ExampleNotFoundError, match="no example 0 here: the split has 0 examples"):
        table.find(np.array([0]))


def test_a_remote_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gs://bucket/shard is not a file of this machine.* Copy the dataset"):
        InstructionTable([FileInstruction("gs://bucket/shard", 0, 5, 0, 5)], DATASET).check_local()


@pytest.mark.parametrize(
    "instructions",
    [
        [FileInstruction("/a", 0, 5, 1, 5)],
        [FileInstruction("/a", 0, 6, 0, 5)],
        [FileInstruction("/a", -1, 2, 0, 5)],
        [FileInstruction("/a", 3, -1, 0, 5)],
        [FileInstruction("/a", 0, 2, 0, 5), FileInstruction("/a", 2, 2, 2, 6)],
        [FileInstruction("/a", 0, 2, 0, 5), FileInstruction("/a", 2, 2, 3, 5)],
    ],
)
def test_instructions_that_contradict_each_other_are_refused(instructions: list[FileInstruction]) -> None:
    with pytest.raises(ConfigError, match=r"FileInstruction\(.*\) does not continue the instructions before it, or"):
        InstructionTable(instructions, DATASET)
