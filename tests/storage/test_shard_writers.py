"""What writes shards: tar, TFRecord and ArrayRecord files, read again by other people's code."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given, settings
from hypothesis import strategies as st
from storage import tfrecord_writer

from tfds_torch.errors import ConfigError
from tfds_torch.storage.array_record import writer as array_record
from tfds_torch.storage.array_record.writer import ArrayRecordFileWriter
from tfds_torch.storage.tfrecord.framing import TfrecordWriter, framed_bytes
from tfds_torch.storage.webdataset.writer import RECORD_BYTES, TarWriter, member_bytes, member_header, tar_bytes

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100)


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    writer = TarWriter(file.write)
    for name, content in members:
        writer.add(name, content)
    writer.close()
    return file.getvalue()


@settings(max_examples=60)
@given(members=st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=6))
def test_python_reads_a_tar_file_and_would_write_the_same(members: list[tuple[str, bytes]]) -> None:
    written, theirs = tar_of(members), io.BytesIO()
    with tarfile.open(fileobj=theirs, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert written == theirs.getvalue()
    assert len(written) == tar_bytes(sum(member_bytes(len(content)) for _, content in members))
    assert len(written) % RECORD_BYTES == 0


@pytest.mark.parametrize("num_bytes", [0, 1, 2**31, 8**11 - 1])
def test_headers_of_large_members_are_those_of_python(num_bytes: int) -> None:
    member = tarfile.TarInfo("a.jpg")
    member.size = num_bytes
    assert member_header("a.jpg", num_bytes) == member.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    ("name", "num_bytes", "message"),
    [
        ("x" * 101, 0, "no room for the member 'x+': names are 100 ASCII characters"),
        ("grün.jpg", 0, "no room for the member 'grün.jpg'"),
        ("", 0, "no room for the member ''"),
        ("a.jpg", 8**11, "no room for the 8,589,934,592 bytes of the member 'a.jpg'"),
    ],
)
def test_what_ustar_has_no_room_for_is_refused(name: str, num_bytes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        member_header(name, num_bytes)


@given(records=st.lists(st.binary(max_size=700), max_size=8))
def test_tfrecord_files_are_those_that_the_format_asks_for(records: list[bytes]) -> None:
    file = io.BytesIO()
    writer = TfrecordWriter(file.write)
    for record in records:
        writer.add(record)
    assert file.getvalue() == tfrecord_writer.encode(records)
    assert len(file.getvalue()) == sum(framed_bytes(len(record)) for record in records)


def write_array_record(path: Path, records: list[bytes]) -> None:
    writer = ArrayRecordFileWriter(str(path))
    for record in records:
        writer.add(record)
    writer.close()


def read_array_record(path: Path) -> list[bytes]:
    reader = ArrayRecordReader(str(path))
    records: list[bytes] = reader.read(list(range(reader.num_records())))
    return records


RECORDS = [os.urandom(300_000), b"", *(bytes([number]) * number for number in range(200))]


@pytest.mark.parametrize("is_inherited", [False, True])
def test_the_package_reads_array_record_files_whichever_process_wrote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_inherited: bool
) -> None:
    monkeypatch.setattr(array_record, "is_inherited", lambda: is_inherited)
    records = RECORDS * 12  # More than are handed over at a time.
    write_array_record(tmp_path / "a", records)
    assert read_array_record(tmp_path / "a") == records
    write_array_record(tmp_path / "b", records)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("is_inherited", [False, True])
def test_a_place_where_nothing_can_be_written_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_inherited: bool
) -> None:
    monkeypatch.setattr(array_record, "is_inherited", lambda: is_inherited)
    with pytest.raises(OSError, match="No such file or directory"):
        write_array_record(tmp_path / "no" / "a", RECORDS)


def test_nothing_is_written_to_what_was_given_up(tmp_path: Path) -> None:
    writer = ArrayRecordFileWriter(str(tmp_path / "a"))
    writer.discard()
    writer.discard()
    writer.add(b"")
    with pytest.raises(ValueError, match="was given up: nothing more can be written"):
        writer.close()
