"""ArrayRecordFilesReader: the examples asked for, in the order asked, out of ArrayRecord files."""

import builtins
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage.made_shards import DATASET, MadeSplit, made_records, write_array_record

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.storage.array_record import source as array_record
from tfds_torch.storage.array_record.source import ArrayRecordFilesReader


def write_shards(folder: Path, counts: list[int]) -> MadeSplit:
    split = MadeSplit()
    for number, count in enumerate(counts):
        path = folder / f"fake-train.array_record-{number:05d}-of-{len(counts):05d}"
        split.records[str(path)] = made_records(count, number)
        write_array_record(path, split.records[str(path)])
        split.add_instruction(str(path), 0, count)
    return split


@pytest.fixture
def split(tmp_path: Path) -> MadeSplit:
    """Two shards, and a second, shorter instruction for the first."""
    made = write_shards(tmp_path / "data", [6, 9])
    made.add_instruction(made.instructions[0].path, 2, 3)
    return made


@pytest.fixture
def reader(split: MadeSplit) -> Iterator[ArrayRecordFilesReader]:
    with ArrayRecordFilesReader(split.table) as opened:
        yield opened


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.lists(st.integers(0, 17), max_size=30))
def test_any_examples_come_in_the_order_asked(
    split: MadeSplit, reader: ArrayRecordFilesReader, index: list[int]
) -> None:
    assert reader.read(np.array(index, np.int64)) == [split.examples[number] for number in index]


def test_parts_of_examples_are_cut_out_of_whole_ones(split: MadeSplit, reader: ArrayRecordFilesReader) -> None:
    bounds = [(11, 3, 9), (2, 0, 400), (11, 0, 3), (0, 5, 5)]
    index, start, stop = np.array(bounds).T
    found = reader.read_parts(index, start, stop)
    assert found == [split.examples[number][first:last] for number, first, last in bounds]
    assert reader.num_read == 3


def test_every_record_is_read_once_per_call_and_counted(split: MadeSplit, reader: ArrayRecordFilesReader) -> None:
    reader.advise(np.array([3]))
    assert reader.num_read == 0
    assert reader.read(np.array([2, 11, 2])) == [split.examples[2], split.examples[11], split.examples[2]]
    assert reader.num_read == 2


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_record, "_MOST_OPEN", 2)
    split = write_shards(tmp_path / "data", [2, 2, 2, 2])
    with ArrayRecordFilesReader(split.table) as reader:
        for _ in range(2):
            assert reader.read(np.arange(8)[::-1].copy()) == split.examples[::-1]
            assert len(reader._readers) == 2
        assert reader.num_read == 16


def test_a_closed_reader_reads_nothing(reader: ArrayRecordFilesReader) -> None:
    reader.read(np.array([0]))
    reader.close()
    reader.close()
    with pytest.raises(ConfigError, match=rf"The reader of {DATASET} was closed: open another one to read on"):
        reader.read(np.array([0]))


def test_without_the_package_the_extra_is_named(split: MadeSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    really_import = builtins.__import__

    def refuse(name: str, *arguments: object, **names: object) -> object:
        if name.startswith("array_record."):
            raise ImportError(name)
        return really_import(name, *arguments, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError) as caught:
        ArrayRecordFilesReader(split.table)
    assert str(caught.value) == (
        f"{DATASET} has files of format 'array_record', and the package that reads them is not installed: "
        f"`pip install 'tfds-torch[array-record]'`."
    )


# Damage.


@pytest.mark.parametrize("size", [0, 20, 400, 65_536, -1])
def test_a_cut_file_is_a_shard_error(split: MadeSplit, reader: ArrayRecordFilesReader, size: int) -> None:
    path = split.instructions[1].path
    os.truncate(path, size if size >= 0 else os.stat(path).st_size + size)
    with pytest.raises(ShardError, match=rf"{path} holds 0 of 9 examples"):
        reader.read(np.array([0]))


def test_no_flipped_byte_gives_another_example(split: MadeSplit) -> None:
    path = Path(split.instructions[1].path)
    whole = path.read_bytes()
    outcomes = {"whole": 0, "corrupt": 0, "shard": 0}
    tail = len(whole) - 65_536  # The footer begins on a block of its own.
    for position in [*range(0, 1200, 7), *range(tail, tail + 400, 7), *range(len(whole) - 300, len(whole), 7)]:
        content = bytearray(whole)
        content[position] ^= 0x10
        path.write_bytes(content)
        with ArrayRecordFilesReader(split.table) as reader:
            try:
                found = reader.read(np.arange(18))
            except CorruptRecordError:
                outcomes["corrupt"] += 1
            except ShardError:
                outcomes["shard"] += 1
            else:
                outcomes["whole"] += 1  # Bytes between the records.
                assert found == split.examples
    assert min(outcomes.values()) > 0


def test_the_damaged_record_is_named_and_the_others_are_still_read(split: MadeSplit) -> None:
    path = Path(split.instructions[1].path)
    content = bytearray(path.read_bytes())
    content[content.index(split.examples[9][:20])] ^= 1  # Random bytes are stored as they are.
    path.write_bytes(content)
    with ArrayRecordFilesReader(split.table) as reader:
        for _ in range(2):
            with pytest.raises(CorruptRecordError) as caught:
                reader.read(np.array([0, 8, 9, 10]))
            message = str(caught.value)
            assert message.startswith(f"example 9 of {DATASET}: {path}: record 3: ")
            assert message.endswith(". The file is corrupt; prepare the dataset again.")
            assert "\n" not in message
        assert reader.read(np.array([8, 10])) == [split.examples[8], split.examples[10]]


def test_a_read_that_fails_only_as_a_whole_is_a_shard_error(split: MadeSplit, reader: ArrayRecordFilesReader) -> None:
    class Moody:
        def ok(self) -> bool:
            return True

        def num_records(self) -> int:
            return 9

        def read(self, records: list[int]) -> list[bytes]:
            if len(records) > 1:
                raise RuntimeError("not now")
            return [b""]

    reader._open_file = lambda path: Moody()
    reader._table.num_in_file = (9, 9)
    with pytest.raises(ShardError, match=r"could not be read at once, but in parts\. Try again\."):
        reader.read(np.array([0, 1]))


def test_when_no_file_can_be_opened_the_advice_is_given(split: MadeSplit, run_python: RunPython) -> None:
    path = split.instructions[0].path
    code = f"""
    import os, resource
    import numpy as np
    from tfds_torch.errors import ShardError
    from tfds_torch.storage.array_record.source import ArrayRecordFilesReader
    from tfds_torch.storage.record_source import InstructionTable
    from tfds_torch.storage.source import FileInstruction
    reader = ArrayRecordFilesReader(InstructionTable([FileInstruction({path!r}, 0, 6, 0, 6)], {DATASET!r}))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    others = []
    try:
        while True:
            others.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        reader.read(np.arange(6))
    except ShardError as error:
        print(error)
    os._exit(0)
    """
    done = run_python("-u", "-c", textwrap.dedent(code))
    assert done.stdout.startswith(
        f"The shard file {path} cannot be opened: Too many open files. Let the process open"
    ), done.stderr


# A fork.


def test_a_forked_process_names_the_damaged_record_too(split: MadeSplit, run_python: RunPython) -> None:
    path = Path(split.instructions[1].path)
    content = bytearray(path.read_bytes())
    content[content.index(split.examples[9][:20])] ^= 1
    path.write_bytes(content)
    code = f"""
    import os
    import numpy as np
    from tfds_torch.errors import CorruptRecordError
    from tfds_torch.storage.array_record.source import ArrayRecordFilesReader
    from tfds_torch.storage.record_source import InstructionTable
    from tfds_torch.storage.source import FileInstruction

    def say() -> str:
        reader = ArrayRecordFilesReader(InstructionTable({split.instructions!r}, {DATASET!r}))
        try:
            reader.read(np.arange(18))
        except CorruptRecordError as error:
            return str(error)
        return "nothing"

    said = say()
    assert "record 3" in said, said
    child = os.fork()
    if child == 0:
        os._exit(0 if say() == said else 1)
    print(os.waitpid(child, 0)[1])
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.stdout == "0\n", done.stderr


def test_files_that_another_process_reads_are_closed_there(split: MadeSplit, run_python: RunPython) -> None:
    code = f"""
    import os
    from array_record.python import array_record_module
    from tfds_torch.storage.array_record import package

    child = os.fork()
    if child == 0:
        open_file = package.find_opener("The dataset")
        for _ in range(3):
            reader = open_file({split.instructions[0].path!r})
            assert (reader.ok(), reader.num_records(), len(reader.read([0, 1]))) == (True, 6, 2)
        opened = f"/proc/{{package._process._child.process.pid}}/fd"
        paths = [os.readlink(f"{{opened}}/{{name}}") for name in os.listdir(opened)]
        os._exit(0 if sum("array_record-" in path for path in paths) == 1 else 1)
    print(os.waitpid(child, 0)[1])
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.stdout == "0\n", done.stderr
