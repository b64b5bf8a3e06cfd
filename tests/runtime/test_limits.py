"""What a process may use of its machine and containers; num_workers="auto" with a reason that has all figures."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.fake_groups import UNIFIED, UNLIMITED, make_system, version_1

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.limits import (
    WORKER_BYTES,
    MemoryLimit,
    UsableCores,
    available_bytes,
    choose_workers,
    group_folders,
    memory_limit,
    num_local_ranks,
    read_table,
    read_word,
    usable_cores,
)

GIB = 2**30


def cores(number: float) -> UsableCores:
    return UsableCores(number, "made up")


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)


# Cores.


def test_cores_are_those_of_the_affinity(six_cores: None, tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == (6, "this process's affinity")


@pytest.mark.parametrize(("count", "expected"), [(12, 12), (None, 1)])
def test_without_affinity_all_cores_are_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int | None, expected: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores(tmp_path) == (expected, "the machine's")


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("max 100000", "max 100000", 6),
        ("250000 100000", "max 100000", 2.5),
        ("800000 100000", "400000 100000", 4),
        ("900000 100000", "max 100000", 6),
    ],
)
def test_a_container_s_processor_time_is_a_limit(
    six_cores: None, tmp_path: Path, inner: str, outer: str, expected: float
) -> None:
    root = make_system(tmp_path, "0::/a/b", UNIFIED, {"a/b/cpu.max": inner, "a/cpu.max": outer})
    found = usable_cores(root)
    assert found.number == expected
    if expected < 6:
        assert found.source == f"the container's limit, {root}/sys/fs/cgroup/a{'' if expected == 4 else '/b'}/cpu.max"


@pytest.mark.parametrize(("quota", "expected"), [(-1, 6), (150_000, 1.5)])
def test_version_1_of_control_groups_is_understood(
    six_cores: None, tmp_path: Path, quota: int, expected: float
) -> None:
    files = {"cpu/a/cpu.cfs_quota_us": quota, "cpu/a/cpu.cfs_period_us": 100_000}
    found = usable_cores(make_system(tmp_path, "1:cpu,cpuacct:/a", version_1("cpu"), files))
    assert found.number == expected
    assert found.source.endswith("a/cpu.cfs_quota_us") is (expected < 6)


# Ranks.


@pytest.mark.parametrize(("environ", "expected"), [({}, 1), ({"LOCAL_WORLD_SIZE": "8"}, 8), ({"WORLD_SIZE": "4"}, 1)])
def test_ranks_of_this_machine_are_counted(environ: dict[str, str], expected: int) -> None:
    assert num_local_ranks(environ) == expected


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²"])
def test_a_number_of_ranks_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        num_local_ranks({"LOCAL_WORLD_SIZE": text})
    assert str(raised.value) == f"LOCAL_WORLD_SIZE={text!r} in the environment must be an integer >= 1, or unset."


# Workers.


@pytest.mark.parametrize(
    ("number", "num_ranks", "expected"),
    [(0.5, 1, 1), (1, 1, 1), (1.9, 1, 1), (2, 1, 2), (2.9, 1, 2), (3, 1, 2), (4.7, 1, 3), (8, 1, 7), (17, 1, 16),
     (96, 1, 16), (8, 2, 3), (8, 4, 2), (8, 8, 1), (2, 8, 1)],
)  # fmt: skip
def test_each_rank_gets_its_part_and_leaves_a_core_to_training(number: float, num_ranks: int, expected: int) -> None:
    assert choose_workers(cores(number), num_ranks).num_workers == expected


@pytest.mark.parametrize(
    ("available", "num_ranks", "expected"),
    [(10**10, 1, 7), (28 * 10**8, 1, 7), (28 * 10**8 - 1, 1, 6), (4 * 10**8 - 1, 1, 0), (2 * 10**9, 2, 2)],
)
def test_no_more_workers_than_the_memory_holds(available: int, num_ranks: int, expected: int) -> None:
    assert choose_workers(cores(8 * num_ranks), num_ranks, available).num_workers == expected


def test_the_reason_has_all_figures() -> None:
    choice = choose_workers(UsableCores(20.5, "the container's limit, /x/cpu.max"), 2, 2_468_000_000)
    assert choice.num_workers == 3
    assert choice.reason == (
        "3 workers: 20.5 cores (the container's limit, /x/cpu.max) for 2 ranks on this machine: 10.2 each, one of them "
        "left to the training process; 2.47 GB of memory are free, room for 3 of 0.4 GB on each rank."
    )
    assert choose_workers(cores(1)).reason == "1 worker: 1 core (made up) for 1 rank on this machine: 1 each."
    assert "; a rank gets at most 16." in choose_workers(cores(64)).reason


@given(st.floats(0.1, 300), st.integers(1, 16), st.none() | st.integers(0, 10**12))
def test_workers_never_exceed_cores_memory_or_their_limit(number: float, num_ranks: int, available: int | None) -> None:
    found = choose_workers(cores(number), num_ranks, available).num_workers
    assert 0 <= found <= 16
    assert found <= max(1, number / num_ranks)
    if available is not None:
        assert found * num_ranks * WORKER_BYTES <= available
    else:
        assert found >= 1


# Memory.


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with 64 GiB of memory, of which half is available; both can be changed."""
    memory = SimpleNamespace(total=64 * GIB, available=32 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return memory


def version_2_system(root: Path, files: Mapping[str, object]) -> Path:
    return make_system(root, "0::/outer/inner", UNIFIED, files)


def version_1_system(root: Path, files: Mapping[str, object]) -> Path:
    return make_system(root, "4:memory:/outer/inner\n0::/", version_1("memory"), files)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("inner", "outer", "smallest"),
    [
        (2 * GIB, 4 * GIB, "outer/inner"),
        (4 * GIB, 2 * GIB, "outer"),
        ("max", 3 * GIB, "outer"),
        (5 * GIB, "max", "outer/inner"),
    ],
)
def test_the_smallest_limit_of_the_groups_around_binds(
    tmp_path: Path, inner: object, outer: object, smallest: str
) -> None:
    root = version_2_system(tmp_path, {"outer/inner/memory.max": inner, "outer/memory.max": outer})
    limit = memory_limit(root)
    assert limit.bytes == min(size for size in (inner, outer) if isinstance(size, int))
    assert limit.source == f"the container's limit, {root}/sys/fs/cgroup/{smallest}/memory.max"


@pytest.mark.usefixtures("machine")
def test_version_1_is_understood(tmp_path: Path) -> None:
    files = {"memory/outer/inner/memory.limit_in_bytes": UNLIMITED, "memory/memory.limit_in_bytes": GIB}
    limit = memory_limit(version_1_system(tmp_path, files))
    assert limit.bytes == GIB
    assert limit.source.endswith("/sys/fs/cgroup/memory/memory.limit_in_bytes")


@pytest.mark.parametrize("is_first", [True, False])
def test_without_a_limit_below_it_the_machine_s_memory_is_the_limit(
    machine: SimpleNamespace, tmp_path: Path, is_first: bool
) -> None:
    name = "memory/outer/inner/memory.limit_in_bytes" if is_first else "outer/inner/memory.max"
    make = version_1_system if is_first else version_2_system
    for number, size in enumerate((UNLIMITED, 64 * GIB)):
        root = make(tmp_path / str(number), {name: size})
        assert memory_limit(root) == MemoryLimit(64 * GIB, "the machine's memory")


@pytest.mark.parametrize("files", [{}, {"outer/memory.max": "max", "outer/memory.current": 5}])
def test_without_a_container_the_machine_s_memory_is_available(
    machine: SimpleNamespace, tmp_path: Path, files: dict[str, object]
) -> None:
    root = version_2_system(tmp_path, files)
    assert memory_limit(root) == MemoryLimit(64 * GIB, "the machine's memory")
    assert available_bytes(root) == 32 * GIB


@pytest.mark.usefixtures("machine")
def test_what_a_container_uses_is_not_available_but_files_read_lately_are(tmp_path: Path) -> None:
    files = {
        "outer/inner/memory.max": 10 * GIB,
        "outer/inner/memory.current": 7 * GIB,
        "outer/inner/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 5",
    }
    assert available_bytes(version_2_system(tmp_path, files)) == 5 * GIB


@pytest.mark.usefixtures("machine")
def test_in_version_1_inner_groups_files_count_too(tmp_path: Path) -> None:
    group = "memory/outer"
    files = {
        f"{group}/memory.limit_in_bytes": 10 * GIB,
        f"{group}/memory.usage_in_bytes": 7 * GIB,
        f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {3 * GIB}",
    }
    assert available_bytes(version_1_system(tmp_path, files)) == 6 * GIB


def test_the_fullest_group_binds_and_the_machine_at_most(machine: SimpleNamespace, tmp_path: Path) -> None:
    """The outer group allows more, and its other processes have taken most of it."""
    files: dict[str, object] = {
        "outer/inner/memory.max": 4 * GIB,
        "outer/inner/memory.current": GIB,
        "outer/memory.max": 8 * GIB,
        "outer/memory.current": 7 * GIB,
    }
    assert available_bytes(version_2_system(tmp_path / "full", files)) == GIB
    files["outer/memory.current"] = 2 * GIB
    assert available_bytes(version_2_system(tmp_path / "free", files)) == 3 * GIB
    machine.available = GIB
    assert available_bytes(version_2_system(tmp_path / "small", files)) == GIB


def test_a_group_beyond_its_limit_has_nothing_left_rather_than_less(tmp_path: Path) -> None:
    files = {"outer/memory.max": GIB, "outer/memory.current": 2 * GIB}
    assert available_bytes(version_2_system(tmp_path, files)) == 0


def test_this_machine_tells() -> None:
    assert 0 < available_bytes() < memory_limit().bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# Control groups.


def names(root: Path, controller: str = "memory") -> list[str]:
    """Returns the folders' paths below /sys/fs/cgroup."""
    return [str(folder.relative_to(root / "sys/fs/cgroup")) for folder in group_folders(controller, root)]


def test_version_2_has_one_hierarchy_for_all(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/a/b", UNIFIED, {"a/b/memory.max": "max", "a/memory.max": 1, "c/memory.max": 1})
    assert names(root) == names(root, "cpu") == ["a/b", "a", "."]


def test_version_1_has_one_for_each_controller(tmp_path: Path) -> None:
    files = {"memory/a/b/tasks": "", "cpu/c/tasks": "", "memory/c/tasks": ""}
    root = make_system(
        tmp_path, "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/", f"{version_1('memory')}\n{version_1('cpu')}", files
    )
    assert names(root) == ["memory/a/b", "memory/a", "memory"]
    assert names(root, "cpu") == ["cpu/c", "cpu"]


def test_a_container_that_is_shown_only_its_own_part_finds_it(tmp_path: Path) -> None:
    """Without a namespace of its own the path is the machine's; what is mounted begins at the container's."""
    mounts = version_1("memory", "/docker/4711")
    root = make_system(tmp_path, "4:memory:/docker/4711/job", mounts, {"memory/job/tasks": ""})
    assert names(root) == ["memory/job", "memory"]


def test_a_group_outside_of_what_is_shown_leaves_the_outermost(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/../../other", UNIFIED, {"memory.max": 1})
    assert names(root) == ["."]


def test_folders_that_are_not_shown_are_left_out(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/kubepods/pod/1", UNIFIED, {"kubepods/memory.max": 1})
    assert names(root) == ["kubepods", "."]


def test_both_versions_side_by_side_are_both_looked_at(tmp_path: Path) -> None:
    mounts = f"{version_1('memory')}\n{UNIFIED.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}"
    root = make_system(tmp_path, "4:memory:/a\n0::/u", mounts, {"memory/a/tasks": "", "unified/u/cgroup.procs": ""})
    assert names(root) == ["memory/a", "memory", "unified/u", "unified"]


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/", UNIFIED.replace("/sys/fs/cgroup", r"/sys/fs/cgroup/my\040groups"), {})
    (root / "sys/fs/cgroup/my groups").mkdir(parents=True)
    assert names(root) == ["my groups"]


def test_a_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert group_folders("memory", tmp_path) == []
    assert group_folders("memory", make_system(tmp_path, "", "", {})) == []


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    assert read_word(tmp_path / "memory.max") is None
    assert read_table(tmp_path / "memory.stat") == {}
    (tmp_path / "empty").write_text("")
    assert read_word(tmp_path / "empty") is None
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 7\n")
    assert read_table(tmp_path / "memory.stat") == {"anon": 5, "inactive_file": 7}
