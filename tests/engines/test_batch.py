"""BatchAssembler: chunks become batches, in order, in their own memory, whichever thread decodes them and when."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from picture_fixtures import save
from PIL import Image

from engines.made_source import MadeSource, image_content, request_of
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.preprocess import EvalPreprocess
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.world import World

LEVELS = range(0, 200, 5)


def flat(level: int, size: tuple[int, int] = (6, 4)) -> bytes:
    return save(Image.new("RGB", (size[1], size[0]), (level, level, level)), "PNG")


IMAGES = [flat(level) for level in LEVELS]


@pytest.mark.parametrize("batch_size", [1, 3, 10, 17, 64])
@pytest.mark.parametrize("mean_example_bytes", [100, 10**6])
def test_batches_are_the_plans_whatever_the_chunks(batch_size: int, mean_example_bytes: int) -> None:
    request = request_of(MadeSource(40, mean_example_bytes), batch_size=batch_size)
    batches = list(read_in_index_mode(request))
    assert [batch.batch for batch in batches] == list(range(request.plan.num_batches))
    for batch in batches:
        planned = request.plan.batch(0, batch.batch)
        np.testing.assert_array_equal(batch.index, planned.index)
        np.testing.assert_array_equal(batch.label, planned.index)
        assert batch.features["text"] == [str(number) for number in planned.index.tolist()]
        assert batch.id == [f"made__{number}" for number in planned.index.tolist()]


def test_pieces_are_the_batches_cut() -> None:
    request = request_of(MadeSource(40, 10**6), batch_size=10)
    whole = list(read_in_index_mode(request))
    pieces = list(read_in_index_mode(replace(request, in_pieces=True)))
    assert len(pieces) > 2 * len(whole)
    for batch in whole:
        own = [piece for piece in pieces if piece.batch == batch.batch]
        np.testing.assert_array_equal(np.concatenate([piece.index for piece in own]), batch.index)
        np.testing.assert_array_equal(np.concatenate([piece.valid for piece in own]), batch.valid)


def test_padding_is_not_valid_and_carries_the_pad_label() -> None:
    request = request_of(MadeSource(13), is_training=False, remainder=Remainder.PAD, world=World(1, 2), batch_size=5)
    batches = list(read_in_index_mode(request))
    assert [batch.valid.tolist() for batch in batches] == [[True] * 5, [False] * 5]
    assert batches[1].label.tolist() == [-100] * 5


def test_a_last_batch_may_be_short() -> None:
    request = request_of(MadeSource(13, images=IMAGES), image_content(), is_training=False, remainder=Remainder.KEEP)
    assert [batch.image.shape for batch in read_in_index_mode(request)] == [(10, 6, 4, 3), (3, 6, 4, 3)]


@pytest.mark.parametrize("preprocess", [None, EvalPreprocess(size=(6, 4), crop_pct=1)])
def test_every_image_lies_in_the_row_of_its_example(preprocess: Any) -> None:
    source = MadeSource(40, 10**6, images=IMAGES)
    request = request_of(source, image_content(preprocess), options=ReadOptions(num_threads=4))
    batches = list(read_in_index_mode(request))
    assert batches
    for batch in batches:
        assert batch.image.shape == (10, 6, 4, 3)
        expected = [LEVELS[number] for number in batch.index.tolist()]
        assert batch.image[:, 0, 0, 0].tolist() == batch.image[:, -1, -1, 2].tolist() == expected


def test_images_are_written_into_the_memory_that_the_run_supplies() -> None:
    made: list[ArrayBuffer] = []

    def make_buffer(shape: tuple[int, int, int, int]) -> ArrayBuffer:
        made.append(ArrayBuffer(shape))
        return made[-1]

    request = request_of(MadeSource(40, images=IMAGES), image_content(), context=ReadContext(make_buffer=make_buffer))
    batches = list(read_in_index_mode(request))
    assert [batch.image is buffer.pixels for batch, buffer in zip(batches, made, strict=True)] == [True] * 4


def test_images_of_whole_batches_are_of_one_size() -> None:
    request = request_of(MadeSource(40, images=[*IMAGES[:-1], flat(1, (6, 5))]), image_content())
    with pytest.raises(
        ConfigError, match=r"Whole batches need images of one size: made__39 .*\[6, 5, 3\].*\[6, 4, 3\]"
    ):
        list(read_in_index_mode(request))


def test_an_image_that_cannot_be_decoded_is_named() -> None:
    images = [*IMAGES[:7], b"no image", *IMAGES[8:]]
    request = request_of(MadeSource(40, images=images), image_content(EvalPreprocess(size=4)))
    with pytest.raises(CorruptRecordError, match=r"example 7 cannot be decoded\. "):
        list(read_in_index_mode(request))


def test_a_batch_whose_first_image_tells_no_size_is_an_error_of_that_image() -> None:
    source = MadeSource(40, images=IMAGES)
    first = int(request_of(source).plan.batch(0, 0).index[0])
    source.images = [b"" if number == first else image for number, image in enumerate(IMAGES)]
    with pytest.raises(CorruptRecordError, match=f"example {first} cannot be decoded"):
        list(read_in_index_mode(request_of(source, image_content())))
    replacing = ReadOptions(num_threads=2, on_error="replace")
    batches = list(read_in_index_mode(request_of(source, image_content(), options=replacing)))
    assert int(batches[0].index[0]) == (first + 1) % 40
    assert batches[0].image[0, 0, 0, 0] == LEVELS[(first + 1) % 40]


def test_damaged_examples_are_replaced_by_the_next_whole_one_in_their_own_chunk() -> None:
    source = MadeSource(40, 10**6, damaged=frozenset([4, 5, 20]), images=IMAGES)
    options = ReadOptions(num_threads=2, on_error="replace")
    request = request_of(source, image_content(), options=options)
    batches = list(read_in_index_mode(request))
    came = np.concatenate([batch.index for batch in batches])
    planned = np.concatenate([request.plan.batch(0, number).index for number in range(4)])
    expected = [{4: 6, 5: 6, 20: 21}.get(number, number) for number in planned.tolist()]
    assert came.tolist() == expected
    levels = np.concatenate([batch.image[:, 0, 0, 0] for batch in batches]).tolist()
    assert levels == [LEVELS[number] for number in expected]
    num_read = len(source.numbers("read"))
    assert num_read <= 40 + 3 * request.chunk_size + 6, "no other chunk is read again"


def test_in_evaluation_what_took_a_place_is_not_valid() -> None:
    source = MadeSource(40, damaged=frozenset([4]))
    options = ReadOptions(num_threads=2, on_error="replace")
    request = request_of(source, options=options, is_training=False, remainder=Remainder.KEEP)
    batches = list(read_in_index_mode(request))
    counted = [number for batch in batches for number in batch.index[batch.valid].tolist()]
    assert sorted(counted) == [number for number in range(40) if number != 4]
    assert [label for batch in batches for label in batch.label.tolist()].count(-100) == 1


def test_no_thread_outlives_an_iteration() -> None:
    before = set(threading.enumerate())
    batches = read_in_index_mode(request_of(MadeSource(400, images=IMAGES), image_content()))
    next(batches)
    assert any(thread.name.startswith("tfds_torch-decode") for thread in threading.enumerate())
    own = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("tfds_torch")]
    batches.close()
    for thread in own:
        thread.join()
    before = set(threading.enumerate())
    list(read_in_index_mode(request_of(MadeSource(40, images=IMAGES), image_content())))
    assert set(threading.enumerate()) <= before, "at its end nothing has to be waited for"


def test_no_buffer_is_kept_by_an_iteration_that_replaced_examples() -> None:
    made: list[weakref.ref[ArrayBuffer]] = []

    def make_buffer(shape: tuple[int, int, int, int]) -> ArrayBuffer:
        buffer = ArrayBuffer(shape)
        made.append(weakref.ref(buffer))
        return buffer

    source = MadeSource(40, 10**6, damaged=frozenset(range(0, 40, 7)), images=IMAGES)
    options = ReadOptions(num_threads=1, on_error="replace")
    request = request_of(source, image_content(), options=options, context=ReadContext(make_buffer=make_buffer))
    gc.collect()
    gc.disable()
    try:
        assert sum(len(batch) for batch in read_in_index_mode(request)) == 40
        assert [buffer() for buffer in made] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("batch_size", [1, 4, 32, 256])
@pytest.mark.parametrize("num_threads", [1, 8])
def test_few_batches_are_decoded_ahead_however_many_threads_there_are(batch_size: int, num_threads: int) -> None:
    source = MadeSource(4096, mean_example_bytes=500)
    options = ReadOptions(num_threads=num_threads)
    request = request_of(source, options=options, batch_size=batch_size)
    num_ahead = max(request.num_chunks_ahead, num_threads) * request.chunk_size
    assert num_ahead <= max(3 * batch_size, 2 * 32 * 8)


def test_two_iterations_of_one_source_may_run_side_by_side() -> None:
    source = MadeSource(400, images=IMAGES)
    request = request_of(source, image_content())

    def read() -> list[int]:
        return [int(pixel) for batch in read_in_index_mode(request) for pixel in batch.image[:, 0, 0, 0]]

    with ThreadPoolExecutor(3) as threads:
        results = [future.result() for future in [threads.submit(read) for _ in range(3)]]
    assert results[0] == results[1] == results[2]
