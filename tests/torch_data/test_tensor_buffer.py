"""TensorBuffer: Pillow's pixels at torch's speed, in the tensor that is handed over."""

import io
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from picture_fixtures import NAMES, crop_with_pillow, difference, photograph
from PIL import Image

from tfds_torch.check.pixels import measure
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.fast_resize import FastArrayBuffer
from tfds_torch.images.preprocess import EvalPreprocess, ExampleRandom, Preprocess, TrainPreprocess
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.torch_data.tensor_buffer import GatherThreads, ReusedMemory, TensorBuffers
from torch_data.forked import run_forked

SIZES = ((48, 64), (64, 64), (224, 224), (7, 3), (1, 1))
SIDES = st.integers(1, 130)
SOURCES = ((640, 427), (200, 133), (64, 48), (31, 20), (5, 4), (1, 1))


def make_fast_buffer(shape: tuple[int, ...]) -> FastArrayBuffer:
    return FastArrayBuffer(np.empty(shape, np.uint8))


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_what_pillow_makes_of_the_image(name: str, bicubic: bool, flip: bool) -> None:
    for source in SOURCES:
        image = photograph(name, source)
        for size in SIZES:
            buffer = TensorBuffers()((3, *size, 3))
            buffer.pixels[:] = 7
            steps = (source[1] / size[0], source[0] / size[1])
            buffer.fill_row(1, np.array(image), steps, bicubic=bicubic, flip=flip)
            wanted = crop_with_pillow(image, (0, 0, source[1], source[0]), size, bicubic=bicubic, flip=flip)
            mean, psnr = difference(buffer.pixels[1], wanted)
            assert mean <= 0.5, (source, size)
            assert psnr >= 45, (source, size)
            assert (buffer.pixels[[0, 2]] == 7).all()


@pytest.mark.parametrize("mode", ["L", "RGBA"])
@pytest.mark.parametrize("flip", [False, True])
def test_gray_images_and_those_with_opacity_are_pillows_very_own(mode: str, flip: bool) -> None:
    image = photograph("china", (99, 66)).convert(mode)
    if mode == "RGBA":  # Colours are weighed by it.
        image.putalpha(photograph("flower", (99, 66)).convert("L"))
    pixels = np.array(image).reshape(66, 99, -1)
    buffer = TensorBuffers()((1, 20, 30, pixels.shape[-1]))
    buffer.fill_row(0, pixels, (66 / 20, 99 / 30), bicubic=True, flip=flip)
    wanted = crop_with_pillow(image, (0, 0, 66, 99), (20, 30), bicubic=True, flip=flip)
    np.testing.assert_array_equal(buffer.pixels[0], wanted)
    resized = buffer.resize(pixels, (20, 30), (66 / 20, 99 / 30), bicubic=True)
    np.testing.assert_array_equal(resized[:, ::-1] if flip else resized, wanted)


@pytest.mark.parametrize("bicubic", [False, True])
def test_pixels_beyond_the_steps_are_reached_by_the_filter_alone(bicubic: bool) -> None:
    image = photograph("flower", (240, 160))
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    for steps in ((2.25, 1.5), (0.7, 0.9), (5.0, 6.5)):
        resized = TensorBuffers()((1, 1, 1, 3)).resize(np.array(image), (20, 30), steps, bicubic=bicubic)
        wanted = np.asarray(image.resize((30, 20), resample, (0, 0, 30 * steps[1], 20 * steps[0])))
        mean, psnr = difference(resized, wanted)
        assert mean <= 0.5, steps
        assert psnr >= 45, steps


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("size", [(160, 240), (160, 30), (20, 240)])
def test_a_side_that_keeps_its_length_is_resized_by_its_step(size: tuple[int, int], bicubic: bool) -> None:
    """A part of an enlarged image may have as many pixels as the image; torch would copy it."""
    image = photograph("flower", (240, 160))
    steps = (150 / size[0], 225 / size[1])
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    wanted = np.asarray(image.resize((size[1], size[0]), resample, (0, 0, 225, 150)))
    buffer = TensorBuffers()((1, *size, 3))
    buffer.fill_row(0, np.array(image), steps, bicubic=bicubic, flip=False)
    for resized in (buffer.resize(np.array(image), size, steps, bicubic=bicubic), buffer.pixels[0]):
        mean, psnr = difference(resized, wanted)
        assert mean <= 0.5
        assert psnr >= 45


@hypothesis.given(
    height=SIDES,
    width=SIDES,
    size=st.tuples(SIDES, SIDES),
    crop_mode=st.sampled_from(("center", "squash", "border")),
    interpolation=st.sampled_from(("bilinear", "bicubic")),
)
@hypothesis.example(height=7, width=1, size=(7, 1), crop_mode="center", interpolation="bilinear")
def test_an_evaluation_has_pillows_pixels_for_images_and_results_of_any_size(
    height: int, width: int, size: tuple[int, int], crop_mode: str, interpolation: str
) -> None:
    """Of noise, in which a shift by one pixel shows."""
    noise = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(noise).save(encoded, "PNG")
    preprocess = EvalPreprocess(size, crop_mode=crop_mode, interpolation=interpolation)
    buffer = TensorBuffers()((1, *size, 3))
    ImageTransform("RGB", preprocess).write([encoded.getvalue()], np.array([0]), [BufferRows(buffer, 0, 1)])
    assert measure(buffer.pixels[0], encoded.getvalue(), preprocess, 0, 0).is_close


@pytest.mark.parametrize("buffers", [ArrayBuffer, TensorBuffers(), make_fast_buffer])
@hypothesis.given(sizes=st.tuples(SIDES, SIDES), size=st.tuples(SIDES, SIDES), is_cut=st.booleans())
@hypothesis.example(sizes=(60, 40), size=(20, 30), is_cut=True)
@hypothesis.example(sizes=(50, 30), size=(20, 20), is_cut=False)
@hypothesis.example(sizes=(40, 40), size=(80, 80), is_cut=True)
def test_bicubic_of_hard_edges_has_pillows_order_of_rows_and_columns(
    buffers: Any, sizes: tuple[int, int], size: tuple[int, int], is_cut: bool
) -> None:
    """Both passes overshoot and clip. What is cut out of a resized image is resized in the order of the whole image."""
    edges = np.random.default_rng(sizes[0]).integers(0, 2, (*sizes, 1), np.uint8).repeat(3, axis=2) * 255
    image = Image.fromarray(edges)
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    preprocess: Preprocess = EvalPreprocess(size, interpolation="bicubic", crop_mode="center")
    if is_cut:
        preprocess = TrainPreprocess(size, interpolation="bicubic", hflip=0.0)
    crop = preprocess.crop(np.array([sizes]), ExampleRandom(np.array([3]), 0))
    if crop.boxes is None:
        ((height, width),) = crop.resized.tolist()
        top, left = (max(0, round((side - own) / 2)) for side, own in zip((height, width), size, strict=True))
        whole = image.resize((width, height), Image.Resampling.BICUBIC)
        wanted = np.asarray(whole.crop((left, top, left + size[1], top + size[0])))
    else:
        wanted = crop_with_pillow(image, crop.boxes[0].tolist(), size, bicubic=True, flip=False)
    buffer = buffers((1, *size, 3))
    ImageTransform("RGB", preprocess).write([encoded.getvalue()], np.array([3]), [BufferRows(buffer, 0, 1)])
    assert np.abs(buffer.pixels[0].astype(int) - wanted).max() <= 3  # Else tens.


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", [(224, 224), (40, 900), (3, 12_000)])
def test_a_flip_is_the_mirror_image_however_large_and_however_many_threads_torch_has(
    size: tuple[int, int], num_threads: int
) -> None:
    pixels = np.array(photograph("china"))
    steps = (pixels.shape[0] / size[0], pixels.shape[1] / size[1])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        buffer = TensorBuffers()((2, *size, 3))
        buffer.fill_row(0, pixels, steps, bicubic=False, flip=False)
        buffer.fill_row(1, pixels, steps, bicubic=False, flip=True)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(buffer.pixels[0][:, ::-1], buffer.pixels[1])


def test_threads_fill_rows_of_buffers_of_different_sizes_side_by_side() -> None:
    pixels = np.array(photograph("flower", (90, 70)))
    buffers = [TensorBuffers()((40, side, side, 3)) for side in (20, 24)]

    def fill(number: int) -> None:
        buffer = buffers[number % 2]
        side = buffer.pixels.shape[1]
        buffer.fill_row(number // 2, pixels, (70 / side, 90 / side), bicubic=False, flip=number % 4 > 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fill, range(80)))
    for buffer in buffers:
        for row in range(40):
            image = buffer.pixels[row][:, ::-1] if row % 2 else buffer.pixels[row]
            np.testing.assert_array_equal(image, buffer.pixels[0])


@pytest.mark.parametrize("is_worker", [False, True])
def test_threads_outside_of_an_inference_mode_fill_buffers_that_were_made_inside(
    is_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_worker:
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker's")
    pixels = np.array(photograph("china", (60, 40)))
    with torch.inference_mode(), ThreadPoolExecutor(1) as threads:
        buffer = TensorBuffers()((2, 20, 30, 3))
        for row in (0, 1):  # Flipped, the second by memory that the first one made, in the caller's thread and another.
            fill = partial(buffer.fill_row, row, pixels, (2.0, 2.0), bicubic=False, flip=True)
            fill()
            threads.submit(fill).result()
        assert not buffer.images.is_inference()
    buffer.fill_row(0, pixels, (2.0, 2.0), bicubic=False, flip=True)
    np.testing.assert_array_equal(buffer.pixels[0], buffer.pixels[1])


# The memory


def test_the_images_are_channels_last_and_the_memory_itself() -> None:
    buffer = TensorBuffers()((2, 5, 6, 3))
    assert (buffer.images.shape, buffer.images.dtype) == ((2, 3, 5, 6), torch.uint8)
    assert buffer.images.is_contiguous(memory_format=torch.channels_last)
    assert buffer.images.data_ptr() == buffer.pixels.ctypes.data
    buffer.pixels[1, 2, 3] = (10, 20, 30)
    assert buffer.images[1, :, 2, 3].tolist() == [10, 20, 30]
    assert not buffer.images.is_shared()


def test_in_a_loaders_worker_the_memory_is_shared_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker's")
    buffer = TensorBuffers()((2, 5, 6, 3))
    assert buffer.images.is_shared()
    assert buffer.images.data_ptr() == buffer.pixels.ctypes.data
    assert buffer.images.shape == (2, 3, 5, 6)
    assert buffer.images.is_contiguous(memory_format=torch.channels_last)
    buffer.pixels[:] = 3
    assert buffer.images.sum() == 3 * 2 * 5 * 6 * 3


def test_memory_that_is_still_in_use_is_not_used_again() -> None:
    make = TensorBuffers()
    kept = []
    for number in range(20):
        buffer = make((2, 5, 6, 3))
        buffer.pixels[:] = number
        # Tensors, arrays, and views of them.
        kept.append(
            (number, [buffer.images, buffer.pixels[1], buffer.images[:1].numpy(), buffer.images[1, 2]][number % 4])
        )
        del buffer
    for number, images in kept:
        assert (images == number).all()


def test_memory_that_is_free_again_is_used_again() -> None:
    make, addresses = TensorBuffers(), set()
    for _ in range(50):
        addresses.add(make((3, 50, 60, 3)).pixels.ctypes.data)
    assert len(addresses) == 1


def test_its_maker_can_be_pickled() -> None:
    make = pickle.loads(pickle.dumps(TensorBuffers()))
    assert make((1, 2, 3, 3)).images.shape == (1, 3, 2, 3)


MEMORY = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
MEMORY.flags.writeable = False  # As that of a mapped file.


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("length", [1, 96, 3072, 30_001, 60_000, 31_337])  # The last one is a prime number.
def test_pieces_of_memory_are_gathered(length: int, num_threads: int, all_threads: None) -> None:
    torch.set_num_threads(num_threads)
    starts = np.array([0, len(MEMORY) - length, 7, 7, 1001, 5], np.int64)
    out = np.empty((len(starts), length), np.uint8)
    TensorBuffers()((1, 1, 1, 3)).gather(MEMORY, starts, out)
    assert all((piece == MEMORY[start : start + length]).all() for piece, start in zip(out, starts, strict=True))
    with torch.inference_mode():
        TensorBuffers()((1, 1, 1, 3)).gather(MEMORY, starts[::-1].copy(), out)
    assert (out[0] == MEMORY[5 : 5 + length]).all()


def test_no_pieces_are_no_pieces(all_threads: None) -> None:
    TensorBuffers()((1, 1, 1, 3)).gather(MEMORY, np.empty(0, np.int64), np.empty((0, 96), np.uint8))


@pytest.mark.parametrize("ratio", [1.5, 10, 250])
def test_threads_that_are_slower_cost_a_sixteenth_at_most(ratio: float) -> None:
    threads, num_calls = GatherThreads(), [0, 0]
    for _ in range(10_000):
        with_threads = threads.are_wanted
        num_calls[with_threads] += 1
        threads.note(ratio if with_threads else 1.0, with_threads=with_threads)
    assert 0 < num_calls[True] * (ratio - 1) <= num_calls[False] / 16 + ratio


def test_threads_that_are_faster_are_used_until_slow_calls_have_cost_what_they_saved() -> None:
    threads, wanted = GatherThreads(), []
    for call in range(1000):
        wanted.append(threads.are_wanted)
        seconds = 0.5 if wanted[-1] else 1.0
        threads.note(10.0 if call in (100, 500, 501) else seconds, with_threads=wanted[-1])
    assert [call for call, one in enumerate(wanted) if not one] == [*range(16), *range(502, 534)]


@pytest.fixture
def all_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets every call of `gather` use torch's threads, of which there are two."""
    before = torch.get_num_threads()
    monkeypatch.setattr(GatherThreads, "are_wanted", True)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def gather_and_compute(sender: Connection, rank: int) -> None:
    out = np.empty((256, 3072), np.uint8)
    TensorBuffers()((1, 1, 1, 3)).gather(MEMORY, np.arange(256) + rank, out)
    sender.send((bool((out[1] == MEMORY[1 + rank : 3073 + rank]).all()), float(torch.ones(10**6).sum())))


def test_a_process_that_is_forked_after_threads_gathered_gathers_and_computes(all_threads: None) -> None:
    """GNU's OpenMP would wait for ever for threads that exist in the parent only."""
    out = np.empty((256, 3072), np.uint8)
    TensorBuffers()((1, 1, 1, 3)).gather(MEMORY, np.arange(256), out)
    assert run_forked(gather_and_compute, 2, 60.0) == [(True, 1e6)] * 2
    assert torch.get_num_threads() == 2


# Memory that is used again

BLOCK_SHAPE = (4, 8, 8, 3)


def test_memory_is_used_again_only_when_nothing_refers_to_it() -> None:
    memory = ReusedMemory()
    pixels = memory.take(BLOCK_SHAPE)
    address = pixels.ctypes.data
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    del pixels
    part = images[1:2]
    del images
    array = part.numpy()
    del part
    other = memory.take(BLOCK_SHAPE)
    assert other.ctypes.data != address
    del array
    assert memory.take(BLOCK_SHAPE).ctypes.data == address


def test_memory_of_another_size_is_not_mixed_up() -> None:
    memory = ReusedMemory()
    first = memory.take(BLOCK_SHAPE)
    del first
    larger = memory.take((5, 8, 8, 3))
    assert larger.shape == (5, 8, 8, 3)
    larger[:] = 7
    assert (larger == 7).all()


def test_no_more_is_kept_than_may_be() -> None:
    for kept_bytes, number in ((0, 2), (2 * 768, 2), (4 * 768, 4), (9 * 768, 5)):
        memory = ReusedMemory(most_kept=2, kept_bytes=kept_bytes)
        taken = [memory.take(BLOCK_SHAPE) for _ in range(5)]
        taken.clear()
        assert len(memory._blocks) == number


def test_small_memory_is_not_kept_beside_large_memory_without_end() -> None:
    memory = ReusedMemory(most_kept=1, kept_bytes=100)
    taken = [memory.take((90,)), *(memory.take((5,)) for _ in range(4))]
    while taken:
        taken.pop(0)
    assert sorted(block.size for block in memory._blocks) == [5, 5, 90]


@pytest.mark.timeout(30)
def test_memory_may_be_given_back_while_some_is_taken_by_the_same_thread() -> None:
    """As garbage collection does it, which may run at any moment."""
    memory = ReusedMemory()
    taken = [memory.take(BLOCK_SHAPE)]

    class Blocks(list[Any]):
        def pop(self, *where: Any) -> Any:
            taken.clear()
            return super().pop(*where)

    memory._blocks = Blocks([np.empty(np.prod(BLOCK_SHAPE), np.uint8)])
    kept = memory.take(BLOCK_SHAPE)
    assert kept.shape == BLOCK_SHAPE
    assert len(memory._blocks) == 1
