"""What an example holds: every feature against TFDS's own decoding, and images against Pillow's, bit for bit."""

from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from encoded_images import pillow_pixels
from tfds_fixtures import (
    CLASSES,
    Channels,
    Datasets,
    Read,
    assert_same,
    call_reader,
    draw_image,
    iterate_tfds,
    read_one,
)

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.source import FieldSpec

KINDS = [config.name for config in Channels.BUILDER_CONFIGS]
MODES = (None, "L", "RGB", "RGBA")
FEATURES = (
    *("caption", "depth", "file_name", "flag", "frames", "image/filename", "label", "mask", "matrix", "nested"),
    *("objects", "pair", "precise", "sizes", "small", "vector", "weight", "words", "zipped"),
)
NESTED = ("nested/count", "nested/inner", "nested/inner/weight", "nested/inner/tags", "objects/bbox", "objects/label")

TfdsExamples = list[dict[str, Any]]


def read_everything(root: str) -> "Reads":
    """Returns our batches and TFDS's examples of many reads. Runs in the reader."""

    truth: dict[tuple[str, str], TfdsExamples] = {}

    def both(
        name: str, split: str, fields: tuple[str, ...], **arguments: Any
    ) -> tuple[list[Batch] | Exception, TfdsExamples]:
        theirs = truth.get((name, split)) or truth.setdefault((name, split), list(iterate_tfds(root, name, split)))
        read = Read({"name": name, "split": split, "batch_size": 16, **arguments}, fields=fields)
        try:
            return list(read_one(root, read)), theirs
        except Exception as error:  # Fails the tests of this read, not of all others.
            return RuntimeError(f"{read}: {error!r}"), theirs

    reads: dict[Any, Any] = {
        (kind, mode): both(f"channels/{kind}", "train", ("image", "label"), image_mode=mode)
        for kind in KINDS
        for mode in MODES
    }
    reads |= {
        "features": both("shapes", "train+test", ("image", *FEATURES, *NESTED)),
        "mask as image": both("shapes", "test", ("image",), image_key="mask", image_mode=None),
        "nested target": both("shapes", "test", ("label",), target_key="nested/count"),
        "several labels": both("shapes", "test", ("label",), target_key="objects/label"),
        "sentences": both("sentences", "train", ("text", "score")),
        "text target": both("tiny", "train", ("image", "label", "id")),
        "only metadata": both("tiny", "train", ("valid", "index", "id")),
    }
    stored = {name: read_stored(root, name, "train") for name in (f"channels/{kind}" for kind in KINDS)}
    return Reads(reads, stored | {"shapes": read_stored(root, "shapes", "train+test")})


def read_stored(root: str, name: str, split: str) -> list[bytes]:
    """Returns encoded images as TFDS's own reader hands them over."""
    examples = iterate_tfds(root, name, split, {"image": tfds.decode.SkipDecoding()})
    return [example["image"] for example in examples]


class Reads:
    """Name of a read -> our batches and TFDS's examples; and the stored images of some datasets."""

    def __init__(
        self, results: dict[Any, tuple[list[Batch] | Exception, TfdsExamples]], stored: dict[str, list[bytes]]
    ) -> None:
        self.results, self.stored = results, stored

    def __getitem__(self, name: Any) -> tuple[list[Batch], TfdsExamples]:
        ours, theirs = self.results[name]
        if isinstance(ours, Exception):
            raise ours
        return ours, theirs


@pytest.fixture(scope="module")
def reads(datasets: Datasets) -> Reads:
    return call_reader(read_everything, str(datasets.root))


def values(batches: list[Batch], name: str) -> list[Any]:
    return [value for batch in batches for value in batch.features[name]]


def images(batches: list[Batch]) -> list[np.ndarray]:
    found = [image for batch in batches for image in batch.image]
    assert found, "nothing was read"
    return found


def test_ids_are_those_of_tfds(reads: Reads) -> None:
    assert len(reads.results) > len(KINDS)
    for ours, theirs in map(reads.__getitem__, reads.results):
        assert theirs
        assert [name for batch in ours for name in batch.id] == [example["tfds_id"].decode() for example in theirs]


def test_images_are_pillows_of_the_files_that_tfds_finds_bit_for_bit(reads: Reads) -> None:
    ours, theirs = reads["features"]
    assert_same(images(ours), [pillow_pixels(image, "RGB") for image in reads.stored["shapes"]], "image")
    # tensorflow decodes JPEG by a faster transform, a level or two off.
    apart = [np.abs(our.astype(int) - their["image"]).mean() for our, their in zip(images(ours), theirs, strict=True)]
    assert max(apart) < 3


@pytest.mark.parametrize("name", [*FEATURES, *NESTED])
def test_every_feature_has_the_values_of_tfds(reads: Reads, name: str) -> None:
    ours, theirs = reads["features"]
    assert len(theirs) == len(images(ours)) > 0
    for i, example in enumerate(theirs):
        expected: Any = example
        for key in [name] if name in example else name.split("/"):
            expected = expected[key]
        our = ours[i // 16].label[i % 16] if name == "label" else values(ours, name)[i]
        assert_same(our, expected, f"{name} of example {i}")


def test_texts_are_str_and_what_was_written(reads: Reads) -> None:
    captions = values(reads["features"][0], "caption")
    assert all(type(caption) is str for caption in captions)
    assert sorted(captions)[0] == "a circle, number 0, grün"


@pytest.mark.parametrize("kind", KINDS)
def test_images_as_stored_are_those_of_pillow_and_of_tfds(reads: Reads, kind: str) -> None:
    ours, theirs = reads[kind, None if kind != "jpeg_l_as_rgb" else "RGB"]
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[images(ours)[0].shape[-1]]
    assert_same(images(ours), [pillow_pixels(image, mode) for image in reads.stored[f"channels/{kind}"]], kind)
    if kind.startswith("png"):
        assert_same(images(ours), [example["image"] for example in theirs], kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_image_mode_gives_its_channels(reads: Reads, kind: str, mode: str | None) -> None:
    stored = next(config.stored for config in Channels.BUILDER_CONFIGS if config.name == kind)
    wanted = {None: stored, "L": 1, "RGB": 3, "RGBA": 4}[mode]
    for image in images(reads[kind, mode][0]):
        assert image.dtype == np.uint8
        assert image.shape[2] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_image_mode_converts_as_pillow_does(reads: Reads, kind: str, mode: str) -> None:
    expected = [pillow_pixels(image, mode) for image in reads.stored[f"channels/{kind}"]]
    assert_same(images(reads[kind, mode][0]), expected, f"{kind} as {mode}")


def test_png_pixels_are_what_was_written(reads: Reads) -> None:
    for kind, channels in (("png_l", 1), ("png_rgb", 3), ("png_rgba", 4)):
        written = {draw_image(i, channels).tobytes() for i in range(10)}
        assert {image.tobytes() for image in images(reads[kind, None][0])} == written


def test_another_image_feature_may_be_the_image(reads: Reads) -> None:
    ours, theirs = reads["mask as image"]
    assert_same(images(ours), [example["mask"] for example in theirs], "mask")


def test_a_nested_scalar_may_be_the_target(reads: Reads) -> None:
    ours, theirs = reads["nested target"]
    labels = [label for batch in ours for label in batch.label]
    assert labels == [example["nested"]["count"] for example in theirs]


def test_a_target_that_is_no_scalar_integer_comes_among_the_features(reads: Reads) -> None:
    ours, theirs = reads["several labels"]
    assert all(batch.label is None for batch in ours)
    assert_same(values(ours, "label"), [example["objects"]["label"] for example in theirs], "objects/label")
    ours, theirs = reads["text target"]
    assert all(batch.label is None for batch in ours)
    assert values(ours, "label") == [example["label"].decode() for example in theirs]
    assert set(values(ours, "label")) == set(CLASSES[:3])


def test_a_dataset_without_images_is_read(reads: Reads) -> None:
    ours, theirs = reads["sentences"]
    assert all(batch.image is None and batch.label is None for batch in ours)
    assert values(ours, "text") == [example["text"].decode() for example in theirs]
    assert values(ours, "score") == [example["score"] for example in theirs]


def test_fields_decide_what_is_decoded(reads: Reads) -> None:
    ours, _ = reads["only metadata"]
    assert all((batch.image, batch.label, batch.features) == (None, None, {}) for batch in ours)
    ours, _ = reads["mask as image"]
    assert all(batch.label is None and not batch.features for batch in ours)


def test_keys_are_literal_first_then_nested(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", target_key="image/filename")
    parser.check_fields(["image/filename", "label", "nested/inner/weight", "objects/bbox", "id", "index", "valid"])
    with pytest.raises(ConfigError, match="image/filename, "):
        parser.check_fields(["image/file"])


def test_classes_have_names(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    assert parser.class_names == CLASSES
    assert parser.class_to_idx == {name: i for i, name in enumerate(CLASSES)}
    for other in (ParserTfds(datasets.root, "sentences"), ParserTfds(datasets.root, "shapes", target_key=None)):
        assert other.class_names is None
        assert other.class_to_idx == {}


def test_the_element_spec_names_every_field(datasets: Datasets) -> None:
    spec = ParserTfds(datasets.root, "shapes").element_spec.fields
    assert set(spec) == {"image", *FEATURES, "valid", "index", "id"}
    assert spec["image"] == FieldSpec((None, None, 3), np.uint8)
    assert spec["label"] == FieldSpec((), np.int64)
    assert spec["nested"]["inner"]["weight"] == FieldSpec((), np.float32)
    assert spec["objects"]["bbox"].shape == (None, 4)
    assert spec["matrix"].shape == (None, 2)
