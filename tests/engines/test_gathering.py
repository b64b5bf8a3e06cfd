"""Pixels that are stored as they are: gathered in the thread that iterates, and the same as by way of chunks."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.made_source import MadeSource, image_content, request_of
from tfds_torch.engines import direct
from tfds_torch.engines.batch import Batch
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.fields import Content, StoredField
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.errors import CorruptRecordError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.world import World

NUM_EXAMPLES, SIDE = 40, 8
PIXELS = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, SIDE, SIDE, 3), dtype=np.uint8)
CROPS = TrainPreprocess(size=SIDE, crop_padding=2)
REPLACE = ReadOptions(num_threads=2, on_error="replace")


def pixels_request(preprocess: Preprocess | None = None, **changes: Any) -> ReadRequest:
    source = MadeSource(NUM_EXAMPLES, pixels=PIXELS, **changes.pop("source", {}))
    return request_of(source, changes.pop("content", image_content(preprocess)), **changes)


def by_way_of_chunks(request: ReadRequest) -> list[Batch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "_are_only_copied", lambda *_: False)
        return list(read_in_index_mode(request))


@pytest.fixture
def no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no assembly be made, nor a thread be started."""

    def refuse(*_: Any) -> None:
        raise AssertionError("this path has neither")

    monkeypatch.setattr(direct, "BatchAssembler", refuse)
    monkeypatch.setattr(threading.Thread, "start", refuse)


def assert_same(found: list[Batch], wanted: list[Batch]) -> None:
    assert [batch.batch for batch in found] == [batch.batch for batch in wanted] != []
    for one, other in zip(found, wanted, strict=True):
        for name in ("image", "label", "valid", "index"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert (list(one.id), one.epoch) == (list(other.id), other.epoch)
        assert {name: values.tolist() for name, values in one.features.items()} == {
            name: values.tolist() for name, values in other.features.items()
        }


@pytest.mark.usefixtures("no_chunks")
@pytest.mark.parametrize("preprocess", [None, CROPS, EvalPreprocess(size=SIDE, crop_pct=1)])
def test_no_thread_and_no_assembly_stands_between(preprocess: Preprocess | None) -> None:
    batches = list(read_in_index_mode(pixels_request(preprocess)))
    assert [len(batch) for batch in batches] == [10] * 4
    for batch in batches:
        assert batch.label.tolist() == batch.index.tolist()
        if preprocess is not CROPS:
            np.testing.assert_array_equal(batch.image, PIXELS[batch.index])


@pytest.mark.parametrize("preprocess", [None, CROPS, EvalPreprocess(size=SIDE, crop_pct=1)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 7, "world": World(0, 1, 1, 2), "start_batch": 2},
        {"batch_size": 7, "world": World(1, 2), "is_training": False, "remainder": Remainder.PAD},
        {"batch_size": 300, "is_training": False, "remainder": Remainder.KEEP},
        {"options": REPLACE, "source": {"damaged": frozenset({3, 17})}},
        {"is_training": False, "remainder": Remainder.PAD, "options": REPLACE, "source": {"damaged": frozenset({0})}},
        {"content": Content({"label": StoredField("number"), "number": StoredField("number")}, True)},
    ],
)
def test_batches_are_those_by_way_of_chunks(preprocess: Preprocess | None, changes: dict[str, Any]) -> None:
    assert_same(
        list(read_in_index_mode(pixels_request(preprocess, **changes))),
        by_way_of_chunks(pixels_request(preprocess, **changes)),
    )


@pytest.mark.parametrize("num_stored", [1, 2, 3])
def test_what_is_no_longer_stored_as_pixels_is_decoded(num_stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache may be lost at any read; the first one asks for no example."""
    monkeypatch.setattr(direct, "_READ_AT_ONCE", 10)
    wanted = by_way_of_chunks(pixels_request(CROPS))
    assert_same(list(read_in_index_mode(pixels_request(CROPS, source={"num_stored": num_stored}))), wanted)


def test_what_takes_more_than_to_copy_goes_through_threads() -> None:
    text = Content({"text": StoredField("text", is_text=True)}, False, image_content().image)
    for request in (
        pixels_request(TrainPreprocess(size=SIDE)),
        pixels_request(content=image_content(mode="L")),
        pixels_request(content=text),
    ):
        names = set[str]()
        for _ in read_in_index_mode(request):
            names |= {thread.name.partition("_0")[0] for thread in threading.enumerate()}
        assert "tfds_torch-decode" in names


def test_a_damaged_example_is_an_error_after_the_batches_before_it() -> None:
    whole = list(read_in_index_mode(pixels_request()))
    batches = read_in_index_mode(pixels_request(source={"damaged": frozenset({int(whole[2].index[5])})}))
    assert_same([next(batches), next(batches)], whole[:2])
    with pytest.raises(CorruptRecordError, match=f"example {whole[2].index[5]} is damaged"):
        next(batches)


def test_images_are_the_memory_that_was_made_for_their_batch() -> None:
    made: list[ArrayBuffer] = []

    def make(shape: Any) -> ArrayBuffer:
        made.append(ArrayBuffer(shape))
        return made[-1]

    batches = list(read_in_index_mode(replace(pixels_request(), context=ReadContext(make_buffer=make))))
    assert [batch.image is buffer.pixels for batch, buffer in zip(batches, made, strict=True)] == [True] * 4
