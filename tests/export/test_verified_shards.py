"""What is read again after an export: its own split, or all of a folder."""

import os
from pathlib import Path

import pytest

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.command import main
from tfds_torch.export.exporting import export_dataset
from tfds_torch.export.shard_folder import verify_shards
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds


def test_verify_reads_the_split_that_was_written_and_no_other(exported_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_dataset(ParserTfds(exported_root, "digits"), out, format="tfrecord", num_shards=2, num_workers=1)
    shard = out / "digits-train.tfrecord-00001-of-00002"
    os.truncate(shard, 100)
    flags = ["--name", "digits", "--root", str(exported_root), "--format", "tfrecord", "--split", "test[:9]"]
    assert main([*flags, "--workers", "1", "--verify", str(out)]) == 0
    verify_shards(out, "test[:9]")
    for split in (None, "train"):
        with pytest.raises(ExportError, match=f"1 of 2 shards are not what was written, such as {shard.name}"):
            verify_shards(out, split)
    with pytest.raises(ConfigError, match="holds no export of the split 'validation'"):
        verify_shards(out, "validation")


@pytest.mark.parametrize("name", ["nowhere", "file", "a\0b", "x" * 300])
def test_what_is_not_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be read as a folder of an export"):
        verify_shards(tmp_path / name)
