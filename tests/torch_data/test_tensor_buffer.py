"""TensorCanvas: Pillow's pixels at torch's speed, in the tensor that is handed over."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from picture_fixtures import NAMES, crop_with_pillow, difference, photograph
from PIL import Image

from tfds_torch.torch_data import tensor_canvas
from tfds_torch.torch_data.tensor_canvas import TensorCanvases

SIZES = ((48, 64), (64, 64), (224, 224), (7, 3), (1, 1))
SOURCES = ((640, 427), (200, 133), (64, 48), (31, 20), (5, 4), (1, 1))


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_what_pillow_makes_of_the_image(name: str, bicubic: bool, flip: bool) -> None:
    for source in SOURCES:
        image = photograph(name, source)
        for size in SIZES:
            canvas = TensorCanvases()((3, *size, 3))
            canvas.pixels[:] = 7
            steps = (source[1] / size[0], source[0] / size[1])
            canvas.fill_row(1, np.array(image), steps, bicubic=bicubic, flip=flip)
            wanted = crop_with_pillow(image, (0, 0, source[1], source[0]), size, bicubic=bicubic, flip=flip)
            mean, psnr = difference(canvas.pixels[1], wanted)
            assert mean <= 0.5, (source, size)
            assert psnr >= 45, (source, size)
            assert (canvas.pixels[[0, 2]] == 7).all()


@pytest.mark.parametrize("mode", ["L", "RGBA"])
@pytest.mark.parametrize("flip", [False, True])
def test_gray_images_and_those_with_opacity_are_pillows_very_own(mode: str, flip: bool) -> None:
    image = photograph("china", (99, 66)).convert(mode)
    if mode == "RGBA":  # Colours are weighed by it.
        image.putalpha(photograph("flower", (99, 66)).convert("L"))
    pixels = np.array(image).reshape(66, 99, -1)
    canvas = TensorCanvases()((1, 20, 30, pixels.shape[-1]))
    canvas.fill_row(0, pixels, (66 / 20, 99 / 30), bicubic=True, flip=flip)
    wanted = crop_with_pillow(image, (0, 0, 66, 99), (20, 30), bicubic=True, flip=flip)
    np.testing.assert_array_equal(canvas.pixels[0], wanted)
    resized = canvas.resize(pixels, (20, 30), (66 / 20, 99 / 30), bicubic=True)
    np.testing.assert_array_equal(resized[:, ::-1] if flip else resized, wanted)


@pytest.mark.parametrize("bicubic", [False, True])
def test_pixels_beyond_the_steps_are_reached_by_the_filter_alone(bicubic: bool) -> None:
    image = photograph("flower", (240, 160))
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    for steps in ((2.25, 1.5), (0.7, 0.9), (5.0, 6.5)):
        resized = TensorCanvases()((1, 1, 1, 3)).resize(np.array(image), (20, 30), steps, bicubic=bicubic)
        wanted = np.asarray(image.resize((30, 20), resample, (0, 0, 30 * steps[1], 20 * steps[0])))
        mean, psnr = difference(resized, wanted)
        assert mean <= 0.5, steps
        assert psnr >= 45, steps


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
        canvas = TensorCanvases()((2, *size, 3))
        canvas.fill_row(0, pixels, steps, bicubic=False, flip=False)
        canvas.fill_row(1, pixels, steps, bicubic=False, flip=True)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(canvas.pixels[0][:, ::-1], canvas.pixels[1])


def test_threads_fill_rows_of_canvases_of_different_sizes_side_by_side() -> None:
    pixels = np.array(photograph("flower", (90, 70)))
    canvases = [TensorCanvases()((40, side, side, 3)) for side in (20, 24)]

    def fill(number: int) -> None:
        canvas = canvases[number % 2]
        side = canvas.pixels.shape[1]
        canvas.fill_row(number // 2, pixels, (70 / side, 90 / side), bicubic=False, flip=number % 4 > 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fill, range(80)))
    for canvas in canvases:
        for row in range(40):
            image = canvas.pixels[row][:, ::-1] if row % 2 else canvas.pixels[row]
            np.testing.assert_array_equal(image, canvas.pixels[0])


# The memory


def test_the_images_are_channels_last_and_the_memory_itself() -> None:
    canvas = TensorCanvases()((2, 5, 6, 3))
    assert (canvas.images.shape, canvas.images.dtype) == ((2, 3, 5, 6), torch.uint8)
    assert canvas.images.is_contiguous(memory_format=torch.channels_last)
    assert canvas.images.data_ptr() == canvas.pixels.ctypes.data
    canvas.pixels[1, 2, 3] = (10, 20, 30)
    assert canvas.images[1, :, 2, 3].tolist() == [10, 20, 30]
    assert not canvas.images.is_shared()


def test_in_a_loaders_worker_the_memory_is_shared_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_canvas.torch.utils.data, "get_worker_info", lambda: "a worker's")
    canvas = TensorCanvases()((2, 5, 6, 3))
    assert canvas.images.is_shared()
    assert canvas.images.data_ptr() == canvas.pixels.ctypes.data
    assert canvas.images.shape == (2, 3, 5, 6)
    assert canvas.images.is_contiguous(memory_format=torch.channels_last)
    canvas.pixels[:] = 3
    assert canvas.images.sum() == 3 * 2 * 5 * 6 * 3


def test_memory_that_is_still_in_use_is_not_used_again() -> None:
    make = TensorCanvases()
    kept = []
    for number in range(20):
        canvas = make((2, 5, 6, 3))
        canvas.pixels[:] = number
        # Tensors, arrays, and views of them.
        kept.append(
            (number, [canvas.images, canvas.pixels[1], canvas.images[:1].numpy(), canvas.images[1, 2]][number % 4])
        )
        del canvas
    for number, images in kept:
        assert (images == number).all()


def test_memory_that_is_free_again_is_used_again() -> None:
    make, addresses = TensorCanvases(), set()
    for _ in range(50):
        addresses.add(make((3, 50, 60, 3)).pixels.ctypes.data)
    assert len(addresses) == 1


def test_its_maker_can_be_pickled() -> None:
    make = pickle.loads(pickle.dumps(TensorCanvases()))
    assert make((1, 2, 3, 3)).images.shape == (1, 3, 2, 3)
