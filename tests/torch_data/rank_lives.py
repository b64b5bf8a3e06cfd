"""Ranks of a training that is killed, each in a process of its own. Importable by every child."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from conformance import ResumableLoader, Step

from torch_data.resuming import Ranks, Setup


class RankProcesses(Ranks):
    """Several ranks side by side, as torchrun starts them: where one is gone, all of them end.

    Args:
        setup: the loader of all of them.
        make: makes the loader of a rank, in its process.
    """

    def __init__(self, setup: Setup, make: Callable[[Setup, int], ResumableLoader]) -> None:
        ours: list[Connection] = []
        self.ranks = []
        for rank in range(setup.num_replicas):
            link, theirs = multiprocessing.Pipe()
            ours.append(link)
            if os.fork() == 0:
                _be_a_rank(theirs, ours, partial(make, setup, rank))
            theirs.close()
            self.ranks.append(_FarRank(link))


class _FarRank:
    """A rank as its training process sees it.

    Raises:
        EOFError: it is gone.
    """

    def __init__(self, link: Connection) -> None:
        self._link = link

    def __iter__(self) -> Iterator[Step]:
        self._ask("__iter__")
        while (step := self._ask("__next__")) is not None:
            yield step

    def state(self, num_steps: int) -> Any:
        return self._ask("state", num_steps)

    def load(self, state: Any) -> None:
        self._ask("load", state)

    def close(self) -> None:
        self._ask("close")
        self._link.close()

    def _ask(self, *request: Any) -> Any:
        self._link.send(request)
        return self._link.recv()


def _be_a_rank(link: Connection, inherited: Sequence[Connection], make: Callable[[], ResumableLoader]) -> None:
    """Answers until the training process is gone, and ends this process."""
    for one in inherited:  # Else none of the ranks would see that its end is closed.
        one.close()
    code = 1
    try:
        _answer(link, make())
        code = 0
    except (EOFError, BrokenPipeError):  # The training process was killed.
        pass
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _answer(link: Connection, loader: ResumableLoader) -> None:
    steps: Iterator[Step] = iter(())
    name = ""
    while name != "close":
        name, *arguments = link.recv()
        if name == "__iter__":
            steps, answer = iter(loader), None
        elif name == "__next__":
            answer = next(steps, None)
        else:
            answer = getattr(loader, name)(*arguments)
        link.send(answer)
