"""Costs of reading from other machines: counts of a fetcher, and how long each thread waited for bytes."""

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Protocol

from tfds_torch.errors import TfdsTorchError


@dataclass(frozen=True)
class NetworkStats:
    """Counts of requests to object stores, of all processes that share a fetcher.

    Attributes:
        requests: number of requests that were sent, repeated ones included.
        retries: number of requests that were sent again.
        bytes_fetched: number of bytes that arrived, damaged ones included.
        bytes_delivered: number of bytes that readers got, from the cache or from the network.
        waited_s: time that readers waited for the network, in seconds, the sum over all threads.
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
    """A path over which bytes come from other machines."""

    def network_stats(self) -> NetworkStats:
        """Return its counts since it started."""


def total_stats(networks: Collection[Network]) -> NetworkStats | None:
    """Return the sum of the counts of several networks; None where there is no network: all files are local."""
    return sum((one.network_stats() for one in set(networks)), NetworkStats()) if networks else None


class FetchedBytes:
    """Counts the bytes that have come over networks since this object was made."""

    def __init__(self, networks: Collection[Network]) -> None:
        self._networks = networks
        self._before, self._last = self._ask(), 0

    def count(self) -> int:
        """Return the number of bytes; the latest known number where no fetcher answers."""
        self._last = max(self._last, self._ask() - self._before)
        return self._last

    def _ask(self) -> int:
        with suppress(TfdsTorchError):  # Reading reports the error.
            stats = total_stats(self._networks)
            return 0 if stats is None else stats.bytes_fetched
        return 0


class _Waited(threading.local):
    seconds = 0.0


_waited = _Waited()


def add_wait(seconds: float) -> None:
    """Add the time that the calling thread waited for bytes of another machine."""
    _waited.seconds += seconds


def waited_s() -> float:
    """Return how long the calling thread has waited so far, seconds."""
    return _waited.seconds
