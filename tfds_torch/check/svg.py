"""Drawings of a page as inline SVG. Pure.

A drawing takes the width that the page gives it and holds no text: words beside it are the page's own, and stay
readable on a narrow screen. Colours are the page's, by class.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

_SIDE = 1000
_NUM_SHADES = 10
_MOST_APART = 150  # More columns than these stand without gaps.

_DRAWING = Markup(
    '<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{label}">'
    "{content}</svg>"
)
_PATH = Markup('<path d="{}"/>')


def draw_bar(share: float) -> Markup:
    """Returns a bar of `share` of the width, 0..1; anything above nothing can be seen."""
    width = 0 if share <= 0 else max(3, round(_SIDE * min(1.0, share)))
    return Markup(
        '<svg class="bar" viewBox="0 0 {} 1" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="{}" height="1"/></svg>'
    ).format(_SIDE, width)


def draw_dots(x: Sequence[float] | NDArray[np.float64], y: Sequence[float] | NDArray[np.float64], label: str) -> Markup:
    """Returns a dot for each point.

    Args:
        x: to the right, 0..1.
        y: upwards, 0..1.
        label: what it shows, for those who do not see it.
    """
    left, down = np.asarray(x) * _SIDE, _SIDE - np.asarray(y) * _SIDE
    places = np.stack([left, down], axis=1).round().astype(int).tolist()
    # A line of no length with round ends is a dot, which stays round when the drawing is stretched.
    path = "".join(f"M{left} {down}h0" for left, down in places)
    return _draw("dots", (_SIDE, _SIDE), label, _PATH.format(path))


def draw_shades(shares: Sequence[float] | NDArray[np.float64], label: str) -> Markup:
    """Returns a strip of cells of equal width, shaded by their shares, 0..1."""
    shades = np.ceil(np.clip(shares, 0, 1) * _NUM_SHADES).astype(int)
    borders = np.flatnonzero(np.diff(shades, prepend=-1, append=-1)).tolist()  # Equal neighbours are one rectangle.
    cells = [
        Markup('<rect class="shade{}" x="{}" width="{}" height="1"/>').format(int(shades[start]), start, stop - start)
        for start, stop in pairwise(borders)
        if shades[start]
    ]
    return _draw("strip", (max(1, len(shades)), 1), label, Markup("").join(cells))


def draw_parts(lengths: Sequence[int], label: str) -> Markup:
    """Returns a strip of parts, one beside the other, each as wide as it is long; neighbours differ in shade."""
    ends = np.cumsum([0, *lengths]) / max(1, sum(lengths)) * _SIDE
    cells = [
        Markup('<rect class="part{}" x="{}" width="{}" height="1"/>').format(
            number % 2, f"{begin:.2f}", f"{end - begin:.2f}"
        )
        for number, (begin, end) in enumerate(pairwise(ends))
    ]
    return _draw("strip", (_SIDE, 1), label, Markup("").join(cells))


def draw_profile(values: Sequence[int], label: str) -> Markup:
    """Returns a column for each value, the largest as high as the drawing."""
    most = max(values, default=0) or 1
    heights = [round(_SIDE * value / most) for value in values]
    gap = "" if len(values) > _MOST_APART else f"V{_SIDE}h.2"
    path = "".join(f"V{_SIDE - height}h{0.8 if gap else 1}{gap}" for height in heights)
    return _draw("profile", (max(1, len(values)), _SIDE), label, _PATH.format(f"M0 {_SIDE}{path}V{_SIDE}z"))


def _draw(kind: str, size: tuple[int, int], label: str, content: Markup) -> Markup:
    return _DRAWING.format(kind=kind, width=size[0], height=size[1], label=label, content=content)
