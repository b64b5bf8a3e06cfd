"""Text from a dataset or a user, made harmless."""


def printable(text: str) -> str:
    """Returns the text with its control characters, terminal escapes and reordering marks written as escapes.

    Line breaks stay; a backslash of the text stays single.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
