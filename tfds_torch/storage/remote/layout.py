"""Where the blocks of objects lie in the cache folder, and the format of a block's file.

`<cache>/objects/<digest of URL, size, ETag and time>/<start>-<stop>`: bytes start..stop-1 of the object, and behind
them the trailer, 16 bytes: magic, CRC32C of the bytes (u32, little-endian), zeros. A file whose name ends in `.part` is
a block that is being fetched, or was when its fetcher died.

The folder of an object that other code opens as a file has `.plain` behind its digest: its one block is the object,
without a trailer. Readers lock it meanwhile (shared), so that it is not removed to make room.
"""

import hashlib
import os
import re
import struct
from pathlib import Path

TRAILER = struct.Struct("<8sII")
MAGIC = b"tfdsblk\n"
PART = ".part"
PLAIN = ".plain"
GRID_BYTES = 8 << 20
"""Bytes of a block, where the reader of an object does not say where blocks begin."""

_BLOCK = re.compile(r"([0-9]{1,18})-([0-9]{1,18})(\.part)?")


def pin_of(etag: str | None, modified: str | None) -> int:
    """Return the pin of a version in a stamp: 63 bits of the hash of its ETag and the time of its last change.

    A weak and a strong ETag that are otherwise equal have the same pin (RFC 9110, 8.8.3.2): Apache sends a weak ETag in
    the second in which a file was written, and a strong ETag later.
    """
    version = f"{(etag or '').removeprefix('W/')}\n{modified or ''}"
    digest = hashlib.blake2b(version.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


NO_VERSION = pin_of(None, None)
"""The pin where a server sends neither ETag nor time: only the size tells versions apart."""


def objects_folder(cache: Path | str) -> str:
    """Return the folder of all objects of a cache."""
    return os.path.join(cache, "objects")


def object_folder(cache: Path | str, url: str, size: int, pin: int, *, is_plain: bool = False) -> str:
    """Return the folder of one version of an object."""
    key = f"{url}\0{size}\0{pin}".encode(errors="surrogateescape")
    name = hashlib.blake2b(key, digest_size=16).hexdigest()
    return os.path.join(objects_folder(cache), name + PLAIN if is_plain else name)


def is_plain(folder: str) -> bool:
    """Return whether an object lies in its folder as a plain file."""
    return folder.endswith(PLAIN)


def block_name(start: int, stop: int) -> str:
    """Return the name of the file of bytes start..stop-1."""
    return f"{start}-{stop}"


def block_of_name(name: str) -> tuple[int, int, bool] | None:
    """Return start and stop of a block's file, and whether it is still being fetched; None: it is not a block."""
    found = _BLOCK.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), found[3] is not None)


def is_at(descriptor: int, path: str) -> bool:
    """Return whether an open file is still the file at a path."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
