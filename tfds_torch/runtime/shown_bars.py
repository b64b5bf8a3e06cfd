"""Whether a bar may be shown on standard error: where another one is, both would be unreadable."""

import multiprocessing
import sys
import threading

shown: set[object] = set()
"""The bars of this process; a forked one begins with its parent's."""


def can_show_bar() -> bool:
    """Returns whether the main thread of the main process asks, on a terminal that has no bar of it yet."""
    if multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread():
        return False
    return not shown and sys.stderr is not None and sys.stderr.isatty()
