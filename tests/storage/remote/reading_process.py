"""A process that reads objects through a cache: `python reading_process.py JSON`, or forked; ended by its parent.

JSON: cache, urls, blocks (bytes), seed, options. It reads every block of every object in an order of its own, compares
them with what the object's seed gives, and prints one line: the fetcher's counts.
"""

import json
import os
import random
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tfds_torch import RemoteOptions
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore


def content_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def main(setup: dict[str, Any]) -> None:
    store = ObjectStore(RemoteOptions(cache_dir=setup["cache"], **setup.get("options", {})))
    size, block = setup["size"], setup["block"]
    stamps = [found.stamp for found in store.look(setup["urls"])]
    files = RemoteFiles(store, setup["urls"], stamps, lambda _: np.array([*range(0, size, block), size]))
    print("started", flush=True)
    order = [(file, start) for file in range(len(setup["urls"])) for start in range(0, size, block)]
    random.Random(setup["seed"]).shuffle(order)
    contents = [content_of(file, size) for file in range(len(setup["urls"]))]
    for file, start in order:
        assert files.read(file, start, block) == contents[file][start : start + block], (file, start)
    print(json.dumps(store.stats()), flush=True)


def run(link: Connection, setup: dict[str, Any]) -> None:
    """Is that process, forked from a zygote; it prints to the link."""
    os.dup2(link.fileno(), 1)
    link.close()
    main(setup)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
