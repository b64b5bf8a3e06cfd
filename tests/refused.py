"""What a call says that must be refused, for tests that go over many of them."""

from collections.abc import Callable
from typing import Any


def said_of(error: type[Exception], call: Callable[..., object], /, *args: Any, **kwargs: Any) -> str:
    """Returns the message of the error that a call raises; where it raises none, `nothing: ` and what it returns."""
    try:
        return f"nothing: {call(*args, **kwargs)}"
    except error as raised:
        return str(raised)
