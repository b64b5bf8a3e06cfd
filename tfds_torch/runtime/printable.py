"""Text from a dataset or a user, made harmless: shown without control characters, and quoted up to a length."""

from reprlib import Repr
from typing import Any

QUOTED = 200
"""Characters of a value that a message quotes."""

_MORE = "..."


class _Bounded(Repr):
    """Writes only the part of a value that a message quotes: the `repr` of a value can be larger than the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = QUOTED // 2
        self.maxarray = QUOTED // 2
        self.maxother = QUOTED

    def repr_str(self, text: str, level: int) -> str:
        """Return the beginning of a text."""
        return repr(text[:QUOTED])

    def repr_bytes(self, data: bytes, level: int) -> str:
        """Return the beginning of some bytes."""
        return repr(data[:QUOTED])

    def repr_int(self, number: int, level: int) -> str:
        """Return a number; of one that Python would not write in decimal (or not soon), its size."""
        return repr(number) if number.bit_length() <= 4 * QUOTED else f"<an integer of {number.bit_length()} bits>"

    def repr_instance(self, value: Any, level: int) -> str:
        """Return an object as it describes itself, on one line."""
        return " ".join(repr(value).split())


_bounded = _Bounded()


def printable(text: str) -> str:
    """Return the text with its control characters, terminal escapes and reordering marks written as escapes.

    Line breaks stay; a backslash of the text stays single.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def quoted(value: object) -> str:
    """Return `repr(value)` for a message, cut after `QUOTED` characters."""
    text = _bounded.repr(value)
    if len(text) > QUOTED:
        return text[:QUOTED] + _MORE
    if isinstance(value, str | bytes | bytearray) and len(value) > QUOTED:
        return text + _MORE
    return text


def shortened(text: str, most: int = QUOTED) -> str:
    """Return a text for a message, cut after `most` characters, without quotation marks."""
    return text if len(text) <= most else text[:most] + _MORE
