"""What a script leaves open is closed when the process ends, before multiprocessing waits for its children."""

import atexit
import logging
import multiprocessing.util  # noqa: F401 (first: of the functions that run at exit, the latest registered is called first)
from typing import Protocol
from weakref import WeakSet


class Closable(Protocol):
    """What holds processes or threads until it is closed."""

    def close(self) -> None:
        """Ends them; does nothing a second time."""


_open: "WeakSet[Closable]" = WeakSet()


def close_at_exit(closable: Closable) -> None:
    """Has something closed at the process's end, if it is still there then. It is not kept alive for that."""
    _open.add(closable)


def _close_all() -> None:
    for closable in list(_open):
        try:
            closable.close()
        except Exception:  # The others are still to be closed.
            logging.getLogger(__name__).exception("%r could not be closed", closable)


# Multiprocessing's own exit would wait for a stopped worker for ever.
atexit.register(_close_all)
