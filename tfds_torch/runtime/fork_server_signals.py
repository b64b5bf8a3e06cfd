"""What multiprocessing's fork server imports first: it lives on when its process group gets a signal.

What it forks for others is as if it did not. There, signals wait while the script is imported.
"""

import os
import signal
from multiprocessing.util import register_after_fork

from tfds_torch.runtime.group_signals import GROUP_SIGNALS, are_left_alone, do_nothing_for_group_signals

_server = os.getpid()
_before = {number: signal.getsignal(number) for number in GROUP_SIGNALS}
_held_in: int | None = None  # The child in which they wait.


def _hold() -> None:
    if os.getpid() == _server:
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)


def _release() -> None:
    if os.getpid() == _server:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def _note_child() -> None:
    global _held_in
    _held_in = os.getpid() if os.getppid() == _server else None


def _restore(_: object) -> None:
    """End the waiting when multiprocessing begins with the child's work; in a worker of ours, it has ended before."""
    if _held_in == os.getpid() and not are_left_alone():
        for number, handler in _before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


do_nothing_for_group_signals()
os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_note_child)
register_after_fork(_hold, _restore)
