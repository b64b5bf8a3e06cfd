"""What a MultiLoader makes of functions whose workers die, fail or lie. tests/faults has what Parsers' do, too."""

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
from tfds_torch.loaders.wire import Outgoing

AreGone = Callable[[list[int]], bool]


def test_a_death_over_a_function_names_it_and_the_next_iteration_is_whole() -> None:
    with MultiLoader(sources.numbers, 2, persistent_workers=True, timeout_s=60.0) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
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
    told = run_python(script).stderr
    assert "could not begin: it does not find 'Hidden' in the main module." in told
    assert "in a module that you import; or start workers with start_method='fork'" in told


def test_an_item_that_does_not_travel_is_named_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^item\['bad'\]\[0\] is a builtins.set: a MultiLoader carries dicts"):
        next(iter(MultiLoader(sources.with_a_set, 1, timeout_s=60.0)))


def test_a_function_that_returns_nothing_is_told() -> None:
    with pytest.raises(ValueError, match=r"_none\(World\(.*\) returned None, which cannot be iterated"):
        next(iter(MultiLoader(_none, 1, timeout_s=60.0)))


def _none(world: World) -> Any:
    return None


# Workers that lie: forked after the wire was changed.


@pytest.mark.parametrize("transport", ["shared", "zmq"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "end", "number": 9}, "says that its 9 items have all been sent, and 6 have come"),
        ({"kind": "item", "number": 9}, "says otherwise, and 0 have come"),
        ({"kind": "item", "worker": 0}, "says that it is worker 0"),
        ({"kind": "item", "tree": ["a", 3]}, "has sent something that is no item: a value names a buffer"),
        ({"kind": "item", "tree": ["x"], "parts": ()}, "has sent something that is no item"),
    ],
)
def test_a_worker_that_lies_is_a_worker_error_that_names_it(
    change: dict[str, Any], said: str, transport: str, monkeypatch: pytest.MonkeyPatch, are_gone: AreGone
) -> None:
    from tfds_torch.loaders.shared_transport import SharedOutlet
    from tfds_torch.loaders.zmq_transport import ZmqOutlet

    outlet = SharedOutlet if transport == "shared" else ZmqOutlet
    send = outlet.send

    def lie(self: Any, message: Outgoing) -> None:
        fields = {**message.__dict__}
        if message.worker == 1 and message.kind == change["kind"]:
            fields |= change
        send(self, Outgoing(**fields))

    monkeypatch.setattr(outlet, "send", lie)
    loader = MultiLoader(sources.numbers, 2, transport=transport, timeout_s=60.0, start_method="fork")
    iteration = iter(loader)
    pids = loader.worker_pids
    with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid {pids[1]}\) {said}"):
        list(iteration)
    assert are_gone(pids)


def test_bytes_that_are_no_message_are_a_worker_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfds_torch.loaders.shared_transport import SharedOutlet

    def babble(self: Any, message: Outgoing) -> None:
        os.write(self._connection.fileno(), b"\xff" * 100)

    monkeypatch.setattr(SharedOutlet, "send", babble)
    with pytest.raises(WorkerError, match=r"^Worker 0 \(pid \d+\) has sent something that is no message: it says"):
        next(iter(MultiLoader(sources.numbers, 1, start_method="fork", timeout_s=60.0)))


def test_a_worker_that_closes_its_end_and_lives_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfds_torch.loaders.shared_transport import SharedOutlet

    def leave(self: Any, message: Outgoing) -> None:
        self._connection.close()
        time.sleep(3600)

    monkeypatch.setattr(SharedOutlet, "send", leave)
    with pytest.raises(WorkerError, match="has closed its end and lives on"):
        next(iter(MultiLoader(sources.numbers, 1, start_method="fork", timeout_s=60.0)))
