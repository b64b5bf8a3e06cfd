"""NetworkRate: a line about the network while an epoch of remote files is read, for a progress bar."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

from tfds_torch.errors import TfdsTorchError
from tfds_torch.storage.network import Network, NetworkStats, total_stats

_PERIOD_S = 0.5
_GRACE_S = 1.0
_WINDOW_S = 5.0  # Blocks of 8 MiB come in jumps.


@dataclass(frozen=True)
class _Sample:
    at_s: float
    stats: NetworkStats


class NetworkRate:
    """Asks, in its own thread, how much came over the network, as long as the `with` statement lasts.

    Any thread may call `text`. In a forked child there is no thread, and the text stays as it is.

    Args:
        networks: the networks that files come through; none: `text` is empty, and nothing is asked.
        clock: seconds, for the rate.
    """

    def __init__(self, networks: Collection[Network], clock: Callable[[], float] = time.monotonic) -> None:
        self._networks, self._clock = networks, clock
        self._samples: tuple[_Sample, ...] = ()
        self._before, self._is_first = NetworkStats(), True
        self._needed_bytes = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._networks:
            self._thread = threading.Thread(target=self._watch, name="tfds_torch-network", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_GRACE_S)  # A fetcher that is stopped must not hold up the end.

    def begin_epoch(self) -> None:
        """Count anew from now on."""
        self._needed_bytes = 0.0
        self._before = self._samples[-1].stats if self._samples else NetworkStats()

    def need(self, num_bytes: float) -> None:
        """Add bytes that the epoch has read, from the network or from the cache."""
        self._needed_bytes += num_bytes

    def sample(self) -> None:
        """Ask now; raise TfdsTorchError where nobody answers."""
        stats = total_stats(self._networks)
        if stats is None:
            return
        now, samples = _Sample(self._clock(), stats), self._samples
        if samples and stats.bytes_fetched < samples[-1].stats.bytes_fetched:
            samples, self._before = (), NetworkStats()  # A killed fetcher's successor counts from 0.
        old = sum(now.at_s - one.at_s >= _WINDOW_S for one in samples[1:])
        if self._is_first:
            self._is_first, self._before = False, stats
        self._samples = (*samples[old:], now)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that came since the `with` statement or `begin_epoch`."""
        samples = self._samples
        return (samples[-1].stats - self._before).bytes_fetched if samples else 0

    @property
    def text(self) -> str:
        """The line; nothing before the first answer."""
        samples = self._samples
        if not samples:
            return ""
        first, last = samples[0], samples[-1]
        took_s = last.at_s - first.at_s
        rate = (last.stats.bytes_fetched - first.stats.bytes_fetched) / took_s if took_s > 0 else 0.0
        of_epoch = last.stats - self._before
        text = f"network: {rate / 1e6:.1f} MB/s, {of_epoch.bytes_fetched / 1e6:,.0f} MB fetched"
        # Bytes fetched ahead are not read yet: more may have been in the cache.
        cached = self._needed_bytes - of_epoch.bytes_fetched
        if cached > 0:
            text += f", {cached / self._needed_bytes:.0%} of what was read came from the cache"
        if of_epoch.retries:
            text += f", {of_epoch.retries:,} requests sent again"
        return text

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self.sample()
            except TfdsTorchError:  # The reading itself will say so.
                return
            self._ended.wait(_PERIOD_S)
