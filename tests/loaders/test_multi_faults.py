"""What a MultiLoader reports of functions whose workers die or fail, and of messages that cannot be read.

tests/faults has what Parsers' workers do.
"""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaders import sources
from loaders.sources import NUM_ITEMS
from tfds_torch import MultiLoader, World
from tfds_torch.errors import WorkerError
from tfds_torch.loaders.transport import END, ITEM, Message, PipeSender
from tfds_torch.loaders.wire import ItemCodec, Outgoing
from tfds_torch.loaders.zmq_transport import ZmqSender

AreGone = Callable[[list[int]], bool]


def test_a_death_over_a_function_names_it_and_the_next_iteration_is_whole() -> None:
    with MultiLoader(sources.numbers, 2, persistent_workers=True, timeout_s=60.0) as loader:
        iteration = iter(loader)
        assert [next(iteration), next(iteration)] == [0, 1]  # Both workers have begun.
        os.kill(loader.worker_pids[1], signal.SIGKILL)
        expected = r"^Worker 1 \(pid \d+\) was killed by SIGKILL .* while it read numbers\. Begin the epoch again"
        with pytest.raises(WorkerError, match=expected):
            list(iteration)
        loader.set_epoch(0)
        assert list(loader) == list(range(NUM_ITEMS))


HIDING = """
import sys
sys.path[:0] = {path!r}
from loaders import sources
from tfds_torch import MultiLoader

if __name__ == "__main__":
    class Hidden(sources.Whole):
        pass

    next(iter(MultiLoader(Hidden(), 1, start_method="spawn")))
"""


@pytest.mark.slow
def test_what_a_spawned_worker_cannot_import_is_told_with_its_remedy(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    script = tmp_path / "hiding.py"
    script.write_text(HIDING.format(path=[entry for entry in sys.path if entry]))
    message = run_python(script).stderr
    assert "ended with exit code 1 before it had begun" in message
    assert "Or start workers with start_method='fork'.\nThe last that worker 0 wrote" in message
    assert "Can't get attribute 'Hidden' on <module '__mp_main__'" in message


def test_an_item_that_does_not_travel_is_named_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^item\['bad'\]\[0\] is a builtins.set: a MultiLoader carries dicts"):
        next(iter(MultiLoader(sources.with_a_set, 1, timeout_s=60.0)))


def test_what_a_function_raises_comes_with_its_own_type() -> None:
    with pytest.raises(KeyError, match="no such thing"):
        list(MultiLoader(sources.failing, 1, timeout_s=60.0))


def test_a_function_that_returns_nothing_is_told() -> None:
    with pytest.raises(ValueError, match=r"_none\(World\(.*\) returned None, which cannot be iterated"):
        next(iter(MultiLoader(_none, 1, timeout_s=60.0)))


def _none(world: World) -> Any:
    return None


# Messages that cannot be read: workers are forked after the wire was changed.


@pytest.mark.parametrize("transport", ["shared", "zmq"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tree": ["a", 3]}, "sent an invalid item: a value names a buffer"),
        ({"tree": ["x"], "parts": ()}, "sent an invalid item"),
    ],
)
def test_an_item_that_cannot_be_read_is_a_worker_error_that_names_the_worker(
    change: dict[str, Any], said: str, transport: str, monkeypatch: pytest.MonkeyPatch, are_gone: AreGone
) -> None:
    write = ItemCodec.write

    def change_item(self: ItemCodec, message: Message) -> Outgoing:
        outgoing = write(self, message)
        return dataclasses.replace(outgoing, **change) if message.worker == 1 and message.kind == ITEM else outgoing

    monkeypatch.setattr(ItemCodec, "write", change_item)
    loader = MultiLoader(sources.numbers, 2, transport=transport, timeout_s=60.0, start_method="fork")
    iteration = iter(loader)
    pids = loader.worker_pids
    with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid {pids[1]}\) {said}"):
        list(iteration)
    assert are_gone(pids)


@pytest.mark.parametrize(
    ("kind", "number", "said"),
    [(END, 9, "sent item 9 after 6 items"), (ITEM, 9, "sent item 9 after 0 items")],
)
@pytest.mark.parametrize("transport", ["shared", "zmq"])
def test_an_item_that_is_missing_is_a_worker_error(
    kind: int, number: int, said: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = PipeSender if transport == "shared" else ZmqSender
    send = sender.send

    def skip(self: Any, message: Message) -> None:
        if message.worker == 1 and message.kind == kind:
            message = dataclasses.replace(message, number=number)
        send(self, message)

    monkeypatch.setattr(sender, "send", skip)
    with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid \d+\) {said}"):
        list(MultiLoader(sources.numbers, 2, transport=transport, timeout_s=60.0, start_method="fork"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff" * 100, "sent a message of kind 255 with "),
        (bytes(48) + (1 << 48).to_bytes(8, "little"), "sent a message of kind 0 with 281,474,976,710,656 bytes"),
        (bytes(40) + b"\xff" * 4 + bytes(4) + (8).to_bytes(8, "little") + bytes(8), "sent error: unpack_from requires"),
    ],
)
def test_bytes_that_are_no_message_are_a_worker_error(
    content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def babble(self: Any, message: Message) -> None:
        os.write(self._connection.fileno(), content)

    monkeypatch.setattr(PipeSender, "send", babble)
    with pytest.raises(WorkerError, match=rf"^Worker 0 \(pid \d+\) {said}"):
        next(iter(MultiLoader(sources.numbers, 1, start_method="fork", timeout_s=60.0)))


def test_a_worker_that_closes_its_end_and_lives_on_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any, message: Message) -> None:
        self._connection.close()
        time.sleep(3600)

    monkeypatch.setattr(PipeSender, "send", leave)
    monkeypatch.setattr("tfds_torch.loaders.receiver._DYING_S", 0.1)
    monkeypatch.setattr("tfds_torch.loaders.base_loader.GRACE_S", 0.1)
    with pytest.raises(WorkerError, match="has closed its end of the pipe"):
        next(iter(MultiLoader(sources.numbers, 1, start_method="fork", timeout_s=60.0)))
