"""Every kind of feature, filled and read back."""

import io
import wave
from typing import Any

import numpy as np
import pytest
from zygote import tensorflow_zygote

from demo.fake_features import FLOATS, INTEGERS, NUM, ask_for_unfakeable, build_every_feature
from tfds_torch.demo.fake import _split

Examples = list[dict[str, Any]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Examples, dict[str, Any]]:
    return tensorflow_zygote().call(build_every_feature, str(tmp_path_factory.mktemp("features")))


@pytest.fixture(scope="module")
def examples(built: tuple[Examples, dict[str, Any]]) -> Examples:
    assert len(built[0]) == NUM
    return built[0]


def test_the_builders_declarations_are_kept(built: tuple[Examples, dict[str, Any]]) -> None:
    facts = built[1]
    assert facts["disable_shuffling"] is True
    assert facts["supervised_keys"] == ("rgb", "kind")
    assert facts["folder"].parts[-2:] == ("every_feature", "1.2.3")


def test_without_shuffling_the_examples_lie_in_their_order(examples: Examples) -> None:
    assert [int(example["image_id"]) for example in examples] == list(range(NUM))
    assert [example["filename"].decode() for example in examples] == [f"every_feature_{i:06d}.jpg" for i in range(NUM)]
    assert [example["string_id"].decode() for example in examples] == [f"every_feature_{i:06d}" for i in range(NUM)]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_in_their_range_and_vary(examples: Examples, name: str) -> None:
    values = [example[name] for example in examples]
    assert {value.dtype for value in values} == {np.dtype(name)}
    assert all(0 <= value <= (255 if name == "uint8" else 99) for value in values)
    assert len(set(values)) > 3


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_between_0_and_1_and_vary(examples: Examples, name: str) -> None:
    values = [example[name] for example in examples]
    assert {value.dtype for value in values} == {np.dtype(name)}
    assert all(0 <= value <= 1 for value in values)
    assert len(set(values)) > 3


def test_tensors_have_their_shape_and_keep_their_bounds(examples: Examples) -> None:
    for example in examples:
        assert ((example["bounded"] >= -3) & (example["bounded"] <= -2)).all()
        assert set(example["bounded_ints"].tolist()) == {6, 7}
        assert example["cube"].shape == (2, 3, 4)
        assert example["one_free"].shape[1:] == (3,)
        assert example["zipped"].ndim == 2
        assert example["pair"].shape == (2,)
    assert len({example["one_free"].shape[0] for example in examples}) > 1
    assert {bool(example["bit"]) for example in examples} == {True, False}


def test_classes_are_in_range_and_vary(examples: Examples) -> None:
    for key, num_classes in (("a_class", 3), ("kind", 4)):
        assert 1 < len({int(example[key]) for example in examples}) <= num_classes
        assert all(0 <= example[key] < num_classes for example in examples)


def test_a_label_without_names_gets_some_as_its_real_builder_would_give_it(
    built: tuple[Examples, dict[str, Any]],
) -> None:
    assert built[1]["names"] == [f"class_{number}" for number in range(10)]
    assert all(0 <= example["unnamed"] < 10 for example in built[0])


def test_boxes_are_in_the_declared_format_and_have_an_area(examples: Examples) -> None:
    for example in examples:
        height, width, _ = example["rgb"].shape
        x, y, box_width, box_height = example["box_XYWH"].astype(float)
        ymin, xmin, ymax, xmax = example["box_YXYX"].astype(float)
        left, top, right, bottom = example["box_XYXY"].astype(float)
        for boxes in (
            [y / height, x / width, (y + box_height) / height, (x + box_width) / width],
            [ymin / height, xmin / width, ymax / height, xmax / width],
            [top / height, left / width, bottom / height, right / width],
            example["box_REL_XYXY"].astype(float)[[1, 0, 3, 2]],
            example["box_REL_YXYX"].astype(float),
            *example["objects"]["bbox"].astype(float),
        ):
            assert 0 <= boxes[0] <= boxes[2] - 0.09 <= 0.92
            assert 0 <= boxes[1] <= boxes[3] - 0.09 <= 0.92


def test_objects_have_a_box_each_and_ids_that_are_unique(examples: Examples) -> None:
    ids = [int(id_) for example in examples for id_ in example["objects"]["id"]]
    assert len(set(ids)) == len(ids) >= 2 * NUM
    for example in examples:
        objects = example["objects"]
        assert len(objects["id"]) == len(objects["bbox"]) == len(objects["label"]) >= 2
        assert len(np.unique(objects["bbox"], axis=0)) == len(objects["bbox"])


def test_height_and_width_are_those_of_the_image(examples: Examples) -> None:
    for example in examples:
        assert (example["height"], example["width"]) == example["rgb"].shape[:2]


def test_images_have_their_shape_dtype_and_contrast(examples: Examples) -> None:
    fixed = {"gray": (20, 30, 1), "rgba": (8, 9, 4), "x_rays": (5, 6, 3)}
    for example in examples:
        size = example["rgb"].shape[:2]
        for key, shape in fixed.items():
            assert example[key].shape == shape
            assert example[key][..., 0].std() > 5
        assert example["x_rays"].dtype == np.uint16
        assert example["x_rays"].max() > 255
        assert example["wide"].shape == (size[0], 40, 3)
        assert example["depth"].shape == (*size, 1)
        assert example["depth"].dtype == np.float32
        assert 0 <= example["depth"].min() < example["depth"].max() <= 10.01


def test_masks_hold_classes_and_fit_the_image(examples: Examples) -> None:
    for example in examples:
        size = example["rgb"].shape[:2]
        assert example["segmentation_mask"].shape == example["labels_map"].shape == (*size, 1)
        assert example["segmentation_mask"].dtype == np.uint16
        assert np.unique(example["segmentation_mask"]).tolist() == [1, 2, 3]
        assert set(np.unique(example["labels_map"])) <= {0, 1, 2}
        assert len(np.unique(example["labels_map"])) > 1


def test_videos_and_nested_datasets_have_several_frames(examples: Examples) -> None:
    for example in examples:
        assert example["video"].shape[1:] == (10, 12, 3)
        assert 2 <= len(example["video"]) <= 6
        assert 2 <= len(example["steps"]) <= 6
        for step in example["steps"]:
            assert step["frame"].shape == (6, 7, 3)
            assert step["action"] in (0, 1)


def test_sound_is_in_range(examples: Examples) -> None:
    for example in examples:
        assert example["audio"].shape == (8000,)
        assert example["audio"].dtype == np.int64
        assert 1_000 < example["audio"].max() <= 32_767
        assert example["audio_stereo"].shape == (8000, 2)
        assert 0.3 < np.abs(example["audio_stereo"]).max() < 1
        with wave.open(io.BytesIO(example["audio_file"])) as file:
            assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 16_000, 16_000)


def test_texts_are_utf8_wherever_they_are(examples: Examples) -> None:
    for example in examples:
        texts = [
            example["optional"],
            example["nested"]["inner"]["note"],
            *example["strings"],
            *example["translation"].values(),
            *example["translations"]["translation"],
            *(word for sentence in example["words"] for word in sentence),
        ]
        assert all(text.decode() for text in texts)
        assert set(example["translation"]) == {"de", "en"}
        assert {language.decode() for language in example["translations"]["language"]} <= {"de", "en", "fr"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("image/filename", ["image", "filename"]),
        ("file_name", ["file", "name"]),
        ("imageId", ["image", "id"]),
        ("5_o_Clock_Shadow", ["5", "o", "clock", "shadow"]),
        ("", []),
    ],
)
def test_a_key_is_split_into_words(path: str, words: list[str]) -> None:
    assert _split(path) == words


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    return tensorflow_zygote().call(ask_for_unfakeable)


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("odd", ["The feature 'odd' of 'odd/one:1.0.0'", "is a Odd", "this type of feature is unknown"]),
        ("deep", ["The feature 'deep/inner/odd' of", "is a Odd"]),
        ("picky", ["The feature 'picky' of", "is a Picky", "RuntimeError: never int16"]),
        ("two_free", ["The feature 'two_free' of", "is a Tensor", "ValueError: Multiple unknown dimensions"]),
        ("spectrum", ["The feature 'spectrum' of", "is a Image", "its shape is (4, 4, 13)"]),
        ("song", ["The feature 'song' of", "is a Audio", "'flac'"]),
    ],
)
def test_a_feature_that_cannot_be_faked_is_named(refusals: dict[str, str], key: str, facts: list[str]) -> None:
    for fact in facts:
        assert fact in refusals[key]
    assert refusals[key].endswith("Choose another dataset, or another config of it.")
