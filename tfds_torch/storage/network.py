"""What reading from other machines took: counts of a fetcher, and how long each thread waited for bytes."""

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Protocol

from tfds_torch.errors import TfdsTorchError


@dataclass(frozen=True)
class NetworkStats:
    """What was asked of object stores, by all processes that share a fetcher.

    Attributes:
        requests: sent, those that were sent again included.
        retries: how many were sent again.
        bytes_fetched: that came, damaged ones included.
        bytes_delivered: that readers got, out of the cache or from the network.
        waited_s: readers waited for the network, seconds, all threads together.
    """

    requests: int = 0
    retries: int = 0
    bytes_fetched: int = 0
    bytes_delivered: int = 0
    waited_s: float = 0.0

    def __add__(self, other: "NetworkStats") -> "NetworkStats":
        return NetworkStats(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "NetworkStats") -> "NetworkStats":
        return NetworkStats(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class Network(Protocol):
    """What bytes of other machines come through."""

    def network_stats(self) -> NetworkStats:
        """Returns what it has done since it started."""


def total_stats(networks: Collection[Network]) -> NetworkStats | None:
    """Returns what several have done together; None: there is none, because all files are of this machine."""
    return sum((one.network_stats() for one in set(networks)), NetworkStats()) if networks else None


class FetchedBytes:
    """How many bytes have come over networks since this was made."""

    def __init__(self, networks: Collection[Network]) -> None:
        self._networks = networks
        self._before, self._last = self._ask(), 0

    def count(self) -> int:
        """Return the number of bytes; the latest known one where nobody answers."""
        self._last = max(self._last, self._ask() - self._before)
        return self._last

    def _ask(self) -> int:
        with suppress(TfdsTorchError):  # The reading itself will say so.
            stats = total_stats(self._networks)
            return 0 if stats is None else stats.bytes_fetched
        return 0


class _Waited(threading.local):
    seconds = 0.0


_waited = _Waited()


def add_wait(seconds: float) -> None:
    """Adds the time that the calling thread waited for bytes of another machine."""
    _waited.seconds += seconds


def waited_s() -> float:
    """Returns how long the calling thread has waited so far, seconds."""
    return _waited.seconds
