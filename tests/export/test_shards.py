"""Folders of shards: what is in them is what was there, whoever reads them and however many workers wrote them."""

import gc
import io
import json
import os
import pickle
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from tfds_fixtures import Datasets

from export.exports import PATHS, contents, export
from export.made_sources import image_of
from tfds_torch.errors import ConfigError
from tfds_torch.export.api import export_dataset
from tfds_torch.export.folder import ShardFolder, WriteRefusedError
from tfds_torch.export.plan import read_manifest
from tfds_torch.export.records import RecordContent
from tfds_torch.export.samples import SampleOrder, samples_of
from tfds_torch.export.shards import WriteShards
from tfds_torch.export.tar import TarContent, choose_members
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.runtime.metrics import StageMetrics

DATASETS = ("digits", "photos", "oxford_iiit_pet", "coco/2017")
RECORDS = ("tfrecord", "array_record")


def some_of_them(*quick: str) -> list[Any]:
    """Returns the datasets; only the tests of some of them are quick ones."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in DATASETS]


MEMBERS = {
    "digits": {"image": "png", "label": "cls"},
    "photos": {"image": "jpg", "label": "cls", "file_name": "file_name.txt"},
    "oxford_iiit_pet": {
        "image": "jpg;png",
        "label": "cls",
        "file_name": "file_name.txt",
        "head_bbox": "head_bbox.npy",
        "segmentation_mask": "segmentation_mask.png",
        "species": "species.npy",
    },
    "coco/2017": {
        "image": "jpg;png",
        "image/filename": "image_filename.txt",
        "image/id": "image_id.npy",
        "objects": "objects.json",
    },
}
"""The members that the fields become."""


def open_parser(root: Path, name: str, split: str = "train") -> ParserTfds:
    return ParserTfds(root, name, split, target_key=None if name.startswith("coco") else "label")


def tars(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tar")))


def read_tars(folder: Path) -> list[dict[str, Any]]:
    """Returns all samples as the real webdataset reads them: bytes by extension."""
    import webdataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # It leaves its files to the garbage collector.
        read = webdataset.WebDataset(tars(folder), shardshuffle=False, empty_check=False)
        samples = [{name: one[name] for name in one if name not in ("__url__", "__local_path__")} for one in read]
        del read
        gc.collect()
    return samples


def stored(parser: DatasetParser) -> list[Any]:
    return parser.dataset.encoded_examples(np.arange(parser.num_examples), parser.dataset.encoded_names())


def image_in(sample: dict[str, Any], name: str = "") -> bytes:
    (found,) = (sample[one] for one in (f"{name}jpg", f"{name}png") if one in sample)
    return bytes(found)


def as_json(value: Any) -> Any:
    """Returns what JSON keeps of nested arrays and texts."""
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def is_same(there: Any, was: Any) -> bool:
    """Whether two values are equal, of one type; what is nested has become JSON."""
    if isinstance(was, dict):
        return bool(there == as_json(was))
    if isinstance(was, np.ndarray | np.generic | int):
        one, other = np.asarray(there), np.asarray(was)
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return type(there) is type(was) and there == was


def members_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}


@pytest.mark.parametrize("name", some_of_them("oxford_iiit_pet", "coco/2017"))
def test_tars_are_read_here_and_by_the_real_webdataset_with_ids_bytes_and_types(
    exported_root: Path, tmp_path: Path, name: str
) -> None:
    parser, out = open_parser(exported_root, name), tmp_path / "out"
    report = export_dataset(parser, out, format="webdataset", num_shards=3, key="id", num_workers=2)
    assert (report.num_shards, report.num_samples) == (3, parser.num_examples)
    real, was = read_tars(out), stored(parser)
    assert [unquote(one["__key__"]) for one in real] == [one.id for one in was]
    assert [image_in(one) for one in real] == [one.image for one in was]
    if parser.class_names:
        assert [int(one["cls"]) for one in real] == [one.label for one in was]
    there = ParserWebDataset(sorted(out.glob("*.tar")), MEMBERS[name])
    assert set(MEMBERS[name]) == set(parser.dataset.encoded_names()) == set(there.dataset.encoded_names())
    assert [unquote(one) for one in there.ids(np.arange(len(was)))] == [one.id for one in was]
    for one, other in zip(stored(there), was, strict=True):
        assert (one.image, one.label) == (other.image, other.label)
        assert [field for field, value in other.features.items() if not is_same(one.features[field], value)] == []


def test_tars_of_tars_keep_every_member(exported_root: Path, tmp_path: Path) -> None:
    members = MEMBERS["oxford_iiit_pet"]
    export_dataset(open_parser(exported_root, "oxford_iiit_pet"), tmp_path / "a", format="webdataset", num_workers=1)
    first = ParserWebDataset(sorted(tmp_path.glob("a/*.tar")), members)
    export_dataset(first, tmp_path / "b", format="webdataset", num_workers=1)
    (was,), (there,) = (map(members_of, tmp_path.glob(f"{folder}/*.tar")) for folder in "ab")
    assert there == was
    assert len(was) == 23 * len(members)


def test_what_a_tar_file_cannot_hold_is_named_or_left_out(datasets: Datasets, tmp_path: Path) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train[:9]")
    with pytest.raises(ConfigError, match="of the fields, 1 cannot be stored in a tar file") as caught:
        export_dataset(parser, tmp_path / "out", format="webdataset")
    assert "'frames': images inside of a sequence" in str(caught.value)
    assert os.listdir(tmp_path) == []
    export_dataset(parser, tmp_path / "out", format="webdataset", fields={"frames": None}, num_workers=2)
    there = read_tars(tmp_path / "out")
    assert len(there) == 9
    assert not any(key.startswith("frames") for key in there[0])
    for one, was in zip(
        there, parser.dataset.encoded_examples(np.arange(9), ["precise", "flag", "vector"]), strict=True
    ):
        for name, value in was.features.items():
            loaded = np.load(io.BytesIO(one[f"{name}.npy"]))
            assert (loaded.dtype, loaded.tolist()) == (np.asarray(value).dtype, np.asarray(value).tolist())


@pytest.mark.parametrize("name", some_of_them("photos"))
@pytest.mark.parametrize("file_format", RECORDS)
def test_records_are_copied_into_any_number_of_shards_and_open_here(
    exported_root: Path, tmp_path: Path, name: str, file_format: str
) -> None:
    parser, out = open_parser(exported_root, name), tmp_path / "out"
    export_dataset(parser, out, format=file_format, num_shards=7, num_workers=2)
    there = open_parser(out, name)
    number = np.arange(parser.num_examples)
    assert there.source.records(number) == parser.source.records(number)
    assert len({one.path for one in there.files}) == 7
    assert (there.class_names, there.element_spec) == (parser.class_names, parser.element_spec)
    back = tmp_path / "back"
    export_dataset(there, back, format="tfrecord", num_shards=1, num_workers=1)
    assert open_parser(back, name).source.records(number) == parser.source.records(number)
    if file_format == "array_record":
        import grain

        read_by_grain = grain.sources.ArrayRecordDataSource(sorted(map(str, out.glob("*.array_record*"))))
        assert list(read_by_grain) == parser.source.records(number)


READ_WITH_TFDS = """
import hashlib, json, sys
import numpy as np
import tensorflow_datasets as tfds

def leaves(value, path=""):
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in leaves(value[name], f"{path}/{name}")]
    array = np.asarray(value)
    content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return [[path, str(array.dtype), list(array.shape), hashlib.sha256(content).hexdigest()]]

for folder in sys.argv[1:]:
    builder = tfds.builder_from_directory(folder)
    decoders = {"image": tfds.decode.SkipDecoding()}
    if builder.info.file_format.value == "array_record":
        read = builder.as_data_source("train", decoders=decoders)
    else:
        read = tfds.as_numpy(builder.as_dataset("train", decoders=decoders))
    examples = sorted(leaves(one) for one in read)
    names = {name: feature.names for name, feature in builder.info.features.items() if hasattr(feature, "names")}
    print(json.dumps([names, builder.info.splits["train"].num_examples, examples]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_tfds_reads_of_the_records_what_it_reads_of_the_original(
    exported_root: Path, tmp_path: Path, run_python: Callable[..., Any], name: str
) -> None:
    parser, outs = open_parser(exported_root, name), [tmp_path / file_format for file_format in RECORDS]
    for file_format, out in zip(RECORDS, outs, strict=True):
        export_dataset(parser, out, format=file_format, num_shards=4, num_workers=2)
    done = run_python("-c", READ_WITH_TFDS, *map(str, [parser.data_dir, *outs]))
    assert done.returncode == 0, done.stderr
    was, *found = map(json.loads, done.stdout.splitlines())
    assert was[1] == len(was[2]) == parser.num_examples
    assert found == [was, was]


@pytest.mark.parametrize("file_format", ["webdataset", *RECORDS])
def test_files_are_the_same_whatever_the_number_of_workers(
    exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    parser = open_parser(exported_root, "photos")
    for num_workers in (1, 5):
        export_dataset(
            parser,
            tmp_path / str(num_workers),
            format=file_format,
            num_shards=5,
            num_workers=num_workers,
            shuffle_seed=3,
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "5")
    assert len(contents(tmp_path / "1")) >= 6


def test_indices_and_shuffle_say_which_examples_and_in_what_order(exported_root: Path, tmp_path: Path) -> None:
    parser, indices = open_parser(exported_root, "photos"), [7, 3, 3, 30, 0]
    export_dataset(parser, tmp_path / "tar", format="webdataset", indices=indices, num_shards=2, num_workers=2)
    was = parser.dataset.encoded_examples(np.array(indices), ["image"])
    assert [image_in(one) for one in read_tars(tmp_path / "tar")] == [one.image for one in was]
    export_dataset(parser, tmp_path / "records", format="tfrecord", indices=indices, num_shards=2, num_workers=2)
    there = open_parser(tmp_path / "records", "photos")
    assert there.source.records(np.arange(5)) == parser.source.records(np.array(indices))
    export_dataset(parser, tmp_path / "shuffled", format="tfrecord", shuffle_seed=5, num_workers=2)
    shuffled = open_parser(tmp_path / "shuffled", "photos").source.records(np.arange(37))
    assert shuffled != parser.source.records(np.arange(37))
    assert sorted(shuffled) == sorted(parser.source.records(np.arange(37)))


@pytest.mark.parametrize("file_format", ["webdataset", "tfrecord"])
def test_shards_are_filled_up_to_their_limits(exported_root: Path, tmp_path: Path, file_format: str) -> None:
    parser, most = open_parser(exported_root, "photos"), 400_000
    export_dataset(parser, tmp_path / "out", format=file_format, max_bytes=most, num_workers=2)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("photos-*"))]
    assert max(sizes) <= most
    assert all(size > most - 150_000 for size in sizes[:-1])  # No example is larger.
    manifest = json.loads((tmp_path / "out" / "export-train.json").read_text())
    assert manifest["plan"]["bounds"][-1] == 37
    report = export_dataset(parser, tmp_path / "few", format=file_format, max_bytes=most, max_count=2, num_workers=1)
    assert report.num_shards == 19


def test_a_forked_process_that_inherits_the_package_of_array_record_writes(exported_root: Path, tmp_path: Path) -> None:
    source = open_parser(exported_root, "photos")
    export_dataset(source, tmp_path / "a", format="array_record", num_shards=3, num_workers=1)
    loaded = open_parser(tmp_path / "a", "photos")
    records = loaded.source.records(np.arange(37))  # From now on this process has the package.
    export_dataset(loaded, tmp_path / "b", format="array_record", num_shards=3, num_workers=2)
    assert open_parser(tmp_path / "b", "photos").source.records(np.arange(37)) == records
    shards = [one for one in contents(tmp_path / "a") if "array_record-" in one]
    assert all(contents(tmp_path / "a")[one] == contents(tmp_path / "b")[one] for one in shards)


@pytest.mark.parametrize("file_format", ["webdataset", *RECORDS])
def test_a_shard_is_a_function_of_the_plan_that_travels_and_the_first_attempts_file_stays(
    exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    parser = open_parser(exported_root, "photos")
    export_dataset(parser, tmp_path / "out", format=file_format, num_shards=4, num_workers=1)
    plan, shards, _ = read_manifest(tmp_path / "out" / "export-train.json")
    samples, order = samples_of(parser), SampleOrder(37)
    content: Any = RecordContent(parser.source, order, file_format)  # type: ignore[arg-type]
    if file_format == "webdataset":
        content = TarContent(samples, order, choose_members((), {}, None, samples.encoded_fields(), None)[0], "number")
    (tmp_path / "other").mkdir()
    write = pickle.loads(pickle.dumps(WriteShards(plan, content, ShardFolder(tmp_path / "other", "train"), {})))
    assert [write(number, StageMetrics(0)) for number in (3, 1)] == [(shards[3], False), (shards[1], False)]
    path = tmp_path / "other" / plan.file_name(3)
    assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    first = path.stat().st_ino
    assert write(3, StageMetrics(0)) == (shards[3], False)
    assert path.stat().st_ino == first
    path.write_bytes(b"damaged")
    assert write(3, StageMetrics(0)) == (shards[3], False)
    assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    noted = WriteShards(plan, content, write.folder, {3: shards[3]})
    assert noted(3, StageMetrics(0)) == (shards[3], True)
    assert not list((tmp_path / "other").glob(".*.tmp"))


def test_an_attempt_whose_file_the_end_of_an_export_has_removed_is_not_noted(
    exported_root: Path, tmp_path: Path
) -> None:
    parser = open_parser(exported_root, "photos")
    export_dataset(parser, tmp_path / "out", format="tfrecord", num_shards=4, num_workers=1)
    plan, _, _ = read_manifest(tmp_path / "out" / "export-train.json")
    (tmp_path / "other").mkdir()
    folder = ShardFolder(tmp_path / "other", "train", is_shared=True)

    class Ended(RecordContent):
        def write(self, *arguments: Any) -> Any:
            written = super().write(*arguments)
            folder.remove_unfinished(plan)
            return written

    content = Ended(parser.source, SampleOrder(37), "tfrecord")  # type: ignore[arg-type]
    refused = WriteShards(plan, content, folder, {})(2, StageMetrics(0))
    assert isinstance(refused, WriteRefusedError)
    assert "the export was ended meanwhile" in str(refused)
    assert list((tmp_path / "other").iterdir()) == []


def test_an_image_folder_becomes_tars_and_has_no_records(tmp_path: Path) -> None:
    images = tmp_path / "folder" / "train" / "cat"
    images.mkdir(parents=True)
    for number in range(20):
        Image.fromarray(image_of(number)).save(images / f"{number:02d}.png")
    folder = ParserTfds(tmp_path / "folder", "image_folder")
    export_dataset(folder, tmp_path / "tars", format="webdataset", num_workers=1)
    was_in_folder = [(images / name).read_bytes() for name in folder.filenames(basename=True)]
    assert [one["png"] for one in read_tars(tmp_path / "tars")] == was_in_folder
    with pytest.raises(ConfigError, match="has no records to be copied"):
        export_dataset(folder, tmp_path / "records", format="tfrecord")


class Counting:
    """A dataset that tells of the samples that are read."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> dict[str, Any]:
        with self.log.open("a") as file:
            file.write(f"{number}\n")
        return {"label": number}

    def read(self) -> Iterator[int]:
        return map(int, self.log.read_text().split())


def test_a_second_run_reads_no_sample_of_a_complete_shard(tmp_path: Path) -> None:
    source, out = Counting(tmp_path / "log"), tmp_path / "out"
    export_dataset(source, out, format="webdataset", num_shards=4, num_workers=2)
    (out / "Counting-all-000002.tar").unlink()
    before = contents(out)
    source.log.unlink()
    report = export_dataset(source, out, format="webdataset", num_shards=4, num_workers=2)
    assert report.num_kept == 3
    assert set(source.read()) == {0, 6, 7, 8, 11}  # First, middle and last tell that it is the same dataset.
    assert before.items() <= contents(out).items()


MEASURED = """
import json, resource, sys
from tfds_torch.export.api import export_dataset

class Large:
    def __init__(self, num_samples): self.num_samples = num_samples
    def __len__(self): return self.num_samples
    def __getitem__(self, number): return {"raw": bytes([number % 256]) * 2**17}

largest = []
for num_samples in (80, 1000):
    out = f"{sys.argv[1]}/{num_samples}"
    export_dataset(Large(num_samples), out, format="webdataset", num_shards=1, num_workers=1)
    largest.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
print(json.dumps(largest))
"""


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    done = run_python("-c", MEASURED, str(tmp_path), env=PATHS)
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout)
    assert many - few < 60 * 2**20  # Of 115 MiB more that were written.


class Mixed:
    """A map-style dataset of dictionaries with values of every kind."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {
            "text": f"grün {number}",
            "score": number / 7,
            "none": None,
            "nested": {"a": [number, "x"]},
            "raw": bytes([number]),
            "array": np.full((2, number), number, np.float16),
            "label": np.int32(number),
        }


def test_values_of_every_kind_come_back(tmp_path: Path) -> None:
    export_dataset(Mixed(), tmp_path / "out", format="webdataset", num_workers=1)
    for number, one in enumerate(read_tars(tmp_path / "out")):
        assert one["text.txt"].decode() == f"grün {number}"
        assert np.load(io.BytesIO(one["score.npy"])) == np.float64(number / 7)
        assert (json.loads(one["none.json"]), json.loads(one["nested.json"])) == (None, {"a": [number, "x"]})
        assert one["raw.bin"] == bytes([number])
        array = np.load(io.BytesIO(one["array.npy"]))
        assert (array.dtype, array.shape) == (np.float16, (2, number))
        assert one["cls"] == str(number).encode()


class Rows(list[Any]):
    """Rows by number."""


def test_the_report_of_rows_that_are_tuples_names_their_fields(tmp_path: Path) -> None:
    report = export(Rows([(1, 2.0), (3, 4.0)]), tmp_path / "out", names=("label", "score"), num_shards=1)
    assert report.fields == {"label": "cls", "score": "score.npy"}
