"""num_workers="auto": a rank's part of the machine, and a reason with all figures."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.fake_groups import UNIFIED, make_system, version_1

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.limits import (
    WORKER_BYTES,
    UsableCores,
    choose_workers,
    num_local_ranks,
    usable_cores,
)


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
    assert (
        str(raised.value) == f"LOCAL_WORLD_SIZE={text!r} in the environment must be an integer >= 1, or not be there."
    )


# Workers.


@pytest.mark.parametrize(
    ("number", "num_ranks", "expected"),
    [(0.5, 1, 1), (1, 1, 1), (1.9, 1, 1), (2, 1, 2), (2.9, 1, 2), (3, 1, 2), (4.7, 1, 3), (8, 1, 7), (17, 1, 16),
     (96, 1, 16), (8, 2, 3), (8, 4, 2), (8, 8, 1), (2, 8, 1)],
)  # fmt: skip
def test_each_rank_gets_its_part_and_leaves_a_core_to_training(number: float, num_ranks: int, expected: int) -> None:
    assert choose_workers(cores(number), num_ranks).num_workers == expected


def test_on_few_cores_a_rank_may_read_by_itself() -> None:
    assert choose_workers(cores(2), inline_cores=2) == (
        0,
        "0 workers: 2 cores (made up) for 1 rank on this machine: 2 each, and with at most 2 the training process "
        "reads by itself.",
    )
    assert choose_workers(cores(4), 2, inline_cores=2).num_workers == 0
    assert choose_workers(cores(3), inline_cores=2).num_workers == 2


@pytest.mark.parametrize(
    ("available", "num_ranks", "expected"),
    [(10**10, 1, 7), (28 * 10**8, 1, 7), (28 * 10**8 - 1, 1, 6), (4 * 10**8 - 1, 1, 0), (2 * 10**9, 2, 2)],
)
def test_no_more_workers_than_the_memory_holds(available: int, num_ranks: int, expected: int) -> None:
    assert choose_workers(cores(8 * num_ranks), num_ranks, available).num_workers == expected


def test_the_reason_has_all_figures() -> None:
    choice = choose_workers(
        UsableCores(20.5, "the container's limit, /x/cpu.max"), 2, 12_340_000_000, worker_bytes=2 * 10**9
    )
    assert choice.num_workers == 3
    assert choice.reason == (
        "3 workers: 20.5 cores (the container's limit, /x/cpu.max) for 2 ranks on this machine: 10.2 each, one of them "
        "left to the training process; 12.3 GB of memory are free, room for 3 of 2 GB on each rank."
    )
    assert choose_workers(cores(1)).reason == "1 worker: 1 core (made up) for 1 rank on this machine: 1 each."
    assert "; a rank gets at most 5." in choose_workers(cores(64), most_workers=5).reason


@given(
    st.floats(0.1, 300), st.integers(1, 16), st.none() | st.integers(0, 10**12), st.integers(0, 4), st.integers(1, 32)
)
def test_workers_never_exceed_cores_memory_or_their_limit(
    number: float, num_ranks: int, available: int | None, inline_cores: int, most: int
) -> None:
    share = number / num_ranks
    found = choose_workers(
        cores(number), num_ranks, available, inline_cores=inline_cores, most_workers=most
    ).num_workers
    assert 0 <= found <= most
    assert found <= max(1, share)
    assert found == 0 or share > inline_cores
    if available is not None:
        assert found * num_ranks * WORKER_BYTES <= available
    elif share > inline_cores:
        assert found >= 1
