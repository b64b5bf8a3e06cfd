"""The contact sheet: what is on it, whatever the images and labels are; and the file is whole or not there."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tfds_torch.check import contact_sheet
from tfds_torch.check.contact_sheet import check_has_images, save_contact_sheet
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.plan.world import World

GREY = (242, 242, 244)
"""The frame behind an image that does not fill its cell."""
CELL = 144


@dataclass(frozen=True)
class Gallery:
    """Stands for a parser: images and labels as they are given, in batches of three."""

    images: Sequence[Any]
    labels: Sequence[int] | None = None
    class_names: Sequence[str] | None = None
    num_padded: int = 0
    num_wrapped: int = 0
    image_key: str | None = "image"
    dataset_name: str = "gallery:1.0.0"

    @property
    def dataset(self) -> "Gallery":
        return self

    def field(self, name: str) -> object:
        return None

    def has_field(self, name: str) -> bool:
        return name == "image" or (name == "label" and self.labels is not None)

    def batches(self, world: World, fields: Sequence[str]) -> Iterator[Batch]:
        assert (world, tuple(fields)) == (World(), ("image", "label") if self.labels is not None else ("image",))
        num = len(self.images)
        slots = [*range(num), *(i % num for i in range(self.num_padded + self.num_wrapped))]
        for first in range(0, len(slots), 3):
            rows = slots[first : first + 3]
            valid = np.array([position < num + self.num_wrapped for position in range(first, first + len(rows))])
            label = None
            if self.labels is not None:
                label = np.where(valid, [self.labels[row] for row in rows], PAD_LABEL)
            yield Batch(
                image=[self.images[row] for row in rows],
                label=label,
                valid=valid,
                index=np.array(rows),
                id=[f"gallery-train.tfrecord-00000-of-00001__{row}" for row in rows],
            )


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


def save(tmp_path: Path, gallery: Gallery, title: str = "title") -> Image.Image:
    path = tmp_path / "sheet.png"
    save_contact_sheet(gallery, path, title)  # type: ignore[arg-type]
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
        (solid(200, 0, 0, 0), None),
        (solid(200, 0, 0, 51), (244, 204, 204)),
    ],
    ids=["RGB", "RGBA", "transparent", "half transparent"],
)
def test_an_image_is_shown_in_its_colours_on_white(
    tmp_path: Path, pixels: np.ndarray, color: tuple[int, ...] | None
) -> None:
    assert areas(save(tmp_path, Gallery([pixels]))) == ({} if color is None else {color: CELL**2})


@pytest.mark.parametrize(
    ("pixels", "value"),
    [(solid(77), 77), (solid(77, 255), 77), (solid(77, 0), 255)],
    ids=["L", "LA", "LA, transparent"],
)
def test_a_grey_image_is_shown_in_its_grey(tmp_path: Path, pixels: np.ndarray, value: int) -> None:
    sheet = save(tmp_path, Gallery([pixels]))
    colors = {color: number for number, color in sheet.getcolors(sheet.width * sheet.height) or ()}
    assert colors[(value,) * 3] >= CELL**2
    assert GREY not in colors  # The image fills its frame.
    assert value == 77 or colors.get((77,) * 3, 0) < 100  # A few in the letters.


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
    sheet = save(tmp_path, Gallery([solid(250, 0, 0, width=width, height=height)]))
    assert areas(sheet) == {(250, 0, 0): shown[0] * shown[1]}


def test_images_stand_in_the_order_of_reading(tmp_path: Path) -> None:
    sheet = save(tmp_path, Gallery([solid(250, 0, 6 * number) for number in range(40)]))
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
    sheet = save(tmp_path, Gallery([solid(250, 0, 2 * color) for color in range(number)]))
    assert sorted(areas(sheet)) == [(250, 0, 2 * color) for color in range(num_shown)]
    assert sheet.width == 2 * 24 + 8 * (CELL + 12) - 12
    one_row = save(tmp_path, Gallery([solid(1, 2, 3)]))
    assert (sheet.height - one_row.height) % (num_rows - 1 or 1) == 0
    assert (sheet.height > one_row.height) is (num_rows > 1)


def test_no_more_batches_are_read_than_are_shown(tmp_path: Path) -> None:
    class Endless(Gallery):
        def batches(self, world: World, fields: Sequence[str]) -> Iterator[Batch]:
            for number in count():
                for batch in super().batches(world, fields):
                    yield replace(batch, index=batch.index + 3 * number)

    assert areas(save(tmp_path, Endless([solid(250, 0, 0)] * 3))) == {(250, 0, 0): 40 * CELL**2}


def test_padding_is_not_shown(tmp_path: Path, written: list[tuple[str, float]]) -> None:
    gallery = Gallery([solid(250, 0, 0), solid(0, 250, 0)], labels=[4, 5], num_padded=5)
    assert areas(save(tmp_path, gallery)) == {(250, 0, 0): CELL**2, (0, 250, 0): CELL**2}
    assert [text for text, _ in written] == ["title", "4", "5"]


def test_an_example_that_fills_up_the_last_batch_again_is_shown_once(tmp_path: Path) -> None:
    """Training on a few examples: the batch is filled with the next pass."""
    gallery = Gallery([solid(250, 0, 0), solid(0, 250, 0)], num_wrapped=5)
    assert areas(save(tmp_path, gallery)) == {(250, 0, 0): CELL**2, (0, 250, 0): CELL**2}


def test_no_examples_are_said_to_be_none(tmp_path: Path, written: list[tuple[str, float]]) -> None:
    assert areas(save(tmp_path, Gallery([]))) == {}
    assert [text for text, _ in written] == ["title", "no examples"]


# Captions.


def test_a_caption_is_the_classs_name_or_the_label_or_the_id(tmp_path: Path, written: list[tuple[str, float]]) -> None:
    images = [solid(9, 9, 9)] * 4
    save(tmp_path, Gallery(images, labels=[1, 0, 2, -1], class_names=["cat", "dog"]))
    assert [text for text, _ in written] == ["title", "dog", "cat", "2", "-1"]
    written.clear()
    save(tmp_path, Gallery(images[:2], labels=[7, 0]))
    assert [text for text, _ in written] == ["title", "7", "0"]
    written.clear()
    save(tmp_path, Gallery(images[:1], class_names=["cat"]))
    ((_, _), (identity, _)) = written
    assert identity.startswith("gallery-train.")


CAPTIONS = {
    "cat": "cat",
    "[bold]cat[/]": "[bold]cat[/]",
    "\x1b[31mcat": r"\x1b[31mcat",
    "c\ra\tt\x00": r"c\ra\tt\x00",
    "\u202etac": r"\u202etac",
    "\udc80": r"\udc80",
    "猫": "猫",
    "кошка ñ": "кошка ñ",
    "קט": "קט",
    "": "",
    " ": " ",
}


@pytest.mark.parametrize("name", CAPTIONS, ids=ascii)
def test_a_name_is_drawn_without_its_control_characters(
    tmp_path: Path, written: list[tuple[str, float]], name: str
) -> None:
    save(tmp_path, Gallery([solid(9, 9, 9)], labels=[0], class_names=[name]), title=name)
    assert [text for text, _ in written] == [CAPTIONS[name]] * 2


def test_a_line_break_in_a_name_or_title_does_not_break_the_sheet(
    tmp_path: Path, written: list[tuple[str, float]]
) -> None:
    """TFDS takes a line break around the plus of a split."""
    save(tmp_path, Gallery([solid(9, 9, 9)], labels=[0], class_names=["c\nat"]), title="train\n+test")
    (title, _), (caption, _) = written
    assert (title[:5], title[-5:], caption[:1], caption[-2:]) == ("train", "+test", "c", "at")
    assert "\n" not in title + caption


@pytest.mark.parametrize("name", ["i" * 50, "word " * 99, "猫" * 10**5, "e\u0301\u0301" * 999])
def test_a_long_name_is_cut_to_its_cell(tmp_path: Path, written: list[tuple[str, float]], name: str) -> None:
    save(tmp_path, Gallery([solid(9, 9, 9)], labels=[0], class_names=[name]), title=name * 9)
    ((title, title_width), (caption, caption_width)) = written
    assert caption_width <= CELL
    assert title_width <= 8 * (CELL + 12) - 12
    for text in (title, caption):
        assert text.endswith("...")
        assert len(text) > len("...")
        assert (name * 9).startswith(text.removesuffix("..."))


def test_a_name_that_just_fits_is_whole(tmp_path: Path, written: list[tuple[str, float]]) -> None:
    for length in range(15, 60):
        written.clear()
        save(tmp_path, Gallery([solid(9, 9, 9)], labels=[0], class_names=["i" * length]))
        caption, width = written[1]
        if caption != "i" * length:
            break
        assert width <= CELL
    assert length > 20
    assert caption == "i" * (len(caption) - 3) + "..."


# The file.


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_a_file_that_is_not_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "sheet.png"
    path.write_bytes(b"old")

    def save_half(self: Image.Image, file: Any, *args: Any, **kwargs: Any) -> None:
        file.write(b"half")
        raise error

    def only_the_sheet(self: Image.Image, file: Any, *args: Any, **kwargs: Any) -> None:
        (save_half if self.width > CELL else save_whole)(self, file, *args, **kwargs)

    save_whole = Image.Image.save
    monkeypatch.setattr(Image.Image, "save", only_the_sheet)
    with pytest.raises((ConfigError, KeyboardInterrupt)):
        save_contact_sheet(Gallery([solid(1, 2, 3)]), path, "title")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["sheet.png"]
    assert path.read_bytes() == b"old"


def test_an_error_of_reading_leaves_the_old_file(tmp_path: Path) -> None:
    class Damaged(Gallery):
        def batches(self, world: World, fields: Sequence[str]) -> Iterator[Batch]:
            yield from super().batches(world, fields)
            raise CorruptRecordError("record 5")

    path = tmp_path / "sheet.png"
    path.write_bytes(b"old")
    with pytest.raises(CorruptRecordError):
        save_contact_sheet(Damaged([solid(1, 2, 3)]), path, "title")  # type: ignore[arg-type]
    assert (os.listdir(tmp_path), path.read_bytes()) == (["sheet.png"], b"old")


# What has no images.


def test_a_dataset_without_images_is_refused() -> None:
    check_has_images(Gallery([]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--images: gallery:1\.0\.0 has no image feature None"):
        check_has_images(replace(Gallery([]), image_key=None))  # type: ignore[arg-type]


def test_a_key_that_is_no_image_is_refused(digits: Path) -> None:
    check_has_images(ParserTfds(digits, "digits"))
    for key in (None, "label"):
        with pytest.raises(ConfigError):
            check_has_images(ParserTfds(digits, "digits", image_key=key))


def test_the_stand_in_offers_what_a_parser_offers(digits: Path) -> None:
    parser = ParserTfds(digits, "digits")
    assert all(hasattr(parser, name) for name in ("batches", "class_names", "dataset_name"))
    assert all(hasattr(parser.dataset, name) for name in ("has_field", "field", "image_key"))
    assert contact_sheet.DEFAULT_FIELDS == ("image", "label")
