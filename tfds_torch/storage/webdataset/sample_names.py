"""WebDataset's rule for names: which members are one sample, and what each of them is called in it."""

import re

from tfds_torch.errors import ShardError

_OF_THE_TAR = re.compile(rb"__[^/]*__($|/)")


def is_metadata(name: bytes) -> bool:
    """Whether a member tells of the tar itself, `__index__`, and belongs to no sample."""
    return _OF_THE_TAR.match(name) is not None


def split_name(name: bytes, path: str) -> tuple[bytes, bytes]:
    """Returns key and extension of a member: up to the first dot of its last part, and behind it, in lower case.

    Args:
        name: of the member, such as `train/0017.seg.png`: key `train/0017`, extension `seg.png`.
        path: of its tar, for messages.

    Raises:
        ShardError: it has no extension, or nothing in front of it.
    """
    folder, slash, base = name.rpartition(b"/")
    stem, _, extension = base.partition(b".")
    if not stem or not extension:
        raise ShardError(
            f"{path}: the member {name!r} has no {'extension' if stem else 'name in front of its first dot'}, so that "
            f"it belongs to no sample. Names are <key>.<extension>, such as '0017.jpg' and '0017.cls'; leave the "
            f"member out of the tar (tar --exclude)."
        )
    # As text: bytes know the lower case of ASCII alone.
    lower = extension.lower() if extension.isascii() else text_of(extension).lower().encode("utf-8", "surrogateescape")
    return folder + slash + stem, lower


def text_of(name: bytes) -> str:
    """Returns a key or an extension as text; bytes that are not UTF-8 come back as they were by `bytes_of`."""
    return name.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes | None:
    """Returns the bytes of a key or an extension; None: no bytes come back as this text."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # A lone surrogate, as only a caller has it.
        return None
