"""Forked processes that send one result each: nothing that the parent has loaded is loaded again."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_GRACE_S = 10.0


def run_forked(target: Callable[..., None], num_replicas: int, deadline_s: float, *args: Any) -> list[Any]:
    """Returns what `target(sender, rank, *args)` sent for each rank, or what became of its process, as a text."""
    context = multiprocessing.get_context("fork")
    ranks = []
    for rank in range(num_replicas):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(sender, rank, *args))
        process.start()
        sender.close()
        ranks.append((process, receiver))
    return [_collect(process, receiver, deadline_s) for process, receiver in ranks]


def _collect(process: BaseProcess, receiver: Connection, deadline_s: float) -> Any:
    try:
        return receiver.recv() if receiver.poll(deadline_s) else f"It did not end within {deadline_s} s."
    except EOFError:
        return f"Its process ended with exit code {process.exitcode}."
    finally:
        process.join(_GRACE_S)
        process.kill()
        process.join()
