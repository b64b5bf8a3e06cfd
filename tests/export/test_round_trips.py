"""Every dataset in every sharded format is read again, here and by those whose format it is, as what it was."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grain
import numpy as np
import pytest

from tfds_torch.export.exporting import export_dataset
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds

DATASETS = ("digits", "photos", "oxford_iiit_pet", "coco/2017")
RECORDS = ("tfrecord", "array_record")
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


@pytest.mark.parametrize("name", DATASETS)
def test_tars_are_read_here_with_ids_bytes_and_types(exported_root: Path, tmp_path: Path, name: str) -> None:
    parser, out = open_parser(exported_root, name), tmp_path / "out"
    export_dataset(parser, out, format="webdataset", num_shards=5, key="id", num_workers=2)
    there = ParserWebDataset(sorted(out.glob("*.tar")), MEMBERS[name])
    assert there.num_examples == parser.num_examples
    assert set(MEMBERS[name]) == set(parser.encoded_names()) == set(there.encoded_names())
    numbers = np.arange(parser.num_examples)
    assert [unquote(one) for one in there.ids(numbers)] == list(parser.ids(numbers))
    read = (each.encoded_examples(numbers, list(MEMBERS[name])) for each in (there, parser))
    for one, was in zip(*read, strict=True):
        assert (one.image, one.label) == (was.image, was.label)
        assert [field for field, value in was.features.items() if not is_same(one.features[field], value)] == []


def test_tars_of_tars_keep_every_member(exported_root: Path, tmp_path: Path) -> None:
    members = MEMBERS["oxford_iiit_pet"]
    export_dataset(open_parser(exported_root, "oxford_iiit_pet"), tmp_path / "a", format="webdataset", num_workers=1)
    first = ParserWebDataset(sorted(tmp_path.glob("a/*.tar")), members)
    export_dataset(first, tmp_path / "b", format="webdataset", num_workers=1)
    (was,), (there,) = (map(members_of, tmp_path.glob(f"{folder}/*.tar")) for folder in "ab")
    assert there == was
    assert len(was) == 23 * len(members)


@pytest.mark.parametrize("name", DATASETS)
def test_grain_reads_the_records(exported_root: Path, tmp_path: Path, name: str) -> None:
    parser, out = open_parser(exported_root, name), tmp_path / "out"
    export_dataset(parser, out, format="array_record", num_shards=4, num_workers=2)
    records = grain.sources.ArrayRecordDataSource(sorted(map(str, out.glob("*.array_record*"))))
    assert list(records) == parser.source.records(np.arange(parser.num_examples))


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
