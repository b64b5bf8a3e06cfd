"""The datasets and the environment are those of `tests/torch_data`; and ranks that start in no time."""

import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torchvision_build
from numbered_fixtures import no_ranks
from run_folder import computed_once
from torch_data.conftest import _failed_workers_end_soon, data_root, in_reader
from zygote import torch_zygote

from integrations import forked_ranks

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # Its import asks a server for a newer version, else.

__all__ = ["_failed_workers_end_soon", "data_root", "in_reader", "no_ranks"]


@pytest.fixture(scope="session", autouse=True)
def _torchvision(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Finds out whether torchvision can be imported, once for all that tests start."""
    if torchvision_build.FOUND not in os.environ:
        error = computed_once(tmp_path_factory, "torchvision", torchvision_build.find_error)
        os.environ[torchvision_build.FOUND] = error


@pytest.fixture(scope="session")
def _ranks_process() -> Iterator[Connection]:
    pid, link = torch_zygote().fork(forked_ranks.serve)
    yield link
    link.close()
    torch_zygote().wait(pid)


@pytest.fixture
def run_forked_ranks(_ranks_process: Connection) -> Callable[..., list[Any]]:
    """`run_forked_ranks(function, num_ranks, *args)`: runs an importable function on ranks started as torchrun does.

    A function whose module is to be loaded there only is `"module:function"`. Returns their results, rank by rank; all
    must succeed, without a warning.
    """

    def run(function: Callable[..., Any] | str, num_ranks: int, *args: Any) -> list[Any]:
        named = function if isinstance(function, str) else f"{function.__module__}:{function.__name__}"
        _ranks_process.send((*named.split(":"), num_ranks, args))
        results = _ranks_process.recv()
        assert not any(isinstance(result, str) for result in results), "\n".join(map(str, results))
        return [result for (result,) in results]

    return run
