"""Pictures of a report: decoded images with their labels, the order in which examples came, shares, labels."""

import base64
import bisect
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tfds_torch.check.reference import datasets_of
from tfds_torch.check.report import Picture
from tfds_torch.check.shares import MemberCounts, draw_independently, expected_counts
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import DEFAULT_FIELDS
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.mixed import Mixed
from tfds_torch.plan.world import World
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.printable import printable

_NUM_COLUMNS, _NUM_ROWS = 8, 5
_CELL, _GAP, _MARGIN = 144, 12, 24
_CAPTION_SIZE, _TITLE_SIZE = 14, 22
_INK, _FAINT, _PAPER, _FRAME = "#1c1c1e", "#48484a", "#ffffff", "#f2f2f4"
_MOST_OF_NAME = 80  # Characters.
_NUM_POINTS = 2_000
_MOST_DRAWN = 8  # Members.
_MOST_STEPS = 50
_FEWEST_TO_CORRELATE = 3
_SVG = Markup(
    '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}"><path d="{}"/></svg>'
)

Int64Array = NDArray[np.int64]


# Images


@dataclass(frozen=True)
class Sample:
    """A decoded image of the dataset: RGB, at most 144 pixels a side, on white where it was transparent."""

    image: Image.Image
    caption: str

    @property
    def factor(self) -> int:
        """The factor by which a small image is enlarged, unsmoothed; 1 for others."""
        longest = max(self.image.size)
        return _CELL // longest if longest <= _CELL // 2 else 1


def save_contact_sheet(parser: DatasetParser, path: Path, title: str) -> None:
    """Write a PNG with the first images of epoch 0, each with its class's name, its label or its id.

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


def has_images(parser: DatasetParser) -> bool:
    """Return whether the dataset has images to show."""
    if parser.dataset.image_key is None or not parser.dataset.has_field("image"):
        return False
    return not any(one.has_image_numbers for one in datasets_of(parser).values())


def check_has_images(parser: DatasetParser) -> None:
    """Raise ConfigError when the dataset has no images to show."""
    if not has_images(parser):
        raise ConfigError(
            f"--images: {parser.dataset_name} has no image feature {parser.dataset.image_key!r} (image_key, in a "
            f"config)."
        )


def read_pictures(parser: DatasetParser) -> list[Sample]:
    """Return the first images of epoch 0 as they are stored, 40 at most."""
    return list(islice(_pictures(parser.as_stored()), _NUM_COLUMNS * _NUM_ROWS))


def _pictures(parser: DatasetParser) -> Iterator[Sample]:
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
            yield Sample(_fit(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)), caption)


def _fit(image: Image.Image) -> Image.Image:
    """Return the image as RGB, no larger than a cell."""
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, _PAPER)
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    image = image.convert("RGB")
    scale = min(1.0, _CELL / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def _draw(title: str, pictures: list[Sample]) -> Image.Image:
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
    """Return the text, cut and ended by three dots where it is wider than `width` pixels."""
    text = " ".join(text[:width].splitlines())  # A letter is wider than a pixel.
    if pen.textlength(text, font=font) <= width:
        return text
    lengths = range(1, len(text))
    length = bisect.bisect_right(lengths, width, key=lambda some: ceil(pen.textlength(f"{text[:some]}...", font=font)))
    return f"{text[:length]}..."


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def picture_of(sample: Sample) -> Picture:
    """Return an image as a picture that holds it: a small one exactly, another one as JPEG."""
    file, is_small = io.BytesIO(), sample.factor > 1
    kind = "png" if is_small else "jpeg"
    sample.image.save(file, kind, **({"optimize": True} if is_small else {"quality": 85}))
    # Markup, which is put into the page as it is, however long.
    uri = Markup("data:image/{};base64,{}").format(kind, base64.b64encode(file.getvalue()).decode())
    return Picture(cut(sample.caption), uri=uri, is_enlarged=is_small)


def cut(name: str) -> str:
    """Return a name of at most 80 characters."""
    return name if len(name) <= _MOST_OF_NAME else f"{name[:_MOST_OF_NAME]}…"


# The order


class OrderSample:
    """Which examples came at some positions of the first pass of epoch 0, over all ranks.

    The batches of all ranks stand in the order of training: batch 0 of every rank, then batch 1.

    Args:
        plan: of epoch 0; its seed chooses the positions.
        num_points: positions at most; each of so many equal stretches of the pass has one, drawn at random.
    """

    def __init__(self, plan: EpochPlan, num_points: int = _NUM_POINTS) -> None:
        self._plan = plan
        self.num_positions = min(plan.order.num_slots, plan.num_batches * plan.global_batch_size)
        num_points = min(num_points, self.num_positions)
        starts = np.arange(num_points + 1) * self.num_positions // max(1, num_points)
        self._positions = np.random.default_rng(plan.seed).integers(starts[:-1], starts[1:])
        self._indices = np.full(num_points, -1, np.int64)
        self._num_batches: Counter[int] = Counter()

    def add(self, rank: int, index: Int64Array) -> None:
        """Take the indices, int64 [n], of a rank's next batch."""
        first = self._num_batches[rank] * self._plan.global_batch_size + rank * self._plan.batch_size
        self._num_batches[rank] += 1
        stop = first + min(len(index), self._plan.batch_size)
        begin, end = np.searchsorted(self._positions, [first, stop])
        self._indices[begin:end] = index[self._positions[begin:end] - first]

    @property
    def came(self) -> tuple[Int64Array, Int64Array]:
        """Positions and the indices that came there, int64 [n] each; examples that have not come are not among them."""
        has_come = self._indices >= 0
        return self._positions[has_come], self._indices[has_come]


def draw_order(order: OrderSample, num_examples: int, mode: str) -> Picture:
    """Return a dot for each example that came: to the right its position in the epoch, upwards its index."""
    positions, indices = order.came
    x, y = positions / order.num_positions, indices / num_examples
    places = np.stack([x * 1000, 1000 - y * 1000], axis=1).round().astype(int).tolist()
    # A line of no length with round ends is a dot.
    path = "".join(f"M{left} {down}h0" for left, down in places)
    caption = f"What was delivered, in read mode {mode}."
    if len(positions) >= _FEWEST_TO_CORRELATE and np.ptp(indices):
        caption += f" Correlation of position and index: {np.corrcoef(positions, indices)[0, 1]:.2f}."
    return Picture(caption, _SVG.format("dots", 1000, 1000, "position in the epoch and index in the dataset", path))


# Labels and shares


def draw_bar(share: float, label: str) -> Markup:
    """Return a bar that lies on its side, `share` of the whole width long, 0 to 1."""
    length = max(3, round(1000 * share)) if share else 0
    return _SVG.format("bar", 1000, 1, printable(label), f"M0 0H{length}V1H0z")


def draw_profile(values: Sequence[int], caption: str) -> Picture:
    """Return a column for each value, the largest as high as the drawing."""
    most = max(1, *values)
    shares = [max(3, round(1000 * value / most)) if value else 0 for value in values]
    path = "".join(f"V{1000 - share}h1" for share in shares)
    return Picture(caption, _SVG.format("profile", len(values), 1000, caption, f"M0 1000{path}V1000z"))


def chip(number: int, name: str) -> Markup:
    """Return the name of a member of this number, beside its colour in the pictures of shares."""
    return Markup('<i class="chip m{}"></i> {}').format(min(number, _MOST_DRAWN - 1), printable(cut(name)))


def draw_shares(order: Mixed, members: MemberCounts, seed: int) -> list[Picture]:
    """Return the shares that came in epoch 0, and those of members drawn at random, which many loaders do."""
    steps = -(-members.num_windows // _MOST_STEPS)
    firsts = np.arange(0, members.num_windows, steps)
    ends = members.ends[np.minimum(firsts + steps, members.num_windows) - 1]
    came = np.add.reduceat(members.windows(0), firsts, axis=0)
    drawn = draw_independently(order, ends.tolist(), seed)
    found = []
    for title, windows, said in (
        ("This run", came, "What came in epoch 0"),
        ("Members drawn at random", drawn, "Simulated: each example's member is drawn by the weights"),
    ):
        off = float(np.abs(np.cumsum(windows, axis=0) - expected_counts(order, ends)[0]).max())
        caption = f"{said}. Farthest from n x weight: {off:.2f} examples."
        found.append(Picture(caption, _draw_areas(windows, ends, title), title))
    return found


def _draw_areas(windows: Int64Array, ends: Int64Array, title: str) -> Markup:
    """Return a band for each member, as broad as its share of each window; of many members the last ones together."""
    drawn = windows[:, :_MOST_DRAWN].copy()
    drawn[:, -1] += windows[:, _MOST_DRAWN:].sum(axis=1)
    shares = np.cumsum(drawn, axis=1) / np.maximum(1, drawn.sum(axis=1, keepdims=True))
    tops = (1000 - 1000 * np.hstack([np.zeros((len(shares), 1)), shares])).round().astype(int)
    places = (1000 * np.array([0, *ends.tolist()]) / max(1, int(ends[-1]))).round().astype(int).tolist()
    bands = Markup("")
    for number in range(drawn.shape[1]):
        there = "".join(f"V{top}H{stop}" for top, stop in zip(tops[:, number + 1].tolist(), places[1:], strict=True))
        back = "".join(
            f"V{bottom}H{start}" for bottom, start in zip(tops[::-1, number].tolist(), places[-2::-1], strict=True)
        )
        bands += Markup('<path class="m{}" d="M0 {}{}{}z"/>').format(number, tops[0, number], there, back)
    return Markup(
        '<svg class="shares" viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        'aria-label="shares of the members over epoch 0: {}">{}</svg>'
    ).format(title, bands)
