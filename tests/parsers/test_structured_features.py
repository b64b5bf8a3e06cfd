"""Features that are put together in Python: their values against tensorflow's, and tensorflow never imported."""

import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tensorflow_datasets as tfds
from zygote import forked_instead_of_fresh, tensorflow_zygote

from parsers import tensorflow_free
from parsers.structured_examples import NUM, decode_datasets, differences, encode, write_and_decode, write_song
from tfds_torch.demo import prepare_fake
from tfds_torch.engines.fields import FieldDecoder
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.connectors import plain_features, stored_specs
from tfds_torch.parsers.tfds.features import structured_field
from tfds_torch.parsers.tfds.features_json import read_connectors
from tfds_torch.parsers.tfds.folder import FEATURES as FILE
from tfds_torch.parsers.tfds.folder import folder_at
from tfds_torch.parsers.tfds.info import read_json
from tfds_torch.storage.example import ExampleReader
from tfds_torch.storage.source import FieldSpec


def read_features(folder: str | Path) -> Any:
    """Returns the connectors of features.json."""
    found = folder_at(str(folder))
    return read_connectors(found, read_json(found, FILE) or {})


FEATURES = (
    *("a/slash", "audio", "audio_stereo", "box", "bytes", "clips", "colours_16", "deep", "depth", "frames", "frames_3"),
    *("grey_16", "halves", "labels_map", "low_16", "mask", "nested", "objects", "one_free", "opaque", "pair"),
    *("strings", "strings_2", "translation", "translations", "unsigned", "video", "video_16", "words", "zipped"),
    *("zipped_flags", "zipped_rows"),
)
DATASETS = (
    *("aflw2k3d", "bair_robot_pushing_small", "celeb_a", "cityscapes", "clevr", "coco/2017", "d4rl_mujoco_ant"),
    *("duke_ultrasound", "glue/cola", "groove", "imdb_reviews", "kitti", "librispeech", "lsun/bedroom"),
    *("moving_mnist", "natural_questions", "nsynth", "nyu_depth_v2", "oxford_flowers102", "oxford_iiit_pet"),
    *("robosuite_panda_pick_place_can", "robonet", "smallnorb", "speech_commands", "squad", "starcraft_video"),
    *(
        "ted_hrlr_translate/pt_to_en",
        "ted_multi_translate",
        "ucf101",
        "voc/2007",
        "wider_face",
        "wmt14_translate/de-en",
    ),
)

Every = tuple[Path, list[bytes], list[Any]]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Every:
    """Folder with a features.json, encoded examples, what tensorflow makes of them."""
    folder = tmp_path_factory.mktemp("every")
    records, decoded = tensorflow_zygote().call(write_and_decode, str(folder))
    return folder, records, decoded


@pytest.fixture(scope="module")
def ours(every: Every, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a process without tensorflow makes of them."""
    folder, records, _ = every
    decoded: list[Any] = tensorflow_free.call(tmp_path_factory.mktemp("ours"), "decode_records", str(folder), records)
    return decoded


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data dir with a dataset of sounds."""
    with forked_instead_of_fresh(tensorflow_zygote):
        return prepare_fake("speech_commands", num_examples=4, root=tmp_path_factory.mktemp("speech"), progress=False)


def field_of(features: Any, path: Sequence[str]) -> FieldDecoder:
    """Returns how a feature is decoded where TFDS's own features are not there any more."""
    field: FieldDecoder = pickle.loads(pickle.dumps(structured_field(plain_features(features), path)))
    return field


# Against tensorflow


def test_every_feature_is_compared(every: Every, ours: list[Any]) -> None:
    assert len(ours) == len(every[2]) == NUM
    assert all(tuple(example) == FEATURES for example in (*ours, *every[2]))


@pytest.mark.parametrize("name", FEATURES)
def test_values_are_those_of_tensorflow(every: Every, ours: list[Any], name: str) -> None:
    for number, (example, expected) in enumerate(zip(ours, every[2], strict=True)):
        assert differences(expected[name], example[name], f"{name} of example {number}") == []


def test_a_flac_file_that_tfds_stored_gives_its_samples(tmp_path: Path) -> None:
    samples = np.arange(-20, 20, dtype=np.int16).reshape(20, 2)
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="FLAC", subtype="PCM_16")
    record = tensorflow_zygote().call(write_song, str(tmp_path), file.getvalue())
    features = read_features(tmp_path)
    field = field_of(features, ["song"])
    (decoded,) = field.decode(ExampleReader(stored_specs(features)).read([record], field.keys))
    assert differences(samples, decoded) == []


@pytest.mark.parametrize(
    "path", ["nested/inner/tags", "objects/box", "objects/cells", "objects/cells/x", "objects/crop", "translation/de"]
)
def test_what_is_inside_has_a_name_of_its_own(every: Every, path: str) -> None:
    folder, records, decoded = every
    features = read_features(folder)
    field = field_of(features, path.split("/"))
    assert all(key.startswith(path) for key in field.keys)
    values = field.decode(ExampleReader(stored_specs(features)).read(records, field.keys))
    for value, expected in zip(values, decoded, strict=True):
        for part in path.split("/"):
            expected = expected[part]
        assert differences(expected, value, path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_datasets_are_decoded_as_by_tensorflow(tmp_path: Path) -> None:
    with forked_instead_of_fresh(tensorflow_zygote):
        for name in DATASETS:
            prepare_fake(name, num_examples=3, num_shards=2, root=tmp_path / "data", splits=("train",), progress=False)
    decoded = tensorflow_free.call(tmp_path, "decode_datasets", str(tmp_path / "data"), DATASETS)
    assert set(decoded) == set(DATASETS)
    expected = tensorflow_zygote().call(
        decode_datasets, str(tmp_path / "data"), [n for n in DATASETS if n != "librispeech"]
    )
    for name, examples in expected.items():
        assert len(examples) == len(decoded[name]) == 3
        for one, other in zip(examples, decoded[name], strict=True):
            lines = differences(one, other)
            assert [f"{name}{line}" for line in lines if not is_jpeg_rounding(line, one, other)] == []
    # tensorflow needs more packages for these than we.
    assert [example["speech"].dtype for example in decoded["librispeech"]] == [np.int16] * 3


def is_jpeg_rounding(line: str, expected: Any, found: Any) -> bool:
    """Whether pixels differ as those of JPEG decoders do: tensorflow's does not decode as accurately as it could."""
    path, _, difference = line.partition(": ")
    if difference != "other values":
        return False
    for part in path.split("/")[1:]:
        for key in part.replace("]", "").split("["):
            expected, found = ((v[int(key)] if isinstance(v, list) else v[key]) for v in (expected, found))
    is_image = expected.dtype == np.uint8 and expected.ndim >= 3
    return bool(is_image and np.abs(expected.astype(float) - found.astype(float)).mean() < 1.2)


# Without tensorflow


@pytest.mark.slow
def test_the_hook_fails_where_tensorflow_is_imported(tmp_path: Path) -> None:
    tensorflow_free.call(tmp_path, "import_module", "tensorflow_datasets")
    with pytest.raises(RuntimeError, match="TensorflowImportedError: tensorflow was imported"):
        tensorflow_free.call(tmp_path, "import_module", "tensorflow")


def test_datasets_of_audio_open_without_tensorflow(speech: Path, tmp_path: Path) -> None:
    decoded = tensorflow_free.call(tmp_path, "decode_datasets", str(speech), ["speech_commands"])
    assert [example["audio"].dtype for example in decoded["speech_commands"]] == [np.int16] * 4


# Opening


def test_features_are_those_that_were_declared(every: Every) -> None:
    folder, _, _ = every
    features = read_features(folder)
    assert tuple(sorted(features)) == FEATURES
    assert features["labels_map"].names == ["void", "cat"]
    assert features["audio"].sample_rate == 8000
    assert (features["audio_stereo"].shape, features["audio_stereo"].np_dtype) == ((None, 2), np.float32)
    assert (features["video"].shape, features["video"].np_dtype) == ((None, 4, 5, 3), np.uint8)
    assert (features["video_16"].shape, features["video_16"].np_dtype) == ((None, 4, 5, 1), np.uint16)


def test_features_of_old_files_are_read(tmp_path: Path) -> None:
    audio = {"file_format": "wav", "shape": [None], "dtype": "int64", "sample_rate": 8000}
    video = {"shape": [7, 4, 5, 3], "encoding_format": "png", "ffmpeg_extra_args": [], "type": "clip"}
    prefix = "tensorflow_datasets.core.features."
    content = {
        "audio": {"type": f"{prefix}audio_feature.Audio", "content": audio},
        "type": {"type": f"{prefix}video_feature.Video", "content": video},
    }
    declared = {"type": f"{prefix}features_dict.FeaturesDict", "content": content}
    (tmp_path / "features.json").write_text(json.dumps(declared), encoding="utf-8")
    features = read_features(tmp_path)
    assert (features["audio"].shape, features["audio"].np_dtype) == ((None,), np.int64)
    assert features["type"].shape == (7, 4, 5, 3)


# Values


def test_a_sequence_may_be_at_the_top() -> None:
    features = tfds.features.Sequence({"action": tfds.features.Tensor(shape=(2,), dtype=np.float32)}, length=3)
    assert stored_specs(features) == {"action": FieldSpec((3, 2), np.dtype(np.float32))}
    stored = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert differences(list(stored), field_of(features, ["action"]).decode({"action": stored})) == []


def test_a_nested_dataset_becomes_a_list_of_steps() -> None:
    f = tfds.features
    place = f.Tensor(shape=(2,), dtype=np.float32)
    features = f.FeaturesDict(
        {"steps": f.Dataset({"a": np.int64, "names": f.Sequence(f.Text()), "seen": {"at": place}})}
    )
    names = [np.array([b"x"] * i, object) for i in range(3)]
    places = np.arange(6, dtype=np.float32).reshape(3, 2)
    stored = {
        "steps/a": [np.arange(3), np.arange(0)],
        "steps/names": [names, []],
        "steps/seen/at": [places, places[:0]],
    }
    expected = [{"a": np.int64(i), "names": names[i], "seen": {"at": places[i]}} for i in range(3)]
    assert differences([expected, []], field_of(features, ["steps"]).decode(stored)) == []
    assert differences([np.arange(3), np.arange(0)], field_of(features, ["steps", "a"]).decode(stored)) == []


def test_steps_of_different_numbers_are_an_error() -> None:
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset({"a": np.int64, "b": np.int64})})
    field = field_of(features, ["steps"])
    with pytest.raises(
        ValueError, match=r"The fields of its feature 'steps' have different numbers of steps: \{2, 3\}"
    ):
        field.decode({"steps/a": [np.arange(2)], "steps/b": [np.arange(3)]})


def test_images_of_different_sizes_are_a_list() -> None:
    features = tfds.features.FeaturesDict({"images": tfds.features.Sequence(tfds.features.Image())})
    images = [np.zeros((3, 4, 3), np.uint8), np.ones((5, 4, 3), np.uint8)]
    stored = np.array([encode(image) for image in images], object)
    values = field_of(features, ["images"]).decode({"images": [stored, stored[:1]]})
    assert differences([images, images[0][None]], values) == []


def test_audio_that_is_stored_with_an_encoding_is_decoded(tmp_path: Path) -> None:
    audio = {"shape": {"dimensions": ["-1"]}, "dtype": "int16", "encoding": "BYTES", "sampleRate": "16000"}
    features = read_audio_features(tmp_path, audio)
    samples = np.arange(5, dtype=np.int16)
    values = field_of(features, ["audio"]).decode({"audio": [samples.tobytes()]})
    assert differences([samples], values) == []


def test_audio_files_are_decoded(tmp_path: Path) -> None:
    from parsers.test_audio_files import write_wav

    audio = {"shape": {"dimensions": ["-1"]}, "dtype": "int16", "encoding": "NONE", "lazyDecode": True}
    features = read_audio_features(tmp_path, audio)
    assert stored_specs(features) == {"audio": FieldSpec((), object)}
    samples = np.arange(-2, 3, dtype=np.int16)
    field = field_of(features, ["audio"])
    assert differences([samples], field.decode({"audio": [write_wav(samples[:, None])]})) == []
    with pytest.raises(ValueError, match=r"Its feature 'audio' cannot be decoded\. It cannot be read as a WAV file"):
        field.decode({"audio": [b"RIFF"]})


def read_audio_features(folder: Path, audio: dict[str, Any]) -> Any:
    """Returns the features of a features.json that declares `audio`."""
    prefix = "tensorflow_datasets.core.features."
    feature = {"pythonClassName": f"{prefix}audio_feature.Audio", "audio": audio}
    declared = {
        "pythonClassName": f"{prefix}features_dict.FeaturesDict",
        "featuresDict": {"features": {"audio": feature}},
    }
    (folder / "features.json").write_text(json.dumps(declared), encoding="utf-8")
    return read_features(folder)


# What cannot be decoded


@pytest.mark.parametrize(
    ("connector", "stored", "message"),
    [
        (tfds.features.Image(), b"", r"Its feature 'x' cannot be decoded\. It is empty\."),
        (
            tfds.features.Sequence(tfds.features.Image()),
            np.array([b"?"], object),
            r"'x' cannot be decoded\. Its 1 bytes",
        ),
        (
            tfds.features.Tensor(shape=(2,), dtype=np.int32, encoding="zlib"),
            b"junk",
            r"Its feature 'x' cannot be decoded\. Error -3 while decompressing data: incorrect header check\.",
        ),
        (
            tfds.features.Tensor(shape=(2,), dtype=np.int32, encoding="bytes"),
            b"four",
            r"'x' cannot be decoded\. .*reshape",
        ),
    ],
)
def test_a_damaged_value_is_a_sentence_about_the_example(connector: Any, stored: Any, message: str) -> None:
    field = field_of(tfds.features.FeaturesDict({"x": connector}), ["x"])
    with pytest.raises(ValueError, match=message):
        field.decode({"x": [stored]})


class Doubled(tfds.features.Tensor):
    """Stores half of a number."""

    def __init__(self) -> None:
        super().__init__(shape=(), dtype=np.int64)

    def decode_example(self, tfexample_data: Any) -> Any:
        return tfexample_data * 2


class DoubledInBothWays(Doubled):
    """The same, also without tensorflow."""

    def decode_example_np(self, example_data: Any) -> Any:
        if example_data < 0:
            raise RuntimeError
        return example_data * 2


def test_a_connector_of_a_datasets_own_is_asked() -> None:
    features = tfds.features.FeaturesDict(
        {"x": DoubledInBothWays(), "many": tfds.features.Sequence(DoubledInBothWays())}
    )
    assert differences([np.int64(6)], field_of(features, ["x"]).decode({"x": np.array([3])})) == []
    many = field_of(features, ["many"])
    assert differences([np.array([2, 4])], many.decode({"many": [np.array([1, 2])]})) == []
    with pytest.raises(ValueError, match=r"Its feature 'many' cannot be decoded\. RuntimeError\."):
        many.decode({"many": [np.array([-1])]})


def test_a_connector_that_needs_tensorflow_is_refused() -> None:
    features = tfds.features.FeaturesDict({"x": {"y": Doubled()}})
    with pytest.raises(
        ConfigError, match=r"'x/y' can be decoded by tensorflow only: .*Doubled does not define decode_example_np"
    ):
        field_of(features, ["x"])
