"""Fields of a whole batch: tensors where values have one shape, lists where they have none."""

from typing import Any

import numpy as np
import pytest
import torch

from tfds_torch.engines.batch import Batch
from tfds_torch.storage.source import LazyIds
from tfds_torch.torch_data.batches import AskedFields, make_items
from tfds_torch.torch_data.tensor_buffer import TensorBuffers


def batch_of(image: Any = None, label: Any = None, **features: Any) -> Batch:
    valid, index = np.array([True, False]), np.array([5, 6])
    return Batch(image, label, valid, index, ["a__5", "a__6"], features, 0, 0)


def fields_of(batch: Batch, *names: str, images: tuple[str, ...] = ()) -> tuple[Any, ...]:
    (found,) = make_items([batch], AskedFields(tuple(names)), None, images=images)
    return found


def test_fields_come_in_the_order_asked_for_as_tensors() -> None:
    batch = batch_of(label=np.array([7, -100]))
    index, id_, label, valid = fields_of(batch, "index", "id", "label", "valid")
    assert id_ == ["a__5", "a__6"]
    for field, dtype, values in (
        (index, torch.int64, [5, 6]),
        (label, torch.int64, [7, -100]),
        (valid, torch.bool, [True, False]),
    ):
        assert (field.dtype, field.tolist()) == (dtype, values)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_a_buffer_are_handed_over_as_they_are(channels: int) -> None:
    images = TensorBuffers()((2, 4, 5, channels)).images
    assert fields_of(batch_of(images), "image")[0] is images
    assert (images.shape, images.dtype) == ((2, channels, 4, 5), torch.uint8)
    assert images.permute(0, 2, 3, 1).is_contiguous()


def test_ids_are_a_list_whatever_they_are_computed_by() -> None:
    ids = LazyIds(lambda numbers: [f"file__{number}" for number in numbers], np.arange(2))
    batch = Batch(None, None, np.array([True] * 2), np.arange(2), ids, {}, 0, 0)
    (found,) = fields_of(batch, "id")
    assert type(found) is list
    assert found == ["file__0", "file__1"]


def test_other_features_are_tensors_where_their_values_have_one_shape() -> None:
    numbers, vectors = np.array([0.5, 1.5]), np.zeros((2, 3), np.float32)
    batch = batch_of(
        numbers=numbers,
        vectors=vectors,
        pairs=[np.array([1, 2]), np.array([3, 4])],
        boxes=[np.zeros((1, 4), np.float32), np.zeros((2, 4), np.float32)],
        mixed=[np.zeros(2, np.int32), np.zeros(2, np.int64)],
        texts=["one", "two"],
        nested=[{"a": 1}, {"a": 2}],
        words=np.array([["a"], ["b"]], object),
    )
    assert fields_of(batch, "numbers")[0].tolist() == [0.5, 1.5]
    assert fields_of(batch, "numbers")[0].dtype == torch.float64
    assert (fields_of(batch, "vectors")[0].shape, fields_of(batch, "vectors")[0].dtype) == ((2, 3), torch.float32)
    assert fields_of(batch, "pairs")[0].tolist() == [[1, 2], [3, 4]]
    for name in ("boxes", "mixed", "texts", "nested"):
        assert fields_of(batch, name)[0] is batch.features[name]
    assert fields_of(batch, "words")[0] == [["a"], ["b"]]


def test_features_do_not_share_memory_with_the_parsers() -> None:
    numbers = np.array([1, 2])
    (tensor,) = fields_of(batch_of(numbers=numbers), "numbers")
    numbers[:] = 9
    assert tensor.tolist() == [1, 2]


def test_masks_are_channels_first_like_images_even_mirrored_ones() -> None:
    masks = [np.arange(20, dtype=np.uint8).reshape(4, 5, 1), np.arange(20, dtype=np.uint8).reshape(4, 5, 1)[:, ::-1]]
    (tensor,) = fields_of(batch_of(mask=masks), "mask", images=("mask",))
    assert tensor.shape == (2, 1, 4, 5)
    for ours, theirs in zip(tensor, masks, strict=True):
        np.testing.assert_array_equal(ours[0].numpy(), theirs[..., 0])


def test_numbers_of_three_dimensions_that_are_not_images_keep_their_order() -> None:
    blocks = [np.arange(60, dtype=np.uint8).reshape(3, 4, 5), np.ones((3, 4, 5), np.uint8)]
    (tensor,) = fields_of(batch_of(blocks=blocks), "blocks")
    assert tensor.tolist() == [block.tolist() for block in blocks]


def test_a_label_that_is_not_a_scalar_integer_is_a_feature() -> None:
    assert fields_of(batch_of(label=None), "valid")[0].tolist() == [True, False]
    batch = Batch(None, None, np.array([True]), np.array([0]), ["a__0"], {"label": ["text"]}, 0, 0)
    assert fields_of(batch, "label") == (["text"],)
