"""The limit decodes pieces as training and evaluation cut them."""

import io

import numpy as np
import pytest
from PIL import Image

from benchmarks.peers.decode_limit import _box


def jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "JPEG")
    return file.getvalue()


def test_pieces_of_training_lie_inside_and_differ() -> None:
    boxes = np.array([_box(jpeg(500, 375), "train") for _ in range(200)])
    top, left, height, width = boxes.T
    assert top.min() >= 0
    assert left.min() >= 0
    assert (top + height).max() <= 375
    assert (left + width).max() <= 500
    assert 0.2 < (height * width / (500 * 375)).mean() < 0.7
    assert len(np.unique(boxes, axis=0)) > 150


@pytest.mark.parametrize(("width", "height", "box"), [(500, 400, (25, 75, 350, 350)), (64, 80, (12, 4, 56, 56))])
def test_the_piece_of_an_evaluation_is_the_middle(width: int, height: int, box: tuple[int, ...]) -> None:
    assert _box(jpeg(width, height), "eval") == box
