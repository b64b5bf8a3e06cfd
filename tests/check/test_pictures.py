"""Pictures: what is on a contact sheet, whatever images and labels are, whose file is whole or not there; the order."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded_images import save as png
from PIL import Image, ImageDraw

from tfds_torch import ParserMapStyle
from tfds_torch.check.pictures import OrderSample, check_has_images, draw_order, save_contact_sheet
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World

GREY = (242, 242, 244)
"""The frame behind an image that does not fill its cell."""
CELL = 144


def gallery(
    images: Sequence[Any], labels: Sequence[int] | None = None, class_names: Sequence[str] | None = None, **more: Any
) -> ParserMapStyle:
    """Returns a parser of images and labels as they are given."""
    rows: list[dict[str, Any]] = [{"image": image} for image in images]
    for row, label in zip(rows, labels or (), strict=False):
        row["label"] = label
    options: dict[str, Any] = {"batch_size": 3, "image_mode": None, "class_names": class_names} | more
    return ParserMapStyle(rows, **options)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What is written on the sheet: texts with their widths in pixels, the title first."""
    texts: list[tuple[str, float]] = []
    draw = ImageDraw.ImageDraw.text

    def text(self: Any, position: Any, text: str, *args: Any, font: Any, **kwargs: Any) -> None:
        texts.append((text, self.textlength(text, font=font)))
        draw(self, position, text, *args, font=font, **kwargs)  # type: ignore[misc]

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    return texts


def solid(*color: int, width: int = 1, height: int = 1) -> np.ndarray:
    """Returns an image of one colour, uint8 [height, width, channels]."""
    return np.broadcast_to(np.array(color, np.uint8), (height, width, len(color)))


def save(tmp_path: Path, parser: ParserMapStyle, title: str = "title") -> Image.Image:
    path = tmp_path / "sheet.png"
    save_contact_sheet(parser, path, title)
    assert os.listdir(tmp_path) == ["sheet.png"]
    with Image.open(path) as sheet:
        assert (sheet.format, sheet.mode) == ("PNG", "RGB")
        return sheet.copy()


def areas(sheet: Image.Image) -> dict[tuple[int, ...], int]:
    """Returns colour -> number of pixels, without the sheet's paper and frames and the greys of its letters."""
    colors = sheet.getcolors(sheet.width * sheet.height)
    assert colors is not None
    found = {color: number for number, color in colors if isinstance(color, tuple)}
    return {color: number for color, number in found.items() if max(color) - min(color) > 8}


# Images.


@pytest.mark.parametrize(
    ("pixels", "color"),
    [
        (solid(200, 30, 40), (200, 30, 40)),
        (solid(200, 30, 40, 255), (200, 30, 40)),
        (solid(200, 0, 0, 0), (255, 255, 255)),
        (solid(200, 0, 0, 51), (244, 204, 204)),
        (solid(77), (77, 77, 77)),
        (png(Image.fromarray(solid(77, 255)), "PNG"), (77, 77, 77)),
        (png(Image.fromarray(solid(77, 0)), "PNG"), (255, 255, 255)),
    ],
    ids=["RGB", "RGBA", "transparent", "half transparent", "L", "LA", "LA, transparent"],
)
def test_an_image_is_shown_in_its_colours_on_white(tmp_path: Path, pixels: Any, color: tuple[int, ...]) -> None:
    sheet = save(tmp_path, gallery([pixels]))
    colors = {color: number for number, color in sheet.getcolors(sheet.width * sheet.height) or ()}
    assert colors[color] >= CELL**2
    assert GREY not in colors  # The image fills its frame.
    assert areas(sheet) == ({color: CELL**2} if max(color) - min(color) > 8 else {})


@pytest.mark.parametrize(
    ("width", "height", "shown"),
    [
        (1, 1, (144, 144)),
        (8, 8, (144, 144)),
        (7, 3, (140, 60)),
        (72, 10, (144, 20)),
        (73, 73, (73, 73)),
        (144, 144, (144, 144)),
        (500, 375, (144, 108)),
        (375, 500, (108, 144)),
        (4000, 1, (144, 1)),
        (1, 4000, (1, 144)),
    ],
)
def test_an_image_of_any_size_fits_its_cell_in_proportion(
    tmp_path: Path, width: int, height: int, shown: tuple[int, int]
) -> None:
    sheet = save(tmp_path, gallery([solid(250, 0, 0, width=width, height=height)]))
    assert areas(sheet) == {(250, 0, 0): shown[0] * shown[1]}


def test_images_stand_in_the_order_of_reading(tmp_path: Path) -> None:
    sheet = save(tmp_path, gallery([solid(250, 0, 6 * number) for number in range(40)]))
    found = areas(sheet)
    assert set(found.values()) == {CELL**2}
    pixels = np.asarray(sheet)
    corners = [np.argwhere((pixels == color).all(axis=-1))[0] for color in sorted(found)]  # [row, column]
    assert [tuple(corner) for corner in corners] == sorted(tuple(corner) for corner in corners)
    assert len({corner[0] for corner in corners}) == 5
    assert len({corner[1] for corner in corners}) == 8


@pytest.mark.parametrize(("number", "num_shown", "num_rows"), [(1, 1, 1), (8, 8, 1), (9, 9, 2), (99, 40, 5)])
def test_at_most_forty_are_shown_in_as_many_rows_as_it_takes(
    tmp_path: Path, number: int, num_shown: int, num_rows: int
) -> None:
    sheet = save(tmp_path, gallery([solid(250, 0, 2 * color) for color in range(number)]))
    assert sorted(areas(sheet)) == [(250, 0, 2 * color) for color in range(num_shown)]
    assert sheet.width == 2 * 24 + 8 * (CELL + 12) - 12
    one_row = save(tmp_path, gallery([solid(1, 2, 3)]))
    assert (sheet.height - one_row.height) % (num_rows - 1 or 1) == 0
    assert (sheet.height > one_row.height) is (num_rows > 1)


def test_padding_and_what_fills_up_the_last_batch_again_is_not_shown(
    tmp_path: Path, written: list[tuple[str, float]]
) -> None:
    parser = gallery([solid(250, 0, 0), solid(0, 250, 0)], labels=[4, 5], batch_size=7, remainder="pad")
    assert areas(save(tmp_path, parser)) == {(250, 0, 0): CELL**2, (0, 250, 0): CELL**2}
    assert [text for text, _ in written] == ["title", "4", "5"]
    parser = gallery([solid(250, 0, 0), solid(0, 250, 0)], batch_size=7, is_training=True, shuffle=False)
    assert areas(save(tmp_path, parser)) == {(250, 0, 0): CELL**2, (0, 250, 0): CELL**2}
    written.clear()
    assert areas(save(tmp_path, gallery([]))) == {}
    assert [text for text, _ in written] == ["title", "no examples"]


# Captions.


def test_a_caption_is_the_classs_name_or_the_label_or_the_id(tmp_path: Path, written: list[tuple[str, float]]) -> None:
    images = [solid(9, 9, 9)] * 3
    save(tmp_path, gallery(images, labels=[1, 0, -1], class_names=["cat", "dog"]))
    assert [text for text, _ in written] == ["title", "dog", "cat", "-1"]
    written.clear()
    save(tmp_path, gallery(images[:2], labels=[7, 0]))
    assert [text for text, _ in written] == ["title", "7", "0"]
    written.clear()
    save(tmp_path, gallery(images[:1], class_names=["cat"]))
    ((_, _), (identity, _)) = written
    assert identity == "0"


CAPTIONS = {
    "cat": "cat",
    "[bold]cat[/]": "[bold]cat[/]",
    "\x1b[31mcat": r"\x1b[31mcat",
    "c\ra\tt\x00": r"c\ra\tt\x00",
    "c\nat": "c at",
    "\u202etac": r"\u202etac",
    "\udc80": r"\udc80",
    "猫": "猫",
    "кошка ñ": "кошка ñ",
    "קט": "קט",
    " ": " ",
}


@pytest.mark.parametrize("name", CAPTIONS, ids=ascii)
def test_a_name_is_drawn_without_its_control_characters(
    tmp_path: Path, written: list[tuple[str, float]], name: str
) -> None:
    save(tmp_path, gallery([solid(9, 9, 9)], labels=[0], class_names=[name]), title=name)
    assert [text for text, _ in written] == [CAPTIONS[name]] * 2


@pytest.mark.parametrize("name", ["i" * 50, "word " * 99, "猫" * 10**5, "e\u0301\u0301" * 999])
def test_a_long_name_is_cut_to_its_cell(tmp_path: Path, written: list[tuple[str, float]], name: str) -> None:
    save(tmp_path, gallery([solid(9, 9, 9)], labels=[0], class_names=[name]), title=name * 9)
    ((title, title_width), (caption, caption_width)) = written
    assert caption_width <= CELL
    assert title_width <= 8 * (CELL + 12) - 12
    for text in (title, caption):
        assert text.endswith("...")
        assert len(text) > len("...")
        assert (name * 9).startswith(text.removesuffix("..."))


# What has no images.


def test_a_dataset_without_images_is_refused(digits: Path) -> None:
    check_has_images(gallery([solid(1, 2, 3)]))
    with pytest.raises(ConfigError, match=r"^--images: list has no image feature 'image'"):
        check_has_images(ParserMapStyle([{"x": 1.0}], batch_size=1))
    check_has_images(ParserTfds(digits, "digits"))
    with pytest.raises(ConfigError):
        check_has_images(ParserTfds(digits, "digits", image_key="label"))


# The order that came.


def make_plan(num_examples: int, batch_size: int, world: World = World()) -> EpochPlan:
    return EpochPlan(Passes(num_examples, 7), world, batch_size, Remainder.WRAP, is_training=True)


@pytest.mark.parametrize(("num_examples", "batch_size", "num_replicas"), [(100, 10, 1), (103, 4, 3), (5, 8, 2)])
def test_what_came_stands_at_its_position_over_all_ranks(num_examples: int, batch_size: int, num_replicas: int) -> None:
    plan = make_plan(num_examples, batch_size, World(0, num_replicas))
    sample = OrderSample(plan)
    for rank in range(num_replicas):
        own = make_plan(num_examples, batch_size, World(rank, num_replicas))
        for number in range(plan.num_batches):
            sample.add(rank, own.batch(0, number).index)
    positions, indices = sample.came
    assert positions.tolist() == list(range(num_examples))
    assert indices.tolist() == plan.at_slots(0, np.arange(num_examples)).index.tolist()


def test_of_a_large_pass_each_stretch_has_a_point() -> None:
    sample = OrderSample(make_plan(10_000, 100), num_points=50)
    for number in range(100):
        sample.add(0, np.arange(100) + 100 * number)
    positions, indices = sample.came
    assert (positions // 200).tolist() == list(range(50))
    assert indices.tolist() == positions.tolist()


def test_what_has_not_come_is_not_among_them() -> None:
    sample = OrderSample(make_plan(100, 10))
    sample.add(0, np.arange(10))
    assert sample.came[0].tolist() == list(range(10))
    sample.add(0, np.arange(3))  # A batch that is too short, and one that is too long.
    sample.add(0, np.arange(15))
    assert sample.came[0].tolist() == [*range(13), *range(20, 30)]


def test_the_picture_of_an_order_has_a_dot_for_each_example_and_tells_their_correlation() -> None:
    sample = OrderSample(make_plan(100, 10))
    sample.add(0, np.arange(10))
    picture = draw_order(sample, 100, "files")
    assert picture.caption == "What was delivered, in read mode files. Correlation of position and index: 1.00."
    assert str(picture.drawing).count("h0") == 10
    assert "M0 1000h0M10 990h0" in str(picture.drawing)
    few = OrderSample(make_plan(2, 2))
    few.add(0, np.arange(2))
    assert "Correlation" not in draw_order(few, 2, "index").caption
