"""Signals that reach a whole process group, like a job scheduler's: only the training process acts on them."""

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

_NAMES = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM")
GROUP_SIGNALS = frozenset(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""They do nothing in workers."""

_left_alone_in: int | None = None  # The process that continues on such a signal.
_PRELOADED = "tfds_torch.runtime.fork_server_signals"


def do_nothing_for_group_signals() -> None:
    """Let this process continue when such a signal comes, and deliver held signals. For its main thread.

    Programs that are started here would inherit ignored or blocked signals, and would not end by SIGTERM.
    """
    global _left_alone_in
    _left_alone_in = os.getpid()
    signal.set_wakeup_fd(-1)  # A forked process would wake the event loop of its parent.
    for number in GROUP_SIGNALS:
        signal.signal(number, _do_nothing)
        if hasattr(signal, "siginterrupt"):
            signal.siginterrupt(number, False)  # Native code need not know of them.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *GROUP_SIGNALS})


def are_left_alone() -> bool:
    """Return whether this process continues when such a signal comes."""
    return _left_alone_in == os.getpid()


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold these signals, and Ctrl-C, in this thread; processes that it starts meanwhile inherit the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *GROUP_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def start_servers(method: str) -> None:
    """Start servers that a multiprocessing start method needs, if they do not run, so that signals leave them alone."""
    if method == "fork" or not hasattr(signal, "pthread_sigmask"):
        return
    with signals_held():  # Forever, in the tracker of resources.
        resource_tracker.ensure_running()
    if method == "forkserver":
        server: Any = importlib.import_module("multiprocessing.forkserver")._forkserver
        named = getattr(server, "_preload_modules", [])  # By the user, whose modules are loaded as well.
        if _PRELOADED not in named:
            server.set_forkserver_preload([_PRELOADED, *named])
        server.ensure_running()


def _do_nothing(number: int, frame: object) -> None:
    pass
