"""TFRecord files, whole and damaged."""

import io
import textwrap
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage import tfrecord_writer
from storage.tfrecord_writer import FOOTER_SIZE, HEADER_SIZE, boundaries, encode, header, write

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.storage.tfrecord import framing as tfrecord
from tfds_torch.storage.tfrecord.framing import count_records, read_records, scan_offsets

RECORDS = [b"", b"a", b"tfds_torch", bytes(range(32))]
WRITTEN_BY_TENSORFLOW = bytes.fromhex(  # tf.io.TFRecordWriter of tensorflow 2.21, RECORDS.
    "000000000000000029039807d8ea82a201000000000000000175de4161786ee4280a00000000000000aea3bf3a746664735f746f726368560564"
    "c4200000000000000029eda950000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f92781f95"
)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return tmp_path / "fake-train.tfrecord-00000-of-00001"


def test_a_file_written_by_tensorflow_reads_back(shard: Path) -> None:
    shard.write_bytes(WRITTEN_BY_TENSORFLOW)
    assert count_records(shard) == 4
    assert list(read_records(shard)) == RECORDS


def test_the_tests_own_writer_writes_what_tensorflow_writes() -> None:
    assert encode(RECORDS) == WRITTEN_BY_TENSORFLOW


@pytest.mark.slow
def test_tensorflow_still_writes_the_same(run_python: RunPython, shard: Path) -> None:
    code = f"""
    import tensorflow as tf
    with tf.io.TFRecordWriter({str(shard)!r}) as writer:
        for record in {RECORDS!r}:
            writer.write(record)
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert shard.read_bytes() == WRITTEN_BY_TENSORFLOW


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.binary(max_size=2000), max_size=20))
def test_any_records_come_back_in_order(shard: Path, records: list[bytes]) -> None:
    write(shard, records)
    assert count_records(shard) == len(records)
    assert list(read_records(shard)) == records


def test_paths_may_be_text(shard: Path) -> None:
    write(shard, RECORDS)
    assert count_records(str(shard)) == 4
    assert list(read_records(str(shard))) == RECORDS


# Offsets.


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 60), max_size=30), window=st.integers(12, 90), large=st.sampled_from([0, 20, 40, 99])
)
def test_offsets_are_the_same_whatever_is_read_at_a_time(
    shard: Path, sizes: list[int], window: int, large: int
) -> None:
    records = [bytes(size) for size in sizes]
    write(shard, records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "_WINDOW_BYTES", window)
        patch.setattr(tfrecord, "_LARGE_RECORD_BYTES", large)
        offsets = scan_offsets(shard)
    assert offsets.tolist() == boundaries(records)
    assert offsets.dtype == np.int64


class CountingFile(io.FileIO):
    num_bytes = num_reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        CountingFile.num_bytes += len(data)
        CountingFile.num_reads += 1
        return data


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[CountingFile]:
    monkeypatch.setattr(Path, "open", lambda path, mode, **_: CountingFile(path, mode))
    monkeypatch.setattr(CountingFile, "num_bytes", 0)
    monkeypatch.setattr(CountingFile, "num_reads", 0)
    return CountingFile


def test_of_large_records_only_the_headers_are_read(shard: Path, counting: type[CountingFile]) -> None:
    shard.write_bytes(encode([bytes(100_000)] * 40))
    assert count_records(shard) == 40
    assert (counting.num_reads, counting.num_bytes) == (40, 40 * HEADER_SIZE)


def test_small_records_are_found_many_at_a_time(shard: Path, counting: type[CountingFile]) -> None:
    shard.write_bytes(encode([bytes(100)] * 10_000))
    assert count_records(shard) == 10_000
    assert counting.num_reads < 10


def test_one_large_record_among_small_ones_changes_little(shard: Path, counting: type[CountingFile]) -> None:
    shard.write_bytes(encode([*[bytes(100)] * 5000, bytes(1_000_000), *[bytes(100)] * 5000]))
    assert count_records(shard) == 10_001
    assert counting.num_reads < 30
    assert counting.num_bytes < 2_500_000


def test_the_scan_says_how_far_it_is(shard: Path) -> None:
    records = [bytes(50_000)] * 5
    write(shard, records)
    reached: list[int] = []
    scan_offsets(shard, reached.append)
    assert reached == boundaries(records)[1:]


# Cut files.


def outcome(read: Callable[[], object]) -> object:
    """Returns what is read; of a corrupt file, what is said of it."""
    try:
        return read()
    except CorruptRecordError as error:
        return str(error)


def test_a_cut_is_an_error_unless_it_falls_between_two_records(shard: Path) -> None:
    starts, found, expected = boundaries(RECORDS), {}, {}
    for size in range(len(WRITTEN_BY_TENSORFLOW)):
        shard.write_bytes(WRITTEN_BY_TENSORFLOW[:size])
        found[size] = (outcome(lambda: count_records(shard)), outcome(lambda: list(read_records(shard))))
        number = sum(start <= size for start in starts) - 1  # Records before the cut.
        message = (
            f"{shard}: the file ends at byte {size}, inside record {number}, which begins at offset {starts[number]}: "
            f"it was cut. Prepare the dataset again."
        )
        expected[size] = (number, RECORDS[:number]) if size in starts else (message, message)
    assert found == expected


def test_the_records_before_a_cut_are_read(shard: Path) -> None:
    shard.write_bytes(WRITTEN_BY_TENSORFLOW[:-1])
    records = read_records(shard)
    assert [next(records) for _ in range(3)] == RECORDS[:3]
    with pytest.raises(CorruptRecordError):
        next(records)


@pytest.mark.parametrize("size", [25, 40, 100, 5000, 5012, 5013])
def test_a_file_cut_while_it_is_read_is_an_error(shard: Path, size: int) -> None:
    write(shard, [b"first", bytes(5000), b"last"])
    records = read_records(shard)
    assert next(records) == b"first"
    with shard.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(CorruptRecordError, match=r"record 1\b.* offset 21\b"):
        list(records)


# Flipped bits.


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_flipped_bit_is_found_by_reading(shard: Path) -> None:
    whole = encode([b"abc", b"", bytes(range(5))])
    for bit in range(8 * len(whole)):
        shard.write_bytes(flipped(whole, bit))
        with pytest.raises(CorruptRecordError):
            list(read_records(shard))


def test_every_flipped_bit_of_a_header_is_found_by_counting(shard: Path) -> None:
    records = [b"abc", b"", bytes(range(20))]
    whole = encode(records)
    for start in boundaries(records)[:-1]:
        for bit in range(8 * start, 8 * (start + HEADER_SIZE)):
            shard.write_bytes(flipped(whole, bit))
            with pytest.raises(CorruptRecordError, match=f"at offset {start} does not have its checksum"):
                count_records(shard)


def test_the_message_of_a_damaged_length_names_file_record_and_offset(shard: Path) -> None:
    shard.write_bytes(flipped(encode([b"abc", b"def"]), 8 * 19))
    with pytest.raises(CorruptRecordError) as caught:
        count_records(shard)
    assert str(caught.value) == (
        f"{shard}: the length of record 1 at offset 19 does not have its checksum: the file is corrupt. Prepare the "
        f"dataset again."
    )


def test_the_message_of_damaged_data_names_file_record_offset_and_size(shard: Path) -> None:
    shard.write_bytes(flipped(encode([b"abc", b"defg"]), 8 * (19 + HEADER_SIZE)))
    assert count_records(shard) == 2  # Headers only: the data is whole as far as they know.
    with pytest.raises(CorruptRecordError) as caught:
        list(read_records(shard))
    assert str(caught.value) == (
        f"{shard}: record 1 at offset 19 (4 bytes) does not have its checksum: the file is corrupt. Prepare the "
        f"dataset again."
    )


@pytest.mark.parametrize("length", [2**31, 2**40, 2**63, 2**64 - 1, 2**64 - FOOTER_SIZE - HEADER_SIZE])
def test_a_huge_length_with_the_right_checksum_is_an_error_and_takes_no_memory(shard: Path, length: int) -> None:
    shard.write_bytes(encode([b"abc"]) + header(length) + b"data")
    for read in (count_records, lambda path: list(read_records(path))):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptRecordError, match="inside record 1, which begins at offset 19: it was cut"):
                read(shard)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 1_000_000


# Files that cannot be read.


def test_a_missing_file_is_a_shard_error(shard: Path) -> None:
    for read in (count_records, lambda path: list(read_records(path))):
        with pytest.raises(ShardError) as caught:
            read(shard)
        assert str(caught.value) == f"The shard file {shard} is missing. Prepare the dataset again."
        assert not isinstance(caught.value, CorruptRecordError)


def test_a_file_in_place_of_a_folder_is_a_shard_error(shard: Path) -> None:
    shard.touch()
    with pytest.raises(ShardError, match=r"cannot be read: Not a directory\.$"):
        count_records(shard / "below")


def test_no_file_stays_open(shard: Path) -> None:
    write(shard, RECORDS)  # A file left open would be a ResourceWarning, and so an error.
    records = read_records(shard)
    next(records)
    del records
    assert count_records(shard) == 4


def test_the_writer_of_the_tests_masks_as_the_format_says() -> None:
    # CRC32C of "123456789" is 0xE3069283: the check value of the catalogue of CRC algorithms.
    assert tfrecord_writer.masked_crc32c(b"123456789") == ((0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF)
