"""What forked workers do while other threads of their parent import modules and hold locks."""

import functools
import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfds_torch.runtime import forking
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.processes import WorkerProcesses
from tfds_torch.runtime.user_random import seed_generators
from tfds_torch.runtime.worker_output import WorkerOutput

DEADLINE_S = 30.0
SLOW_MODULE = """
import sys, threading
began, may_end = sys.modules["began"], sys.modules["may_end"]
began.set()
may_end.wait({limit_s})
NUMBER = 7
"""


def exit_code_of_worker(work: Callable[[], object]) -> int | None:
    """Returns how a forked worker ended; None: it still runs after a while."""
    processes = WorkerProcesses("fork", WorkerOutput(1))
    processes.start(lambda: sys.exit(0 if work() in (None, True) else 1), (), {})
    ended = processes.find_dead({0}, DEADLINE_S)
    processes.end(0)
    return ended[0][2] if ended else None


@contextmanager
def in_a_thread(step: Callable[[], object], has_begun: threading.Event, may_end: threading.Event) -> Iterator[None]:
    """Lets another thread take a step, which waits in the middle until the `with` statement ends."""
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    assert has_begun.wait(DEADLINE_S)
    try:
        yield
    finally:
        may_end.set()
        thread.join(DEADLINE_S)


@pytest.fixture
def began() -> threading.Event:
    return threading.Event()


@pytest.fixture
def may_end() -> threading.Event:
    return threading.Event()


@pytest.fixture
def slow_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: threading.Event, may_end: threading.Event
) -> Iterator[str]:
    """The name of a module whose import waits for `may_end`."""
    name = "slow_to_import"
    (tmp_path / f"{name}.py").write_text(SLOW_MODULE.format(limit_s=DEADLINE_S))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "began", began)
    monkeypatch.setitem(sys.modules, "may_end", may_end)
    yield name
    sys.modules.pop(name, None)


def test_a_worker_can_import_what_another_thread_was_importing(
    slow_module: str, began: threading.Event, may_end: threading.Event
) -> None:
    threading.Timer(0.5, may_end.set).start()
    with in_a_thread(lambda: importlib.import_module(slow_module), began, may_end):
        assert exit_code_of_worker(lambda: importlib.import_module(slow_module).NUMBER == 7) == 0


def test_an_import_that_does_not_end_is_waited_for_once(
    slow_module: str, began: threading.Event, may_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a module which is the whole program."""
    monkeypatch.setattr(forking, "_LONGEST_IMPORT_S", 0.2)
    monkeypatch.setattr(forking, "_endless", set())
    with in_a_thread(lambda: importlib.import_module(slow_module), began, may_end):
        assert exit_code_of_worker(lambda: True) == 0
        assert len(forking._endless) == 1
        monkeypatch.setattr(forking, "_LONGEST_IMPORT_S", 3600.0)
        assert exit_code_of_worker(lambda: True) == 0


def test_a_thread_that_is_importing_itself_waits_for_nobody(
    slow_module: str, began: threading.Event, may_end: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may wait for its module."""
    monkeypatch.setattr(forking, "_LONGEST_IMPORT_S", 3600.0)
    (tmp_path / "starts_a_worker.py").write_text("import sys\nsys.modules['start_worker'].start()")
    found: list[int | None] = []
    start = SimpleNamespace(start=lambda: found.append(exit_code_of_worker(lambda: True)))
    monkeypatch.setitem(sys.modules, "start_worker", start)
    with in_a_thread(lambda: importlib.import_module(slow_module), began, may_end):
        importlib.import_module("starts_a_worker")
    del sys.modules["starts_a_worker"]
    assert found == [0]


def test_a_worker_can_seed_numpy_while_another_thread_draws(began: threading.Event, may_end: threading.Event) -> None:
    np.random.seed(5)
    expected = np.random.random(3).tolist()
    np.random.seed(5)

    def hold() -> None:
        with np.random.get_bit_generator().lock:
            began.set()
            may_end.wait(DEADLINE_S)

    with in_a_thread(hold, began, may_end):
        assert exit_code_of_worker(lambda: np.random.random(3).tolist() == expected) == 0, "it goes on where it was"
        assert exit_code_of_worker(lambda: seed_generators(3)) == 0


@pytest.mark.parametrize("name", ["torch.cuda", "torch.xpu", "torch.mtia"])
def test_a_worker_can_seed_torch_while_another_thread_starts_a_device(
    name: str, began: threading.Event, may_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(_initialization_lock=threading.Lock())
    monkeypatch.setitem(sys.modules, name, device)

    def hold() -> None:
        with device._initialization_lock:
            began.set()
            may_end.wait(DEADLINE_S)

    def take() -> None:
        with device._initialization_lock:
            pass

    with in_a_thread(hold, began, may_end):
        assert exit_code_of_worker(take) == 0


class Slow:
    """Its values are slow in threads, and quick in workers."""

    def __init__(self, began: threading.Event, may_end: threading.Event) -> None:
        self.began, self.may_end = began, may_end

    def _compute(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.began.set()
            self.may_end.wait(DEADLINE_S)
        return 7

    @cached_property
    def ours(self) -> int:
        return self._compute()

    @functools.cached_property  # noqa: TID251
    def of_functools(self) -> int:
        return self._compute()


@pytest.mark.parametrize("name", ["ours", "of_functools"])
def test_a_worker_can_look_at_a_cached_property_while_another_thread_computes_it(
    name: str, began: threading.Event, may_end: threading.Event
) -> None:
    """Before Python 3.12, functools has one lock for all objects of a class."""
    slow = Slow(began, may_end)
    with in_a_thread(lambda: getattr(slow, name), began, may_end):
        assert exit_code_of_worker(lambda: getattr(Slow(began, may_end), name) == 7) == 0
        if name == "ours":
            assert slow.ours == 7, "nor does another thread wait for it"


def test_what_a_start_has_seen_is_not_kept() -> None:
    gc.collect()
    gc.disable()
    try:
        has_seen(kept := Slow(threading.Event(), threading.Event()))
        reference = weakref.ref(kept)
        del kept
        assert reference() is None
    finally:
        gc.enable()


def has_seen(slow: Slow) -> None:
    assert exit_code_of_worker(lambda: slow is not None) == 0


def test_a_cached_property_is_computed_once_and_the_class_gives_the_property_itself() -> None:
    values: list[object] = []

    class Counting:
        @cached_property
        def value(self) -> object:
            """A value."""
            values.append(object())
            return values[-1]

    counting = Counting()
    assert counting.value is counting.value is values[0]
    assert len(values) == 1
    assert isinstance(Counting.value, functools.cached_property)  # noqa: TID251
    assert Counting.value.__doc__ == "A value."
