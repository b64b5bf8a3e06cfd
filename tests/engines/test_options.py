"""ReadOptions: what may be asked for, and what each worker gets of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from refused import said_of

from tfds_torch.engines import options
from tfds_torch.engines.options import READ_MODES, ReadOptions
from tfds_torch.engines.record_stream import tf_data_options
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import limits
from tfds_torch.runtime.limits import UsableCores

NUMBERS = [
    *("num_threads", "cycle_length", "read_buffer_bytes", "shuffle_buffer", "prefetch_batches", "ram_budget_bytes"),
    *("block_records", "block_groups", "max_replaced"),
]


@pytest.mark.parametrize("mode", READ_MODES)
def test_every_mode_may_be_asked_for(mode: str) -> None:
    assert ReadOptions(mode=mode).mode == mode


def test_the_defaults_are_those_of_the_design() -> None:
    read = ReadOptions()
    assert (read.mode, read.num_threads, read.cycle_length) == ("auto", None, 16)
    assert (read.shuffle_buffer, read.prefetch_batches, read.ram_budget_bytes) == (8192, 1, None)
    assert (read.on_error, read.max_replaced) == ("raise", 100)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("file", "Unknown read mode 'file': the modes are auto, index, files, examples. Did you mean 'files'?"),
        (
            "exampels",
            "Unknown read mode 'exampels': the modes are auto, index, files, examples. Did you mean 'examples'?",
        ),
        ("sharded", "Unknown read mode 'sharded': the modes are auto, index, files, examples."),
        ("", "Unknown read mode '': the modes are auto, index, files, examples."),
        (None, "Unknown read mode None: the modes are auto, index, files, examples."),
        (["files"], "Unknown read mode ['files']: the modes are auto, index, files, examples."),
    ],
)
def test_an_unknown_mode_is_a_config_error_with_the_nearest_one(mode: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions(mode=mode)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("on_error", "hint"),
    [("replaced", " Did you mean 'replace'?"), ("rise", " Did you mean 'raise'?"), ("skip", ""), (None, "")],
)
def test_an_unknown_on_error_is_a_config_error_with_the_nearest_one(on_error: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions(on_error=on_error)
    assert str(caught.value) == f"Unknown on_error {on_error!r}: choose 'raise' or 'replace'.{hint}"


def test_a_number_out_of_range_is_a_config_error_that_names_it() -> None:
    cases = [(name, value) for name in NUMBERS for value in (0, -1, 1.0, "8", True, [1])]
    cases += [(name, None) for name in NUMBERS if type(getattr(ReadOptions(), name)) is int]
    found = [(name, value, said_of(ConfigError, ReadOptions, **{name: value})) for name, value in cases]
    wrong = [one for one in found if one[2] != f"ReadOptions: {one[0]}={one[1]!r} must be an integer >= 1."]
    assert not wrong, str(wrong)


@pytest.mark.parametrize("name", NUMBERS)
def test_one_is_enough_of_anything(name: str) -> None:
    assert getattr(ReadOptions(**{name: 1}), name) == 1  # type: ignore[arg-type]


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="num_thread"):
        ReadOptions(num_thread=3)  # type: ignore[call-arg]


def test_options_are_a_frozen_value() -> None:
    assert hash(ReadOptions(mode="files")) == hash(ReadOptions("files"))
    with pytest.raises(AttributeError):
        ReadOptions().mode = "files"  # type: ignore[misc]


# Threads.


@pytest.mark.parametrize(
    ("num_cores", "num_local_ranks", "num_workers", "expected"),
    [
        *((1, 1, 1, 1), (2, 1, 1, 2), (2, 1, 2, 1), (2, 1, 3, 1), (8, 1, 1, 8), (8, 1, 3, 2)),
        *((64, 1, 1, 8), (64, 1, 4, 8), (64, 1, 16, 4), (16, 1, 8, 2), (16, 1, 15, 1)),  # At most eight in a worker.
        *((16, 8, 1, 2), (16, 1, 1, 8), (16, 8, 2, 1), (3.5, 1, 1, 3), (0.5, 1, 1, 1), (4, 8, 1, 1)),
    ],
)
def test_ranks_and_their_workers_share_the_cores_of_a_machine(
    monkeypatch: pytest.MonkeyPatch, num_cores: float, num_local_ranks: int, num_workers: int, expected: int
) -> None:
    monkeypatch.setattr(options, "usable_cores", lambda: UsableCores(num_cores, "the container's limit"))
    assert ReadOptions().threads_of_worker(num_workers, num_local_ranks) == expected
    assert ReadOptions(num_threads=20).threads_of_worker(num_workers, num_local_ranks) == 20


def test_threads_and_workers_have_one_notion_of_cores() -> None:
    assert options.usable_cores is limits.usable_cores


# The shuffle buffer.


@pytest.mark.parametrize(
    ("read", "num_workers", "mean_example_bytes", "expected"),
    [
        *((ReadOptions(), w, 1000, size) for w, size in ((1, 8192), (2, 4096), (3, 2730), (8, 1024), (10_000, 1))),
        (ReadOptions(ram_budget_bytes=50_000_000), 1, 100_000, 500),
        (ReadOptions(ram_budget_bytes=50_000_000), 4, 100_000, 500),  # The budget is that of each worker.
        (ReadOptions(ram_budget_bytes=50_000_000), 4, 10, 2048),
        (ReadOptions(ram_budget_bytes=2**34), 1, 2**20, 8192),
        (ReadOptions(), 1, 2**20, 2048),
        (ReadOptions(ram_budget_bytes=1), 1, 10**9, 1),  # One example at least.
        (ReadOptions(shuffle_buffer=1), 8, 10, 1),
        (ReadOptions(), 1, 0, 8192),  # An unknown size.
    ],
)
def test_workers_share_the_shuffle_buffer_of_their_rank_within_the_budget(
    read: ReadOptions, num_workers: int, mean_example_bytes: int, expected: int
) -> None:
    assert read.shuffle_buffer_of_worker(num_workers, mean_example_bytes) == expected


@pytest.mark.parametrize("num_workers", [1, 2, 7, 16])
@pytest.mark.parametrize("mean_example_bytes", [1, 70_000, 500_000, 10**7])
def test_the_buffers_of_a_rank_hold_at_most_two_gibibytes(num_workers: int, mean_example_bytes: int) -> None:
    share = ReadOptions(shuffle_buffer=10**6).shuffle_buffer_of_worker(num_workers, mean_example_bytes)
    assert share * num_workers * mean_example_bytes <= 2 * 2**30
    assert share == min(10**6 // num_workers, 2 * 2**30 // num_workers // mean_example_bytes)


def test_the_window_of_blocks_is_the_shuffle_buffer() -> None:
    def window(shuffle_buffer: int) -> int:
        blocks = ReadOptions(block_records=100, shuffle_buffer=shuffle_buffer).blocks
        assert blocks is not None
        assert blocks.block_records == 100
        return blocks.window_blocks

    assert ReadOptions().block_records == "auto"
    assert ReadOptions().blocks is None
    assert ReadOptions(block_records=None).blocks is None
    assert [window(size) for size in (1, 100, 199, 200, 8192)] == [1, 1, 1, 2, 81]


# The options of tf.data.


def test_tf_data_runs_without_autotune_in_order_and_in_its_own_threads() -> None:
    class Options:
        def __init__(self) -> None:
            self.autotune, self.threading = SimpleNamespace(), SimpleNamespace()
            self.deterministic = None

    made = tf_data_options(SimpleNamespace(data=SimpleNamespace(Options=Options)), num_threads=3)
    assert made.autotune.enabled is False
    assert made.deterministic is True
    assert made.threading.private_threadpool_size == 3
    assert made.threading.max_intra_op_parallelism == 1
