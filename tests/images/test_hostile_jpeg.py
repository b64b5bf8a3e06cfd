"""JPEG that is flipped, lies, lacks scans or is of a rare kind: Pillow's pixels or an error, whatever decodes."""

import ctypes
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython
from encoded_images import (
    HAS_TURBOJPEG,
    JPEG_DECODERS,
    decode,
    encoded_images,
    first_scans,
    jpeg_segment,
    photograph,
    pillow_pixels,
    save,
)
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.decoders import turbojpeg
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.preprocess import EvalPreprocess
from tfds_torch.images.transform import BufferRows, ImageTransform

ARITHMETIC, LOSSLESS, QUALITY, SUBSAMPLING = 14, 15, 3, 4  # Parameters of libturbojpeg's compressor.

FLIPS = """
import json, random, sys
import numpy as np
from encoded_images import photograph, save
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder

jpeg_decoder, seed, num_flips = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
decoder, by_pillow = (ImageDecoder(jpeg_decoder=name, max_pixels=100_000) for name in (jpeg_decoder, "pillow"))
photo = photograph((90, 70))
kinds = ({}, {"progressive": True}, {"subsampling": 0}, {"quality": 20})
images = [save(photo, "JPEG", **options) for options in kinds]
rng = random.Random(seed)
counts = {"errors": 0, "equal": 0, "beyond": 0}
for _ in range(num_flips):
    image = bytearray(rng.choice(images))
    for _ in range(rng.choice((1, 1, 2, 5))):
        image[rng.randrange(len(image))] ^= 1 << rng.randrange(8)
    image = bytes(image)
    try:
        header = decoder.read_header(image)
        top, left = rng.randrange(header.height), rng.randrange(header.width)
        window = (top, left, rng.randrange(header.height - top) + 1, rng.randrange(header.width - left) + 1)
        found = decoder.decode(image, header, window)
    except ImageDecodeError:
        counts["errors"] += 1
        continue
    try:
        whole = by_pillow.decode(image, header)
    except ImageDecodeError:
        counts["beyond"] += 1  # It is damaged where the window does not reach.
        continue
    np.testing.assert_array_equal(found, whole[top : top + window[2], left : left + window[3]])
    counts["equal"] += 1
print(json.dumps(counts))
"""


FLIPS_AFTER_WHOLE_ONES = """
import json, random, sys
import numpy as np
from encoded_images import photograph, save
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder

jpeg_decoder, seed, num_flips = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
decoder, by_pillow = (ImageDecoder(jpeg_decoder=name, max_pixels=100_000) for name in (jpeg_decoder, "pillow"))
kinds = ({}, {"subsampling": 0}, {"restart_marker_rows": 1})
images = [save(photograph((90, 70)), "JPEG", **options) for options in kinds]
rng = random.Random(seed)
counts = {"errors": 0, "equal": 0, "beyond": 0}
for _ in range(num_flips):
    whole = rng.choice(images)
    header = decoder.read_header(whole)
    num_bytes = header.height * header.width * 3
    memory = np.full(num_bytes + 100_000, 77, np.uint8)
    out = memory[:num_bytes].reshape(header.height, header.width, 3)
    decoder.decode_into(whole, header, out)
    image = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5))):
        image[rng.randrange(len(image))] ^= 1 << rng.randrange(8)
    image = bytes(image)
    try:
        header = decoder.read_header(image)
        decoder.decode_into(image, header, out)
    except ImageDecodeError:
        counts["errors"] += 1
    else:
        try:
            np.testing.assert_array_equal(out, by_pillow.decode(image, header))
            counts["equal"] += 1
        except ImageDecodeError:
            counts["beyond"] += 1  # It is damaged behind its last pixel.
    assert (memory[num_bytes:] == 77).all(), "written beyond the image"
print(json.dumps(counts))
"""


MANY = pytest.param(10_000, marks=pytest.mark.slow)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS[:2])
@pytest.mark.parametrize("num_flips", [2000, MANY])
def test_flips_of_an_image_that_was_decoded_before_are_errors_or_pillows_pixels(
    num_flips: int, jpeg_decoder: str, run_python: RunPython
) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ended = run_python("-c", FLIPS_AFTER_WHOLE_ONES, jpeg_decoder, "8", str(num_flips), env={"PYTHONPATH": path})
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout)
    assert min(counts["errors"], counts["equal"]) > num_flips // 50, counts


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS[:2])
@pytest.mark.parametrize("num_flips", [3000, MANY])
def test_flipped_bits_are_errors_or_pillows_pixels(num_flips: int, jpeg_decoder: str, run_python: RunPython) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ended = run_python("-c", FLIPS, jpeg_decoder, "7", str(num_flips), env={"PYTHONPATH": path})
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout)
    assert sum(counts.values()) == num_flips
    assert min(counts["errors"], counts["equal"]) > num_flips // 50, counts


def compressed(pixels: NDArray[np.uint8], parameter: int) -> bytes:
    """Returns a JPEG as libturbojpeg writes it with a parameter on; skips where there is none that does."""
    if not HAS_TURBOJPEG:
        pytest.skip("needs libturbojpeg 3")
    found = turbojpeg.find().library
    assert found is not None
    functions = found.functions
    functions.tj3Compress8.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        *[ctypes.c_int] * 4,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    handle = functions.tj3Init(0)
    for name, value in ((SUBSAMPLING, 0), (QUALITY, 80), (parameter, 1)):
        if functions.tj3Set(handle, name, value):
            pytest.skip("this library does not write them")
    memory, size = ctypes.c_void_p(), ctypes.c_size_t()
    height, width = pixels.shape[:2]
    failed = functions.tj3Compress8(
        handle, pixels.ctypes.data, width, 0, height, 0, ctypes.byref(memory), ctypes.byref(size)
    )
    assert not failed
    image = ctypes.string_at(memory.value or 0, size.value)
    functions.tj3Free.argtypes = [ctypes.c_void_p]
    functions.tj3Free(memory)
    functions.tj3Destroy(handle)
    return image


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("parameter", [ARITHMETIC, LOSSLESS], ids=["arithmetic", "lossless"])
def test_rare_kinds_are_errors_or_pillows_pixels(parameter: int, jpeg_decoder: str) -> None:
    image = compressed(np.ascontiguousarray(np.asarray(photograph())), parameter)
    try:
        expected = pillow_pixels(image, "RGB")
    except OSError:
        with pytest.raises(ImageDecodeError):
            decode(image, jpeg_decoder=jpeg_decoder)
        return
    np.testing.assert_array_equal(decode(image, jpeg_decoder=jpeg_decoder), expected)
    decoder = ImageDecoder(jpeg_decoder=jpeg_decoder)
    found = decoder.decode(image, decoder.read_header(image), (11, 20, 9, 17))
    np.testing.assert_array_equal(found, expected[11:20, 20:37])


def check_windows(image: bytes, jpeg_decoder: str) -> None:
    """Compares an image and some windows of it with Pillow's, in every mode and at every scale."""
    for mode, shrink in (("RGB", 1), ("RGBA", 1), ("L", 1), ("RGB", 2), ("L", 4), ("RGB", 8)):
        file: Image.Image = Image.open(io.BytesIO(image))
        file.draft(None, (file.width // shrink, file.height // shrink))
        wanted = np.asarray(file.convert(mode)).reshape(file.height, file.width, -1)
        decoder = ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
        header = decoder.read_header(image)
        np.testing.assert_array_equal(decoder.decode(image, header, shrink=shrink), wanted)
        height, width = wanted.shape[0] // 3, wanted.shape[1] // 3
        for top, left in ((0, 0), (height // 2, width + 3), (height * 2, width // 2)):
            found = decoder.decode(image, header, (top, left, height, width), shrink)
            np.testing.assert_array_equal(found, wanted[top : top + height, left : left + width])


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("subsampling", [0, 1, 2, None], ids=["444", "422", "420", "grey"])
def test_progressive_files_without_their_last_scans_have_pillows_pixels(
    subsampling: int | None, jpeg_decoder: str
) -> None:
    """They are well-formed, and no decoder warns: libjpeg-turbo smooths what is missing, windows otherwise."""
    photo = photograph((180, 130))
    options = {} if subsampling is None else {"subsampling": subsampling}
    photo = photo.convert("L") if subsampling is None else photo
    image = save(photo, "JPEG", quality=90, progressive=True, **options)
    for num_scans in range(1, image.count(b"\xff\xda") + 1):
        check_windows(first_scans(image, num_scans), jpeg_decoder)


def of_separate_scans(pixels: Image.Image, components: str) -> bytes:
    """Returns a baseline JPEG with a scan for each component, of which only some are there."""
    scans = {}
    for number, channel in enumerate(pixels.convert("YCbCr").split(), 1):
        grey = save(channel, "JPEG", quality=90)
        frame, scan = grey.index(b"\xff\xc0"), grey.index(b"\xff\xda")
        scans[number] = jpeg_segment(0xDA, bytes([1, number, 0, 0, 63, 0])) + grey[scan + 10 : -2]
    size = pixels.height.to_bytes(2, "big") + pixels.width.to_bytes(2, "big")
    three = jpeg_segment(0xC0, b"\x08" + size + b"\3" + b"".join(bytes([number, 0x11, 0]) for number in scans))
    tables = grey[:frame] + three + grey[frame + 13 : scan]
    return tables + b"".join(scans[int(number)] for number in components) + b"\xff\xd9"


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("components", ["123", "312", "12", "1", "23"])
def test_baseline_files_of_several_scans_have_pillows_pixels(components: str, jpeg_decoder: str) -> None:
    """Nothing is smoothed in them; a component that is missing is grey."""
    check_windows(of_separate_scans(photograph((180, 130)), components), jpeg_decoder)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
def test_a_lossless_file_is_resized_as_pillow_resizes_it(jpeg_decoder: str) -> None:
    """No decoder can shrink it: Pillow announces the smaller size and fails, simplejpeg writes beyond its memory."""
    photo = photograph((320, 240))
    image = compressed(np.ascontiguousarray(np.asarray(photo)), LOSSLESS)
    try:
        pillow_pixels(image, "RGB")
    except OSError:
        pytest.skip("this Pillow does not read them")
    buffer, keys = ArrayBuffer((1, 24, 24, 3)), np.arange(1)
    transform = ImageTransform("RGB", EvalPreprocess(24, crop_mode="squash", crop_pct=1.0), jpeg_decoder=jpeg_decoder)
    transform.write([image], keys, [BufferRows(buffer, 0, 1)])
    wanted = np.asarray(photo.resize((24, 24), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(buffer.pixels[0] - wanted).max() <= 1
    decoder = ImageDecoder(jpeg_decoder=jpeg_decoder)
    with pytest.raises(ValueError, match="A JPEG cannot be shrunk by 2 while it is decoded"):
        decoder.decode(image, decoder.read_header(image), shrink=2)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize(("height", "width"), [(200, 45), (37, 200), (20, 45), (37, 20), (65_500, 45)])
def test_a_header_that_lies_about_the_size_is_an_error_or_pillows_pixels(
    height: int, width: int, jpeg_decoder: str
) -> None:
    image = bytearray(save(photograph(), "JPEG"))
    at = image.index(b"\xff\xc0") + 5
    image[at : at + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    decoder = ImageDecoder(jpeg_decoder=jpeg_decoder)
    header = decoder.read_header(bytes(image))
    assert (header.height, header.width) == (height, width)
    try:
        found = decoder.decode(bytes(image), header)
    except ImageDecodeError:
        return
    np.testing.assert_array_equal(found, pillow_pixels(bytes(image), "RGB"))


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("name", [name for name in encoded_images() if "cmyk" in name or "ycck" in name])
def test_four_colours_are_pillows(name: str, jpeg_decoder: str) -> None:
    image = encoded_images()[name]
    np.testing.assert_array_equal(decode(image, jpeg_decoder=jpeg_decoder), pillow_pixels(image, "RGB"))
