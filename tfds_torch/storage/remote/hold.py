"""Hold: while a reader waits for its first batch, fetching of all other bytes waits."""

import asyncio
import time
from collections.abc import Iterable

from tfds_torch.storage.remote.block_job import Segment

LONGEST_S = 5.0
SHORTEST_S = 0.1  # From the last bytes of a batch to the order that is followed.
_WAY_S = 0.01


class Hold:
    """Says whether only bytes are fetched that readers wait for.

    Args:
        active: segments that are being fetched.
    """

    def __init__(self, active: Iterable[Segment]) -> None:
        self._active = active
        self._until = self._awaited_at = 0.0

    def begin(self) -> None:
        """Begin the hold, or begin it again."""
        self._awaited_at = time.monotonic()
        self._until = self._awaited_at + LONGEST_S

    def end(self) -> None:
        """End the hold at once."""
        self._until = 0.0

    def is_on(self) -> bool:
        """Return whether the hold lasts: it ends by itself when no bytes are on their way that readers wait for."""
        now = time.monotonic()
        if now < self._until and any(segment.is_awaited for segment in self._active):
            self._awaited_at = now
        return now < min(self._until, self._awaited_at + SHORTEST_S)

    async def give_way(self, segment: Segment) -> None:
        """Pause a segment that nobody waits for, but not for long."""
        while not segment.is_awaited and self.is_on() and segment.gives_way_s > 0:
            segment.gives_way_s -= _WAY_S
            await asyncio.sleep(_WAY_S)
