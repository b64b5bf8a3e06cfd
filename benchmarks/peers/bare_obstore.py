"""obstore alone: the files of the bucket as ranges, which are thrown away. What it does not reach, nobody does.

Configured: ranges of 8 MiB, as this package's blocks have by default; 24 requests at a time, likewise; the files' sizes
are asked for before the first epoch. Nothing is written, checked or decoded.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bucket import RemoteWork
from benchmarks.task import Task

RANGE_BYTES = 8 << 20
NUM_REQUESTS = 24


def load(task: Task) -> Callable[[int], Iterator[list[int]]]:
    """Returns the function epoch -> one batch: the bytes of each range.

    `data_dir` is the URL, `converted_dir` a folder with the same files, whose names are not asked for.
    """
    import obstore
    from obstore.store import HTTPStore

    work = RemoteWork(**task.remote)
    store = HTTPStore(work.url, client_options={"allow_http": True})
    prefix = task.data_dir.removeprefix(work.url).strip("/")
    names = sorted(f"{prefix}/{path.name}" for path in Path(str(task.converted_dir)).glob("*.tfrecord-*"))
    sizes = {name: int(obstore.head(store, name)["size"]) for name in names}

    async def fetch() -> list[int]:
        turns = asyncio.Semaphore(NUM_REQUESTS)

        async def fetch_range(name: str, start: int, stop: int) -> int:
            async with turns:
                return len(await obstore.get_range_async(store, name, start=start, end=stop))

        ranges = [
            (name, start, min(size, start + RANGE_BYTES))
            for name, size in sizes.items()
            for start in range(0, size, RANGE_BYTES)
        ]
        return await asyncio.gather(*(fetch_range(*one) for one in ranges))

    def epoch(number: int) -> Iterator[list[Any]]:
        yield asyncio.run(fetch())

    return epoch
