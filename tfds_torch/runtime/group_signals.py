"""Signals that reach a whole process group, such as a job scheduler's: the training process alone acts on them."""

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

_left_alone_in: int | None = None  # The process that goes on.
_PRELOADED = "tfds_torch.runtime.fork_server_signals"


def do_nothing_for_group_signals() -> None:
    """Lets this process go on when such a signal comes; what was held, comes. For its main thread.

    Ignored or blocked signals would be inherited by programs that are started here, and these not end by SIGTERM.
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
    """Whether this process goes on when such a signal comes."""
    return _left_alone_in == os.getpid()


@contextmanager
def signals_held() -> Iterator[None]:
    """Lets these signals, and Ctrl-C, wait in this thread; what it starts meanwhile inherits that they are blocked."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *GROUP_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def start_servers(method: str) -> None:
    """Starts what a start method of multiprocessing needs, if it does not run yet, so that signals leave it alone."""
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
