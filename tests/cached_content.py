"""Whether a cache holds what its objects hold; and emptying it."""

import json
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from tfds_torch.storage.remote.layout import MAGIC, TRAILER
from tfds_torch.storage.remote.stored_blocks import remove_block, stored_blocks


@dataclass(frozen=True)
class CachedContent:
    """What lies in a cache: whole blocks, their bytes with trailers, and parts that killed fetchers left."""

    num_blocks: int
    num_bytes: int
    num_parts: int


def compare_cache(cache: Path, url: str, folder: Path | str) -> CachedContent:
    """Compares every block of a cache with the objects' bytes.

    Args:
        cache: its folder.
        url: below which all objects lie.
        folder: a local copy of what lies there.

    Raises:
        AssertionError: a block is not what its object holds.
    """
    num_blocks = num_bytes = num_parts = 0
    for block in stored_blocks(str(cache)):
        if block.is_part:
            num_parts += 1
            continue
        at, start, stop = block.key
        description = json.loads(Path(at, "object.json").read_text())
        name = description["url"].removeprefix(f"{url}/")
        content = Path(folder, name).read_bytes()
        assert description["size"] == len(content), name
        wanted = content[start:stop]
        found = Path(block.path).read_bytes()
        assert found == wanted + TRAILER.pack(MAGIC, google_crc32c.value(wanted), 0), (name, start, stop)
        num_blocks, num_bytes = num_blocks + 1, num_bytes + len(found)
    return CachedContent(num_blocks, num_bytes, num_parts)


def empty_cache(cache: Path) -> None:
    """Removes the blocks of a cache, but those that live processes write to."""
    for block in stored_blocks(str(cache)):
        remove_block(block)
