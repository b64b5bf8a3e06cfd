"""What a fake's examples hold, read by TFDS's own builder of the name and by ParserTfds."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded_images import pillow_pixels
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import assert_same
from zygote import forked_instead_of_fresh, tensorflow_zygote

from demo.fake_reading import Leaf, Reading, build_and_read, read
from demo.reading import build_each
from tfds_torch.demo import is_fake, prepare_fake
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.storage.tfrecord.framing import read_records

NUM, SHARDS, SPLITS = 20, 3, ("train", "test")
QUICK = ("cifar10", "voc/2007")
SLOW = ("mnist", "imagenet2012", "oxford_iiit_pet", "food101", "celeb_a", "coco/2017", "imdb_reviews")
EVERY = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    """By the public function, each in a process of its own."""
    root = tmp_path_factory.mktemp("quick")
    arguments: dict[str, Any] = {
        "root": root,
        "num_examples": NUM,
        "num_shards": SHARDS,
        "splits": SPLITS,
        "progress": False,
    }
    with forked_instead_of_fresh(tensorflow_zygote):
        for name in QUICK:
            assert prepare_fake(name, **arguments) == root
    return tensorflow_zygote().call(read, str(root), QUICK)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    specs = [DemoSpec.fake(name, NUM, SHARDS, SPLITS, 0) for name in SLOW]
    return tensorflow_zygote().call(build_and_read, str(tmp_path_factory.mktemp("slow")), specs)


@pytest.fixture
def reading(request: pytest.FixtureRequest, name: str) -> Reading:
    readings: dict[str, Reading] = request.getfixturevalue("quick" if name in QUICK else "slow")
    found = readings[name]
    assert found.leaves
    assert [len(found.examples[split]) for split in SPLITS] == [NUM, NUM]
    return found


def values_of(leaf: Leaf, example: dict[str, Any]) -> Iterator[Any]:
    """Yields the values of a feature in one example of TFDS's."""
    value: Any = example
    for key in leaf.keys:
        value = value[key]
    values = [value]
    for _ in range(leaf.depth):
        values = [inner for outer in values for inner in outer]
    yield from values


def all_values(reading: Reading, kind: str) -> Iterator[tuple[Leaf, Any]]:
    """Yields every value of the features of a class."""
    for leaf in reading.leaves:
        if leaf.kind == kind:
            for split in SPLITS:
                for example in reading.examples[split]:
                    for value in values_of(leaf, example):
                        yield leaf, value


def read_files(reading: Reading, split: str, key: str) -> dict[str, bytes]:
    """Returns id -> a feature's bytes as they are in the shards."""
    found = {}
    for file in sorted(reading.version_dir.glob(f"*-{split}.tfrecord-*")):
        for number, record in enumerate(read_records(file)):
            example = tf_example_pb2.Example.FromString(record)
            found[f"{file.name}__{number}"] = example.features.feature[key].bytes_list.value[0]
    return found


@pytest.mark.parametrize("name", EVERY)
def test_tfds_reads_it_with_its_own_builder_of_the_name(reading: Reading, name: str) -> None:
    assert reading.module.startswith("tensorflow_datasets.")
    assert "read_only_builder" not in reading.module
    assert reading.features[0] == reading.features[1]
    assert reading.supervised_keys[0] == reading.supervised_keys[1]
    for split in SPLITS:
        lengths = reading.shard_lengths[split]
        assert (len(lengths), sum(lengths), len(reading.examples[split])) == (SHARDS, NUM, NUM)
        assert min(lengths) > 0
    assert list(reading.shard_lengths) == list(SPLITS)


@pytest.mark.parametrize("name", EVERY)
def test_the_files_alone_have_the_real_features_and_label_names(reading: Reading, name: str) -> None:
    if name not in ("cifar10", "coco/2017"):  # Their builders read the names from the download.
        assert reading.from_files == reading.leaves
    for ours, real in zip(reading.from_files, reading.leaves, strict=True):
        assert replace(ours, names=None) == replace(real, names=None)
    expected = {
        "cifar10": "airplane",
        "voc/2007": "aeroplane",
        "mnist": "7",
        "imagenet2012": "n01440764",
        "oxford_iiit_pet": "Abyssinian",
        "food101": "apple_pie",
        "coco/2017": "person",
        "imdb_reviews": "neg",
    }
    names = [name for leaf in reading.from_files for name in leaf.names or []]
    assert bool(names) == (name in expected)
    if names:
        assert expected[name] in names
        assert name == "mnist" or not any(name.isdigit() for name in names)


@pytest.mark.parametrize("name", EVERY)
def test_it_says_that_its_content_is_made_up(reading: Reading, name: str) -> None:
    assert "MADE-UP CONTENT" in reading.description
    assert is_fake(reading.version_dir)


@pytest.mark.parametrize("name", EVERY)
def test_parser_reads_every_example_once_with_the_values_of_tfds(reading: Reading, name: str) -> None:
    images = {leaf.keys[0] for leaf in reading.leaves if leaf.kind == "Image" and len(leaf.keys) == 1}
    for split in SPLITS:
        encoded = {key: read_files(reading, split, key) for key in images}
        theirs = {example["tfds_id"].decode(): example for example in reading.examples[split]}
        batches = reading.batches[split]
        ids = [id_ for batch in batches for id_ in batch.id]
        assert sorted(ids) == sorted(theirs)
        assert len(set(ids)) == NUM
        for batch in batches:
            columns = {"image": batch.image, "label": batch.label, **batch.features}
            # cifar10's own `id` gives way to the parser's field of this name.
            wanted = {key for key in reading.examples[split][0] if key not in ("tfds_id", "id")}
            assert {key for key, column in columns.items() if column is not None} == wanted
            for key in wanted:
                for id_, ours in zip(batch.id, columns[key], strict=True):
                    if key not in images:
                        assert_same(ours, theirs[id_][key], f"{key} of {id_}")
                        continue
                    # Pillow's pixels; TFDS decodes JPEG with a faster, less exact transform.
                    mode = {1: "L", 3: "RGB"}[ours.shape[-1]]
                    assert_same(ours, pillow_pixels(encoded[key][id_], mode), f"{key} of {id_}")
                    assert np.abs(ours.astype(int) - theirs[id_][key]).mean() < 2


@pytest.mark.parametrize("name", EVERY)
def test_images_have_their_declared_shape_and_a_picture_in_them(reading: Reading, name: str) -> None:
    found = list(all_values(reading, "Image"))
    assert found or name == "imdb_reviews"
    for leaf, image in found:
        assert image.dtype == np.uint8
        for size, declared in zip(image.shape, leaf.shape, strict=True):
            assert declared in (None, size)
        if leaf.shape[:2] == (None, None):
            assert 300 <= min(image.shape[:2]) < max(image.shape[:2]) <= 520
        if "mask" not in leaf.keys[-1]:
            assert image.std() > 15
            assert len(np.unique(image)) > 50


@pytest.mark.parametrize("name", EVERY)
def test_labels_are_in_range(reading: Reading, name: str) -> None:
    for leaf, label in all_values(reading, "ClassLabel"):
        assert 0 <= label < leaf.num_classes


@pytest.mark.parametrize("name", EVERY)
def test_boxes_are_normalised_and_have_an_area(reading: Reading, name: str) -> None:
    boxes = [box for _, box in all_values(reading, "BBoxFeature")]
    assert bool(boxes) == (name in ("voc/2007", "coco/2017", "oxford_iiit_pet"))
    for ymin, xmin, ymax, xmax in boxes:
        assert 0 <= ymin < ymax <= 1
        assert 0 <= xmin < xmax <= 1
        assert (ymax - ymin) * (xmax - xmin) > 0.005
    if boxes:
        assert len(np.unique(boxes, axis=0)) > NUM


@pytest.mark.parametrize("name", EVERY)
def test_texts_are_utf8(reading: Reading, name: str) -> None:
    texts = [text.decode() for _, text in all_values(reading, "Text")]
    assert all(texts)
    assert name != "imdb_reviews" or not all(text.isascii() for text in texts)


def test_the_splits_differ(quick: dict[str, Reading]) -> None:
    images = {split: [e["image"].tobytes() for e in quick["cifar10"].examples[split]] for split in SPLITS}
    assert len({*images["train"], *images["test"]}) == 2 * NUM


def test_cifar10_is_png_and_its_ids_are_numbered(quick: dict[str, Reading]) -> None:
    for file in read_files(quick["cifar10"], "train", "image").values():
        assert Image.open(io.BytesIO(file)).format == "PNG"
        assert 1500 < len(file) < 4000  # The real ones have 2,300 bytes.
    ids = sorted(example["id"].decode() for example in quick["cifar10"].examples["train"])
    assert ids == [f"cifar10_{index:06d}" for index in range(NUM)]


def test_voc_has_several_objects_and_file_names(quick: dict[str, Reading]) -> None:
    examples = quick["voc/2007"].examples["train"]
    assert sorted(e["image/filename"].decode() for e in examples) == [f"voc_{index:06d}.jpg" for index in range(NUM)]
    counts = [len(example["objects"]["label"]) for example in examples]
    assert min(counts) >= 2
    assert len(set(counts)) > 1
    assert all(len(e["objects"]["bbox"]) == n for e, n in zip(examples, counts, strict=True))
    assert len({e["image"].shape for e in examples}) > NUM // 2
    for file in read_files(quick["voc/2007"], "train", "image").values():
        assert Image.open(io.BytesIO(file)).format == "JPEG"
        assert 15_000 < len(file) < 150_000


@pytest.mark.slow
def test_imagenet2012_and_food101_are_photographs_in_jpeg(slow: dict[str, Reading]) -> None:
    for name in ("imagenet2012", "food101"):
        for file in read_files(slow[name], "train", "image").values():
            image = Image.open(io.BytesIO(file))
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert 15_000 < len(file) < 150_000
    names = [e["file_name"].decode() for e in slow["imagenet2012"].examples["test"]]
    assert sorted(names) == [f"imagenet2012_{index:06d}.jpg" for index in range(NUM)]


@pytest.mark.slow
def test_pets_have_a_trimap_of_their_own_size(slow: dict[str, Reading]) -> None:
    assert len(slow["oxford_iiit_pet"].examples["train"]) == NUM
    for example in slow["oxford_iiit_pet"].examples["train"]:
        mask = example["segmentation_mask"]
        assert mask.shape == (*example["image"].shape[:2], 1)
        assert np.unique(mask).tolist() == [1, 2, 3]


@pytest.mark.slow
def test_coco_has_an_id_for_every_image_and_object(slow: dict[str, Reading]) -> None:
    examples = slow["coco/2017"].examples["train"]
    assert sorted(int(example["image/id"]) for example in examples) == list(range(NUM))
    ids = [int(id_) for example in examples for id_ in example["objects"]["id"]]
    assert len(set(ids)) == len(ids) > NUM


@pytest.mark.slow
def test_celeb_a_has_its_forty_attributes(slow: dict[str, Reading]) -> None:
    examples = slow["celeb_a"].examples["train"]
    assert examples[0]["image"].shape == (218, 178, 3)
    assert len(examples[0]["attributes"]) == 40
    smiling = [bool(example["attributes"]["Smiling"]) for example in examples]
    assert set(smiling) == {True, False}


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """Id -> record, of cifar10 in four variants: twice the same, with another seed, and with more examples."""
    root = tmp_path_factory.mktemp("variants")
    specs = [DemoSpec.fake("cifar10", n, 2, ("train",), seed) for n, seed in ((6, 0), (6, 0), (6, 1), (12, 0))]
    tensorflow_zygote().call(build_each, str(root), specs)
    return [read_by_id(root / str(number) / "cifar10" / "3.0.2") for number in range(len(specs))]


def read_by_id(folder: Path) -> dict[str, bytes]:
    records = [record for file in sorted(folder.glob("*.tfrecord-*")) for record in read_records(file)]
    features = [tf_example_pb2.Example.FromString(record).features.feature for record in records]
    return {found["id"].bytes_list.value[0].decode(): found["image"].bytes_list.value[0] for found in features}


def test_the_same_seed_makes_the_same_examples_and_another_others(variants: list[dict[str, bytes]]) -> None:
    first, again, other, _ = variants
    assert list(first) == list(again)
    assert first == again
    assert sorted(first) == sorted(other)
    assert not set(first.values()) & set(other.values())


def test_an_example_does_not_depend_on_how_many_there_are(variants: list[dict[str, bytes]]) -> None:
    few, *_, more = variants
    assert len(more) == 12
    assert {id_: more[id_] for id_ in few} == few
