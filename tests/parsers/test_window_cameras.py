"""Images of windows that are cut and resized by camera: all of a window alike, anew in every epoch."""

from typing import Any

import numpy as np
from tfds_fixtures import encode

from parsers.robot_episodes import Robots, draw_frame
from tfds_torch import EvalPreprocess, ParserMixture, ParserTfds, TrainPreprocess, Windows, World
from tfds_torch.engines.fields import SAMPLES, Samples
from tfds_torch.engines.window_fields import WindowImageField

NAMES = {"primary": "observation/image", "wrist": "observation/wrist_image"}
CROPS = {"primary": TrainPreprocess(size=8), "wrist": TrainPreprocess(size=(6, 4), scale=(0.2, 0.5))}


def make_parser(robots: Robots, preprocess: Any, offsets: dict[str, Any] | None = None, **arguments: Any) -> ParserTfds:
    windows = Windows(offsets={"primary": [-1, 0], "wrist": [0, 0, 0]} if offsets is None else offsets)
    values = {"fields": NAMES, "batch_size": 11, "is_training": True, **arguments}
    return ParserTfds(robots.root, "libero_like", windows=windows, preprocess=preprocess, **values)


def test_every_camera_has_a_size_of_its_own(robots: Robots) -> None:
    parser = make_parser(robots, CROPS)
    (batch, *_) = parser.batches(fields=["primary", "wrist"])
    assert (batch.features["primary"].shape, batch.features["primary"].dtype) == ((11, 2, 3, 8, 8), np.uint8)
    assert batch.features["wrist"].shape == (11, 3, 3, 6, 4)
    specs = parser.element_spec.fields
    assert (specs["primary"].shape, specs["wrist"].shape) == ((2, 3, 8, 8), (3, 3, 6, 4))


def test_all_images_of_a_window_get_the_same_crop_and_flip(robots: Robots) -> None:
    parser = make_parser(robots, CROPS)
    seen = set()
    for epoch in range(3):
        for batch in parser.batches(epoch=epoch, fields=["wrist"]):
            wrist = batch.features["wrist"]
            np.testing.assert_array_equal(wrist[:, 0], wrist[:, 1])
            np.testing.assert_array_equal(wrist[:, 0], wrist[:, 2])
            seen |= {(int(number), image.tobytes()) for number, image in zip(batch.index, wrist[:, 0], strict=True)}
    assert len(seen) > 2 * 55  # Of 55 windows, nearly each epoch shows another crop.


def test_cameras_have_random_numbers_of_their_own() -> None:
    frame = encode(draw_frame(3, 32), "PNG").getvalue()
    samples = Samples(np.arange(20), seed=0)
    crops = [
        WindowImageField(key, True, "RGB", preprocess=TrainPreprocess(size=8)).decode(
            {key: [[frame, frame]] * 20, SAMPLES: samples}
        )
        for key in ("one", "two")
    ]
    for own in crops:
        np.testing.assert_array_equal(own[:, 0], own[:, 1])
    assert ((crops[0] != crops[1]).any(axis=(1, 2, 3, 4))).sum() > 15


def test_a_preprocess_belongs_to_the_name_and_crops_to_the_camera(robots: Robots) -> None:
    names = dict.fromkeys(["whole", "now", "past", "small"], "observation/image")
    crops = {"now": TrainPreprocess(size=8), "past": TrainPreprocess(size=8), "small": TrainPreprocess(size=4)}
    parser = make_parser(robots, crops, {"past": [-1, 0]}, fields=names, batch_size=55, shuffle=False)
    (batch,) = parser.batches(fields=[*names, "observation/image"])
    found = batch.features
    np.testing.assert_array_equal(found["past"][:, 1], found["now"])
    assert (found["past"].shape, found["small"].shape) == ((55, 2, 3, 8, 8), (55, 3, 4, 4))
    (stored,) = make_parser(robots, None, {}, batch_size=55, shuffle=False).batches(fields=["primary"])
    for name in ("whole", "observation/image"):
        np.testing.assert_array_equal(found[name], stored.features["primary"])
    specs = parser.element_spec.fields
    assert [specs[name].shape for name in names] == [(3, 16, 16), (3, 8, 8), (2, 3, 8, 8), (3, 4, 4)]
    again = make_parser(robots, {"primary": TrainPreprocess(size=8)}, {}, batch_size=55, shuffle=False)
    np.testing.assert_array_equal(next(iter(again.batches(fields=["primary"]))).features["primary"], found["now"])


def test_crops_do_not_depend_on_the_world_or_where_reading_begins(robots: Robots) -> None:
    expected = list(make_parser(robots, CROPS, batch_size=12).batches(epoch=2, fields=["primary"]))
    parser = make_parser(robots, CROPS, batch_size=4)
    for number in range(2, len(expected)):
        found = [
            next(parser.batches(World(rank, 3, 0, 1), 2, number, fields=["primary"])).features["primary"]
            for rank in range(3)
        ]
        np.testing.assert_array_equal(np.concatenate(found), expected[number].features["primary"])


def test_an_evaluation_cuts_as_that_of_plain_images(robots: Robots) -> None:
    preprocess = EvalPreprocess(size=8, crop_pct=0.75)
    windows = make_parser(robots, {"primary": preprocess}, {"primary": [0]}, is_training=False)
    plain = make_parser(robots, preprocess, {}, is_training=False, fields={"image": "observation/image"})
    named = make_parser(robots, {"image": preprocess}, {}, is_training=False, fields={"image": "observation/image"})
    images = (parser.batches(fields=["image"]) for parser in (plain, named))
    for ours, theirs, again in zip(windows.batches(fields=["primary"]), *images, strict=True):
        np.testing.assert_array_equal(ours.features["primary"][:, 0], np.moveaxis(theirs.image, -1, 1))
        np.testing.assert_array_equal(theirs.image, again.image)


def test_single_windows_and_exported_ones_have_whole_images(robots: Robots) -> None:
    parser, whole = make_parser(robots, CROPS), make_parser(robots, None)[5].features["primary"]
    np.testing.assert_array_equal(parser[5].features["primary"], whole)
    (stored,) = parser.dataset.encoded_examples(np.array([5]), ["primary"])
    np.testing.assert_array_equal(stored.features["primary"], whole)
    assert parser.dataset.encoded_field("primary").spec.shape == whole.shape


def test_a_mixture_takes_cameras_of_several_sizes(robots: Robots) -> None:
    windows, crop = Windows(offsets={"primary": [-1, 0]}), {"primary": TrainPreprocess(size=8, scale=(0.3, 0.5))}
    keys = {"bridge_like": "observation/image_0", "droid_like": "observation/wrist_image_left"}
    members = {
        name: ParserTfds(robots.root, name, windows=windows, fields={"primary": key}, preprocess=crop, batch_size=6)
        for name, key in keys.items()
    }
    mixture = ParserMixture(members, {"bridge_like": 2, "droid_like": 1}, is_training=True, batch_size=6)
    epochs = [list(mixture.batches(epoch=epoch, fields=["primary", "member"])) for epoch in (0, 0, 1)]
    for first, again in zip(*epochs[:2], strict=True):
        assert first.features["primary"].shape == (len(first), 2, 3, 8, 8)
        np.testing.assert_array_equal(first.features["primary"], again.features["primary"])
    assert set(mixture.dataset.cameras) == {"bridge_like/primary", "droid_like/primary"}
