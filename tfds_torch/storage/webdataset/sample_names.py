"""WebDataset's rule for names: which members are one sample, and what each of them is called in it."""

import re

_OF_THE_TAR = re.compile(rb"__[^/]*__($|/)")
_OF_A_TOOL = re.compile(rb"(.*/)?__MACOSX/")
_SHOWN = 100


def is_metadata(name: bytes) -> bool:
    """Whether a member tells of the tar itself, `__index__`, and belongs to no sample."""
    return _OF_THE_TAR.match(name) is not None


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Returns key and extension of a member: up to the first dot of its last part, and behind it, in lower case.

    Args:
        name: of the member, such as `train/0017.seg.png`: key `train/0017`, extension `seg.png`.

    Returns:
        None: it belongs to no sample: its name has no extension (`README`) or nothing in front of it (`.DS_Store`,
        macOS's `._0017.png`), or lies in macOS's `__MACOSX`. WebDataset skips those outside of folders.
    """
    folder, slash, base = name.rpartition(b"/")
    stem, _, extension = base.partition(b".")
    if not stem or not extension or (b"__MACOSX/" in name and _OF_A_TOOL.match(name)):
        return None
    # As text: bytes know the lower case of ASCII alone.
    lower = extension.lower() if extension.isascii() else text_of(extension).lower().encode("utf-8", "surrogateescape")
    return folder + slash + stem, lower


def show_name(name: bytes) -> str:
    """Returns a member's name for messages, cut where it is long."""
    text = repr(text_of(name))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def text_of(name: bytes) -> str:
    """Returns a key or an extension as text; bytes that are not UTF-8 come back as they were by `bytes_of`."""
    return name.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes | None:
    """Returns the bytes of a key or an extension; None: no bytes come back as this text."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # A lone surrogate, as only a caller has it.
        return None
