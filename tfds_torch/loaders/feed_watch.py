"""FeedWatch: when a source is slow, lags behind, or is due to tell how it does."""

from tfds_torch.loaders.feed_options import FeedLimits

_FEW_CHUNKS = 2


class FeedWatch:
    """Decides by given times; speaks and waits never. Its caller sees to it that one thread at a time asks.

    Args:
        limits: after how long.
        now: when the source begins, seconds.
    """

    def __init__(self, limits: FeedLimits, now: float) -> None:
        self._limits = limits
        self._filled_at = self._told_at = now
        self._slow_at: float | None = None

    def is_slow(self, waiting_since: float, now: float) -> bool:
        """Returns whether a training loop has waited so long that it is to be told of; once for all of them."""
        begun = waiting_since if self._slow_at is None else max(waiting_since, self._slow_at)
        if now - begun < self._limits.slow_s:
            return False
        self._slow_at = now
        return True

    def slow_in_s(self, waiting_since: float, now: float) -> float:
        """Returns after which time `is_slow` is to be asked again."""
        begun = waiting_since if self._slow_at is None else max(waiting_since, self._slow_at)
        return max(0.0, begun + self._limits.slow_s - now)

    def note_queue(self, size: int, now: float) -> None:
        """Notes how many chunks are in the queue, before one comes or goes."""
        if size >= _FEW_CHUNKS:
            self._filled_at = now

    def is_lagging(self, now: float) -> bool:
        """Returns whether the queue has held few chunks for so long that it is to be told of."""
        if now - self._filled_at < self._limits.lagging_s:
            return False
        self._filled_at = now  # The next time after as long again.
        return True

    def is_status_due(self, now: float) -> bool:
        """Returns whether a status line is due."""
        if now - self._told_at < self._limits.status_s:
            return False
        self._told_at = now
        return True
