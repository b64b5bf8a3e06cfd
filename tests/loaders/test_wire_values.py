"""PIL images on MultiLoader's wire: they arrive as they were, and nothing that is received can do harm."""

import io
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loaders.test_wire import receive, send
from tfds_torch.errors import ConfigError
from tfds_torch.loaders import wire_values
from tfds_torch.loaders.transport import ProtocolError
from tfds_torch.loaders.wire_items import ItemReader, ItemWriter
from tfds_torch.loaders.wire_values import put_image_together, take_image_apart

MODES = ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"]
MODES += ["I;16", "I;16L", "I;16B"]


def noise(mode: str, size: tuple[int, int] = (13, 7)) -> Image.Image:
    """An image of random pixels."""
    num_bytes = len(Image.new(mode, size).tobytes())
    pixels = np.random.default_rng(7).integers(0, 100, num_bytes, np.uint8).tobytes()
    return Image.frombytes(mode, size, pixels)


def with_palette(mode: str = "P", palette: str = "RGB") -> Image.Image:
    image = noise(mode)
    colours = np.random.default_rng(8).integers(0, 256, 256 * len(palette), np.uint8)
    image.putpalette(colours.tobytes(), palette)
    return image


def opened(image: Image.Image, kind: str, **options: Any) -> Image.Image:
    """An image as its file is opened, unread."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Image.open(file)


def turned() -> bytes:
    """EXIF data of an image that is to be shown turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


def assert_same(found: Any, expected: Image.Image) -> None:
    assert type(found) is Image.Image
    assert (found.mode, found.size, found.tobytes()) == (expected.mode, expected.size, expected.tobytes())
    assert found.getpalette(None) == expected.getpalette(None)
    for name in ("transparency", "exif", "icc_profile"):
        assert found.info.get(name) == expected.info.get(name)
    if expected.mode in ("P", "PA", "L", "RGB"):  # The palette's alpha and the transparency count.
        assert found.convert("RGBA").tobytes() == expected.convert("RGBA").tobytes()


IMAGES: dict[str, Any] = {
    **{mode: lambda mode=mode: noise(mode) for mode in MODES},
    "P, palette": with_palette,
    "P, palette with alpha": lambda: with_palette("P", "RGBA"),
    "PA, palette": lambda: with_palette("PA"),
    "P, transparent colour": lambda: opened(with_palette(), "PNG", transparency=3),
    "P, transparencies": lambda: opened(with_palette(), "PNG", transparency=bytes(range(200))),
    "GIF": lambda: opened(with_palette(), "GIF", transparency=5),
    "L, transparent": lambda: opened(noise("L"), "PNG", transparency=9),
    "RGB, transparent": lambda: opened(noise("RGB"), "PNG", transparency=(1, 2, 3)),
    "JPEG with EXIF": lambda: opened(noise("RGB"), "JPEG", exif=turned(), icc_profile=b"a profile"),
    "one pixel": lambda: noise("RGB", (1, 1)),
    "no pixels": lambda: Image.new("RGB", (0, 5)),
}


def test_an_image_arrives_as_it_was() -> None:
    wrong = []
    for name, make in IMAGES.items():
        try:
            found = receive(*send({"image": make(), "label": 3}))
            assert_same(found["image"], make())
            assert found["label"] == 3
        except Exception as error:
            wrong.append(f"{name}: {error!r}")
    assert not wrong, "\n".join(wrong)


def test_an_image_that_arrived_may_be_written_to() -> None:
    found = receive(*send(noise("RGB")))
    found.putpixel((0, 0), (1, 2, 3))
    assert found.getpixel((0, 0)) == (1, 2, 3)


def test_many_images_are_one_buffer_and_arrive_as_they_were() -> None:
    """A message may have 256 buffers, and a batch more images."""
    images = [noise(MODES[number % len(MODES)], (number % 9 + 1, 5)) for number in range(300)]
    images[7] = with_palette("P", "RGBA")
    header, buffers = send({"images": images, "also": tuple(images[:20])})
    assert len(buffers) == 2
    found = receive(header, buffers)
    assert isinstance(found["also"], tuple)
    for one, other in zip([*found["images"], *found["also"]], [*images, *images[:20]], strict=True):
        assert_same(one, other)


def test_what_else_is_in_info_stays_behind() -> None:
    image = noise("RGB")
    image.info = {"dpi": (72, 72), "anything": object(), "transparency": "text"}
    assert receive(*send(image)).info == {}


def test_a_mode_that_does_not_travel_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"^item\['x'\]\[1\] is a PIL image of mode 'I;16N': .*Convert it\.$"):
        ItemWriter().write({"x": [1, Image.new("I;16N", (2, 2))]})


def test_an_image_that_is_too_large_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_values, "_LARGEST_AREA", 90)
    with pytest.raises(ConfigError, match=r"^item is a PIL image of 13 x 7 pixels: a MultiLoader carries at most 90"):
        ItemWriter().write(noise("L"))


def test_an_image_whose_file_is_cut_is_the_decoders_error() -> None:
    file = io.BytesIO()
    noise("RGB", (64, 64)).save(file, "PNG")
    with pytest.raises(OSError, match=r"(?i)truncated|broken"):
        ItemWriter().write(Image.open(io.BytesIO(file.getvalue()[:-600])))


GOOD = ["P", 2, 2, "RGB", [4, 6, -1, -1, -1], None]
WRONG = [
    None,
    [],
    GOOD[:-1],
    ["RGB9", *GOOD[1:]],
    [["P"], *GOOD[1:]],
    ["P", True, *GOOD[2:]],
    ["L", True, 10, None, [10, -1, -1, -1, -1], None],
    ["L", -1, -10, None, [10, -1, -1, -1, -1], None],
    ["P", -2, *GOOD[2:]],
    ["P", 2.0, *GOOD[2:]],
    ["P", 2**40, 0, *GOOD[3:]],
    ["L", 0, 2**21, None, [0, -1, -1, -1, -1], None],
    ["L", 2**20, 2**20, None, [10, -1, -1, -1, -1], None],
    ["1", 2**20, 2**20, None, [10, -1, -1, -1, -1], None],
    ["P", 2, 3, *GOOD[3:]],
    ["RGB", *GOOD[1:]],
    ["L", 2, 2, "RGB", [4, 6, -1, -1, -1], None],
    [*GOOD[:3], "CMYK", *GOOD[4:]],
    [*GOOD[:3], {}, *GOOD[4:]],
    [*GOOD[:3], None, [-1, 10, -1, -1, -1], None],
    [*GOOD[:4], [4, 6], None],
    [*GOOD[:4], [4, 6, -2, -1, -1], None],
    [*GOOD[:4], [4, 5, -1, -1, -1], None],
    [*GOOD[:4], [4, -1, 6, -1, -1], None],
    [*GOOD[:4], [4, 2**62, -1, -1, -1], None],
    [*GOOD[:5], "text"],
    [*GOOD[:5], [1, 2]],
    [*GOOD[:5], [1, 2, -3]],
    [*GOOD[:5], 2**20],
]


def is_malformed(node: Any) -> bool:
    try:
        ItemReader([np.frombuffer(bytes(10), np.uint8)]).read(node)
    except ProtocolError:
        return True
    return False


def test_a_description_that_breaks_a_rule_is_malformed() -> None:
    assert put_image_together(GOOD, memoryview(bytes(10)))[0].size == (2, 2)
    nodes = [node for description in WRONG for node in (["i", description, 0], ["I", [description], 0])]
    wrong = [node for node in nodes if not is_malformed(node)]
    assert not wrong, str(wrong)


@pytest.mark.parametrize(
    "node",
    [
        ["i", GOOD],
        ["i", GOOD, 1],
        ["i", GOOD, 0, 0],
        ["I", GOOD, 0],
        ["I", 5, 0],
        ["I", [GOOD, GOOD], 0],
        ["I", [], 0],
        ["i", GOOD, 2],
    ],
)
def test_a_node_of_images_that_breaks_a_rule_is_malformed(node: Any) -> None:
    buffers = [np.zeros(10, np.uint8), np.zeros(11, np.uint8), np.zeros((2, 5), np.uint8)]
    with pytest.raises(ProtocolError):
        ItemReader(buffers).read(node)


NUMBERS = st.integers(-2, 2**64) | st.sampled_from([0, 1, 2, 4, 6, 10, -1])
ANY = st.none() | st.booleans() | NUMBERS | st.floats() | st.sampled_from([*MODES, "", "RGB"])
SIZES = st.lists(NUMBERS, min_size=5, max_size=5)


@given(st.tuples(st.sampled_from(MODES) | ANY, NUMBERS | ANY, NUMBERS | ANY, ANY, SIZES | ANY, ANY | st.lists(ANY)))
def test_no_description_can_do_more_than_be_malformed(description: Any) -> None:
    with suppress(ProtocolError):
        put_image_together(list(description), memoryview(bytes(10)))


def test_the_pieces_of_an_image_are_the_bytes_that_its_description_says() -> None:
    description, pieces = take_image_apart(with_palette("P", "RGBA"), "item")
    assert description == ["P", 13, 7, "RGBA", [91, 1024, -1, -1, -1], None]
    assert [len(piece) for piece in pieces] == [91, 1024]
    assert re.fullmatch(r"[\x00-\x7f]*", str(description))
