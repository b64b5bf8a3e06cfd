"""tensorflow in the process that reads: without GPUs, and never across a fork."""

import multiprocessing
import sys
import types
from typing import Any

import pytest
from tfds_fixtures import Datasets, Read, read_one
from zygote import tensorflow_zygote

from tfds_torch.engines import tensorflow_runtime
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds

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
