"""ImageTransform: every image comes into its row, whoever writes it; what cannot be used is named by its position."""

import io
import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from own_preprocess import Failing, Shade, ShiftedEval
from picture_fixtures import save
from PIL import Image

from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.images import transform as transform_module
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.crops import Crops
from tfds_torch.images.cutting import cut_alike, cut_windows_of, mirror
from tfds_torch.images.decoding import BadImageError, OtherSizeError
from tfds_torch.images.preprocess import PreprocessError
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.storage.stored_pixels import StoredPixels

SIDE = 5
SQUASH = EvalPreprocess(size=SIDE, crop_pct=1.0)


def flat(level: int, file_format: str = "PNG", size: tuple[int, int] = (9, 8)) -> bytes:
    """Returns an encoded image of one grey level."""
    return save(Image.new("RGB", size, (level,) * 3), file_format)


def write(transform: ImageTransform, images: list[bytes], buffer: ArrayBuffer, first: int = 0, **others: Any) -> Any:
    stop = first + len(images)
    return transform.write(images, np.arange(first, stop), [BufferRows(buffer, first, stop)], **others)


@pytest.mark.parametrize(
    "preprocess", [None, SQUASH, TrainPreprocess(size=SIDE), TrainPreprocess(SIDE, crop_padding=2)]
)
@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "BMP"])
def test_every_image_comes_into_its_row(preprocess: Any, file_format: str) -> None:
    transform = ImageTransform("RGB", preprocess)
    images = [flat(level, file_format) for level in range(100, 120)]
    shape = transform.row_shape(images)
    assert shape == ((8, 9, 3) if preprocess is None else (SIDE, SIDE, 3))
    buffer = ArrayBuffer((20, *shape))
    write(transform, images[:7], buffer)
    write(transform, images[7:], buffer, 7)
    middle = buffer.pixels[:, shape[0] // 2, shape[1] // 2, 0].astype(int)
    assert np.abs(middle - np.arange(100, 120)).max() <= (1 if file_format == "JPEG" else 0)


@pytest.mark.parametrize("preprocess", [EvalPreprocess(32, crop_pct=1.0), TrainPreprocess(32, (1, 1), hflip=0.0)])
def test_fine_patterns_that_are_not_shrunk_are_pillows(preprocess: Any) -> None:
    """At a fraction of its size, the decoded pattern does not clip at black and white."""
    dots = Image.fromarray(np.random.default_rng(0).integers(0, 2, (320, 320), np.uint8) * 255)
    encoded = save(dots, "JPEG")
    wanted = np.asarray(Image.open(io.BytesIO(encoded)).resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    apart = []
    for one in (preprocess, replace(preprocess, shrink=False)):
        buffer = ArrayBuffer((1, 32, 32, 1))
        write(ImageTransform("L", one), [encoded], buffer)
        apart.append(np.abs(buffer.pixels[0, ..., 0] - wanted).mean())
    assert apart[0] > 0.5 > 0.1 > apart[1]


def test_rows_may_be_written_in_any_order_by_any_thread() -> None:
    transform, images = ImageTransform("RGB", SQUASH), [flat(level) for level in range(26)]
    for attempt in range(5):
        buffer, firsts = ArrayBuffer((26, SIDE, SIDE, 3)), list(range(0, 26, 3))
        random.Random(attempt).shuffle(firsts)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda first: write(transform, images[first : first + 3], buffer, first), firsts))  # noqa: B023
        assert (buffer.pixels == np.arange(26)[:, None, None, None]).all()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize(
    ("size", "preprocess"),
    [
        ((9, 8), TrainPreprocess((8, 9), crop_padding=3, fill=7)),
        ((9, 8), TrainPreprocess((8, 9), crop_padding=0)),
        ((9, 8), TrainPreprocess((3, 4), crop_padding=0)),
        ((9, 8), TrainPreprocess((8, 9), crop_padding=2, vflip=0.5)),
        ((9, 8), TrainPreprocess((8, 9), crop_padding=0, vflip=0.5)),
        ((5, 4), TrainPreprocess((8, 9), crop_padding=2)),  # Smaller than the result.
        ((9, 8), EvalPreprocess((4, 5), crop_pct=1.0, crop_mode="squash")),
        ((9, 8), EvalPreprocess((8, 9), crop_pct=1.0)),
    ],
)
def test_small_images_that_are_only_cut_are_cut_at_once_as_each_by_itself(
    size: tuple[int, int], preprocess: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, size[1], size[0], 3), np.uint8)
    images = [save(Image.fromarray(one), "PNG") for one in pixels]
    transform = ImageTransform(mode, preprocess, seed=3)
    written = []
    for most_pixels in (0, 128 * 128):
        monkeypatch.setattr(transform_module, "_MOST_SMALL_PIXELS", most_pixels)
        first, second = (ArrayBuffer((20, *transform.row_shape(images))) for _ in range(2))
        transform.write(images, np.arange(40), [BufferRows(first, 0, 20), BufferRows(second, 0, 20)])
        written.append(np.concatenate([first.pixels, second.pixels]))
    np.testing.assert_array_equal(*written)  # type: ignore[arg-type]
    assert len({one.tobytes() for one in written[0]}) == 40


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("start", [(3, 5), (-2, 4), (6, -3)])
def test_a_window_of_a_resized_image_is_pillows(
    start: tuple[int, int], flips: tuple[bool, bool], bicubic: bool
) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)

    class Window(EvalPreprocess):
        def crop(self, sizes: np.ndarray, random: Any) -> Crops:
            one = {"flips": np.array([flips[0]]), "vflips": np.array([flips[1]]), "bicubic": np.array([bicubic])}
            return Crops(resized=np.array([(20, 30)]), starts=np.array([start]), **one)

    buffer = ArrayBuffer((1, 16, 16, 3))
    masks = {"mask": [np.arange(3500).reshape(50, 70, 1)]}
    others = write(
        ImageTransform("RGB", Window(16, fill=(1, 2, 3))), [save(Image.fromarray(picture), "PNG")], buffer, masks=masks
    )
    kind = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    padded = np.full((40, 50, 3), (1, 2, 3), np.uint8)
    padded[10:30, 10:40] = np.asarray(Image.fromarray(picture).resize((30, 20), kind))
    wanted = padded[10 + start[0] :, 10 + start[1] :][:16, :16]
    wanted = wanted[:, ::-1] if flips[0] else wanted
    apart = np.abs(buffer.pixels[0].astype(int) - (wanted[::-1] if flips[1] else wanted))
    assert apart.max() <= 1  # Pillow has the box of a part of the image in single precision.
    assert apart.mean() < 0.02
    padded = np.zeros((40, 50), np.int64)
    numbers = Image.fromarray(masks["mask"][0][..., 0].astype(np.int32))
    padded[10:30, 10:40] = np.asarray(numbers.resize((30, 20), Image.Resampling.NEAREST))
    wanted = padded[10 + start[0] :, 10 + start[1] :][:16, :16]
    wanted = wanted[:, ::-1] if flips[0] else wanted
    np.testing.assert_array_equal(others["mask"][0][..., 0], wanted[::-1] if flips[1] else wanted)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", None])
def test_without_a_preprocess_an_image_is_written_or_decoded_as_it_is(mode: str | None) -> None:
    transform, image = ImageTransform(mode), flat(7)
    buffer = ArrayBuffer((1, *transform.row_shape([image])))
    write(transform, [image], buffer)
    (decoded,) = transform.decode([image])
    np.testing.assert_array_equal(buffer.pixels[0], decoded)
    assert decoded.shape == (8, 9, {"L": 1, "RGBA": 4}.get(mode or "", 3))


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "It is empty."),
    "garbage": (b"garbage", "Its 7 bytes are not"),
    "cut": (flat(1)[:-40], ""),
    "too large": (flat(1, size=(9, 9)), "It has 9 x 9 pixels, and at most 72 are allowed"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_with_its_position(case: str) -> None:
    image, message = BAD[case]
    transform = ImageTransform("RGB", EvalPreprocess(size=SIDE, max_pixels=72))
    with pytest.raises(BadImageError) as refused:
        write(transform, [flat(1), image], ArrayBuffer((2, SIDE, SIDE, 3)))
    assert refused.value.position == 1
    assert message in refused.value.reason
    assert refused.value.reason.endswith(".")
    with pytest.raises(BadImageError):
        ImageTransform("RGB").decode([flat(1), BAD["garbage"][0]])


def test_a_small_file_that_claims_to_be_huge_is_refused_in_every_way() -> None:
    huge = bytearray(flat(1, "JPEG"))
    frame = huge.index(b"\xff\xc0")
    huge[frame + 5 : frame + 9] = (65_000).to_bytes(2, "big") * 2
    transform = ImageTransform("RGB")
    for refused in (transform.decode, lambda images: transform.row_shape(images)):
        with pytest.raises(BadImageError, match=re.escape("65000 x 65000")):
            refused([bytes(huge)])
    with pytest.raises(BadImageError, match=re.escape("65000 x 65000")):
        write(transform, [bytes(huge)], ArrayBuffer((1, 8, 9, 3)))


def test_an_image_of_another_size_than_its_row_is_a_type_of_its_own() -> None:
    with pytest.raises(OtherSizeError, match=re.escape("[8, 7, 3], and the first [8, 9, 3]")) as refused:
        write(ImageTransform("RGB"), [flat(1), flat(2, size=(7, 8))], ArrayBuffer((2, 8, 9, 3)))
    assert refused.value.position == 1


def test_masks_are_cut_like_their_image_and_must_have_its_size() -> None:
    transform = ImageTransform("RGB", EvalPreprocess(size=SIDE, also=("mask",)))
    masks = [np.full((8, 9, 1), 3, np.uint8)] * 2
    buffer = ArrayBuffer((2, SIDE, SIDE, 3))
    others = {"mask": masks, "depth": [mask.astype(np.uint16) for mask in masks]}
    cut = write(transform, [flat(1)] * 2, buffer, masks=others)
    assert [mask.shape for mask in cut["mask"]] == [(SIDE, SIDE, 1)] * 2
    assert cut["depth"][0].dtype == np.uint16
    with pytest.raises(BadImageError, match="Its 'mask' has 9 x 8 pixels, and its image 8 x 9: what") as refused:
        write(transform, [flat(1)] * 2, buffer, masks={"mask": [masks[0], masks[0].transpose(1, 0, 2)]})
    assert refused.value.position == 1


def test_what_a_mask_lacks_is_padded_with_nothing() -> None:
    mask = np.arange(1, 7, dtype=np.uint8).reshape(2, 3, 1)
    for flip in (False, True):
        crops = Crops(np.array([(-1, -2, 4, 6)]), flips=np.array([flip]))
        parameters = crops.parameters(np.array([(2, 3)]), (4, 6), np.array([False]))
        (cut,) = cut_alike([mask], parameters, (4, 6))
        wanted = np.zeros((4, 6), np.uint8)
        wanted[1:3, 2:5] = mask[..., 0]
        np.testing.assert_array_equal(cut[..., 0], wanted[:, ::-1] if flip else wanted)


# A preprocess of one's own


def stored(count: int) -> StoredPixels:
    """Returns images of SIDE x SIDE pixels, all different, as they lie in a file."""
    pixels = np.arange(count * SIDE * SIDE * 3, dtype=np.int64).astype(np.uint8)
    return StoredPixels(pixels, np.arange(count) * SIDE * SIDE * 3, (SIDE, SIDE, 3))


@pytest.mark.parametrize("preprocess", [Shade(SIDE), Shade(SIDE, crop_padding=2), Shade(SIDE, crop_padding=0, hflip=0)])
@pytest.mark.parametrize("is_stored", [False, True])
def test_an_augment_changes_finished_rows_alone_whatever_the_buffers(preprocess: Any, is_stored: bool) -> None:
    images: Any = stored(9) if is_stored else [flat(level, size=(SIDE, SIDE)) for level in range(9)]
    keys = np.arange(100, 109)
    plain, once = (ArrayBuffer((9, SIDE, SIDE, 3)) for _ in range(2))
    of_class = {name: getattr(preprocess, name) for name in ("size", "crop_padding", "hflip")}
    ImageTransform("RGB", TrainPreprocess(**of_class)).write(images, keys, [BufferRows(plain, 0, 9)])
    ImageTransform("RGB", preprocess).write(images, keys, [BufferRows(once, 0, 9)])
    levels = (once.pixels - plain.pixels).reshape(9, -1)
    assert (levels == levels[:, :1]).all()
    assert len(set(levels[:, 0].tolist())) > 5
    first, second = ArrayBuffer((4, SIDE, SIDE, 3)), ArrayBuffer((7, SIDE, SIDE, 3))
    first.pixels[:], second.pixels[:] = 1, 1
    rows = [BufferRows(first, 2, 4), BufferRows(second, 0, 7)]
    ImageTransform("RGB", preprocess).write(images, keys, rows)
    np.testing.assert_array_equal(np.concatenate([first.pixels[2:], second.pixels]), once.pixels)
    assert (first.pixels[:2] == 1).all()


def test_random_crops_in_evaluation_are_not_taken_for_whole_images() -> None:
    images, buffer = stored(20), ArrayBuffer((20, SIDE, SIDE, 3))
    transform = ImageTransform("RGB", ShiftedEval(SIDE, crop_pct=1.0))
    write(transform, images, buffer)  # type: ignore[arg-type]
    crops = transform.preprocess.crop_parameters(np.full((20, 2), SIDE), np.arange(20), 0, np.zeros(20, np.bool_))
    starts = crops.windows[:, :2] + crops.offsets
    assert len({tuple(start) for start in starts.tolist()}) > 5
    for image, out, (top, left) in zip(images.copy(), buffer.pixels, starts.tolist(), strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        np.testing.assert_array_equal(out, padded[top + 2 : top + 2 + SIDE, left + 2 : left + 2 + SIDE])


@pytest.mark.parametrize("how", ["raises in crop", "raises in augment", "lies outside"])
def test_a_failure_has_the_position_among_all_images_whatever_the_buffers(how: str) -> None:
    images, keys = [flat(level) for level in range(20)], np.arange(20)
    transform = ImageTransform("RGB", Failing(SIDE, how=how))

    def position_of(some: list[int], ends: list[int]) -> int | None:
        rows = [BufferRows(ArrayBuffer((20, SIDE, SIDE, 3)), start, stop) for start, stop in pairwise(ends)]
        try:
            transform.write([images[i] for i in some], keys[some], rows)
        except PreprocessError as error:
            return error.position
        return None

    fails = [position_of([i], [0, 1]) for i in range(20)]
    good, bad = ([i for i in range(20) if (fails[i] == 0) is is_bad] for is_bad in (False, True))
    assert min(len(good), len(bad)) > 4
    for ends in ([0, 5], [0, 2, 5], [0, 3, 5], [0, 4, 5]):
        assert position_of([*good[:3], bad[0], good[3]], ends) == 3


# Windows of many small images at once


@pytest.mark.parametrize("num_channels", [1, 3, 4])
@pytest.mark.parametrize(("size", "reach"), [((8, 9), 3), ((8, 9), 0), ((5, 4), 0), ((12, 20), 6)])
def test_windows_are_those_of_each_image_padded(num_channels: int, size: tuple[int, int], reach: int) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 8, 9, num_channels), dtype=np.uint8)
    room = np.array([8, 9]) - size
    starts = rng.integers(np.minimum(room, 0) - reach, np.maximum(room, 0) + reach + 1, (20, 2))
    fill = tuple(range(7, 7 + num_channels))
    out = np.empty((20, *size, num_channels), np.uint8)
    cut_windows_of(pixels, starts, fill, out)
    for image, (top, left), window in zip(pixels, starts.tolist(), out, strict=True):
        padded = np.full((60, 60, num_channels), fill, np.uint8)
        padded[25:33, 25:34] = image
        assert (window == padded[25 + top : 25 + top + size[0], 25 + left : 25 + left + size[1]]).all()


def test_some_are_mirrored_where_they_lie() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 5, 3), dtype=np.uint8)
    flips, before = np.array([True, False, True, False, False, True]), pixels.copy()
    mirror(pixels, flips)
    assert (pixels[flips] == before[flips, :, ::-1]).all()
    assert (pixels[~flips] == before[~flips]).all()
    mirror(pixels, np.zeros(6, np.bool_))
    assert (pixels[~flips] == before[~flips]).all()
