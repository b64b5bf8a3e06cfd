"""A window of a JPEG has the pixels that the whole image has there, however little of the image is decoded for it."""

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import simplejpeg
from encoded_images import HAS_TURBOJPEG, JPEG_DECODERS, behind_start, jpeg_segment
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.images.decoders import pillow, turbojpeg
from tfds_torch.images.decoders import simplejpeg as decoder_of_simplejpeg
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import Header, read_header

HEIGHT, WIDTH = 397, 251
SIDES = st.integers(1, 140)
needs_turbojpeg = pytest.mark.skipif(not HAS_TURBOJPEG, reason="needs libturbojpeg 3")


def pixels(height: int = HEIGHT, width: int = WIDTH) -> NDArray[np.uint8]:
    """A picture of edges and noise: neighbouring rows differ, their colours, too."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 80, (height, width, 3))
    waves = np.stack([rows * 7 % 190, columns * 5 % 190, (rows + columns) * 11 % 190], -1)
    return np.clip(waves + noise, 0, 255).astype(np.uint8)


def by_simplejpeg(subsampling: str) -> Callable[[NDArray[np.uint8]], bytes]:
    return lambda picture: bytes(simplejpeg.encode_jpeg(picture, colorsubsampling=subsampling))


def by_pillow(**options: Any) -> Callable[[NDArray[np.uint8]], bytes]:
    def encode(picture: NDArray[np.uint8]) -> bytes:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", **options)
        return file.getvalue()

    return encode


def grey(picture: NDArray[np.uint8]) -> bytes:
    return bytes(simplejpeg.encode_jpeg(picture.mean(-1, keepdims=True).astype(np.uint8), colorspace="GRAY"))


def rotated(picture: NDArray[np.uint8]) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # The orientation, which nothing here looks at.
    return by_pillow(exif=exif)(picture)


ENCODERS: dict[str, Callable[[NDArray[np.uint8]], bytes]] = {
    **{name: by_simplejpeg(name) for name in ("444", "422", "420", "440", "411")},
    "grey": grey,
    "restart markers after rows": by_pillow(restart_marker_rows=1),
    "restart markers after blocks": by_pillow(restart_marker_blocks=3),
    "progressive": by_pillow(progressive=True),
    "progressive 422": by_pillow(progressive=True, subsampling=1),
    "progressive with restart markers": by_pillow(progressive=True, restart_marker_rows=1),
    "tables of its own": by_pillow(optimize=True, quality=30),
    "rotated by EXIF": rotated,
    "behind a comment": lambda picture: behind_start(grey(picture), jpeg_segment(0xFE, b"comment")),
}
IMAGES = {name: encode(pixels()) for name, encode in ENCODERS.items()}
OF_A_PIECE = {name for name in IMAGES if name.startswith("progressive")}


def whole_by_pillow(image: bytes, header: Header, mode: str, shrink: int) -> NDArray[np.uint8]:
    size = (-(-header.height // shrink), -(-header.width // shrink))
    return pillow.decode(image, header, mode, (slice(0, size[0]), slice(0, size[1])), shrink, None)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@hypothesis.given(
    height=SIDES,
    width=SIDES,
    name=st.sampled_from(sorted(ENCODERS)),
    mode=st.sampled_from(("RGB", "L", "RGBA")),
    shrink=st.sampled_from((1, 2, 4, 8)),
    part=st.tuples(*[st.floats(0, 1)] * 4),
)
@hypothesis.settings(max_examples=200)
def test_any_window_has_the_pixels_of_the_whole_image(
    height: int, width: int, name: str, mode: str, shrink: int, part: tuple[float, ...], jpeg_decoder: str
) -> None:
    image, decoder = ENCODERS[name](pixels(height, width)), ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
    header = decoder.read_header(image)
    shrink = shrink if header.is_shrinkable else 1
    whole = whole_by_pillow(image, header, mode, shrink)
    rows, columns = whole.shape[:2]
    top, left = int(part[0] * (rows - 1)), int(part[1] * (columns - 1))
    window = (top, left, 1 + int(part[2] * (rows - top - 1)), 1 + int(part[3] * (columns - left - 1)))
    found = decoder.decode(image, header, window, shrink)
    np.testing.assert_array_equal(found, whole[top : top + window[2], left : left + window[3]])


def wrong_windows(name: str, mode: str, shrink: int, jpeg_decoder: str) -> Iterator[tuple[object, ...]]:
    """Yields the windows that have other pixels than the whole image has there."""
    image, decoder = IMAGES[name], ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
    header = decoder.read_header(image)
    whole = whole_by_pillow(image, header, mode, shrink)
    height, width = whole.shape[:2]
    step = {1: 13, 2: 5, 4: 3, 8: 1}[shrink]  # None of them divides a block.
    for bottom in range(1, height + 1, step):
        top, left = bottom // 3, bottom % width // 2
        found = decoder.decode(image, header, (top, left, bottom - top, width - left), shrink)
        if not np.array_equal(found, whole[top:bottom, left:]):
            yield name, shrink, (top, left, bottom, width)
    for right in range(1, width + 1, step):
        top, left = right % height // 2, right * 2 // 3
        found = decoder.decode(image, header, (top, left, height - top, right - left), shrink)
        if not np.array_equal(found, whole[top:, left:right]):
            yield name, shrink, (top, left, height, right)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS[:2])
@pytest.mark.parametrize("mode", ["RGB", pytest.param("L", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["baseline", "progressive"])
def test_every_row_and_column_can_be_the_first_or_last(kind: str, mode: str, jpeg_decoder: str) -> None:
    names = [name for name in IMAGES if (name in OF_A_PIECE) == (kind == "progressive")]
    cases = itertools.product(names, (1, 2, 4, 8))
    wrong = [window for case in cases for window in wrong_windows(case[0], mode, case[1], jpeg_decoder)]
    assert not wrong, str(wrong)


@pytest.mark.parametrize("name", IMAGES)
def test_simplejpeg_leaves_out_rows_below(name: str) -> None:
    image = IMAGES[name]
    header = read_header(image)
    assert header is not None
    found = decoder_of_simplejpeg.decode(image, header, "RGB", (slice(0, 100), slice(0, WIDTH)), 1, None)
    assert found is not None
    assert found.shape == (100, WIDTH, 3)
    assert found.base is not None
    assert found.base.shape == ((HEIGHT if name in OF_A_PIECE else 116), WIDTH, 3)


@needs_turbojpeg
@pytest.mark.parametrize(
    ("name", "columns"),
    [("444", 8), ("grey", 8), ("440", 8), ("422", 16), ("420", 16), ("progressive", 16), ("411", 32)],
)
def test_turbojpeg_decodes_little_more_than_the_window(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[int, ...]] = []
    decode_to = turbojpeg.Handle.decode

    def decode_and_note(handle: turbojpeg.Handle, image: bytes, out: NDArray[np.uint8], mode: str) -> int:
        decoded.append(out.shape)
        return decode_to(handle, image, out, mode)

    monkeypatch.setattr(turbojpeg.Handle, "decode", decode_and_note)
    image = IMAGES[name]
    header = read_header(image)
    assert header is not None
    found = turbojpeg.decode(image, header, "RGB", (slice(200, 250), slice(101, 161)), 1, None)
    assert found is not None
    begin = (101 - 2) // columns * columns
    assert decoded == [(54, 163 - begin, 3)]


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("num_bytes", [-1, -2, -500])
def test_a_file_that_is_cut_is_an_error_wherever_the_window_lies(num_bytes: int, jpeg_decoder: str) -> None:
    image, decoder = IMAGES["420"][:num_bytes], ImageDecoder(jpeg_decoder=jpeg_decoder)
    for window in ((0, 0, 8, 8), (200, 100, 8, 8), (HEIGHT - 8, WIDTH - 8, 8, 8)):
        with pytest.raises(ImageDecodeError):
            decoder.decode(image, decoder.read_header(image), window)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
def test_what_follows_an_image_changes_nothing(jpeg_decoder: str) -> None:
    image, decoder = IMAGES["420"], ImageDecoder(jpeg_decoder=jpeg_decoder)
    whole = decoder.decode(image, decoder.read_header(image))
    longer = image + b"more"
    found = decoder.decode(longer, decoder.read_header(longer), (100, 100, 8, 8))
    np.testing.assert_array_equal(found, whole[100:108, 100:108])


@needs_turbojpeg
def test_an_image_after_a_flawed_one_is_decoded_by_turbojpeg_again() -> None:
    """After a warning, a handle of libjpeg-turbo 2.1.92 would call every image flawed."""
    image = IMAGES["420"]
    header = read_header(image)
    assert header is not None
    flawed = image[:300] + bytes(64) + image[364:]
    window = slice(0, HEIGHT), slice(0, WIDTH)
    assert turbojpeg.decode(flawed, header, "RGB", window, 1, None) is None
    assert turbojpeg.decode(image, header, "RGB", window, 1, None) is not None


def test_a_window_outside_is_an_error() -> None:
    image, decoder = IMAGES["420"], ImageDecoder("RGB")
    for window in [(0, 0, HEIGHT + 1, 8), (-1, 0, 8, 8), (0, 250, 8, 2), (390, 0, 8, 8)]:
        with pytest.raises(ValueError, match="is not inside an image of"):
            decoder.decode(image, decoder.read_header(image), window)
