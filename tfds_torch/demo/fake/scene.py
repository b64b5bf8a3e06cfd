"""Scene: what the pictures, masks and boxes of one example show."""

import colorsys
import math
from dataclasses import dataclass

import numpy as np

Point = tuple[float, float]
Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]

# Corners, and how far in (as a share of the radius) lies the point between two of them; 1: there is none.
_FORMS = ((48, 1.0), (4, 1.0), (5, 0.42), (3, 1.0), (6, 1.0), (4, 0.3), (8, 0.7), (2, 0.35), (5, 1.0), (12, 0.75))
# Successive multiples of the golden ratio, modulo 1, lie as far from each other as they can.
_GOLDEN = 0.6180339887


@dataclass(frozen=True)
class Shape:
    """A coloured form; positions are shares of the image's width and height.

    Attributes:
        outline: its corners (x, y).
        box: its bounding box (ymin, xmin, ymax, xmax), within 0..1.
    """

    outline: tuple[Point, ...]
    box: Box
    colour: Colour
    is_hollow: bool


@dataclass(frozen=True)
class Scene:
    """A background, uint8 [4, 4, 3], to be scaled to the image, and the shapes on it, from back to front."""

    height: int
    width: int
    backdrop: np.ndarray
    shapes: tuple[Shape, ...]


def draw_scene(rng: np.random.Generator, look: int, height: int, width: int, num_shapes: int) -> Scene:
    """Returns a scene whose hue and form follow `look`, an example's label, so that it can be learnt."""
    hue = look * _GOLDEN % 1
    form = look % (2 * len(_FORMS))
    shapes = tuple(_draw_shape(rng, hue, form, height, width, num_shapes) for _ in range(num_shapes))
    # Labels that share their form differ in the background, too.
    behind = _colour(hue + 0.35 + look // len(_FORMS) * _GOLDEN / 2, 0.45, 0.45)
    shade = rng.normal(0, 22, size=(4, 4, 1)) + rng.normal(0, 6, size=(4, 4, 3))  # [4, 4, 3]
    backdrop = np.clip(np.asarray(behind) + shade, 0, 255).astype(np.uint8)
    return Scene(height, width, backdrop, shapes)


def _draw_shape(rng: np.random.Generator, hue: float, form: int, height: int, width: int, num_shapes: int) -> Shape:
    corners, waist = _FORMS[form % len(_FORMS)]
    largest = 0.42 if num_shapes == 1 else 0.26
    radius = rng.uniform(0.6, 1.0) * largest * min(height, width)
    x_radius, y_radius = radius / width, radius / height
    x, y = rng.uniform(x_radius, 1 - x_radius), rng.uniform(y_radius, 1 - y_radius)
    turn = rng.uniform(-0.3, 0.3) - math.pi / 2
    points = []
    for step in range(2 * corners):
        reach = 1.0 if step % 2 == 0 else waist
        if step % 2 and waist == 1.0:
            continue
        angle = turn + math.pi * step / corners
        points.append((x + reach * x_radius * math.cos(angle), y + reach * y_radius * math.sin(angle)))
    xs, ys = zip(*points, strict=True)
    box = (max(0.0, min(ys)), max(0.0, min(xs)), min(1.0, max(ys)), min(1.0, max(xs)))
    colour = _colour(hue + rng.uniform(-0.02, 0.02), rng.uniform(0.65, 0.9), rng.uniform(0.8, 1.0))
    return Shape(tuple(points), box, colour, is_hollow=form >= len(_FORMS))


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)
