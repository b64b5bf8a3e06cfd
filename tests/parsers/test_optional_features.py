"""Optional features of TFDS that are None: as TFDS reads them, never a label or a part of statistics."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tfds_fixtures import call_reader
from zygote import tensorflow_zygote

from tfds_torch import ParserBeton, ParserMixture, ParserTfds, ReadOptions, Windows, World, export_dataset
from tfds_torch.errors import ConfigError

NUM, IS_NONE = 12, (1, 4, 5)  # Examples, and those of which all is None.
LEAST = np.iinfo(np.int32).min


def features() -> dict[str, Any]:
    f = tfds.features
    return {
        "number": f.Scalar(np.int32, optional=True),
        "small": f.Scalar(np.int8, optional=True),
        "score": f.Scalar(np.float32, optional=True),
        "wide": f.Tensor(shape=(3,), dtype=np.float64, optional=True),
        "zipped": f.Tensor(shape=(3,), dtype=np.int16, encoding="zlib", optional=True),
        "bytes": f.Tensor(shape=(2,), dtype=np.float64, encoding="bytes", optional=True),
        "level": f.Scalar(np.uint8, optional=True),
        "flag": f.Scalar(np.bool_, optional=True),
        "text": f.Text(optional=True),
        "name": f.Tensor(shape=(), dtype=np.str_, optional=True),
        "nested": {"inner": f.Text(optional=True)},
    }


def values_of(number: int) -> dict[str, Any]:
    if number in IS_NONE:
        return dict.fromkeys(features()) | {"nested": {"inner": None}}
    return {
        "number": number % 3,
        "small": -number,
        "score": number / 2,
        "wide": np.arange(3.0) + number,
        "zipped": np.full(3, number, np.int16),
        "bytes": np.full(2, number / 4),
        "level": number + 1,
        "flag": True,
        "text": f"text {number}",
        "name": f"name {number}",
        "nested": {"inner": "x"},
    }


AS_TFDS_READS: Mapping[str, Any] = {
    "number": LEAST,
    "small": -128,
    "score": np.finfo(np.float32).min,
    "wide": [-np.inf] * 3,
    "zipped": [-(2**15)] * 3,
    "bytes": [np.finfo(np.float64).min] * 2,
    "level": 0,
    "flag": False,
    "text": "",
    "name": b"",
    "nested/inner": "",
}


def write(root: str, dataset: str, declared: Mapping[str, Any], examples: Sequence[Any]) -> None:
    class Optional(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        name = dataset
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(declared))

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
            return {"train": iter(enumerate(examples))}

        def _generate_examples(self) -> Iterator[Any]:
            raise NotImplementedError

    tfds.disable_progress_bar()
    download = tfds.download.DownloadConfig(try_download_gcs=False)
    Optional(data_dir=root).download_and_prepare(download_config=download)


def write_both(root: str) -> None:
    """Writes `flat`, and `episodes` of two steps each whose metadata are the same values."""
    write(root, "flat", features() | {"at": np.int64}, [values_of(number) | {"at": number} for number in range(NUM)])
    steps = tfds.features.Dataset({"action": tfds.features.Tensor(shape=(2,), dtype=np.float32)})
    episodes = [
        {"steps": [{"action": np.ones(2, np.float32)}] * 2, "of": values_of(number) | {"at": number}}
        for number in range(NUM)
    ]
    write(root, "episodes", {"steps": steps, "of": features() | {"at": np.int64}}, episodes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("optional")
    tensorflow_zygote().call(write_both, str(folder))
    return folder


def open_parser(root: Path | str, target: Any = None, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, "flat", **{"batch_size": NUM, "image_key": None, "target_key": target, **arguments})


def expected_value(name: str, number: int) -> Any:
    if number in IS_NONE:
        return AS_TFDS_READS[name]
    if name == "nested/inner":
        return "x"
    value = values_of(number)[name]
    return value.encode() if name == "name" else value


@pytest.mark.parametrize("name", AS_TFDS_READS)
@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_none_is_what_tfds_reads_and_a_text_is_empty(root: Path, name: str, on_error: Any) -> None:
    (batch,) = open_parser(root, read=ReadOptions(on_error=on_error)).batches(fields=[name, "at"])
    assert sorted(batch.features["at"].tolist()) == list(range(NUM)), "nothing is replaced"
    for number, value in zip(batch.features["at"].tolist(), batch.features[name], strict=True):
        np.testing.assert_array_equal(value, expected_value(name, number))
    windows = ParserTfds(root, "episodes", windows=Windows(), batch_size=2 * NUM)
    (batch,) = windows.batches(fields=[f"of/{name}", "of/at"])
    columns = windows.columns([f"of/{name}", "of/at"])
    for of in (batch.features, columns):
        for number, value in zip(of["of/at"].tolist(), of[f"of/{name}"], strict=True):
            expected = expected_value(name, number)
            is_text = isinstance(value, bytes) and isinstance(expected, str)
            np.testing.assert_array_equal(value, expected.encode() if is_text else expected)


# Labels


def labels_of(root: Path | str, target: str, mode: str = "auto") -> dict[int, Any]:
    parser = open_parser(root, target, read=ReadOptions(mode=mode))
    (batch,) = parser.batches(World(), fields=["label", "at"])
    labels = batch.features["label"] if batch.label is None else batch.label
    assert batch.valid.all()
    return {at: np.asarray(label).tolist() for at, label in zip(batch.features["at"].tolist(), labels, strict=True)}


@pytest.mark.parametrize("target", ["number", "small", "score", "wide", "zipped", "bytes"])
@pytest.mark.parametrize("mode", ["index", "examples"])
def test_none_is_never_a_label(root: Path, target: str, mode: str) -> None:
    found = call_reader(labels_of, str(root), target, mode)
    mark = -100 if target in ("number", "small", "zipped") else np.nan
    assert sorted(found) == list(range(NUM))
    for number, label in found.items():
        stored = values_of(number)[target]
        np.testing.assert_array_equal(label, np.full(np.shape(label), mark) if number in IS_NONE else stored)


def test_targets_classes_and_class_maps_know_labels_that_are_none(root: Path) -> None:
    parser = open_parser(root, "number", is_training=True, batch_size=3)
    at = np.concatenate([batch.features["at"] for batch in parser.batches(fields=["at"])])
    targets, index = parser.targets(), np.concatenate([batch.index for batch in parser.batches(fields=["at"])])
    assert {int(number) for number, label in zip(at, targets[index], strict=True) if label == -100} == set(IS_NONE)
    with pytest.raises(ConfigError, match=r"3 of 12 labels are -100: no label, as of an optional feature that is None"):
        parser.balanced()
    balanced = parser.subset(parser.targets() != -100).balanced()
    assert {label for batch in balanced.batches(fields=["label"]) for label in batch.label.tolist()} == {0, 1, 2}
    mapped = open_parser(root, "number", class_map={0: 5, 1: 6, 2: 7})
    (batch,) = mapped.batches(fields=["label", "at"])
    for number, label in zip(batch.features["at"].tolist(), batch.label.tolist(), strict=True):
        assert label == (-100 if number in IS_NONE else number % 3 + 5)
    assert sorted(mapped.targets().tolist()) == sorted(batch.label.tolist())
    mixture = ParserMixture({"a": open_parser(root, "number"), "b": mapped}, batch_size=NUM)
    labels = np.concatenate([batch.label for batch in mixture.batches(fields=["label"])])
    assert np.count_nonzero(labels == -100) == 2 * len(IS_NONE)


# Statistics


@pytest.mark.parametrize("name", ["number", "small", "score", "wide", "zipped", "bytes"])
def test_none_is_no_part_of_statistics(root: Path, name: str) -> None:
    """The message names the feature and how many there are, and what to write."""
    key = f"of/{name}"
    parser = ParserTfds(root, "episodes", windows=Windows(), batch_size=4)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=rf"'{key}' is an optional feature, and 6 of 24 values are None"
        ) as raised:
            parser.statistics(["of/at", key])
    remedy = str(raised.value).partition("Leave these steps out: ")[2].rstrip(".")
    rest = eval(remedy, {"parser": parser, "np": np})
    expected = np.array([values_of(n)[name] for n in range(NUM) if n not in IS_NONE for _ in range(2)], np.float64)
    np.testing.assert_allclose(rest.statistics([key])[key].mean, expected.mean(axis=0))
    np.testing.assert_array_equal(rest.statistics([key])[key].min, expected.min(axis=0))


def test_an_export_keeps_them(root: Path, tmp_path: Path) -> None:
    parser = open_parser(root, "number")
    export_dataset(parser, tmp_path / "flat.beton", format="beton")
    exported = ParserBeton(tmp_path / "flat.beton", batch_size=NUM, image_key=None)
    (ours,) = exported.batches(fields=["label", "text"])
    (theirs,) = parser.batches(fields=["label", "text"])
    np.testing.assert_array_equal(ours.label, theirs.label)
    assert ours.features["text"] == theirs.features["text"]
