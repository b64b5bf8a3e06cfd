"""ImageDecoder: kornia-rs and tensorflow decode the same pixels, and each only decodes what it is faster at."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from picture_fixtures import ENCODINGS, photograph, save
from PIL import Image

from tfds_torch.pipeline.columns import ImageColumn
from tfds_torch.pipeline.image_decoder import ImageDecoder
from tfds_torch.pipeline.image_headers import read_header
from tfds_torch.pipeline.tensorflow_runtime import load_tensorflow
from tfds_torch.runtime import fresh_process

SMALL = photograph("china", (40, 30))
PNG_NAMES = [name for name in ENCODINGS if name.startswith("png")]
MODES = (None, "L", "RGB", "RGBA")
OTHERS = {
    "large": save(photograph("china"), "PNG"),
    "gray": save(SMALL.convert("L"), "PNG"),
    "palette": save(Image.new("RGB", (8, 8), (9, 8, 7)).quantize(), "PNG"),
    "jpeg": save(SMALL, "JPEG"),
    "bmp": save(SMALL, "BMP"),
}

# Everything that needs tensorflow runs in one child.


def decode(images: Sequence[bytes], mode: str | None = "RGB", window: list[int] | None = None) -> Any:
    """Returns the images' pixels; in place of those of the first one that cannot be decoded, an error's type."""
    tf = load_tensorflow()
    headers = [header for image in images if (header := read_header(image))]
    windows = np.array([window or [0, 0, header.height, header.width] for header in headers], np.int64)
    decoded: list[Any] = []
    try:
        for pixels in ImageDecoder(tf, ImageColumn("image", mode)).decode(images, headers, windows, [1] * len(images)):
            decoded.append(pixels)
    except tf.errors.InvalidArgumentError as error:
        decoded.append(type(error).__name__)
    return decoded


def look() -> dict[Any, Any]:
    import kornia_rs.io as kornia
    from tensorflow.python.ops import gen_image_ops

    detours: list[int] = []
    sizes: list[tuple[int, int]] = []
    decode_png, convert = kornia.decode_image_png_u8, gen_image_ops.decode_and_crop_jpeg_eager_fallback

    def decode_png_and_note(image: bytes, size: tuple[int, int], mode: str) -> Any:
        sizes.append(size)
        return decode_png(image, size, mode)

    def convert_and_note(*arguments: Any, **keywords: Any) -> Any:
        detours.append(1)
        return convert(*arguments, **keywords)

    kornia.decode_image_png_u8 = decode_png_and_note
    gen_image_ops.decode_and_crop_jpeg_eager_fallback = convert_and_note

    def given_to_kornia(image: bytes, mode: str = "RGB") -> list[tuple[int, int]]:
        sizes.clear()
        decode([image], mode)
        return list(sizes)

    small, jpeg = save(SMALL, "PNG"), save(SMALL, "JPEG")
    seen: dict[Any, Any] = {
        "plain": {mode: given_to_kornia(save(SMALL.convert(mode), "PNG"), mode) for mode in MODES if mode},
        "others": {name: given_to_kornia(image) for name, image in OTHERS.items()},
        "window": decode([small], window=[3, 5, 7, 11])[0],
        "cut": decode([small[: len(small) // 2]]),
        "third of four": decode([small, jpeg, jpeg[:300], small]),
    }
    pixels = {(name, mode): decode([ENCODINGS[name](SMALL)], mode)[0] for name in PNG_NAMES for mode in MODES}
    sys.modules["kornia_rs.io"] = None  # type: ignore[assignment] (as if it was not installed)
    pixels_without = {(name, mode): decode([ENCODINGS[name](SMALL)], mode)[0] for name in PNG_NAMES for mode in MODES}
    return seen | {
        "detours": len(detours),
        "with": pixels,
        "without": pixels_without,
        "cut without": decode([small[:99]]),
    }


@pytest.fixture(scope="module")
def seen() -> dict[Any, Any]:
    return fresh_process.call(look)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PNG_NAMES)
def test_kornia_decodes_what_tensorflow_decodes(name: str, mode: str | None, seen: dict[Any, Any]) -> None:
    found: NDArray[np.uint8] = seen["with"][name, mode]
    np.testing.assert_array_equal(found, seen["without"][name, mode])


def test_kornia_decodes_small_png_images_that_need_no_conversion(seen: dict[Any, Any]) -> None:
    assert seen["plain"] == {mode: [(30, 40)] for mode in ("L", "RGB", "RGBA")}


@pytest.mark.parametrize("name", OTHERS)
def test_tensorflow_decodes_the_others(name: str, seen: dict[Any, Any]) -> None:
    assert seen["others"][name] == []


def test_of_a_small_png_image_the_window_is_cut_out(seen: dict[Any, Any]) -> None:
    np.testing.assert_array_equal(seen["window"], np.asarray(SMALL)[3:10, 5:16])
    assert seen["window"].flags["C_CONTIGUOUS"]


def test_tensorflow_says_what_is_wrong(seen: dict[Any, Any]) -> None:
    assert seen["cut"] == seen["cut without"] == ["InvalidArgumentError"]


def test_what_comes_before_a_damaged_image_is_decoded(seen: dict[Any, Any]) -> None:
    first, second, error = seen["third of four"]
    assert first.shape == second.shape == (30, 40, 3)
    assert error == "InvalidArgumentError"


def test_photographs_take_no_detour_through_python(seen: dict[Any, Any]) -> None:
    """Arguments that are not what tensorflow's fast path takes are converted first, which takes 100 us an image."""
    assert seen["detours"] == 0
