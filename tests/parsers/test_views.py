"""Views: each is what its preprocess makes of the image, with random numbers of its own; decoded together."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_preprocess import Shade, SquareCrop
from picture_fixtures import ENCODINGS, NAMES, photograph, write_pictures

from tfds_torch import (
    EvalPreprocess,
    IndexedImageDataset,
    ParserMixture,
    ParserTfds,
    ReadOptions,
    TrainPreprocess,
    Views,
    World,
)
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.images import view_transform
from tfds_torch.images.decoding import ImageDecoder
from tfds_torch.images.preprocess import ExampleRandom, Preprocess

GLOBAL, LOCAL = TrainPreprocess(size=(48, 40), scale=(0.4, 1.0)), TrainPreprocess(size=24, scale=(0.05, 0.4))
VIEWS = Views((GLOBAL, 2), (LOCAL, 3))
SEED, NUM_EXAMPLES = 42, 16
ALONE = World()
SHAPES = [(48, 40)] * 2 + [(24, 24)] * 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = ("jpeg 4:2:0", "jpeg 4:4:4", "png rgb", "jpeg gray")
    sizes = ((300, 200), (640, 427), (97, 120), (250, 333))
    images = [
        ENCODINGS[kind](photograph(name, size)) for kind, size in zip(kinds, sizes, strict=True) for name in NAMES
    ]
    return write_pictures(tmp_path_factory.mktemp("views"), images * 2)


def open_parser(root: Path, preprocess: Any = VIEWS, **more: Any) -> ParserTfds:
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 4, "preprocess": preprocess} | more
    return ParserTfds(root, "pictures", **arguments)


def read(parser: Any, epoch: int = 0, world: World = ALONE) -> list[Any]:
    return list(parser.batches(world, epoch))


# What comes


def test_the_image_is_a_list_of_batches(root: Path) -> None:
    for batch in read(open_parser(root)):
        assert [view.shape for view in batch.image] == [(4, *shape, 3) for shape in SHAPES]
        assert {view.dtype for view in batch.image} == {np.dtype(np.uint8)}
        assert len(batch) == 4


def test_the_first_view_is_what_its_preprocess_makes_alone(root: Path) -> None:
    for one, other in zip(read(open_parser(root), 1), read(open_parser(root, GLOBAL), 1), strict=True):
        np.testing.assert_array_equal(one.image[0], other.image)


def test_every_view_is_cut_by_numbers_of_its_own(root: Path) -> None:
    names = ("windows", "flips")
    sizes, keys = np.full((9, 2), 400), np.arange(9)
    found = [GLOBAL.crop_parameters(sizes, keys, SEED, np.zeros(9, np.bool_), view) for view in range(3)]
    for name in names:
        values = [getattr(one, name) for one in found]
        assert not any(np.array_equal(values[one], values[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    for batch in read(open_parser(root)):
        assert (batch.image[0] != batch.image[1]).mean() > 0.5


def test_views_have_the_pixels_of_images_that_are_decoded_for_each_of_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_decoded() -> tuple[list[Any], int]:
        count, original = 0, ImageDecoder.decode

        def decode(self: Any, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            return original(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(ImageDecoder, "decode", decode)
            return read(open_parser(root)), count

    together, num_together = count_decoded()
    shared = view_transform.decode_shared

    def decode_each(decoder: Any, images: Any, headers: Any, views: Any) -> Any:
        return [shared(decoder, images, headers, [view])[0] for view in views]

    monkeypatch.setattr(view_transform, "decode_shared", decode_each)
    alone, num_alone = count_decoded()
    assert num_alone == 5 * NUM_EXAMPLES
    assert NUM_EXAMPLES <= num_together <= 2 * NUM_EXAMPLES  # Some views are shrunk while they are decoded.
    for one, other in zip(together, alone, strict=True):
        for view, wanted in zip(one.image, other.image, strict=True):
            np.testing.assert_array_equal(view, wanted)


def test_own_crops_and_augments_are_views(root: Path) -> None:
    views = Views((SquareCrop(size=30), 2), Shade(size=20), EvalPreprocess(size=16))
    for batch in read(open_parser(root, views)):
        assert [view.shape[1:3] for view in batch.image] == [(30, 30)] * 2 + [(20, 20), (16, 16)]
    plain = Views((SquareCrop(size=30), 2), TrainPreprocess(size=20), EvalPreprocess(size=16))
    for one, other in zip(read(open_parser(root, views)), read(open_parser(root, plain)), strict=True):
        assert [np.array_equal(*pair) for pair in zip(one.image, other.image, strict=True)] == [True, True, False, True]
        shades = (one.image[2].astype(int) - other.image[2]) % 256
        assert all(len(np.unique(shade)) == 1 for shade in shades)


# In every loader and world


def test_a_mixture_has_views(root: Path) -> None:
    members = {name: ParserTfds(root, "pictures") for name in "ab"}
    parser = ParserMixture(members, {"a": 1, "b": 1}, is_training=True, batch_size=4, preprocess=VIEWS)
    for batch in read(parser):
        assert [view.shape[1:3] for view in batch.image] == SHAPES


def test_a_damaged_image_is_an_error_or_is_replaced(tmp_path: Path) -> None:
    images = [ENCODINGS["jpeg 4:2:0"](photograph("china", (90, 80))) for _ in range(4)]
    images[2] = images[2][:700]
    write_pictures(tmp_path, images)
    with pytest.raises(CorruptRecordError, match="record 2"):
        read(open_parser(tmp_path))
    (batch,) = read(open_parser(tmp_path, read=ReadOptions(on_error="replace")))
    at = batch.index.tolist()
    assert sorted(at) == [0, 1, 3, 3]
    assert all(view.any() for view in batch.image)


# The value, and what cannot be


def test_views_are_a_plain_value() -> None:
    assert pickle.loads(pickle.dumps(VIEWS)) == VIEWS
    assert Views((GLOBAL, 2), LOCAL) == Views((GLOBAL, 2), (LOCAL, 1))
    assert hash(VIEWS) == hash(Views((GLOBAL, 2), (LOCAL, 3)))
    assert eval(repr(VIEWS)) == VIEWS
    assert (VIEWS.size, VIEWS.num_pixels) == ((48, 40), 2 * 48 * 40 + 3 * 24 * 24)
    assert (VIEWS.augments, Views(Shade(size=8)).augments) == (False, True)
    crops = VIEWS.crop(np.full((2, 2), 99), ExampleRandom(np.arange(2), 1))
    assert len(crops) == 2


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ((), "Views: there are 0 views, and there can be 1 to 256"),
        (((GLOBAL, 0),), "Views: the number of views=0 must be"),
        (((GLOBAL, 200), (LOCAL, 100)), "Views: there are 300 views"),
        ((3,), "Views: 3 must be a pair of a preprocess and a number, such as (TrainPreprocess(size=224), 2)."),
        (((2, GLOBAL),), "must be a pair of a preprocess and a number"),
        ((VIEWS,), "must be a pair of a preprocess and a number"),
        ((TrainPreprocess(size=8, also=("mask",)),), "has also=('mask',), which belongs to one crop of an image"),
        ((TrainPreprocess(size=8, boxes=("bbox",)),), "has boxes=('bbox',), which belongs to one crop"),
    ],
    ids=str,
)
def test_what_cannot_be_a_view_is_refused(views: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Views(*views)


def test_views_of_other_channels_and_of_single_examples_are_refused(root: Path) -> None:
    views = Views(GLOBAL, TrainPreprocess(size=8, fill=(1, 2)))
    with pytest.raises(ConfigError, match=r"The fill \(1, 2\) of the preprocess has 2 grey levels"):
        open_parser(root, views)
    with pytest.raises(ConfigError, match=r"single examples cannot go through Views.*: views come in whole batches"):
        IndexedImageDataset(open_parser(root))
    with pytest.raises(ConfigError, match="A preprocess needs batch_size"):
        open_parser(root, is_training=False, batch_size=None)
    assert open_parser(root)[3].image.ndim == 3
    assert isinstance(VIEWS, Preprocess)
