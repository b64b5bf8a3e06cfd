"""open_reader: a reader for every format that has random access, and a refusal for the others."""

from pathlib import Path

import numpy as np
import pytest
from records.made_shards import DATASET, write_shards

from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.records.record_reader import FORMATS_WITH_RANDOM_ACCESS, RecordReader, open_reader
from tfds_torch.records.record_run import RecordRun
from tfds_torch.records.tfrecord_reader import TfrecordReader


def test_tfrecord_files_are_indexed_and_read(tmp_path: Path, cache_home: Path) -> None:
    split = write_shards(tmp_path / "data", [3, 4])
    reader: RecordReader = open_reader(split.runs, DATASET, "tfrecord")
    with reader:
        reader.advise(np.arange(7))
        assert reader.read(np.array([6, 0])) == [split.examples[6], split.examples[0]]
        assert reader.num_read == 2


@pytest.mark.parametrize("verify", [True, False])
def test_checksums_of_data_are_verified_when_asked_for(tmp_path: Path, cache_home: Path, verify: bool) -> None:
    split = write_shards(tmp_path / "data", [3])
    path = Path(split.runs[0].path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with open_reader(split.runs, DATASET, "tfrecord", verify_checksums=verify) as reader:
        assert isinstance(reader, TfrecordReader)
        if verify:
            with pytest.raises(CorruptRecordError, match=f"example 2 of {DATASET}"):
                reader.read(np.array([2]))
        else:
            assert reader.read(np.array([2])) == [split.examples[2]]


@pytest.mark.parametrize("file_format", ["parquet", "riegeli", "", "TFRECORD"])
def test_another_format_is_refused_and_the_right_ones_are_named(file_format: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_reader([], DATASET, file_format)
    assert str(caught.value) == (
        f"{DATASET}: files of format {file_format!r} cannot be read by index; files of formats tfrecord and "
        f"array_record can."
    )


@pytest.mark.parametrize("file_format", FORMATS_WITH_RANDOM_ACCESS)
def test_files_of_another_machine_are_refused(file_format: str) -> None:
    with pytest.raises(ConfigError, match="gs://bucket/shard is not a file of this machine"):
        open_reader([RecordRun("gs://bucket/shard", 0, 1, 0, 1)], DATASET, file_format)
