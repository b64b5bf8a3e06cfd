"""Images of cameras are decoded into the memory of their batch, in one piece with those of the others."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from picture_fixtures import save
from PIL import Image

from engines.made_source import MadeSource, image_content, request_of
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.fields import Content
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext
from tfds_torch.engines.window_fields import WindowImageField
from tfds_torch.errors import CorruptRecordError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.storage.source import Columns

SIZE = (6, 4)


def flat(level: int, size: tuple[int, int] = SIZE) -> bytes:
    return save(Image.new("RGB", (size[1], size[0]), (level, level, level)), "PNG")


class CameraSource(MadeSource):
    """`front` has one image of level n in example n, `side` three of the levels n, n + 1 and n + 2."""

    front: Any = tuple(flat(level) for level in range(40))
    side: Any = tuple(flat(level, (3, 5)) for level in range(42))

    def read(self, index: Any, fields: Any) -> Columns:
        columns = super().read(index, [name for name in fields if name in ("number", "text", "image")])
        made = {
            "front": [self.front[number] for number in index.tolist()],
            "side": [list(self.side[number : number + 3]) for number in index.tolist()],
            "outside": np.stack([index % 2 == 0, index < 0, index < 0], axis=1),
        }
        return {name: columns[name] if name in columns else made[name] for name in fields}


def cameras(**changes: Any) -> Content:
    fields = {
        "front": WindowImageField("front", has_time=False, mode="RGB"),
        "side": WindowImageField("side", has_time=True, mode="RGB"),
    }
    return Content({}, False, cameras=fields, **changes)


class Memory:
    """Makes buffers, and keeps no more than weak references to their memory."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []

    def __call__(self, shape: tuple[int, int, int, int]) -> ArrayBuffer:
        buffer = ArrayBuffer(shape)
        self.made.append(weakref.ref(buffer.pixels))
        return buffer


@pytest.mark.parametrize("mean_example_bytes", [100, 10**6])
@pytest.mark.parametrize("batch_size", [3, 10, 17])
def test_every_image_lies_in_the_row_of_its_window(batch_size: int, mean_example_bytes: int) -> None:
    memory = Memory()
    context = ReadContext(memory)
    source = CameraSource(40, mean_example_bytes)
    request = request_of(source, cameras(), batch_size=batch_size, context=context)
    batches = list(read_in_index_mode(request))
    assert len(batches) == len(memory.made) == request.plan.num_batches, "all cameras of a batch share its memory"
    for batch, made in zip(batches, memory.made, strict=True):
        front, side = batch.features["front"], batch.features["side"]
        assert front.shape == (batch_size, 3, 6, 4)
        assert side.shape == (batch_size, 3, 3, 3, 5)
        assert np.shares_memory(front, made())
        assert np.shares_memory(side, made())
        assert front[0].strides == (1, 12, 3), "in memory channels last"
        np.testing.assert_array_equal(front, np.broadcast_to(batch.index[:, None, None, None], front.shape))
        levels = batch.index[:, None] + np.arange(3)
        np.testing.assert_array_equal(side, np.broadcast_to(levels[:, :, None, None, None], side.shape))


def test_nothing_refers_to_the_memory_of_a_batch_that_is_given_up() -> None:
    memory = Memory()
    # In this thread: others may hold their last chunk a moment longer.
    request = request_of(CameraSource(40, 10**6), cameras(), context=ReadContext(memory), is_lazy=True)
    batches = read_in_index_mode(request)
    gc.collect()
    gc.disable()
    try:
        for number in range(request.plan.num_batches):
            assert len(next(batches)) == 10
            assert memory.made[number]() is None
    finally:
        gc.enable()


def test_images_of_other_sizes_make_a_list_of_arrays() -> None:
    source, whole = CameraSource(40, 10**6), CameraSource(40, 10**6)
    source.side = (*source.side[:41], flat(41, (2, 2)))
    batches = read_in_index_mode(request_of(source, cameras(), context=ReadContext(Memory())))
    planned = read_in_index_mode(request_of(whole, cameras()))
    kinds = set()
    for batch, expected in zip(batches, planned, strict=True):
        side = batch.features["side"]
        kinds.add(type(side))
        np.testing.assert_array_equal(batch.features["front"], expected.features["front"])
        if isinstance(side, np.ndarray):
            np.testing.assert_array_equal(side, expected.features["side"])
            continue
        for number, own, other in zip(batch.index.tolist(), side, expected.features["side"], strict=True):
            if number == 39:
                assert [image.shape for image in own] == [(3, 3, 5), (3, 3, 5), (3, 2, 2)]
            else:
                np.testing.assert_array_equal(own, other)
    assert kinds == {list, np.ndarray}


def test_steps_outside_of_the_episode_are_zeros_in_the_memory() -> None:
    content = Content({}, False, cameras={"side": WindowImageField("side", True, "RGB", padding="outside")})
    for batch in read_in_index_mode(request_of(CameraSource(40), content, context=ReadContext(Memory()))):
        side, is_even = batch.features["side"], batch.index % 2 == 0
        assert not side[is_even, 0].any()
        assert (side[~is_even, 0] == batch.index[~is_even][:, None, None, None]).all()
        assert (side[:, 1] == batch.index[:, None, None, None] + 1).all()


def test_an_image_that_cannot_be_decoded_is_named_and_replaced() -> None:
    source = CameraSource(40, 10**6)
    source.side = (*source.side[:9], b"no image", *source.side[10:])
    with pytest.raises(CorruptRecordError, match=r"example \d cannot be decoded. Image [012] of the 3 of 'side': "):
        list(read_in_index_mode(request_of(source, cameras())))
    options = ReadOptions(num_threads=2, on_error="replace")
    request = request_of(source, cameras(), options=options, context=ReadContext(Memory()))
    for batch in read_in_index_mode(request):
        assert not {7, 8, 9} & set(batch.index.tolist())
        assert batch.features["side"][:, 0, 0, 0, 0].tolist() == batch.index.tolist()


def test_the_field_image_and_cameras_share_memory_each_with_its_own_crop() -> None:
    preprocess, memory = TrainPreprocess(size=8), Memory()
    source = CameraSource(40, images=[flat(level) for level in range(40)])
    front = WindowImageField("front", False, "RGB", preprocess=TrainPreprocess(size=(2, 3)))
    content = Content({}, False, image_content(preprocess).image, preprocess, cameras={"front": front})
    batches = list(read_in_index_mode(request_of(source, content, context=ReadContext(memory))))
    assert len(batches) == len(memory.made)
    for batch in batches:
        assert (batch.image.shape, batch.features["front"].shape) == ((10, 8, 8, 3), (10, 3, 2, 3))
        assert batch.image[:, 0, 0, 0].tolist() == batch.features["front"][:, 0, 0, 0].tolist() == batch.index.tolist()
