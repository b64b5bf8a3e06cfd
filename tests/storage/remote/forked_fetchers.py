"""Fetchers that are forked from a process with their modules: to import these is most of what a short test takes."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from types import SimpleNamespace
from typing import Any

import pytest
import zygote

from tfds_torch.storage.remote import fetcher_process

_MODULES = ("obstore.store", "tfds_torch.storage.remote.fetcher", "storage.remote.forked_fetchers")
_owner = os.getpid()
_lock = threading.Lock()  # One thread at a time asks the zygote, and a fetcher may begin in the background.
_ended: list[tuple[zygote.Zygote, int]] = []
"""Processes that zygotes are still to wait for: they may be ended anywhere, also by the garbage collector."""


class ForkedFetcher:
    """What `FetcherProcess` asks of a Popen; the exit code is not known."""

    def __init__(self, of: zygote.Zygote, stderr: int) -> None:
        self._zygote = of
        self.returncode: int | None = None
        self.pid, link = of.fork(run, dict(os.environ), os.getcwd())
        self._exit = os.pidfd_open(self.pid)
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        for descriptor in (theirs_in, theirs_out, stderr):
            send_handle(link, descriptor, None)
        for descriptor in (theirs_in, theirs_out):
            os.close(descriptor)
        link.close()
        self.stdin, self.stdout = os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb")

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._exit], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(fetcher_process.MODULE, timeout or 0.0)
            os.close(self._exit)
            self.returncode = 0
            _ended.append((self._zygote, self.pid))
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def start(command: list[str], **how: Any) -> Any:
    """Stands for Popen; a process that was forked from this one starts fresh ones, as the zygote is not its own."""
    if os.getpid() != _owner:
        return subprocess.Popen(command, **how)
    with _lock:
        try:
            while _ended:
                parent, pid = _ended.pop()
                if parent is _zygote():
                    parent.wait(pid)
            return ForkedFetcher(_zygote(), how["stderr"])
        except BaseException:  # A test's time limit: the zygote was killed.
            _zygote.cache_clear()
            raise


@cache
def _zygote() -> zygote.Zygote:
    return zygote.keep(zygote.Zygote(*_MODULES))


@pytest.fixture(autouse=True)
def forked_fetchers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets this process fork its fetchers, and returns them. Who asks how they start has a fixture of this name."""
    started = []

    def start_one(command: list[str], **how: Any) -> Any:
        started.append((start if hasattr(os, "pidfd_open") else subprocess.Popen)(command, **how))
        return started[-1]

    names = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}
    monkeypatch.setattr(fetcher_process, "subprocess", SimpleNamespace(Popen=start_one, **names))
    return started


def run(link: Connection, environment: Mapping[str, str], folder: str) -> None:
    """Is a fetcher, in a process of the zygote."""
    for descriptor in range(3):
        handle = recv_handle(link)
        os.dup2(handle, descriptor)
        os.close(handle)
    link.close()
    zygote.become_leader(environment, folder)
    setup = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = setup.pop("path")
    from tfds_torch.storage.remote.fetcher import main

    main({**setup, "parent": os.getppid()})
