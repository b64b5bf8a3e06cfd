"""check_shards: shard files against the numbers of dataset_info.json, counted once."""

import fcntl
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from storage.tfrecord_writer import boundaries, write

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.storage.tfrecord import shard_counts as shard_check
from tfds_torch.storage.tfrecord.framing import count_records
from tfds_torch.storage.tfrecord.shard_counts import check_shards

DATASET = "fake/plain:1.0.0"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose records were counted, as they are counted."""
    names: list[str] = []

    def count(path: str) -> int:
        names.append(os.path.basename(path))
        return count_records(path)

    monkeypatch.setattr(shard_check, "count_records", count)
    return names


@pytest.fixture
def shards(tmp_path: Path, cache_home: Path) -> dict[str, int]:
    """Three shards with 1, 2 and 3 records."""
    folder = tmp_path / "data"
    return {str(write(folder / f"shard-{n}", [b"record"] * n)): n for n in (1, 2, 3)}


def cache_files(cache_home: Path) -> list[Path]:
    return sorted(cache_home.rglob("*.json"))


def test_no_shards_pass(cache_home: Path) -> None:
    check_shards({}, DATASET)
    assert cache_files(cache_home) == []


# What is wrong is said.


WRONG: dict[str, tuple[Callable[[Path], object], type[ShardError], str]] = {
    "cut between records": (
        lambda path: os.truncate(path, boundaries([b"record"] * 3)[2]),
        ShardError,
        r"^/.*shard-3 holds 2 of 3 examples: dataset_info\.json of fake/plain:1\.0\.0 promises 3\. The file was cut or "
        r"exchanged; prepare the dataset again\.$",
    ),
    "more records": (
        lambda path: write(path, [b"x"] * 4),
        ShardError,
        r"shard-3 holds 4 of 3 examples: .* promises 3\.",
    ),
    "missing": (os.remove, ShardError, r"^The shard file .*shard-3 is missing\. Prepare the dataset again\.$"),
    "cut inside a record": (
        lambda path: os.truncate(path, 50),
        CorruptRecordError,
        "shard-3: the file ends at byte 50, inside record 2",
    ),
}


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_shard_is_an_error(wrong: str, cached: bool, shards: dict[str, int]) -> None:
    damage, error, message = WRONG[wrong]
    if cached:
        check_shards(shards, DATASET)
    damage(Path(list(shards)[2]))
    with pytest.raises(error, match=message):
        check_shards(shards, DATASET)


def test_a_wrong_shard_is_wrong_again_the_next_time(shards: dict[str, int]) -> None:
    wrong = {path: number + 1 for path, number in shards.items()}
    for _ in range(2):
        with pytest.raises(ShardError, match="shard-1 holds 1 of 2 examples"):
            check_shards(wrong, DATASET)


def test_an_empty_shard_may_be_promised(shards: dict[str, int], tmp_path: Path) -> None:
    check_shards({**shards, str(write(tmp_path / "data" / "shard-0", [])): 0}, DATASET)


# Counted once.


def test_every_shard_is_counted_once_for_ever(shards: dict[str, int], counted: list[str], cache_home: Path) -> None:
    for _ in range(3):
        check_shards(shards, DATASET)
    assert counted == ["shard-1", "shard-2", "shard-3"]
    assert len(cache_files(cache_home)) == 1


def test_a_cached_count_is_still_compared(shards: dict[str, int], counted: list[str]) -> None:
    check_shards(shards, DATASET)
    with pytest.raises(ShardError, match="shard-3 holds 3 of 4 examples"):
        check_shards({**shards, list(shards)[2]: 4}, DATASET)
    assert len(counted) == 3


def test_only_new_shards_are_counted(shards: dict[str, int], counted: list[str]) -> None:
    first = dict(list(shards.items())[:1])
    check_shards(first, DATASET)
    check_shards(shards, DATASET)
    check_shards(first, DATASET)
    assert counted == ["shard-1", "shard-2", "shard-3"]


@pytest.mark.parametrize(("num_records", "later_ns"), [(5, 0), (1, 1)], ids=["another size", "another time"])
def test_a_shard_that_changed_is_counted_again(
    num_records: int, later_ns: int, shards: dict[str, int], counted: list[str]
) -> None:
    check_shards(shards, DATASET)
    path = next(iter(shards))
    stamp = os.stat(path)
    write(Path(path), [b"record"] * num_records)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + later_ns))
    check_shards({**shards, path: num_records}, DATASET)
    assert counted[3:] == ["shard-1"]


def test_every_folder_has_a_cache_of_its_own(
    shards: dict[str, int], counted: list[str], tmp_path: Path, cache_home: Path
) -> None:
    other = {str(write(tmp_path / "other" / "shard-1", [b"record"] * 7)): 7}
    check_shards({**shards, **other}, DATASET)
    check_shards({**shards, **other}, DATASET)
    assert sorted(counted) == ["shard-1", "shard-1", "shard-2", "shard-3"]
    assert len(cache_files(cache_home)) == 2


# The cache may be anything.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"PATH": 3}',
        b'{"PATH": [1, 2]}',
        b'{"PATH": [1, 2, "3"]}',
        b'{"PATH": [1, 2, null]}',
        b'{"PATH": {"size": 1}}',
        b'{"version": 7, "counts": {"PATH": [1, 2, 3]}}',
    ],
)
def test_a_damaged_or_foreign_cache_is_ignored_and_replaced(
    shards: dict[str, int], counted: list[str], cache_home: Path, content: bytes
) -> None:
    check_shards(shards, DATASET)
    (cache,) = cache_files(cache_home)
    cache.write_bytes(content.replace(b"PATH", next(iter(shards)).encode()))
    check_shards(shards, DATASET)
    assert counted[3:] == ["shard-1", "shard-2", "shard-3"]
    check_shards(shards, DATASET)
    assert len(counted) == 6
    assert len(json.loads(cache.read_text())) == 3


def test_a_cache_folder_that_cannot_be_made_is_no_harm(
    shards: dict[str, int], counted: list[str], cache_home: Path
) -> None:
    cache_home.write_text("a file where the folder should be")
    for _ in range(2):
        check_shards(shards, DATASET)
    assert len(counted) == 6


def test_a_cache_file_that_cannot_be_written_is_no_harm_and_leaves_nothing(
    shards: dict[str, int], counted: list[str], cache_home: Path
) -> None:
    check_shards(shards, DATASET)
    (cache,) = cache_files(cache_home)
    cache.unlink()
    cache.mkdir()
    check_shards(shards, DATASET)
    assert len(counted) == 6
    assert list(cache.parent.glob("*.tmp")) == []


def test_a_cache_without_write_permission_is_no_harm(
    shards: dict[str, int], counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for _ in range(2):
        check_shards(shards, DATASET)
    assert len(counted) == 6


def test_a_lock_that_another_process_holds_is_no_harm(
    shards: dict[str, int], counted: list[str], cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_shards(shards, DATASET)
    (cache,) = cache_files(cache_home)
    cache.unlink()
    monkeypatch.setattr(shard_check, "_LOCK_TIMEOUT_S", 0.0)
    with Path(f"{cache}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_shards(shards, DATASET)
    assert not cache.exists()
    check_shards(shards, DATASET)
    assert cache.exists()


def test_processes_that_check_at_once_all_pass_and_keep_all_counts(
    tmp_path: Path, cache_home: Path, root: Path, counted: list[str]
) -> None:
    shards = {str(write(tmp_path / "data" / f"shard-{n}", [b"record"] * n)): n for n in range(40)}
    code = """
    import json, sys
    from tfds_torch.storage.tfrecord.shard_counts import check_shards
    print("ready", flush=True)
    for path, number in json.loads(sys.stdin.readline()).items():
        check_shards({path: number}, "fake")
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    shares = [dict(list(shards.items())[place::2]) for place in (0, 1)]
    for process, share in zip(processes, [*shares, shards], strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps(share) + "\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    check_shards(shards, DATASET)
    assert counted == []
    (cache,) = cache_files(cache_home)
    assert len(json.loads(cache.read_text())) == 40
    assert list(cache.parent.glob("*.tmp")) == []
