"""Scenes, pictures and words."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from tfds_torch.demo.fake import visuals, words
from tfds_torch.demo.fake.draft import deal_class
from tfds_torch.demo.fake.scene import Scene, draw_scene


def scene_of(look: int, number: int, height: int = 32, width: int = 32, num_shapes: int = 1) -> Scene:
    return draw_scene(np.random.default_rng([look, number]), look, height, width, num_shapes)


def paint(scene: Scene, channels: int = 3, seed: int = 0) -> np.ndarray:
    return visuals.paint(scene, scene.height, scene.width, channels, np.random.default_rng(seed))


@pytest.mark.parametrize("channels", [1, 3])
def test_what_a_picture_shows_can_be_learnt(channels: int) -> None:
    """The nearest of the classes' mean pictures, by colours or by form, finds most labels of unseen ones."""

    def describe(look: int, number: int) -> np.ndarray:
        pixels = paint(scene_of(look, number), channels, seed=number).astype(float)
        histogram = [np.histogram(pixels[..., c], bins=8, range=(0, 256))[0] / 1024 for c in range(channels)]
        return np.concatenate(histogram)

    train = np.array([[describe(look, number) for number in range(30)] for look in range(10)])  # [10, 30, F]
    centres, scales = train.mean(axis=1), train.std(axis=(0, 1)) + 1e-3
    found = [
        int(np.argmin((((centres - describe(look, number)) / scales) ** 2).sum(axis=1))) == look
        for look in range(10)
        for number in range(30, 60)
    ]
    assert np.mean(found) > (0.75 if channels == 3 else 0.25)


def test_a_scene_depends_on_its_generator_alone() -> None:
    digests = [hashlib.sha256(paint(scene_of(3, number)).tobytes()).digest() for number in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("look", range(20))
def test_every_form_stays_within_the_picture_and_its_box(look: int) -> None:
    for number in range(20):
        for shape in scene_of(look, number, 40, 100, num_shapes=3).shapes:
            ymin, xmin, ymax, xmax = shape.box
            assert 0 <= ymin < ymax <= 1
            assert 0 <= xmin < xmax <= 1
            for x, y in shape.outline:
                assert ymin - 1e-9 <= y <= ymax + 1e-9
                assert xmin - 1e-9 <= x <= xmax + 1e-9


def test_the_forms_of_twenty_labels_differ() -> None:
    forms = {(len(s.shapes[0].outline), s.shapes[0].is_hollow) for s in (scene_of(look, 0) for look in range(20))}
    assert len(forms) >= 14


def test_a_file_is_as_large_as_a_photographs() -> None:
    files = [visuals.encode(paint(scene_of(look, 0, 375, 500), seed=look), "jpeg") for look in range(20)]
    assert 20_000 < np.mean([len(file) for file in files]) < 120_000


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
def test_png_files_keep_every_pixel(channels: int, mode: str) -> None:
    pixels = paint(scene_of(1, 0, 20, 30), channels)
    assert pixels.shape == (20, 30, channels)
    image = Image.open(io.BytesIO(visuals.encode(pixels, "png")))
    assert (image.format, image.mode) == ("PNG", mode)
    np.testing.assert_array_equal(np.asarray(image).reshape(pixels.shape), pixels)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 21, 300])
def test_mask_values_are_classes(num_classes: int) -> None:
    for first in (0, 1, 20, 299):
        values = visuals.MaskValues(num_classes, first)
        mask = visuals.paint_mask(scene_of(1, first, 60, 80, num_shapes=4), 60, 80, values)
        assert mask.shape == (60, 80, 1)
        assert 0 <= mask.min() <= mask.max() < num_classes
        assert num_classes == 1 or mask.max() > 0


def test_pictures_larger_than_the_noise_field_are_painted() -> None:
    pixels = visuals.paint(scene_of(1, 0), 1100, 1300, 3, np.random.default_rng(0))
    assert pixels.shape == (1100, 1300, 3)
    assert pixels[1050:, 1200:].std() > 1


@pytest.mark.parametrize("num_classes", [1, 2, 7, 1000])
def test_classes_are_dealt_so_that_each_comes_once_a_round(num_classes: int) -> None:
    dealt = [deal_class(0, "train", "label", num_classes, index) for index in range(2 * num_classes)]
    assert sorted(dealt[:num_classes]) == sorted(dealt[num_classes:]) == list(range(num_classes))
    if num_classes > 5:
        assert dealt[:num_classes] != dealt[num_classes:]
        assert dealt[:num_classes] != [deal_class(1, "train", "label", num_classes, i) for i in range(num_classes)]
        assert dealt[:num_classes] != [deal_class(0, "test", "label", num_classes, i) for i in range(num_classes)]
        assert dealt[:num_classes] != [deal_class(0, "train", "other", num_classes, i) for i in range(num_classes)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("image/filename", ["image", "filename"]),
        ("file_name", ["file", "name"]),
        ("reviewText", ["review", "text"]),
        ("5_o_Clock_Shadow", ["5", "o", "clock", "shadow"]),
        ("", []),
    ],
)
def test_a_key_is_split_into_words(key: str, expected: list[str]) -> None:
    assert words.split_key(key) == expected


@pytest.mark.parametrize(
    ("key", "is_file_name", "is_id"),
    [
        ("file_name", True, False),
        ("image/filename", True, False),
        ("fname", True, False),
        ("image/id", False, True),
        ("image_id", False, True),
        ("id", False, True),
        ("grid", False, False),
        ("valid", False, False),
        ("identity", False, False),
        ("name", False, False),
    ],
)
def test_a_key_says_whether_it_names_a_file_or_is_an_id(key: str, is_file_name: bool, is_id: bool) -> None:
    assert words.means_file_name(words.split_key(key)) is is_file_name
    assert words.means_id(words.split_key(key)) is is_id


def test_texts_have_the_length_that_their_key_lets_expect() -> None:
    def mean_length(key: str) -> float:
        texts = [words.write(words.split_key(key), 0, np.random.default_rng(i)) for i in range(50)]
        assert len(set(texts)) > 20
        return float(np.mean([len(text.split()) for text in texts]))

    assert mean_length("name") < 3 < mean_length("question") < 16 < 40 < mean_length("text") < 150


def test_texts_depend_on_their_topic() -> None:
    by_topic = [" ".join(words.write(["text"], topic, np.random.default_rng(9)) for _ in range(1)) for topic in (0, 1)]
    assert by_topic[0] != by_topic[1]
