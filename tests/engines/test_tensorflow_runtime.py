"""tensorflow in the process that reads: without GPUs, and never across a fork."""

import multiprocessing
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tfds_fixtures import NUM_TRAIN, Datasets, Read, read_one
from zygote import tensorflow_zygote

from tfds_torch.engines import tensorflow_runtime
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds

READ = Read({"name": "shapes", "split": "train[:20]", "batch_size": 8, "shuffle": True}, fields=("image", "label"))


class FakeConfig:
    def __init__(self, num_gpus: int, *, is_running: bool = False) -> None:
        self.visible, self.is_running = {"GPU": ["gpu"] * num_gpus, "CPU": ["cpu"]}, is_running

    def get_visible_devices(self, kind: str) -> list[str]:
        return self.visible[kind]

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        if self.is_running:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible[kind] = devices


def load_with(monkeypatch: pytest.MonkeyPatch, config: FakeConfig) -> FakeConfig:
    fake = types.ModuleType("tensorflow")
    fake.config = config
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    assert tensorflow_runtime.load_tensorflow("this test") is fake
    return config


def test_every_gpu_is_hidden_from_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_with(monkeypatch, FakeConfig(8)).visible == {"GPU": [], "CPU": ["cpu"]}
    assert load_with(monkeypatch, FakeConfig(0, is_running=True)).visible == {"GPU": [], "CPU": ["cpu"]}


def test_gpus_that_tensorflow_uses_already_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_with(monkeypatch, FakeConfig(1, is_running=True))
    assert "already running with GPUs" in caplog.text


def read_stream(level: str | None, num_workers: int, root: Path) -> "subprocess.CompletedProcess[str]":
    """Reads an epoch of a stream, in a fresh process where the user has set the level of tensorflow's lines."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    code = (
        "import contextlib, os; from tfds_torch import MultiLoader, ParserTfds, ReadOptions, World\n"
        f"parser = ParserTfds({str(root)!r}, 'shapes', batch_size=8, read=ReadOptions(mode='examples'))\n"
        f"num_workers = {num_workers}\n"
        "batches = MultiLoader(parser, num_workers) if num_workers else parser.batches(World(), 0)\n"
        "with contextlib.closing(batches):\n"
        "    print(sum(len(batch.index) for batch in batches))\n"
        "print(sorted(name for name in os.environ if name.startswith('TF_')))\n"
    )
    environ |= {} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_writes_nothing_of_tensorflow_s(num_workers: int, datasets: Datasets) -> None:
    done = read_stream(None, num_workers, datasets.root)
    assert (done.stderr, done.stdout.splitlines()) == ("", [str(NUM_TRAIN), "[]"])


@pytest.mark.slow
def test_a_stream_writes_what_the_user_wants_to_see(datasets: Datasets) -> None:
    done = read_stream("0", 0, datasets.root)
    assert re.search(r"^I\d{4} .*\.cc:", done.stderr, re.MULTILINE), "which lines there are is the processor's"
    assert done.stdout.splitlines()[1:] == ["['TF_CPP_MIN_LOG_LEVEL']"]


def test_tensorflow_is_quiet_unless_the_user_has_said_what_it_writes_or_has_loaded_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")

    def seen_inside() -> list[str | None]:
        with tensorflow_runtime.quiet_tensorflow():
            return [os.environ.get(name) for name in names]

    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert seen_inside() == ["3", "0"]
    assert [name for name in names if name in os.environ] == []
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    assert seen_inside() == ["3", "1"]
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    assert seen_inside() == ["1", "1"]
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    assert seen_inside() == [None, "1"]


def test_what_needs_tensorflow_says_so_by_name_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConfigError, match=r"^tensorflow is not installed, and this test needs it. Install it with"):
        tensorflow_runtime.load_tensorflow("this test")


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_a_stream_is_refused_before_it_is_read_where_tensorflow_is_not_installed(
    mode: str, datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = ParserTfds(datasets.root, "shapes", is_training=mode == "files", batch_size=8, read=ReadOptions(mode=mode))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConfigError, match=f"tensorflow is not installed, and read mode '{mode}' needs it"):
        parser.batches()


def summarize(root: str) -> list[tuple[list[str], list[int], list[bytes]]]:
    return [(b.id, b.label.tolist(), [i.tobytes() for i in b.image]) for b in read_one(root, READ)]  # type: ignore[misc]


def in_a_fork(function: Any, *args: Any) -> Any:
    """Returns what a function returns in a fork of this process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(function(*args)))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        child.join()


def fork_before_and_after_tensorflow(root: str) -> dict[str, Any]:
    """Runs in a child, which has imported tensorflow and has not run it."""
    import tensorflow as tf

    inherits = tensorflow_runtime.has_inherited_runtime
    seen: dict[str, Any] = {"before": in_a_fork(inherits)}
    seen["read in a fork before tensorflow ran"] = in_a_fork(summarize, root)
    seen["read here"] = summarize(root)
    seen["gpus"] = tf.config.get_visible_devices("GPU")
    seen["here"] = inherits()
    seen["after"] = in_a_fork(inherits)
    seen["read in a fork"] = in_a_fork(summarize, root)
    seen["after two"] = in_a_fork(in_a_fork, inherits)
    return seen


@pytest.fixture(scope="module")
def forks(datasets: Datasets) -> dict[str, Any]:
    return tensorflow_zygote().call(fork_before_and_after_tensorflow, str(datasets.root))


def test_a_fork_knows_whether_tensorflow_ran_before_it(forks: dict[str, Any]) -> None:
    assert in_a_fork(tensorflow_runtime.has_inherited_runtime) is False, "of a process that has not imported it"
    assert (forks["before"], forks["here"], forks["after"], forks["after two"]) == (False, False, True, True)


def test_a_fork_reads_the_same_batches(forks: dict[str, Any]) -> None:
    assert sum(len(ids) for ids, _, _ in forks["read here"]) == 20
    for where in ("read in a fork before tensorflow ran", "read in a fork"):
        assert forks[where] == forks["read here"], where


def test_no_gpu_is_visible_where_batches_were_read(forks: dict[str, Any]) -> None:
    assert forks["gpus"] == []
