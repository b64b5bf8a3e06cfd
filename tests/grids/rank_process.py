"""The side of a rank: it answers requests, one after the other, as a process that torchrun has started."""

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Request:
    """A call that a rank is to make, in an environment, within a time."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    environment: dict[str, str]
    deadline_s: int


def be_a_rank(link: Connection, log: str) -> None:
    """Answers requests until None comes or the other side is gone. One that takes far too long ends the process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    faulthandler.register(signal.SIGUSR1)  # Writes down the stacks; forked workers inherit it.
    while True:
        try:
            request: Request | None = link.recv()
        except EOFError:
            return
        if request is None:
            return
        before = dict(os.environ)
        os.environ.update(request.environment)
        # Where nobody is left to end us. (faulthandler's own timer cannot be set again in forked workers.)
        signal.alarm(request.deadline_s)
        try:
            link.send((True, request.function(*request.args)))
        except Exception:
            link.send((False, traceback.format_exc()))
        finally:
            signal.alarm(0)
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)
