"""printable: nothing that it returns can move a cursor, colour a terminal or turn a line around."""

import ast
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.runtime.printable import QUOTED, printable, quoted

LONG = "y" * 10**6


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("airplane", "airplane"),
        ('it\'s "9" \\ [bold]', 'it\'s "9" \\ [bold]'),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]8;;http://x\x07link", r"\x1b]8;;http://x\x07link"),
        ("a\rb\tc\x08d\x00\x7f", r"a\rb\tc\x08d\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe\u2066\u200b", r"\u202egnp.exe\u2066\u200b"),
        ("\u2028line", r"\u2028line"),
        ("\ufeff\U000e0041", r"\ufeff\U000e0041"),
        ("\udc80", r"\udc80"),
        ("two\nlines", "two\nlines"),
        ("飛行機 Flugzeug avión ✈ עברית", "飛行機 Flugzeug avión ✈ עברית"),
    ],
)
def test_what_is_not_printable_becomes_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
def test_nothing_but_line_breaks_controls_a_terminal(text: str) -> None:
    shown = printable(text)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert printable(shown) == shown
    shown.encode("utf-8")


@given(st.text(st.characters(codec=None, exclude_characters="\\'\n")))
def test_nothing_is_left_out(text: str) -> None:
    assert ast.literal_eval(f"'{printable(text)}'") == text


def test_an_object_is_quoted_on_one_line() -> None:
    assert quoted(np.ones((2, 2))) == "array([[1., 1.], [1., 1.]])"
    assert quoted("two\n  lines") == "'two\\n  lines'"


@pytest.mark.parametrize(
    "value",
    [LONG, LONG.encode(), [LONG] * 1000, {LONG: LONG}, ("a",) * 10**6, 10**10**5, set(range(10**5))],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_quoted_in_bounded_length(value: Any) -> None:
    assert len(quoted(value)) <= QUOTED + 3


@pytest.mark.parametrize("value", ["it's", b"\0", 7, None, [1, "a"], {"a": (1,)}, "y" * 198, 2.5, True, {3}, range(3)])
def test_a_short_value_is_quoted_as_it_is(value: Any) -> None:
    assert quoted(value) == repr(value)
