"""Progress of long work: the worker reports how far it is, and this module draws it where a terminal is free for it."""

import contextlib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_S = 2.0
_PERIOD_S = 0.1
_GRACE_S = 1.0

shown: set[object] = set()
"""The bars of this process; a forked one begins with its parent's."""


def can_show_bar() -> bool:
    """Return whether the main thread of the main process asks, on a terminal that has no bar of it yet.

    Two bars at once would both be unreadable.
    """
    if multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread():
        return False
    return not shown and sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def shown_progress(
    what: str, total: int, done: Callable[[], int], *, is_bytes: bool = False, patience_s: float | None = None
) -> Iterator[None]:
    """Show on standard error how far the work of a `with` statement is, if that is a terminal and the work takes long.

    Args:
        what: the work in words, `indexing cifar10`.
        total: bytes, or things, that there are.
        done: return how many of them are done; called by another thread.
        is_bytes: whether bytes are counted.
        patience_s: seconds before the bar appears; None: 2.
    """
    if not can_show_bar():
        yield
        return
    over, bar = threading.Event(), object()

    def draw() -> None:
        if over.wait(_PATIENCE_S if patience_s is None else patience_s):
            return
        with _make_bar(is_bytes) as progress:
            task = progress.add_task(what, total=total)
            while not over.wait(_PERIOD_S):
                progress.update(task, completed=done())
            progress.update(task, completed=done())

    thread = threading.Thread(target=draw, name="tfds_torch-progress", daemon=True)
    shown.add(bar)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_GRACE_S)  # Whoever is asked how much is done may wait for another process.
        shown.discard(bar)


def _make_bar(is_bytes: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    class CursorKeeper(Console):
        def show_cursor(self, show: bool = True) -> bool:
            # A process that is killed would leave a hidden cursor behind.
            del show
            return False

    counts: list[ProgressColumn] = [DownloadColumn(), TransferSpeedColumn()] if is_bytes else [MofNCompleteColumn()]
    columns = TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn()
    return Progress(
        *columns,
        console=CursorKeeper(stderr=True),
        transient=True,
        # Its thread must not exchange the streams that the working thread writes to, or has redirected.
        redirect_stdout=False,
        redirect_stderr=False,
    )
