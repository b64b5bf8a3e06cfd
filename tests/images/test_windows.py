"""Of a JPEG whose last rows are not needed only the first ones are decoded; not a pixel is another one for it."""

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tfds_torch.images.decoders import simplejpeg as decoder_of_simplejpeg
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import read_header

HEIGHT, WIDTH = 397, 251


def pixels(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A picture of edges and noise: neighbouring rows differ, their colours, too."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 80, (height, width, 3))
    waves = np.stack([rows * 7 % 190, columns * 5 % 190, (rows + columns) * 11 % 190], -1)
    return np.clip(waves + noise, 0, 255).astype(np.uint8)


def by_pillow(**options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels()).save(file, "JPEG", **options)
    return file.getvalue()


IMAGES = {
    **{name: simplejpeg.encode_jpeg(pixels(), colorsubsampling=name) for name in ("444", "422", "420", "440", "411")},
    "grey": simplejpeg.encode_jpeg(pixels().mean(-1, keepdims=True).astype(np.uint8), colorspace="GRAY"),
    "restart markers": by_pillow(restart_marker_rows=1),
    "one scan for each component": by_pillow(progressive=True),
    "keeps its tables": by_pillow(optimize=True, quality=30),
}
OF_A_PIECE = {"one scan for each component"}


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", IMAGES)
def test_a_window_has_the_pixels_that_it_has_in_the_whole_image(name: str, mode: str, shrink: int) -> None:
    image, decoder = IMAGES[name], ImageDecoder(mode)
    header = decoder.read_header(image)
    whole = decoder.decode(image, header, None, shrink)
    height, width = whole.shape[:2]
    assert height > 1
    for bottom in range(1, height + 1, 1 if shrink > 1 else 3):
        top = bottom // 3
        found = decoder.decode(image, header, (top, 1, bottom - top, width - 1), shrink)
        np.testing.assert_array_equal(found, whole[top:bottom, 1:])


@pytest.mark.parametrize("name", IMAGES)
def test_rows_that_are_not_needed_are_left_out(name: str) -> None:
    image = IMAGES[name]
    header = read_header(image)
    assert header is not None
    found = decoder_of_simplejpeg.decode(image, header, "RGB", (0, 0, 100, WIDTH), 1, None)
    assert found is not None
    assert found.shape == (100, WIDTH, 3)
    assert found.base is not None
    assert found.base.shape == ((HEIGHT if name in OF_A_PIECE else 116), WIDTH, 3)


@pytest.mark.parametrize("num_bytes", [-1, -2, -500])
def test_a_file_that_is_cut_is_an_error_wherever_the_window_lies(num_bytes: int) -> None:
    image, decoder = IMAGES["420"][:num_bytes], ImageDecoder("RGB")
    with pytest.raises(ImageDecodeError):
        decoder.decode(image, decoder.read_header(image), (0, 0, 8, 8))


def test_what_follows_an_image_changes_nothing() -> None:
    image, decoder = IMAGES["420"], ImageDecoder("RGB")
    whole = decoder.decode(image, decoder.read_header(image))
    longer = image + b"more"
    np.testing.assert_array_equal(decoder.decode(longer, decoder.read_header(longer), (0, 0, 8, 8)), whole[:8, :8])


def test_a_window_outside_is_an_error() -> None:
    image, decoder = IMAGES["420"], ImageDecoder("RGB")
    for window in [(0, 0, HEIGHT + 1, 8), (-1, 0, 8, 8), (0, 250, 8, 2), (390, 0, 8, 8)]:
        with pytest.raises(ValueError, match="is not inside an image of"):
            decoder.decode(image, decoder.read_header(image), window)
