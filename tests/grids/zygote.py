"""A process that has imported everything and run nothing, and forks ranks: they start at once, like torchrun's."""

import faulthandler
import importlib
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

PRELOADED = (
    "tensorflow",
    "torch.distributed",
    "torch.utils.data",
    "tfds_torch.parsers.tfds.parser_tfds",
    "tfds_torch.torch_data.image_dataset",
    "grids.rank",
)


@dataclass(frozen=True)
class Request:
    """A call that a rank is to make, in an environment, within a time."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    environment: dict[str, str]
    deadline_s: int


def serve(handle: int) -> None:
    """Forks a rank for every request, and tells how ranks ended."""
    control = Connection(handle)
    for module in PRELOADED:
        importlib.import_module(module)
    control.send("ready")
    while True:
        try:
            action, value = control.recv()
        except EOFError:
            os._exit(0)  # tensorflow takes seconds to end in order, and there is nothing to put in order.
        if action == "wait":
            control.send(os.waitstatus_to_exitcode(os.waitpid(value, 0)[1]))
            continue
        link = recv_handle(control)
        pid = os.fork()
        if pid == 0:
            try:
                control.close()
                _be_a_rank(Connection(link), value)
            finally:
                os._exit(0)
        os.close(link)
        control.send(pid)


def _be_a_rank(link: Connection, log: str) -> None:
    """Answers requests until the other side is gone. A request that takes far too long ends the process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    faulthandler.register(signal.SIGUSR1)  # Writes down the stacks; forked workers inherit it.
    while True:
        try:
            request: Request = link.recv()
        except EOFError:
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
