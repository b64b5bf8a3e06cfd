"""Photographs written as a `.beton` file: by this package's export, and by FFCV's own writer.

Ours reads the dataset's TFRecord files; FFCV's reads tar files of the same JPEG files, which Pillow decodes, because
its writer takes no encoded images. Both write with all cores, `image` and `label`, in pages of the default size.
"""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import beton

MODES = ("passthrough", "raw")
"""As JPEG: we keep the bytes, FFCV encodes again; and as pixels."""

Write = Callable[[str, str, str, int], float]


def export(source: str, target: str, mode: str, num_examples: int) -> float:
    """Writes the first photographs of a data dir with this package, and returns how long it took, seconds."""
    from tfds_torch import ParserTfds, export_dataset

    parser = ParserTfds(source, "photos", f"train[:{num_examples}]")
    began_s = time.perf_counter()
    export_dataset(parser, target, format="beton", fields={"image": mode, "file_name": None}, overwrite=True)
    return time.perf_counter() - began_s


def write_with_ffcv(source: str, target: str, mode: str, num_examples: int) -> float:
    """Writes the first photographs of a folder of tar files with FFCV, and returns how long it took, seconds.

    Raises:
        ConfigError: FFCV is not there, or cannot be loaded.
    """
    beton.load_writer()
    images = beton.DecodedImages(source)
    began_s = time.perf_counter()
    beton.write_images(images, Path(target), "raw" if mode == "raw" else "jpg", num_examples)
    return time.perf_counter() - began_s
