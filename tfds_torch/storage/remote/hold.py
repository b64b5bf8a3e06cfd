"""Hold: while a reader waits for its first batch, all other bytes wait."""

import asyncio
import time
from collections.abc import Iterable

from tfds_torch.storage.remote.block_job import Segment

LONGEST_S = 5.0
SHORTEST_S = 0.1  # From a batch's last bytes to the order that is followed.
_WAY_S = 0.01


class Hold:
    """Whether only what readers wait for is fetched.

    Args:
        active: segments that are being fetched.
    """

    def __init__(self, active: Iterable[Segment]) -> None:
        self._active = active
        self._until = self._awaited_at = 0.0

    def begin(self) -> None:
        """Begins, or begins anew."""
        self._awaited_at = time.monotonic()
        self._until = self._awaited_at + LONGEST_S

    def end(self) -> None:
        """Ends at once."""
        self._until = 0.0

    def is_on(self) -> bool:
        """Returns whether it goes on: it ends by itself when nothing of what readers wait for is on its way."""
        now = time.monotonic()
        if now < self._until and any(segment.is_awaited for segment in self._active):
            self._awaited_at = now
        return now < min(self._until, self._awaited_at + SHORTEST_S)

    async def give_way(self, segment: Segment) -> None:
        """Reads no more of a segment that nobody waits for, but not for long."""
        while not segment.is_awaited and self.is_on() and segment.gives_way_s > 0:
            segment.gives_way_s -= _WAY_S
            await asyncio.sleep(_WAY_S)
