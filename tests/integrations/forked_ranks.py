"""Ranks as torchrun starts them, forked from a process that has loaded what they need: seconds cheaper than anew."""

import importlib
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed
import torch.utils.data
import torchvision_build
from torch_data.forked import run_forked

_DEADLINE_S = 60.0


def serve(connection: Connection) -> None:
    """Answers requests, in a process of its own, until the other end is closed."""
    operators = torchvision_build.declare_where_needed()  # Lightning imports torchvision, through its metrics.
    with suppress(EOFError):
        while True:
            connection.send(_answer(*connection.recv()))
    del operators


def _answer(module: str, name: str, num_ranks: int, arguments: tuple[Any, ...]) -> list[Any]:
    """Returns what the function of a module returned on every rank."""
    function = getattr(importlib.import_module(module), name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return run_forked(_be_a_rank, num_ranks, _DEADLINE_S, function, num_ranks, port, arguments)


def _be_a_rank(
    sender: Connection, rank: int, function: Callable[..., Any], num_ranks: int, port: int, arguments: tuple[Any, ...]
) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if num_ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    torch.set_num_threads(1)
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2  # Seconds for which it waits for a worker that has failed.
    warnings.simplefilter("error")
    try:
        result: Any = (function(*arguments),)  # A text alone says what became of the rank.
    except BaseException:
        result = traceback.format_exc()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sender.send(result)
