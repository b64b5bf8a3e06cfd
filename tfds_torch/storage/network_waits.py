"""How long a thread has waited for bytes of other machines: what a read took less this is the time of the disk."""

import threading


class _Waited(threading.local):
    seconds = 0.0


_waited = _Waited()


def add(seconds: float) -> None:
    """Adds the time that the calling thread waited for the network."""
    _waited.seconds += seconds


def of_this_thread() -> float:
    """Returns how long the calling thread has waited so far, seconds."""
    return _waited.seconds
