"""BetonImage: what keeps its bytes, what is encoded, and when."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from storage.beton.made_files import PAGE

from tfds_torch.errors import ConfigError
from tfds_torch.storage.beton.format import JPEG, RAW
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import BetonWriter

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def encode(mode: str, file_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, file_format, **options)
    return file.getvalue()


def decode(payload: bytes | None) -> Any:
    assert payload is not None
    return np.asarray(Image.open(io.BytesIO(payload)).convert("RGB"))


@pytest.mark.parametrize("image", [encode("RGB", "JPEG"), encode("L", "JPEG"), encode("RGB", "JPEG", progressive=True)])
def test_passthrough_keeps_the_bytes_of_a_jpeg_that_ffcv_reads(image: bytes) -> None:
    encoded = BetonImage().encode(image, 0)
    assert (encoded.facts, encoded.is_reencoded) == ((JPEG, 30, 20), False)
    assert encoded.payload == image


@pytest.mark.parametrize(
    "image",
    [encode("CMYK", "JPEG"), encode("RGB", "PNG"), encode("P", "PNG"), encode("RGBA", "PNG"), encode("RGB", "BMP")],
)
def test_passthrough_encodes_what_ffcv_cannot_read_and_counts_it(image: bytes, tmp_path: Path) -> None:
    encoded = BetonImage().encode(image, 0)
    assert (encoded.facts, encoded.is_reencoded) == ((JPEG, 30, 20), True)
    assert Image.open(io.BytesIO(encoded.payload or b"")).mode == "RGB"
    writer = BetonWriter(tmp_path / "a.beton", {"image": BetonImage()}, 2, page_size=PAGE)
    writer.add((image,))
    writer.add((encode("RGB", "JPEG"),))
    assert writer.close().num_reencoded == 1
    assert verify(tmp_path / "a.beton").num_jpeg == 2


@pytest.mark.parametrize("image", [PIXELS, Image.fromarray(PIXELS), encode("RGB", "PNG"), encode("RGBA", "PNG")])
def test_raw_stores_the_pixels(image: Any) -> None:
    encoded = BetonImage("raw").encode(image, 0)
    assert (encoded.facts, encoded.payload) == ((RAW, 30, 20), PIXELS.tobytes())


@pytest.mark.parametrize("grey", [PIXELS[..., 0], PIXELS[..., :1]])
def test_grey_pixels_get_three_channels(grey: Any) -> None:
    assert BetonImage("raw").encode(grey, 0).payload == np.repeat(PIXELS[..., :1], 3, axis=2).tobytes()


def test_of_16_bits_the_upper_8_are_kept() -> None:
    file = io.BytesIO()
    Image.fromarray((PIXELS[..., 0].astype(np.uint16) << 8) + 77).save(file, "PNG")
    assert BetonImage("raw").encode(file.getvalue(), 0).payload == np.repeat(PIXELS[..., :1], 3, axis=2).tobytes()


def test_another_decoder_may_be_given() -> None:
    encoded = BetonImage("raw", decode=lambda image: PIXELS + len(image).to_bytes(1, "big")[0]).encode(b"\0", 0)
    assert encoded.payload == (PIXELS + 1).tobytes()


def test_jpg_always_encodes_in_the_quality_asked_for() -> None:
    sizes = [
        len(BetonImage("jpg", quality=quality).encode(encode("RGB", "JPEG"), 0).payload or b"") for quality in (10, 95)
    ]
    assert sizes[0] < sizes[1]


def test_smart_encodes_above_the_threshold_only() -> None:
    modes = [
        BetonImage("smart", smart_threshold=most).encode(PIXELS, 0).facts[0]
        for most in (PIXELS.nbytes - 1, PIXELS.nbytes)
    ]
    assert modes == [JPEG, RAW]
    assert BetonImage("smart").encode(PIXELS, 0).facts[0] == RAW


def test_proportion_chooses_by_seed_and_number() -> None:
    def modes(proportion: float, seed: int = 0) -> list[int]:
        field = BetonImage("proportion", proportion=proportion, seed=seed)
        return [field.encode(PIXELS[:2, :2], number).facts[0] for number in range(200)]

    assert modes(0.3) == modes(0.3) != modes(0.3, seed=1)
    assert 40 <= modes(0.3).count(JPEG) <= 80
    assert (set(modes(0)), set(modes(1))) == ({RAW}, {JPEG})


def test_the_longer_side_is_at_most_max_resolution() -> None:
    assert BetonImage("raw", max_resolution=15).encode(PIXELS, 0).facts == (RAW, 15, 10)
    assert BetonImage("raw", max_resolution=30).encode(PIXELS, 0).payload == PIXELS.tobytes()
    small, large = BetonImage(max_resolution=15), BetonImage(max_resolution=30)
    assert small.encode(encode("RGB", "JPEG"), 0)[::2] == ((JPEG, 15, 10), True)
    assert not large.encode(encode("RGB", "JPEG"), 0).is_reencoded
    assert BetonImage("raw", max_resolution=1).encode(PIXELS[:1], 0).facts == (RAW, 1, 1)


def test_a_damaged_jpeg_is_refused_where_it_is_encoded_again() -> None:
    with pytest.raises(ConfigError, match="The image cannot be decoded"):
        BetonImage("raw").encode(encode("RGB", "JPEG")[:100], 0)


def test_an_image_too_long_for_jpeg_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"JPEG at most 65,500 on a side: use mode='raw', or max_resolution"):
        BetonImage("jpg").encode(np.zeros((1, 65_501, 3), np.uint8), 0)
    assert BetonImage("raw").encode(np.zeros((1, 65_535, 3), np.uint8), 0).facts == (RAW, 65_535, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "rwa"}, "unknown mode 'rwa': .* Did you mean 'raw'"),
        ({"max_resolution": 0}, "max_resolution=0 must be an integer >= 1"),
        ({"smart_threshold": -1}, "smart_threshold=-1 must be an integer >= 0"),
        ({"quality": 101}, "quality=101 must be 1 to 100"),
        ({"quality": 0}, "quality=0 must be an integer >= 1"),
        ({"proportion": 1.5}, r"proportion=1.5 must be a probability"),
        ({"seed": -1}, "seed=-1 must be an integer >= 0"),
    ],
)
def test_values_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BetonImage(**arguments)
