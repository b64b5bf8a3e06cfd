"""MappedFile: what is read through its descriptor, where memory of the file would end the process."""

import os
from pathlib import Path
from unittest import mock

import pytest

from tfds_torch.errors import ShardError
from tfds_torch.storage.beton.mapped_file import MappedFile
from tfds_torch.storage.open_files import stamp_of

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFile:
    (tmp_path / "a.beton").write_bytes(CONTENT)
    return MappedFile(str(tmp_path / "a.beton"), stamp_of(os.stat(tmp_path / "a.beton")))


def test_bytes_are_read_also_where_the_system_stops_in_the_middle(mapped: MappedFile) -> None:
    pread = os.pread
    with mock.patch("os.pread", lambda descriptor, size, offset: pread(descriptor, min(size, 100), offset)):
        assert mapped.read(5, 1000) == CONTENT[5:1005]


def test_of_a_file_that_was_cut_fewer_bytes_are_read_and_no_signal_comes(mapped: MappedFile, tmp_path: Path) -> None:
    os.truncate(tmp_path / "a.beton", 10)
    assert mapped.read(5, 1000) == CONTENT[5:10]
    with pytest.raises(ShardError, match=r"a\.beton changed while it was in use: it had 16384 bytes and has 10"):
        mapped.check()


def test_a_disk_that_cannot_be_read_is_an_error_with_the_files_name(mapped: MappedFile) -> None:
    with (
        mock.patch("os.pread", side_effect=OSError(5, "Input/output error")),
        pytest.raises(ShardError, match=r"a\.beton cannot be read: Input/output error"),
    ):
        mapped.read(0, 1)
