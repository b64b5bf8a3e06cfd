"""Samples of 8 x 8 pixels with a member of every kind."""

import io
import json
from typing import Any

import numpy as np
from PIL import Image

SIDE, NUM_CLASSES = 8, 5
FIELDS = {
    "image": "jpg;png",
    "label": "cls",
    "text": "txt",
    "facts": "json",
    "vector": "npy",
    "mask": "seg.png",
    "raw": "bin",
}
CLASSES = [f"class {number}" for number in range(NUM_CLASSES)]


def pixels_of(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def sample_of(number: int) -> dict[str, Any]:
    return {
        "__key__": f"part/{number:04d}",
        "png": png(pixels_of(number)),
        "cls": b"%d\n" % (number % NUM_CLASSES),
        "txt": f"text {number} ä".encode(),
        "json": json.dumps({"number": number}).encode(),
        "npy": np.arange(number % 4, dtype=np.float32),
        "seg.png": png(pixels_of(number)),
        "bin": bytes([number]),
    }
