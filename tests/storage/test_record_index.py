"""RecordIndex: where every example lies, built once, and built again when it must be."""

import fcntl
import logging
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython
from filelock import FileLock
from storage.made_shards import DATASET, MadeSplit, made_records, write_shards
from storage.tfrecord_writer import boundaries, write

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage import index_cache
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.tfrecord import index as record_index
from tfds_torch.storage.tfrecord.index import RecordIndex, find_records


@pytest.fixture
def split(tmp_path: Path, cache_home: Path) -> MadeSplit:
    return write_shards(tmp_path / "data", [3, 0, 5, 2])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The datasets that were scanned, as they are scanned."""
    names: list[str] = []

    def build(*arguments: object) -> Int64Array:
        names.append(str(arguments[-1]))
        return find_records(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(record_index, "find_records", build)
    return names


def index_files(cache_home: Path) -> list[Path]:
    return sorted((cache_home / "tfds_torch" / "record_index").glob("*.index"))


def lies(index: RecordIndex) -> list[tuple[str, int, int]]:
    """File, offset and length of every example."""
    located = index.locate(np.arange(len(index)))
    columns = located.file.tolist(), located.offset.tolist(), located.length.tolist()
    return [(index.files[file], offset, length) for file, offset, length in zip(*columns, strict=True)]


def expected(split: MadeSplit) -> list[tuple[str, int, int]]:
    starts = {path: boundaries(records) for path, records in split.records.items()}
    return [
        (item.path, starts[item.path][record], len(split.records[item.path][record]))
        for item in split.instructions
        for record in range(item.skip, item.skip + item.take)
    ]


def test_located_examples_come_in_the_order_asked_with_their_records(split: MadeSplit) -> None:
    located = RecordIndex.open(split.table).locate(np.array([9, 0, 4, 4]))
    assert located.file.tolist() == [3, 0, 2, 2]
    assert located.record.tolist() == [1, 0, 1, 1]
    for column in (located.file, located.record, located.offset, located.length, located.place):
        assert column.dtype == np.int64


# Built once.


def test_it_is_built_once_and_mapped_afterwards(split: MadeSplit, built: list[str], cache_home: Path) -> None:
    first = RecordIndex.open(split.table)
    second = RecordIndex.open(split.table)
    assert built == [DATASET]
    assert lies(first) == lies(second) == expected(split)
    (file,) = index_files(cache_home)
    assert 8 * 14 < file.stat().st_size < 8 * 14 + 1000


def test_splits_and_datasets_have_indices_of_their_own(split: MadeSplit, built: list[str], cache_home: Path) -> None:
    RecordIndex.open(split.table)
    RecordIndex.open(InstructionTable(split.instructions, "fake/plain:1.0.1"))
    RecordIndex.open(InstructionTable(split.instructions[:1], DATASET))
    assert len(built) == len(index_files(cache_home)) == 3


def test_slices_of_the_same_files_share_an_index(split: MadeSplit, built: list[str]) -> None:
    path = split.instructions[2].path
    RecordIndex.open(InstructionTable([FileInstruction(path, 0, 2, 0, 5)], DATASET))
    index = RecordIndex.open(
        InstructionTable([FileInstruction(path, 3, 2, 0, 5), FileInstruction(path, 0, 1, 2, 5)], DATASET)
    )
    assert index.locate(np.arange(3)).record.tolist() == [3, 4, 0]
    assert len(built) == 1


def test_a_split_without_files_needs_no_index(cache_home: Path) -> None:
    index = RecordIndex.open(InstructionTable([], DATASET))
    assert (len(index), index.files, lies(index)) == (0, (), [])
    assert not cache_home.exists()


RACE = """
import os, signal
import numpy as np
from tfds_torch.storage.index_cache import IndexCache
from tfds_torch.storage.tfrecord import index as record_index
from tfds_torch.storage.tfrecord.index import RecordIndex
from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.record_source import InstructionTable

instructions = {instructions!r}
build, load = record_index.find_records, IndexCache._load

def find_records(*arguments):
    os.write(log, b"built\\n")
    for _ in range({num_processes}):  # Not before every process has found that there is no index.
        os.read(tried, 1)
    return build(*arguments)

def load_and_tell(cache, *, warns):
    if warns:
        os.write(tell, b"x")
    return load(cache, warns=warns)

record_index.find_records, IndexCache._load = find_records, load_and_tell
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
tried, tell = os.pipe()
children = []
for number in range({num_processes}):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        index = RecordIndex.open(InstructionTable(instructions, {dataset!r}))
        os._exit(0 if index.locate(np.arange(len(index))).offset.tolist() == {offsets!r} else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * {num_processes}
"""


def test_of_many_processes_that_start_together_one_builds(
    split: MadeSplit, tmp_path: Path, run_python: RunPython, cache_home: Path
) -> None:
    offsets = [offset for _, offset, _ in expected(split)]
    done = run_python(
        "-c", RACE.format(instructions=split.instructions, num_processes=16, dataset=DATASET, offsets=offsets)
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text() == "built\n"
    (file,) = index_files(cache_home)
    assert list(file.parent.glob("*.tmp")) == []


def test_a_builder_killed_while_it_writes_leaves_nothing_in_the_way(
    split: MadeSplit, run_python: RunPython, cache_home: Path
) -> None:
    code = f"""
    import os, signal
    from tfds_torch.storage.tfrecord.index import RecordIndex
    from tfds_torch.storage.source import FileInstruction
    from tfds_torch.storage.record_source import InstructionTable
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
    RecordIndex.open(InstructionTable({split.instructions!r}, {DATASET!r}))
    """
    assert run_python("-c", textwrap.dedent(code)).returncode == -9
    folder = cache_home / "tfds_torch" / "record_index"
    assert len(list(folder.glob("*.tmp"))) == 1
    assert index_files(cache_home) == []
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert list(folder.glob("*.tmp")) == []
    assert len(index_files(cache_home)) == 1


# Built again.


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("tfds_torch")
    ]


def test_a_changed_file_rebuilds_it_and_it_is_said(
    split: MadeSplit, built: list[str], caplog: pytest.LogCaptureFixture, cache_home: Path
) -> None:
    RecordIndex.open(split.table)
    path = split.instructions[2].path
    split.records[path] = made_records(5, seed=99)
    write(Path(path), split.records[path])
    caplog.set_level(logging.INFO)
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert len(built) == 2
    (file,) = index_files(cache_home)
    assert logged(caplog) == [
        ("INFO", f"The index {file} of {DATASET} is built again: the shards have changed, or are others.")
    ]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda content: content[:-9], "it does not have its checksum: it was cut or changed"),
        (lambda content: b"something else " * 100, "it is not an index file"),
        (lambda content: content[:8] + b"\x02" + content[9:], "its format version is 2, ours is 1"),
    ],
)
def test_a_damaged_index_is_built_again_and_it_is_said(
    split: MadeSplit,
    built: list[str],
    caplog: pytest.LogCaptureFixture,
    cache_home: Path,
    damage: Callable[[bytes], bytes],
    problem: str,
) -> None:
    RecordIndex.open(split.table)
    (file,) = index_files(cache_home)
    whole = file.read_bytes()
    file.unlink()  # The mapped one stays as it is.
    file.write_bytes(damage(whole))
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert len(built) == 2
    ((level, message),) = logged(caplog)
    assert level == "WARNING"
    assert message.startswith(f"The index {file} of {DATASET} is built again: {problem}")
    assert file.read_bytes() == whole


def test_the_index_of_another_dataset_in_its_place_is_built_again(
    split: MadeSplit, built: list[str], cache_home: Path
) -> None:
    RecordIndex.open(split.table)
    (first,) = index_files(cache_home)
    RecordIndex.open(InstructionTable(split.instructions, "other:1.0.0"))
    (other,) = set(index_files(cache_home)) - {first}
    os.replace(other, first)
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert len(built) == 3


# What is wrong with the shards is said.


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("found", [4, 6])
def test_a_shard_cut_between_records_or_grown_is_named(split: MadeSplit, found: int, indexed: bool) -> None:
    if indexed:
        RecordIndex.open(split.table)
    path = split.instructions[2].path
    write(Path(path), made_records(6, 2)[:found])
    for _ in range(2):
        with pytest.raises(ShardError) as caught:
            RecordIndex.open(split.table)
        assert str(caught.value) == (
            f"{path} holds {found} of 5 examples: dataset_info.json of {DATASET} promises 5. The file was cut or "
            f"exchanged; prepare the dataset again."
        )


@pytest.mark.parametrize("indexed", [False, True])
def test_a_shard_cut_inside_a_record_is_a_corrupt_record_error(split: MadeSplit, indexed: bool) -> None:
    if indexed:
        RecordIndex.open(split.table)
    path = split.instructions[2].path
    starts = boundaries(split.records[path])
    with Path(path).open("r+b") as file:
        file.truncate(starts[5] - 1)
    with pytest.raises(CorruptRecordError, match=rf"inside record 4, which begins at offset {starts[4]}: it was cut"):
        RecordIndex.open(split.table)


def test_a_wrong_shard_leaves_no_index_behind(split: MadeSplit, cache_home: Path) -> None:
    instructions = [FileInstruction(split.instructions[0].path, 0, 4, 0, 4)]
    with pytest.raises(ShardError, match="holds 3 of 4 examples"):
        RecordIndex.open(InstructionTable(instructions, DATASET))
    assert index_files(cache_home) == []


# A cache folder that cannot be used.


def test_without_a_cache_folder_the_index_stays_in_memory(
    split: MadeSplit, built: list[str], cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache_home.write_text("a file where the folder should be")
    for _ in range(2):
        assert lies(RecordIndex.open(split.table)) == expected(split)
    assert len(built) == 2
    (level, message), _ = logged(caplog)
    assert level == "WARNING"
    assert message.startswith(f"The index of {DATASET} cannot be kept in {cache_home}/tfds_torch/record_index (")
    assert message.endswith("): this process builds one of its own, and so will every other.")


def test_an_index_in_a_folder_that_may_only_be_read_is_used(
    split: MadeSplit, built: list[str], cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordIndex.open(split.table)

    def refuse(*arguments: object, **names: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert len(built) == 1


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), NotImplementedError("no locks here")])
def test_without_a_lock_the_index_stays_in_memory(
    split: MadeSplit,
    cache_home: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def refuse(*arguments: object, **names: object) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert index_files(cache_home) == []
    ((level, message),) = logged(caplog)
    assert level == "WARNING"
    assert str(error) in message


def test_on_a_full_disk_the_index_stays_in_memory_and_the_numbers_are_said(
    tmp_path: Path, cache_home: Path, run_python: RunPython
) -> None:
    split = write_shards(tmp_path / "data", [300], largest=3)
    code = f"""
    import logging, resource
    import numpy as np
    from tfds_torch.storage.tfrecord.index import RecordIndex
    from tfds_torch.storage.source import FileInstruction
    from tfds_torch.storage.record_source import InstructionTable
    logging.basicConfig(format="%(levelname)s %(message)s")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    instructions = [FileInstruction({split.instructions[0].path!r}, 0, 300, 0, 300)]
    index = RecordIndex.open(InstructionTable(instructions, {DATASET!r}))
    print(index.locate(np.arange(300)).offset.tolist())
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{boundaries(split.examples)[:-1]}\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"WARNING The index of {DATASET} stays in this process's memory, and others build it again:")
    assert f"writing {cache_home}/tfds_torch/record_index/" in line
    assert "failed (File too large). It needs 2" in line
    assert "bytes, free are" in line
    assert [path.suffix for path in (cache_home / "tfds_torch" / "record_index").iterdir()] in ([".lock"], [])


# Waiting for another process.


@pytest.fixture
def held_lock(split: MadeSplit, cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The lock of the split's index is held by someone else, who lets it go when this is called."""
    RecordIndex.open(split.table)
    (file,) = index_files(cache_home)
    file.unlink()
    descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    monkeypatch.setattr(index_cache, "_LONG_WAIT_S", 0.0)
    return lambda: os.close(descriptor)


def test_who_waits_long_says_so_once_and_takes_what_the_other_built(
    split: MadeSplit,
    built: list[str],
    held_lock: Callable[[], None],
    cache_home: Path,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    class LetGo(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            held_lock()

    handler = LetGo()
    logging.getLogger(index_cache.__name__).addHandler(handler)
    try:
        assert lies(RecordIndex.open(split.table)) == expected(split)
    finally:
        logging.getLogger(index_cache.__name__).removeHandler(handler)
    (file,) = index_files(cache_home)
    assert logged(caplog) == [
        ("WARNING", f"Another process has been indexing {DATASET} for 0 s: waiting for it (lock {file}.lock).")
    ]


def test_a_builder_that_never_ends_holds_nobody_up(
    split: MadeSplit,
    built: list[str],
    held_lock: Callable[[], None],
    cache_home: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_cache, "_LONGEST_WAIT_S", 0.0)
    built.clear()
    assert lies(RecordIndex.open(split.table)) == expected(split)
    assert built == [DATASET]
    assert index_files(cache_home) == []
    assert "cannot be kept" in logged(caplog)[1][1]
    held_lock()
    RecordIndex.open(split.table)
    assert len(index_files(cache_home)) == 1
