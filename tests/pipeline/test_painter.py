"""ImagePainter: every image comes into its row, whoever draws it and when; what cannot be drawn is refused."""

import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from picture_fixtures import decode, save
from PIL import Image

from tfds_torch import EvalPreprocess
from tfds_torch.errors import CorruptRecordError
from tfds_torch.pipeline.canvas import ArrayCanvas
from tfds_torch.pipeline.columns import ImageColumn
from tfds_torch.pipeline.painter import ImagePainter, cut_alike
from tfds_torch.pipeline.placement import place_windows

NUM_EXAMPLES, BATCH_SIZE, SIDE = 26, 7, 5


class RecordingClock:
    def __init__(self) -> None:
        self.added: list[tuple[str, float]] = []

    def add(self, stage: str, seconds: float) -> None:
        self.added.append((stage, seconds))


class DamagedError(Exception):
    """Stands for tensorflow's InvalidArgumentError."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def decode_png(contents: bytes, channels: int) -> Any:
    """Stands for tensorflow's decoder: Pillow's."""
    try:
        pixels = np.array(decode(contents))
    except OSError as error:
        raise DamagedError(f"{error}\nin the graph") from None
    return SimpleNamespace(_numpy=lambda: pixels)


TF: Any = SimpleNamespace(
    constant=lambda value: value,
    raw_ops=SimpleNamespace(DecodePng=decode_png),
    errors=SimpleNamespace(InvalidArgumentError=DamagedError),
)


@pytest.fixture(autouse=True)
def without_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves every image to what stands for tensorflow."""
    monkeypatch.setitem(sys.modules, "kornia_rs.io", None)


def make_painter(preprocess: Any = None, **changes: Any) -> ImagePainter:
    arguments: dict[str, Any] = {
        "seed": 1,
        "num_examples": NUM_EXAMPLES,
        "batch_size": BATCH_SIZE,
        "num_rows": NUM_EXAMPLES,
        "make_canvas": ArrayCanvas,
        "refuse": lambda index, reason: CorruptRecordError(f"example {index}: {reason}"),
        "clock": None,
    }
    painter = ImagePainter(
        ImageColumn("image"), preprocess or EvalPreprocess(size=SIDE, crop_pct=1.0), **arguments | changes
    )
    painter.start(TF)
    return painter


def flat(level: int, file_format: str = "PNG") -> bytes:
    """Returns an encoded image of one grey level."""
    return save(Image.new("RGB", (9, 8), (level,) * 3), file_format)


def objects(images: list[bytes]) -> np.ndarray:
    array = np.empty(len(images), object)
    array[:] = images
    return array


def paint(painter: ImagePainter, first_row: int, levels: range) -> None:
    painter.paint(first_row, np.array(levels), objects(list(map(flat, levels))))


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 10, 26])
def test_chunks_of_any_size_fill_the_rows_of_their_batches(chunk_size: int) -> None:
    painter = make_painter()
    for first in range(0, NUM_EXAMPLES, chunk_size):
        paint(painter, first, range(first, min(first + chunk_size, NUM_EXAMPLES)))
    assert_batches(painter)


def assert_batches(painter: ImagePainter) -> None:
    for number, size in enumerate((7, 7, 7, 5)):
        images = painter.take_canvas(number)
        assert images.shape == (size, SIDE, SIDE, 3)
        for row in range(size):
            assert (images[row] == number * BATCH_SIZE + row).all()


def test_chunks_may_be_drawn_in_any_order_by_any_thread() -> None:
    for attempt in range(5):
        painter, firsts = make_painter(), list(range(0, NUM_EXAMPLES, 3))
        random.Random(attempt).shuffle(firsts)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda first: paint(painter, first, range(first, min(first + 3, NUM_EXAMPLES))), firsts))  # noqa: B023
        assert_batches(painter)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "example 1: It is empty."),
    "garbage": (b"garbage", "example 1: Its 7 bytes are no whole JPEG, PNG, GIF or BMP image."),
    "cut": (flat(1)[:-40], "example 1: tensorflow says: "),
    "too large": (
        save(Image.new("RGB", (9, 9)), "PNG"),
        "example 1: It has 9 x 9 pixels, and at most 72 are allowed: set max_pixels of the preprocess if it is no "
        "mistake.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_drawn_is_refused_with_its_index(case: str) -> None:
    image, message = BAD[case]
    painter = make_painter(EvalPreprocess(size=SIDE, max_pixels=72))
    # In the third pass.
    occurrences = np.array([0, 1]) + 3 * NUM_EXAMPLES
    with pytest.raises(CorruptRecordError, match=re.escape(message)) as refused:
        painter.paint(0, occurrences, objects([flat(1), image]))
    assert "in the graph" not in str(refused.value)


def test_times_are_reported_once_for_a_chunk() -> None:
    clock = RecordingClock()
    painter = make_painter(clock=clock)
    paint(painter, 0, range(3))
    paint(painter, 3, range(3, 8))
    assert [stage for stage, _ in clock.added] == ["decode", "decode"]
    assert all(seconds > 0 for _, seconds in clock.added)


def test_others_are_cut_out_once_and_must_have_the_size_of_the_image() -> None:
    painter = make_painter(EvalPreprocess(size=SIDE, also=("mask",)))
    paint(painter, 0, range(2))
    masks = [np.full((8, 9, 1), 3, np.uint8)] * 2
    cut = painter.cut_others(0, {"mask": masks, "depth": [mask.astype(np.uint16) for mask in masks]})
    assert [mask.shape for mask in cut["mask"]] == [(SIDE, SIDE, 1)] * 2
    assert cut["depth"][0].dtype == np.uint16
    paint(painter, 2, range(2, 4))
    with pytest.raises(CorruptRecordError, match="example 3: Its 'mask' has 9 x 8 pixels, and its image 8 x 9: what"):
        painter.cut_others(2, {"mask": [masks[0], masks[0].transpose(1, 0, 2)]})


def test_nothing_is_kept_of_what_was_taken() -> None:
    painter = make_painter()
    paint(painter, 0, range(NUM_EXAMPLES))
    assert_batches(painter)
    assert not painter._chunks
    assert not painter._canvases
    with pytest.raises(KeyError):
        painter.take_canvas(0)


def test_what_a_mask_lacks_is_padded_with_nothing() -> None:
    mask = np.arange(1, 7, dtype=np.uint8).reshape(2, 3, 1)
    for flip in (False, True):
        placements = place_windows(np.array([(2, 3)]), np.array([(-1, -2)]), (4, 6), np.array([flip]))
        (cut,) = cut_alike([mask], placements, (4, 6))
        wanted = np.zeros((4, 6), np.uint8)
        wanted[1:3, 2:5] = mask[..., 0]
        np.testing.assert_array_equal(cut[..., 0], wanted[:, ::-1] if flip else wanted)
