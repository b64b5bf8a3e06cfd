"""Makes blocks of an object that was fetched as a whole, once it is known where its records lie; nothing is fetched."""

import asyncio
from collections.abc import Container, Sequence
from itertools import pairwise

from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.budget import Budget
from tfds_torch.storage.remote.cache import Cache, Claim, RemoteObject


async def cut_object(
    cache: Cache, budget: Budget, found: RemoteObject, cuts: Sequence[int], fetching: Container[BlockKey]
) -> bool:
    """Copies the blocks of an object from its file as a whole; returns False where there is no room for one.

    Args:
        cache: where the object lies.
        budget: of the cache.
        found: the object.
        cuts: offsets at which the blocks begin, 0 first, its size last.
        fetching: blocks that are being fetched: they are left out.

    Raises:
        OSError: the cache cannot be written to.
    """
    for start, stop in pairwise(cuts):
        await asyncio.sleep(0)  # Others are served meanwhile.
        if (found.folder, start, stop) in fetching or cache.has_block(found, start, stop):
            continue
        claim = cache.claim(found, start, stop)
        if claim is None:
            continue
        if cache.has_block(found, start, stop):  # Another process has finished it a moment ago.
            claim.drop()
        elif not _is_copied(cache, budget, found, claim):
            return False
    return True


def _is_copied(cache: Cache, budget: Budget, found: RemoteObject, claim: Claim) -> bool:
    """Copies a claimed block; returns whether there was room, and the object as a whole."""
    key = (found.folder, claim.start, claim.stop)
    has_room = is_copied = False
    try:
        has_room = budget.reserve(key, is_urgent=False)
        if has_room and cache.copy(found, claim):
            claim.finish()
            is_copied = True
    finally:
        if not is_copied:
            try:
                if has_room:
                    budget.release(key)
            finally:
                claim.drop()
    return is_copied
