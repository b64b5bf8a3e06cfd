"""What carries messages from the workers of a loader to the process that iterates: the Transport protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Protocol

from numpy.typing import NDArray

from tfds_torch.loaders.wire import Header, Outgoing


@dataclass(frozen=True)
class Incoming:
    """A message that came, with its buffers as arrays."""

    header: Header
    buffers: Sequence[NDArray[Any]]


class Outlet(Protocol):
    """A worker's end of a transport. It travels to the worker's process."""

    def open(self, key: bytes) -> None:
        """Gets ready, in the worker.

        Args:
            key: a secret that the receiver and this worker share.
        """

    def send(self, message: Outgoing) -> None:
        """Sends a message; returns when its arrays may change.

        Raises:
            MalformedMessage: it is larger than a message may be; nothing was sent.
        """

    def close(self) -> None:
        """Lets go of the transport; messages that were not received yet may be lost."""


class Transport(Protocol):
    """The receiver's end, for all workers of a pool. For one thread."""

    name: str
    num_rejected: int

    def outlet(self, worker: int, context: BaseContext) -> Outlet:
        """Returns the end of a worker that is about to be started."""

    def key(self, worker: int) -> bytes:
        """Returns the secret that is shared with a worker."""

    def note_started(self, worker: int) -> None:
        """Lets go of what only the worker needs."""

    def receive(self, worker: int) -> Incoming | None:
        """Returns the next message of a worker; None: it is not there yet.

        Raises:
            EOFError: the worker has closed its end.
            MalformedMessage: the worker has sent something that is no message.
        """

    def wait(self, workers: Sequence[int], timeout_s: float) -> None:
        """Returns when something has come of one of some workers, or after a while."""

    def close(self) -> None:
        """Ends it."""
