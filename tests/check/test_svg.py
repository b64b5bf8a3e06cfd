"""Drawings: their geometry, and that nothing gets out of them."""

import re
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from tfds_torch.check.figures import show_seconds
from tfds_torch.check.svg import draw_bar, draw_dots, draw_parts, draw_profile, draw_shades


def parts(drawing: Markup, tag: str) -> list[dict[str, str]]:
    return [element.attrib for element in ElementTree.fromstring(drawing).iter(tag)]


@pytest.mark.parametrize(("share", "width"), [(0, 0), (1e-9, 3), (0.5, 500), (1, 1000), (2, 1000)])
def test_a_bar_is_as_long_as_its_share_and_never_invisible(share: float, width: int) -> None:
    assert parts(draw_bar(share), "rect") == [{"width": str(width), "height": "1"}]


def test_dots_stand_where_their_points_are_the_second_axis_upwards() -> None:
    (path,) = parts(draw_dots([0, 0.25, 1], [0, 0.5, 1], "x"), "path")
    assert path["d"] == "M0 1000h0M250 500h0M1000 0h0"


def test_equal_neighbours_are_one_rectangle_and_nothing_is_none() -> None:
    found = parts(draw_shades([0, 0.5, 0.5, 1, 0], "x"), "rect")
    assert [(one["class"], one["x"], one["width"]) for one in found] == [("shade5", "1", "2"), ("shade10", "3", "1")]
    assert parts(draw_shades([], "x"), "rect") == []


def test_parts_are_as_wide_as_they_are_long() -> None:
    found = parts(draw_parts([1, 3], "x"), "rect")
    assert [(one["class"], one["x"], one["width"]) for one in found] == [
        ("part0", "0.00", "250.00"),
        ("part1", "250.00", "750.00"),
    ]


@pytest.mark.parametrize("number", [1, 150, 151])
def test_a_profile_has_a_column_for_each_value(number: int) -> None:
    (path,) = parts(draw_profile([*range(number)], "x"), "path")
    tops = re.findall(r"V(\d+)h(?:1|0\.8)(?!\d)", path["d"])
    assert [int(top) for top in tops] == [1000 - round(1000 * value / max(1, number - 1)) for value in range(number)]


def test_a_label_stays_a_label() -> None:
    drawing = draw_dots([0], [0], '"><script>')
    assert ElementTree.fromstring(drawing).attrib["aria-label"] == '"><script>'


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.3399, "340 ms"),
        (0.9996, "1 s"),
        (1.234, "1.23 s"),
        (12.34, "12.3 s"),
        (2500, "2,500 s"),
    ],
)
def test_a_duration_has_three_digits_at_most(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown
