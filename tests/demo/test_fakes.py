"""The content of fakes: every kind of feature, and datasets of TFDS as its own builders and ParserTfds read them."""

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import assert_same
from zygote import forked_instead_of_fresh, tensorflow_zygote

from demo.every_feature import FLOATS, INTEGERS, NUM, ask_for_unfakeable, build_every_feature
from demo.fresh import Reading, ask_for_fakes, build_and_read, build_each, list_real_splits, read
from tfds_torch import ParserTfds
from tfds_torch.demo import is_fake, prepare_fake
from tfds_torch.demo.builder import _read_code
from tfds_torch.demo.fake import _split
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.storage.tfrecord.framing import read_records

Examples = list[dict[str, Any]]

# Every kind of feature


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Examples, dict[str, Any]]:
    return tensorflow_zygote().call(build_every_feature, str(tmp_path_factory.mktemp("features")))


@pytest.fixture(scope="module")
def examples(built: tuple[Examples, dict[str, Any]]) -> Examples:
    assert len(built[0]) == NUM
    return built[0]


def test_the_builders_declarations_are_kept(built: tuple[Examples, dict[str, Any]]) -> None:
    examples, facts = built
    assert facts["disable_shuffling"] is True
    assert facts["supervised_keys"] == ("rgb", "kind")
    assert facts["folder"].parts[-2:] == ("every_feature", "1.2.3")
    assert facts["names"] == [f"class_{number}" for number in range(10)]  # Of a label without names.
    # Without shuffling the examples lie in their order.
    assert [int(example["image_id"]) for example in examples] == list(range(NUM))
    assert [example["filename"].decode() for example in examples] == [f"every_feature_{i:06d}.jpg" for i in range(NUM)]
    assert [example["string_id"].decode() for example in examples] == [f"every_feature_{i:06d}" for i in range(NUM)]


SCALARS = {
    **{name: (np.dtype(name), 0, 255 if name == "uint8" else 99, 4) for name in INTEGERS},
    **{name: (np.dtype(name), 0, 1, 4) for name in FLOATS},
    "a_class": (np.dtype("int64"), 0, 2, 2),
    "bit": (np.dtype("bool"), 0, 1, 2),
    "kind": (np.dtype("int64"), 0, 3, 2),
    "unnamed": (np.dtype("int64"), 0, 9, 2),
}
"""Feature -> dtype, least and greatest value, and how many different ones there are at least."""


@pytest.mark.parametrize("name", SCALARS)
def test_numbers_are_in_their_range_and_vary(examples: Examples, name: str) -> None:
    dtype, least, most, num_different = SCALARS[name]
    values = [example[name] for example in examples]
    assert {value.dtype for value in values} == {dtype}
    assert all(least <= value <= most for value in values)
    assert len(set(values)) >= num_different


def test_tensors_have_their_shape_and_keep_their_bounds(examples: Examples) -> None:
    for example in examples:
        assert ((example["bounded"] >= -3) & (example["bounded"] <= -2)).all()
        assert set(example["bounded_ints"].tolist()) == {6, 7}
        assert example["cube"].shape == (2, 3, 4)
        assert example["one_free"].shape[1:] == (3,)
        assert example["zipped"].ndim == 2
        assert example["pair"].shape == (2,)
    assert len({example["one_free"].shape[0] for example in examples}) > 1


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


def test_images_have_their_shape_dtype_and_contrast(examples: Examples) -> None:
    fixed = {"gray": (20, 30, 1), "rgba": (8, 9, 4), "x_rays": (5, 6, 3)}
    for example in examples:
        size = example["rgb"].shape[:2]
        assert (example["height"], example["width"]) == size
        assert 300 <= min(size) < max(size) <= 520
        for key, shape in fixed.items():
            assert example[key].shape == shape
            assert example[key][..., 0].std() > 5
        assert example["x_rays"].dtype == np.uint16
        assert example["x_rays"].max() > 255
        assert example["wide"].shape == (size[0], 40, 3)
        assert example["depth"].shape == (*size, 1)
        assert example["depth"].dtype == np.float32
        assert 0 <= example["depth"].min() < example["depth"].max() <= 10.01
        # Masks hold classes and fit the image.
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
        assert all(step["frame"].shape == (6, 7, 3) and step["action"] in (0, 1) for step in example["steps"])


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
    found = []
    for example in examples:
        texts = [
            example["optional"],
            example["nested"]["inner"]["note"],
            *example["strings"],
            *example["translation"].values(),
            *example["translations"]["translation"],
            *(word for sentence in example["words"] for word in sentence),
        ]
        found += [text.decode() for text in texts]
        assert set(example["translation"]) == {"de", "en"}
        assert {language.decode() for language in example["translations"]["language"]} <= {"de", "en", "fr"}
    assert all(found)
    assert not all(text.isascii() for text in found)


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


def test_a_feature_that_cannot_be_faked_is_named() -> None:
    refusals = tensorflow_zygote().call(ask_for_unfakeable)
    expected = {
        "odd": ["The feature 'odd' of 'odd/one:1.0.0'", "is a Odd", "this type of feature is unknown"],
        "deep": ["The feature 'deep/inner/odd' of", "is a Odd"],
        "picky": ["The feature 'picky' of", "is a Picky", "RuntimeError: never int16"],
        "two_free": ["The feature 'two_free' of", "is a Tensor", "ValueError: Multiple unknown dimensions"],
        "spectrum": ["The feature 'spectrum' of", "is a Image", "its shape is (4, 4, 13)"],
        "song": ["The feature 'song' of", "is a Audio", "'flac'"],
    }
    for key, facts in expected.items():
        for fact in [*facts, "Choose another dataset, or another config of it."]:
            assert fact in refusals[key]


# Datasets of TFDS

NUM_READ, SHARDS, SPLITS = 20, 3, ("train", "test")
QUICK = {"cifar10": "airplane", "voc/2007": "aeroplane"}
SLOW = {
    "mnist": "7",
    "imagenet2012": "n01440764",
    "oxford_iiit_pet": "Abyssinian",
    "food101": "apple_pie",
    "celeb_a": "",
    "coco/2017": "person",
    "imdb_reviews": "neg",
}
"""Dataset -> one of its label names."""
EVERY = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    """By the public function, each in a process of its own."""
    root = tmp_path_factory.mktemp("quick")
    with forked_instead_of_fresh(tensorflow_zygote):
        for name in QUICK:
            numbers: dict[str, Any] = {"num_examples": NUM_READ, "num_shards": SHARDS, "splits": SPLITS}
            assert prepare_fake(name, root=root, progress=False, **numbers) == root
    return tensorflow_zygote().call(read, str(root), list(QUICK))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    specs = [DemoSpec.fake(name, NUM_READ, SHARDS, SPLITS, 0) for name in SLOW]
    return tensorflow_zygote().call(build_and_read, str(tmp_path_factory.mktemp("slow")), specs)


@pytest.fixture
def reading(request: pytest.FixtureRequest, name: str) -> Reading:
    readings: dict[str, Reading] = request.getfixturevalue("quick" if name in QUICK else "slow")
    return readings[name]


def read_files(reading: Reading, key: str) -> list[bytes]:
    """Returns a feature's bytes as they are in the shards of train."""
    files = sorted(reading.version_dir.glob("*-train.tfrecord-*"))
    records = [tf_example_pb2.Example.FromString(record) for file in files for record in read_records(file)]
    return [record.features.feature[key].bytes_list.value[0] for record in records]


@pytest.mark.parametrize("name", EVERY)
def test_tfds_reads_it_with_its_own_builder_of_the_name(reading: Reading, name: str) -> None:
    assert reading.module.startswith("tensorflow_datasets.")
    assert "read_only_builder" not in reading.module
    assert reading.features[0] == reading.features[1]
    assert reading.supervised_keys[0] == reading.supervised_keys[1]
    assert list(reading.shard_lengths) == list(SPLITS)
    for split in SPLITS:
        lengths = reading.shard_lengths[split]
        assert (len(lengths), sum(lengths), len(reading.examples[split])) == (SHARDS, NUM_READ, NUM_READ)
        assert min(lengths) > 0
    assert "MADE-UP CONTENT" in reading.description
    assert is_fake(reading.version_dir)


@pytest.mark.parametrize("name", EVERY)
def test_the_files_alone_have_the_real_features_and_label_names(reading: Reading, name: str) -> None:
    without_names = [
        {keys: leaf[:-1] for keys, leaf in leaves.items()} for leaves in (reading.from_files, reading.leaves)
    ]
    assert without_names[0] == without_names[1] != {}
    if name not in ("cifar10", "coco/2017"):  # Their builders read the names from the download.
        assert reading.from_files == reading.leaves
    names = [name for leaf in reading.from_files.values() for name in leaf[-1]]
    expected = (QUICK | SLOW)[name]
    assert (expected in names) if expected else not names
    assert name == "mnist" or not any(name.isdigit() for name in names)


@pytest.mark.parametrize("name", EVERY)
def test_parser_reads_every_example_once_with_the_values_of_tfds(reading: Reading, name: str) -> None:
    images = {keys[0] for keys, leaf in reading.leaves.items() if leaf[0] == "Image" and len(keys) == 1}
    for split in SPLITS:
        theirs = {example["tfds_id"].decode(): example for example in reading.examples[split]}
        batches = reading.batches[split]
        assert sorted(id_ for batch in batches for id_ in batch.id) == sorted(theirs)
        # cifar10's own `id` gives way to the parser's field of this name.
        wanted = {key for key in reading.examples[split][0] if key not in ("tfds_id", "id")}
        for batch in batches:
            columns = {"image": batch.image, "label": batch.label, **batch.features}
            assert {key for key, column in columns.items() if column is not None} == wanted
            for key in wanted:
                for id_, ours in zip(batch.id, columns[key], strict=True):
                    if key in images:  # TFDS decodes JPEG with a faster, less exact transform.
                        assert np.abs(ours.astype(int) - theirs[id_][key]).mean() < 2
                    else:
                        assert_same(ours, theirs[id_][key], f"{key} of {id_}")


def test_cifar10_is_png_and_its_ids_are_numbered(quick: dict[str, Reading]) -> None:
    for file in read_files(quick["cifar10"], "image"):
        assert Image.open(io.BytesIO(file)).format == "PNG"
        assert 1500 < len(file) < 4000  # The real ones have 2,300 bytes.
    examples = quick["cifar10"].examples
    assert sorted(one["id"].decode() for one in examples["train"]) == [f"cifar10_{i:06d}" for i in range(NUM_READ)]
    images = {split: [one["image"].tobytes() for one in examples[split]] for split in SPLITS}
    assert len({*images["train"], *images["test"]}) == 2 * NUM_READ


def test_voc_has_several_objects_and_file_names(quick: dict[str, Reading]) -> None:
    examples = quick["voc/2007"].examples["train"]
    assert sorted(e["image/filename"].decode() for e in examples) == [f"voc_{i:06d}.jpg" for i in range(NUM_READ)]
    counts = [len(example["objects"]["label"]) for example in examples]
    assert min(counts) >= 2
    assert len(set(counts)) > 1
    assert len({e["image"].shape for e in examples}) > NUM_READ // 2
    for file in read_files(quick["voc/2007"], "image"):
        assert Image.open(io.BytesIO(file)).format == "JPEG"
        assert 15_000 < len(file) < 150_000


@pytest.mark.slow
def test_of_other_datasets_what_is_special_is_there(slow: dict[str, Reading]) -> None:
    found = {name: reading.examples["train"] for name, reading in slow.items()}
    for name in ("imagenet2012", "food101"):
        for file in read_files(slow[name], "image"):
            image = Image.open(io.BytesIO(file))
            assert (image.format, image.mode) == ("JPEG", "RGB")
    assert sorted(one["file_name"].decode() for one in found["imagenet2012"])[7] == "imagenet2012_000007.jpg"
    for example in found["oxford_iiit_pet"]:
        assert example["segmentation_mask"].shape == (*example["image"].shape[:2], 1)
        assert np.unique(example["segmentation_mask"]).tolist() == [1, 2, 3]
    assert sorted(int(example["image/id"]) for example in found["coco/2017"]) == list(range(NUM_READ))
    ids = [int(id_) for example in found["coco/2017"] for id_ in example["objects"]["id"]]
    assert len(set(ids)) == len(ids) > NUM_READ
    assert found["celeb_a"][0]["image"].shape == (218, 178, 3)
    assert len(found["celeb_a"][0]["attributes"]) == 40
    assert {bool(example["attributes"]["Smiling"]) for example in found["celeb_a"]} == {True, False}


def test_an_example_depends_on_its_seed_and_index_alone(tmp_path: Path) -> None:
    specs = [DemoSpec.fake("cifar10", n, 2, ("train",), seed) for n, seed in ((6, 0), (6, 0), (6, 1), (12, 0))]
    tensorflow_zygote().call(build_each, str(tmp_path), specs)
    variants = []
    for number in range(len(specs)):
        files = sorted((tmp_path / str(number) / "cifar10" / "3.0.2").glob("*.tfrecord-*"))
        records = [tf_example_pb2.Example.FromString(record) for file in files for record in read_records(file)]
        features = [record.features.feature for record in records]
        variants.append({one["id"].bytes_list.value[0]: one["image"].bytes_list.value[0] for one in features})
    few, again, other, more = variants
    assert list(few) == list(again)
    assert few == again
    assert sorted(few) == sorted(other)
    assert not set(few.values()) & set(other.values())
    assert len(more) == 12
    assert {id_: more[id_] for id_ in few} == few


# Which splits a fake has where none are asked for

REAL_SPLITS = {
    "celeb_a": ("train", "validation", "test"),
    "d4rl_mujoco_ant": ("train",),
    "food101": ("train", "validation"),
    "glue/ax": ("test",),
    "glue/mnli": ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
    "imagenet2012": ("train", "validation", "test"),  # Its builder looks for its downloads.
    "imdb_reviews": ("train", "test", "unsupervised"),
    "kitti": ("train", "validation", "test"),  # Likewise.
    "librispeech": ("train",),  # Named by the folders of its download: what every dataset is taken to have.
    "voc/2012": ("test", "train", "validation"),
    "winogrande": ("train_xs", "train_s", "train_m", "train_l", "train_xl", "test", "validation"),
}


def test_splits_are_those_of_tfds_s_own_builder(tmp_path: Path) -> None:
    found = tensorflow_zygote().call(list_real_splits, str(tmp_path), list(REAL_SPLITS))
    assert {name: set(splits) for name, splits in found.items()} == {
        name: set(names) for name, names in REAL_SPLITS.items()
    }
    assert found["imagenet2012"] == REAL_SPLITS["imagenet2012"], "in another order than the builder's"
    assert list(tmp_path.iterdir()) == []


def test_a_newcomer_s_second_line_opens_the_validation_split(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with forked_instead_of_fresh(tensorflow_zygote):
            assert prepare_fake("imagenet2012", num_examples=3, root=tmp_path, progress=False) == tmp_path
    assert "not found" not in "".join(capfd.readouterr())
    for split in ("train", "validation", "test"):
        parser = ParserTfds(tmp_path, "imagenet2012", split, batch_size=2)
        assert (len(parser.class_names or ()), parser.num_examples) == (1000, 3)


class _Coded:
    """As builders of TFDS are written."""

    def _split_generators(self, dl_manager: Any) -> Any:
        paths = dl_manager.download({"images": "a.zip", "notes": "b.zip"})
        tfds: Any = None
        if paths:
            return [
                tfds.core.SplitGenerator(name=tfds.Split.VALIDATION, gen_kwargs={"path": paths["images"]}),
                tfds.core.SplitGenerator(name="extra", gen_kwargs={"path": paths["notes"]}),
            ]
        return {"dev": self._generate_examples(paths), tfds.Split.TEST: self._generate_examples(paths), "x": 3}

    def _generate_examples(self, path: Any) -> Any:
        return path


def test_names_in_a_builder_s_code_are_those_of_its_splits() -> None:
    assert _read_code(_Coded()) == ["validation", "extra", "dev", "test"]


# What TFDS cannot tell

REFUSED: dict[str, tuple[str, ...]] = {
    "voc/2013": ("'voc' has no config '2013'", "Did you mean", "The configs are: 2007, 2012"),
    "mnist/small": ("'mnist' has no config 'small'. It has no configs.",),
    "mnist:1.2.3": ("'mnist' has no version '1.2.3' in TFDS", "The versions are: 3.0.1."),
    "voc/2007:1.2.3": ("'voc' has no version '1.2.3'", "5.0.0"),
    "dices": ("'dices'", "does not start here, without a network (ModuleNotFoundError:", "pandas"),
    "bridge": ("'bridge'", "does not start here, without a network", "gs://", "choose another dataset"),
    "my_own": ("'my_own' is not among the datasets that TFDS itself has", "another process"),
    "librispeech/lazy_decode": ("The feature 'speech' of 'librispeech/lazy_decode:", "is a Audio", "'flac'"),
}


def test_what_tfds_cannot_tell_is_a_config_error(tmp_path: Path) -> None:
    specs = [DemoSpec.fake(name, 3, 2) for name in REFUSED]
    answers = tensorflow_zygote().call(ask_for_fakes, str(tmp_path), specs, "pandas")
    for (name, facts), (kind, message) in zip(REFUSED.items(), answers, strict=True):
        assert kind == ("DatasetNotFoundError" if name == "my_own" else "ConfigError"), message
        assert [fact for fact in facts if fact not in message] == [], message
