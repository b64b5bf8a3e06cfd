"""Memory limits: the smallest of the machine's and of the containers' around this process."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from runtime.fake_groups import UNIFIED, UNLIMITED, make_system, version_1

from tfds_torch.runtime.memory_limits import MemoryLimit, available_bytes, memory_limit

GIB = 2**30


def version_2_system(root: Path, files: Mapping[str, object], memory_bytes: int = 64 * GIB) -> Path:
    return make_system(root, "0::/outer/inner", UNIFIED, files, memory_bytes)


def version_1_system(root: Path, files: Mapping[str, object], memory_bytes: int = 64 * GIB) -> Path:
    return make_system(root, "4:memory:/outer/inner\n0::/", version_1("memory"), files, memory_bytes)


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
    assert limit is not None
    assert limit.bytes == min(size for size in (inner, outer) if isinstance(size, int))
    assert limit.source == f"the container's limit, {root}/sys/fs/cgroup/{smallest}/memory.max"


def test_version_1_is_understood(tmp_path: Path) -> None:
    files = {"memory/outer/inner/memory.limit_in_bytes": UNLIMITED, "memory/memory.limit_in_bytes": GIB}
    limit = memory_limit(version_1_system(tmp_path, files))
    assert limit is not None
    assert limit.bytes == GIB
    assert limit.source.endswith("/sys/fs/cgroup/memory/memory.limit_in_bytes")


@pytest.mark.parametrize("is_first", [True, False])
def test_without_a_limit_below_it_the_machine_s_memory_is_the_limit(tmp_path: Path, is_first: bool) -> None:
    name = "memory/outer/inner/memory.limit_in_bytes" if is_first else "outer/inner/memory.max"
    make = version_1_system if is_first else version_2_system
    for number, size in enumerate((UNLIMITED, 64 * GIB)):
        root = make(tmp_path / str(number), {name: size})
        assert memory_limit(root) == MemoryLimit(64 * GIB, "the machine's memory")


def test_a_system_that_does_not_tell_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    assert available_bytes(tmp_path) is None
    root = version_2_system(tmp_path, {"outer/memory.max": "max", "outer/memory.current": 5}, memory_bytes=0)
    assert memory_limit(root) is None
    assert available_bytes(root) is None


def test_what_a_container_uses_is_not_available_but_files_read_lately_are(tmp_path: Path) -> None:
    files = {
        "outer/inner/memory.max": 10 * GIB,
        "outer/inner/memory.current": 7 * GIB,
        "outer/inner/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 5",
    }
    assert available_bytes(version_2_system(tmp_path, files)) == 5 * GIB


def test_in_version_1_inner_groups_files_count_too(tmp_path: Path) -> None:
    group = "memory/outer"
    files = {
        f"{group}/memory.limit_in_bytes": 10 * GIB,
        f"{group}/memory.usage_in_bytes": 7 * GIB,
        f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {3 * GIB}",
    }
    assert available_bytes(version_1_system(tmp_path, files)) == 6 * GIB


def test_the_fullest_group_binds_and_the_machine_at_most(tmp_path: Path) -> None:
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
    assert available_bytes(version_2_system(tmp_path / "small", files, memory_bytes=2 * GIB)) == GIB  # Half is taken.


def test_a_group_beyond_its_limit_has_nothing_left_rather_than_less(tmp_path: Path) -> None:
    files = {"outer/memory.max": GIB, "outer/memory.current": 2 * GIB}
    assert available_bytes(version_2_system(tmp_path, files)) == 0


def test_this_machine_tells() -> None:
    limit, available = memory_limit(), available_bytes()
    assert limit is not None
    assert available is not None
    assert 0 < available < limit.bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
