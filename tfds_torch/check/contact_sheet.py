"""A sheet of decoded images with their labels, so that a user sees what a model will see."""

import bisect
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from tfds_torch.check.reference import CheckedParser, datasets_of, holds_numbers
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import DEFAULT_FIELDS
from tfds_torch.plan.world import World
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.printable import printable

_NUM_COLUMNS, _NUM_ROWS = 8, 5
_CELL, _GAP, _MARGIN = 144, 12, 24
_CAPTION_SIZE, _TITLE_SIZE = 14, 22
_INK, _FAINT, _PAPER, _FRAME = "#1c1c1e", "#48484a", "#ffffff", "#f2f2f4"


@dataclass(frozen=True)
class Picture:
    """A decoded image of the dataset: RGB, at most 144 pixels a side, on white where it was transparent."""

    image: Image.Image
    caption: str

    @property
    def factor(self) -> int:
        """The factor by which a small image is enlarged, unsmoothed; 1 for others."""
        longest = max(self.image.size)
        return _CELL // longest if longest <= _CELL // 2 else 1


def save_contact_sheet(parser: CheckedParser, path: Path, title: str) -> None:
    """Writes a PNG with the first images of epoch 0, each with its class's name, its label or its id.

    Raises:
        ConfigError: the file cannot be written.
        TfdsTorchError: as reading raises it.
    """
    sheet = _draw(title, read_pictures(parser))
    try:
        file = io.BytesIO()
        sheet.save(file, "PNG")
        write_atomically(path, file.getvalue())
    except OSError as error:
        raise ConfigError(f"The contact sheet {path} cannot be written: {error}.") from None


def has_images(parser: CheckedParser) -> bool:
    """Whether the dataset has images to show."""
    if parser.dataset.image_key is None or not parser.dataset.has_field("image"):
        return False
    return not any(map(holds_numbers, datasets_of(parser).values()))


def check_has_images(parser: CheckedParser) -> None:
    """Raises ConfigError when the dataset has no images to show."""
    if not has_images(parser):
        raise ConfigError(
            f"--images: {parser.dataset_name} has no image feature {parser.dataset.image_key!r} (image_key, in a "
            f"config)."
        )


def read_pictures(parser: CheckedParser) -> list[Picture]:
    """Returns the first images of epoch 0, 40 at most."""
    return list(islice(_pictures(parser), _NUM_COLUMNS * _NUM_ROWS))


def _pictures(parser: CheckedParser) -> Iterator[Picture]:
    names = parser.class_names
    fields = tuple(filter(parser.dataset.has_field, DEFAULT_FIELDS))
    shown: set[int] = set()  # The last batch may be filled up with examples that are on the sheet already.
    for batch in parser.batches(World(), fields=fields):
        for i, pixels in enumerate(batch.image or ()):
            index = int(batch.index[i])
            if not batch.valid[i] or index in shown:
                continue
            shown.add(index)
            label = None if batch.label is None else int(batch.label[i])
            known = names is not None and label is not None and 0 <= label < len(names)
            caption = names[label] if known else batch.id[i] if label is None else str(label)  # type: ignore[index]
            yield Picture(_fit(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)), caption)


def _fit(image: Image.Image) -> Image.Image:
    """Returns the image as RGB, no larger than a cell."""
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, _PAPER)
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    image = image.convert("RGB")
    scale = min(1.0, _CELL / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def _draw(title: str, pictures: list[Picture]) -> Image.Image:
    num_rows = -(-len(pictures) // _NUM_COLUMNS) or 1
    line = _CAPTION_SIZE + 10
    width = 2 * _MARGIN + _NUM_COLUMNS * (_CELL + _GAP) - _GAP
    top = _MARGIN + _TITLE_SIZE + 18
    height = top + num_rows * (_CELL + line + _GAP) - _GAP + _MARGIN
    sheet = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    heading = _shorten(pen, printable(title), _font(_TITLE_SIZE), width - 2 * _MARGIN)
    pen.text((_MARGIN, _MARGIN), heading, fill=_INK, font=_font(_TITLE_SIZE))
    if not pictures:
        pen.text((_MARGIN, top), "no examples", fill=_FAINT, font=_font(_CAPTION_SIZE))
    for number, picture in enumerate(pictures):
        size = (picture.image.width * picture.factor, picture.image.height * picture.factor)
        image = picture.image.resize(size, Image.Resampling.NEAREST)
        row, column = divmod(number, _NUM_COLUMNS)
        x, y = _MARGIN + column * (_CELL + _GAP), top + row * (_CELL + line + _GAP)
        pen.rectangle((x, y, x + _CELL - 1, y + _CELL - 1), fill=_FRAME)
        sheet.paste(image, (x + (_CELL - image.width) // 2, y + (_CELL - image.height) // 2))
        text = _shorten(pen, printable(picture.caption), _font(_CAPTION_SIZE), _CELL)
        pen.text((x + _CELL / 2, y + _CELL + 5), text, fill=_FAINT, font=_font(_CAPTION_SIZE), anchor="ma")
    return sheet


def _shorten(pen: ImageDraw.ImageDraw, text: str, font: Any, width: int) -> str:
    """Returns the text, cut and ended by three dots where it is wider than `width` pixels."""
    text = " ".join(text[:width].splitlines())  # A letter is wider than a pixel.
    if pen.textlength(text, font=font) <= width:
        return text
    lengths = range(1, len(text))
    length = bisect.bisect_right(lengths, width, key=lambda some: ceil(pen.textlength(f"{text[:some]}...", font=font)))
    return f"{text[:length]}..."


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
