"""The fetcher: a process that fetches blocks of objects into the cache folder, for all processes that ask it.

`python -m tfds_torch.storage.remote.fetcher` is not started by hand: its options arrive on standard input. It ends when
the process that started it does.
"""

import asyncio
import json
import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

from tfds_torch.errors import TfdsTorchError
from tfds_torch.storage.remote.budget import Budget, default_max_bytes
from tfds_torch.storage.remote.cache import Cache
from tfds_torch.storage.remote.client import Client
from tfds_torch.storage.remote.protocol import Message, error_message
from tfds_torch.storage.remote.published import PublishedReaders
from tfds_torch.storage.remote.readers import Readers
from tfds_torch.storage.remote.requests import Requests
from tfds_torch.storage.remote.scheduler import Scheduler
from tfds_torch.storage.remote.stored_blocks import page_bytes
from tfds_torch.storage.remote.transfers import Transfers

_WATCH_S = 0.5
_MANY_FILES = 1 << 14


def main(setup: Message) -> None:
    """Run the fetcher until its parent is gone.

    Args:
        setup: the text that `FetcherProcess` writes to its standard input.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    _allow_many_files()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(format="tfds_torch fetcher: %(message)s", level=logging.WARNING)
    try:
        asyncio.run(_serve(setup, replies))
    except TfdsTorchError as error:
        with suppress(BrokenPipeError):
            _reply(replies, error_message(error))


async def _serve(setup: Message, replies: Any) -> None:
    cache = Cache(setup["cache"])
    client = Client(setup["storage_options"], setup["timeout_s"], setup["connections"], trusts_size=setup["trust_size"])
    transfers = Transfers(client, setup["timeout_s"])
    max_bytes = setup["max_bytes"] or default_max_bytes(cache.folder)
    readers = Readers(max_bytes, setup["connections"], page_bytes(cache.folder))
    published = PublishedReaders(cache.folder, readers)
    budget = Budget(cache.folder, readers.max_bytes, readers, published)
    scheduler = Scheduler(cache, budget, transfers, setup["connections"])
    requests = Requests(cache, client, transfers, scheduler, readers, published)
    address = setup["address"]
    beside = f"{address}.{os.getpid()}"
    server = await asyncio.start_unix_server(requests.serve, beside, backlog=1024)
    own = os.lstat(beside)
    os.rename(beside, address)  # Nobody connects before it listens.
    _reply(replies, {"ready": os.getpid()})
    try:
        await _wait_for_parent(setup["parent"])
    finally:
        with suppress(OSError):
            if os.path.samestat(os.lstat(address), own):
                os.unlink(address)
        scheduler.close()
        published.close()
        server.close()
        logging.shutdown()
        os._exit(0)  # obstore's threads may still wait for a server.


def _allow_many_files() -> None:
    """Let this process open as many files as it may: each block that is being fetched needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # Some systems allow fewer files than their limit.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _reply(replies: Any, message: Message) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.close()


async def _wait_for_parent(parent: int) -> None:
    """Return when the parent has closed its end of the pipe, or is gone."""
    ended = asyncio.Event()

    def look() -> None:
        with suppress(BlockingIOError):
            if not os.read(0, 4096):
                ended.set()

    os.set_blocking(0, False)
    asyncio.get_running_loop().add_reader(0, look)
    while not ended.is_set() and os.getppid() == parent:  # A process it forked in C may hold the pipe.
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _WATCH_S)


if __name__ == "__main__":
    sys.exit("The fetcher is started by the processes that read remote files, not by hand.")
