"""What cannot work is refused, with what to do, before anything is written."""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.exports import export
from export.made_sources import Numbered, Sized
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export import folder as shard_folder
from tfds_torch.export.api import export_dataset
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.beton.fields import BetonInt

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"format": "betom"}, r"format='betom' cannot be written: choose 'beton', .*Did you mean 'beton'\?"),
    ({"num_workers": -1}, "num_workers=-1 must be an integer >= 0"),
    ({"num_workers": 1.5}, "num_workers=1.5 must be an integer"),
    ({"chunk_size": 0}, "chunk_size=0 must be an integer >= 1"),
    ({"page_size": 3_000_000}, "page_size=3000000 must be a power of two"),
    ({"progress": 3}, "progress=3 must be a function of two numbers"),
    ({"shuffle_seed": -1}, "shuffle_seed=-1 must be an integer >= 0"),
    ({"indices": [0, 40]}, r"indices: there is no sample 40: the source has 40, counted from 0\."),
    ({"indices": [-1]}, "indices: there is no sample -1"),
    ({"indices": np.array([-1])}, "indices: there is no sample -1"),
    ({"indices": [0.5]}, "indices: 0.5 is not an integer"),
    ({"indices": np.ones(40, bool)}, r"Of a mask, give np\.flatnonzero"),
    ({"indices": "12"}, "indices='12' must be a sequence of integers"),
    ({"indices": 3}, "indices=3 must be a sequence of integers"),
    ({"fields": ["image"]}, r"fields=\['image'\] must be a mapping by name"),
    ({"rename": "image"}, "rename='image' must be a mapping by name"),
    ({"rename": {"label": 5}}, "rename: 'label' is 5, which is not a text: give its name in the file"),
    ({"names": {"label": "class"}}, r"names of a tuple's values, in order, .*rename=\{name: new\}"),
    ({"names": "image"}, r"export_dataset: names='image' must be a sequence of different texts"),
    ({"names": ("image",)}, r"names=\['image'\] are 1 names, and an item has 2 values"),
    ({"names": ("a", "b", "c")}, r"names=\['a', 'b', 'c'\] are 3 names, and an item has 2 values"),
    ({"executor": 3}, "executor=3 must be an Executor of concurrent.futures"),
    ({"executor": ThreadPoolExecutor(1)}, "executor is for folders of shards, and beton is one file"),
    ({"part": "1/2"}, r"part \(--part\) is for folders of shards, and beton is one file"),
    ({"fields": {"label": np.zeros(3)}}, r"'label' is array\(\[0., 0., 0.\]\), not a field such as"),
    ({"overwrite": "yes"}, r"overwrite='yes' must be True or False\."),
    ({"overwrite": 1}, r"overwrite=1 must be True or False\."),
    ({"format": np.zeros(3)}, r"format=array\(.*\) cannot be written: choose 'beton'"),
    ({"page_size": np.zeros(3)}, r"page_size=array\(.*\) must be an integer"),
    ({"fields": {"image": "row"}}, r"'row' is not a way to store 'image'.*Did you mean 'raw'\?"),
    ({"fields": {"image": 3}}, "'image' is 3, not a field such as"),
    ({"fields": {"label": BetonInt}}, "not a field such as"),
    ({"fields": {"imag": "raw"}}, r"fields names 'imag', which is not a field.*image, label\. Did you mean 'image'\?"),
    ({"rename": {"lable": "a"}}, "rename names 'lable', which is not a field"),
    ({"fields": {"image": None, "label": "skip"}}, "no field to be written: all are left out"),
    ({"rename": {"image": "x" * 17}}, r"'image': its name 'x+' is not 16 printable ASCII characters"),
    ({"rename": {"image": "Bild ä"}}, "is not 16 printable ASCII characters"),
    ({"rename": {"image": "label"}}, "'label': another field has the name 'label' already"),
]


def not_refused(
    cases: list[tuple[dict[str, Any], str]], folder: Path, export_to: Callable[..., object]
) -> list[tuple[str, str, list[str]]]:
    """Returns what is said of arguments that are not refused with their message, or after something was written."""
    wrong = []
    for number, (arguments, message) in enumerate(cases):
        own = folder / str(number)
        own.mkdir()
        try:
            said = f"nothing: {export_to(Numbered(), own / 'out', **arguments)}"
        except ConfigError as error:
            said = str(error)
        if not re.search(message, said) or os.listdir(own):
            wrong.append((message, said, os.listdir(own)))
    return wrong


def test_an_argument_that_cannot_work_is_refused(tmp_path: Path) -> None:
    beton: Any = {"format": "beton"}
    wrong = not_refused([(beton | arguments, message) for arguments, message in REFUSED], tmp_path, export_dataset)
    assert not wrong, str(wrong)


REFUSED_OF_SHARDS: list[tuple[dict[str, Any], str]] = [
    ({"fields": {"label": np.zeros(3)}}, r"'label' is array\(.*In webdataset, values are stored by their type"),
    ({"fields": {"label": BetonInt()}}, r"'label' is BetonInt\(.*only None \(skip\) can be asked for"),
    ({"rename": {"label": 5}}, "rename: 'label' is 5, which is not a text"),
    ({"overwrite": "yes"}, r"overwrite='yes' must be True or False\."),
    ({"key": np.zeros(3)}, r"key=array\(.*must be 'number' or 'id'"),
    ({"page_size": np.zeros(3)}, r"page_size=array\(.*must be an integer"),
    ({"num_shards": np.zeros(3)}, r"num_shards=array\(.*must be an integer"),
    ({"num_shards": 0}, "num_shards=0 must be an integer >= 1"),
    ({"num_shards": 41}, "num_shards=41 .*is more than the 40 examples: no shard may be empty"),
    ({"max_count": 0, "num_shards": None}, "max_count=0 must be an integer >= 1"),
    ({"max_bytes": 1.5, "num_shards": None}, "max_bytes=1.5 must be an integer"),
    ({"max_count": 3}, "is the number of shards, max_count and max_bytes limit their size"),
    ({"max_bytes": 9000, "num_shards": None}, "a shard with example 0 alone takes"),
    ({"key": "name"}, "key='name' .*must be 'number' or 'id'"),
    ({"key": "id"}, r"samples of .* have no id\. Use key='number'"),
    ({"key": "id", "indices": [1, 2, 3, 4, 4]}, "indices has an example twice, and keys must differ"),
    ({"indices": []}, "Numbered has no examples to be exported as webdataset"),
    ({"chunk_size": 7}, "chunk_size is of format='beton', and has no effect on webdataset"),
    ({"page_size": 2**21}, "page_size is of format='beton'"),
    ({"fields": {"image": "raw"}}, r"fields: 'image' is 'raw'\. In webdataset, values are stored by their type"),
    ({"fields": {"imag": None}}, r"fields names 'imag', which is not a field.*Did you mean 'image'\?"),
    ({"fields": ["image"]}, "must be a mapping by name"),
    ({"rename": {"lable": "a"}}, "rename names 'lable'"),
    ({"names": ("a", "b", "c")}, "are 3 names, and an item has 2 values"),
    ({"part": "0/3"}, r"part='0/3' \(--part\) must be K/N, such as 3/16"),
    ({"part": "4/3"}, "must be K/N"),
    ({"part": (1, 2, 3)}, "must be K/N"),
    ({"part": (1.0, 2)}, "must be K/N"),
    ({"part": "1"}, "must be K/N"),
    ({"part": f"{'1' * 5000}/3"}, "must be K/N"),
    ({"part": "1/6"}, "the number of shards is 5, and a part needs one: use fewer parts"),
    ({"part": "1/2", "executor": ThreadPoolExecutor(1)}, "leave one of them out"),
    ({"rename": {"image": "x" * 100}}, "Nothing was written: a tar file has room for names of 100 characters"),
    ({"fields": {"image": None, "label": None}}, "no field to be written: all are left out"),
    ({"format": "tfrecord"}, "Numbered has no records to be copied: format='tfrecord' takes datasets that are stored"),
    ({"format": "array_record", "max_bytes": 10**6, "num_shards": None}, "ArrayRecord is compressed"),
    ({"format": "tfrecord", "key": "id"}, "is for members of tar files: tfrecord has none"),
    ({"format": "tfrecord", "rename": {"image": "a"}}, "tfrecord copies records whole"),
    ({"format": "beton"}, "are for folders of shards, and beton is one file"),
]


def test_an_argument_of_shards_that_cannot_work_is_refused(tmp_path: Path) -> None:
    wrong = not_refused(REFUSED_OF_SHARDS, tmp_path, export)
    assert not wrong, str(wrong)


@pytest.mark.parametrize("sizes", [{"num_shards": np.int64(2)}, {"max_count": np.uint8(20)}])
def test_numbers_may_be_those_of_numpy(tmp_path: Path, sizes: dict[str, Any]) -> None:
    options = {"format": "webdataset", "shuffle_seed": np.int32(3), "num_workers": 1, **sizes}
    assert export_dataset(Numbered(), tmp_path / "a", **options).num_shards == 2


def test_fields_with_names_that_are_not_texts_can_be_left_out_of_shards(tmp_path: Path) -> None:
    samples: Any = [{5: 1, "label": 2}]
    skipped: Any = {5: None}
    report = export_dataset(samples, tmp_path / "a", format="webdataset", fields=skipped, num_workers=1)
    assert report.fields == {"label": "cls"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("photos", "'photos' is not a dataset: open it first"),
        ({"a": 1}, "dict cannot be exported: give a parser"),
        (iter([(1, 2)]), "list_iterator cannot be exported"),
        (None, "NoneType cannot be exported"),
        ([1, 2], "The first sample is int: samples are dictionaries, or tuples"),
        (["ab"], "The first sample is str"),
        ([{"a": object()}], "'a': object is nothing that a .beton file holds"),
        ([{"a": 1 + 2j}], "'a': complex is nothing"),
        ([{"a": np.complex64(1)}], "no field for single values of complex64"),
    ],
)
def test_what_is_not_a_dataset_is_refused(tmp_path: Path, source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        export_dataset(source, tmp_path / "a.beton", format="beton")
    assert os.listdir(tmp_path) == []


def test_what_can_only_be_iterated_has_no_shards_and_no_place_is_on_another_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Sized can only be iterated, .*format='beton' takes iterables"):
        export(Sized(3), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"WebDatasetShards can only be iterated.*ParserWebDataset reads them by"):
        export(WebDatasetShards(str(tmp_path / "a.tar")), tmp_path / "out")
    for file_format in ("webdataset", "beton"):
        with pytest.raises(ConfigError, match="gs://bucket/out is on another machine"):
            export_dataset(Numbered(), "gs://bucket/out", format=file_format)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "message"), [("", "is a folder"), ("b/c", "The folder of .* does not exist")])
def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        export_dataset(Numbered(), tmp_path / name, format="beton")


def test_a_file_that_is_there_is_replaced_only_if_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "a.beton"
    path.write_bytes(b"old")
    with pytest.raises(ConfigError, match="is there already"):
        export_dataset(Numbered(), path, format="beton")
    assert path.read_bytes() == b"old"
    assert export_dataset(Numbered(), path, format="beton", overwrite=True).num_samples == 40


VALUES: list[tuple[list[Any], str]] = [
    ([{"a": 1}] * 3 + [{"b": 1}], r"dataset\[3\]: The sample has 'b', and the first one had 'a': give all"),
    ([(1, 2)] * 3 + [(1,)], r"dataset\[3\]: The sample has 1 values, and the first one had 2 values"),
    ([{"a": 1}] * 3 + [{"a": "x"}], r"dataset\[3\]: Sample 3, field 'a': 'x' is not an integer"),
    ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], r"dataset\[1\]: .*convert it first"),
    ([{"a": ["x"]}, {"a": [b"\xff"]}], "is not a text in UTF-8"),
    ([{"a": {"x": 1}}, {"a": {1: 2, "1": 3}}], r"Keys in JSON are texts, and of \[1, '1'\] some would become the same"),
]


@pytest.mark.parametrize(("source", "message"), VALUES)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(
    tmp_path: Path, source: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        export_dataset(source, tmp_path / "a.beton", format="beton", num_workers=2, chunk_size=1)
    assert "What was there before is untouched." in str(caught.value)
    assert os.listdir(tmp_path) == []


class Ragged(list[Any]):
    """Rows that are exported to shards."""


@pytest.mark.parametrize("form", ["webdataset", "beton"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 2)] * 3 + [(1, 2, "x")], r"dataset\[3\].*: The sample has 3 values, and the first one had 2 values"),
        ([{"a": 1}] * 3 + [{"a": 1, "b": 2}], r"dataset\[3\].*: The sample has 'a', 'b', and the first one had 'a'"),
        ([{"a": 1, "b": 2}] * 3 + [{"a": 1}], r"dataset\[3\].*: The sample has 'a', and the first one had 'a', 'b'"),
    ],
)
def test_a_value_that_others_lack_is_not_lost(tmp_path: Path, form: str, rows: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        export_dataset(Ragged(rows), tmp_path / "out", format=form)


def test_an_executor_that_takes_no_tasks_is_named(tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(ExportError, match=r"The executor takes no tasks \(RuntimeError: .*give one that is not shut"):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", num_shards=2, executor=executor)


def test_a_damaged_shard_is_an_error_with_its_file(exported_root: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(exported_root / "photos" / "1.0.0", tmp_path / "photos" / "1.0.0"))
    shard = sorted(copy.glob("*.tfrecord*"))[2]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)
    parser = ParserTfds(copy, "photos")
    (tmp_path / "out").mkdir()
    with pytest.raises(ExportError, match=shard.name):
        export_dataset(parser, tmp_path / "out" / "a.beton", format="beton", num_workers=2, chunk_size=4)
    assert os.listdir(tmp_path / "out") == []


# Paths that the system refuses

FORMATS = ("beton", "webdataset")


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 256, "File name too long"),
        ("ä" * 128, "File name too long"),
        ("a\0b", "embedded null"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_a_path_that_the_system_refuses_is_named(tmp_path: Path, file_format: str, name: str, why: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=f"cannot be written to: .*{why}.* Choose another path"):
        export_dataset(Numbered(), tmp_path / name, format=file_format, num_workers=1)
    assert os.listdir(tmp_path) == ["loop"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_empty_path_is_not_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"out is empty: give the path of a file, or of a folder of shards\."):
        export_dataset(Numbered(), "", format=file_format, num_workers=1)
    assert os.listdir(tmp_path) == []


def test_a_link_to_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"link is a link to .*nowhere, which is not there: make that folder"):
        export_dataset(Numbered(), tmp_path / "link", format="webdataset", num_workers=1)
    (tmp_path / "nowhere").mkdir()
    export_dataset(Numbered(), tmp_path / "link", format="webdataset", num_workers=1)
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_folder_that_may_not_be_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    out, stat = tmp_path / "closed" / "out", os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if str(path) == str(out):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)  # Permissions do not hold for root.
    with pytest.raises(ConfigError, match="closed/out' cannot be written to: Permission denied"):
        export_dataset(Numbered(), out, format=file_format, num_workers=1)


def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(shard_folder, "manifests_in", refuse)
    with pytest.raises(ConfigError, match="cannot be looked into: Permission denied"):
        export_dataset(Numbered(), tmp_path, format="webdataset", num_workers=1)


def test_records_that_are_on_another_machine_are_refused(
    exported_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = ParserTfds(exported_root, "photos")
    monkeypatch.setattr(type(parser.source), "obstacle", "gs://a.tfrecord is remote")
    with pytest.raises(ConfigError, match=r"photos:1\.0\.0 cannot be exported: gs://a.* is remote\. Copy it to this"):
        export(parser, tmp_path / "out")
    assert os.listdir(tmp_path) == []
