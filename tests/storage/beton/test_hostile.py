"""Files that were damaged, or made to do harm: typed errors, and no more memory than the file is large."""

import itertools
import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from storage.beton.made_files import PAGE, places_of, sample_of, unpack, without_manifest, write_images, write_samples

from tfds_torch.errors import CorruptRecordError, ShardError, TfdsTorchError
from tfds_torch.storage.beton import allocations
from tfds_torch.storage.beton.fields import BetonBytes
from tfds_torch.storage.beton.head import read_head
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import BetonWriter

EXTREMES = (0, 1, 2**15, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ours") / "a.beton"
    write_samples(path)
    return path


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("regenerated_ffcv_1.0.2.beton.gz", tmp_path_factory.mktemp("theirs"))


@pytest.fixture(params=[1, 3, allocations._SLICE])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the table be checked in slices of a few rows."""
    monkeypatch.setattr(allocations, "_SLICE", request.param)


@contextmanager
def changed(path: Path, *changes: tuple[int, bytes]) -> Iterator[None]:
    """Overwrites bytes of a file, and puts the old ones back."""
    with path.open("r+b", buffering=0) as file:
        before = [(at, os.pread(file.fileno(), len(new), at)) for at, new in changes]
        for at, new in changes:
            os.pwrite(file.fileno(), new, at)
        try:
            yield
        finally:
            for at, old in reversed(before):
                os.pwrite(file.fileno(), old, at)


def read_all(path: Path) -> Any:
    source = BetonSource(path)
    source.check()
    columns = source.read(np.arange(len(source)), list(source.specs))
    return {name: [np.asarray(value).tobytes() for value in values] for name, values in columns.items()}


def expect_an_error(path: Path, what: object) -> None:
    """Reading must fail with an error of ours, and with little memory."""
    tracemalloc.start()
    try:
        read_all(path)
    except ShardError:
        pass
    else:
        pytest.fail(f"{what} was not noticed")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**20, what


def test_every_byte_of_header_and_descriptors_of_our_files_counts(ours: Path) -> None:
    original = ours.read_bytes()
    head_bytes = 24 + 1041 * 7
    for at, mask in itertools.chain(
        itertools.product(range(24), (1, 0x80, 0xFF)), ((at, 0x10) for at in range(24, head_bytes, 3))
    ):
        with changed(ours, (at, bytes([original[at] ^ mask]))), pytest.raises(ShardError):
            BetonSource(ours).check()
    read_all(ours)  # It is what it was.


def test_every_byte_of_metadata_manifest_and_table_of_our_files_counts(ours: Path) -> None:
    original, head = ours.read_bytes(), read_head(str(ours))
    assert head.manifest is not None
    places = [*range(head.layout.metadata_at, head.layout.metadata_end, 5), *range(head.table_at - 44, len(original))]
    for at in places:
        with changed(ours, (at, bytes([original[at] ^ 0x10]))), pytest.raises(CorruptRecordError):
            BetonSource(ours).check()
    for at in [*range(head.manifest.at, head.table_at, 3), PAGE, 2 * PAGE - 1, head.layout.metadata_end]:
        with changed(ours, (at, bytes([original[at] ^ 0x10]))), pytest.raises(CorruptRecordError):
            verify(ours)
    assert verify(ours).num_samples == 7


def test_a_changed_byte_of_ffcvs_header_is_an_error_or_changes_nothing(theirs: Path) -> None:
    original, whole = theirs.read_bytes(), read_all(theirs)
    num_errors = 0
    for at, mask in itertools.product(range(24), (1, 2, 0x10, 0x80, 0xFF)):
        with changed(theirs, (at, bytes([original[at] ^ mask]))):
            try:
                assert read_all(theirs) == whole, (at, mask)
            except TfdsTorchError:
                num_errors += 1
    assert num_errors >= 110  # The rest are pages of another size in which every payload lies as well.


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_extreme_numbers_in_the_header_are_errors(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    for at, size, value in [
        *((at, 8, value) for at in (8, 16) for value in EXTREMES),
        *((4, 4, value) for value in (0, 1, 3, 2**31, 2**32 - 1)),
        *((at, 2, value) for at in (0, 2) for value in (0, 1, 2**15, 2**16 - 1)),
    ]:
        if (at, value) == (4, 2**31):
            continue  # A page of another size, in which every payload of so small a file lies as well.
        with changed(path, (at, value.to_bytes(size, "little"))):
            expect_an_error(path, (at, value))


@pytest.mark.usefixtures("slices")
def test_extreme_pointers_and_sizes_are_errors(theirs: Path) -> None:
    head = read_head(str(theirs))
    row = head.layout.metadata_at
    for value in EXTREMES:
        word = value.to_bytes(8, "little")
        for at in (row + 5, row + 18, row + 48, row + 56, head.table_at, head.table_at + 8, head.table_at + 16):
            was = int.from_bytes(theirs.read_bytes()[at : at + 8], "little")
            if was != value:
                with changed(theirs, (at, word)):
                    expect_an_error(theirs, (at, value))


def rows_of(path: Path) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    head = read_head(str(path))
    return np.frombuffer(path.read_bytes()[head.table_at :], "<u8").reshape(-1, 3).copy()


@pytest.mark.usefixtures("slices")
def test_a_table_that_contradicts_itself_or_the_samples_is_an_error(theirs: Path) -> None:
    head, table = read_head(str(theirs)), rows_of(theirs)

    def damage(**values: Any) -> None:
        rows = table.copy()
        for name, (row, value) in values.items():
            rows[row, ("sample", "pointer", "size").index(name)] = value
        with changed(theirs, (head.table_at, rows.tobytes())):
            expect_an_error(theirs, values)

    damage(pointer=(1, table[0, 1] + 1))  # Overlaps, and is nobody's.
    damage(size=(0, table[0, 2] + 1))  # Reaches into the next one.
    damage(size=(0, table[0, 2] - 1))  # Smaller than its image.
    damage(size=(0, 0))
    damage(sample=(0, table[0, 0] + 1))  # Another sample's.
    damage(pointer=(0, 0), size=(0, 24))  # In the header.
    damage(pointer=(0, head.table_at - 1))
    damage(pointer=(0, table[1, 1]))  # Twice.


@pytest.mark.usefixtures("slices")
def test_a_table_in_any_order_is_read_and_its_overlaps_are_noticed(theirs: Path) -> None:
    head, table, whole = read_head(str(theirs)), rows_of(theirs), read_all(theirs)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(table))
        rows = table[order]
        with changed(theirs, (head.table_at, rows.tobytes())):
            assert read_all(theirs) == whole
        rows[order == 0, 2] += 1
        with changed(theirs, (head.table_at, rows.tobytes())), pytest.raises(CorruptRecordError, match="overlap"):
            BetonSource(theirs).check()


def test_a_payload_that_crosses_a_page_is_an_error(tmp_path: Path) -> None:
    """FFCV reads a page at a time: it would give other bytes for the part on the next page."""
    path = tmp_path / "a.beton"
    with BetonWriter(path, {"text": BetonBytes()}, 2, page_size=PAGE) as writer:
        writer.add((b"a" * (PAGE - 60),))
        writer.add((b"b" * 100,))
    without_manifest(path)
    head = read_head(str(path))
    second, word = head.layout.pages_at + PAGE, (head.layout.pages_at + PAGE - 50).to_bytes(8, "little")
    assert places_of(path, "text")[1] == (second, 100)
    assert read_all(path)["text"][1] == b"b" * 100
    row_at, table_at = head.layout.metadata_at + head.layout.row_type.itemsize, head.table_at + 24 + 8
    with (
        changed(path, (row_at, word), (table_at, word)),
        pytest.raises(CorruptRecordError, match=rf"row 1 of its allocation table puts 100 bytes .* at {second - 50}"),
    ):
        read_all(path)


@pytest.mark.usefixtures("slices")
def test_payloads_that_overlap_are_an_error_wherever_they_lie_in_the_table(tmp_path: Path) -> None:
    """Only the table knows where a JPEG ends: a longer one would have bytes of the next image."""
    path = tmp_path / "a.beton"
    with BetonWriter(path, {"image": BetonImage("jpg")}, 7, page_size=PAGE) as writer:
        for number in range(7):
            writer.add((sample_of(number)["image"],))
    without_manifest(path)
    head, places = read_head(str(path)), places_of(path, "image")
    for number, (pointer, size) in enumerate(places[:-1]):
        assert pointer + size == places[number + 1][0]
        with (
            changed(path, (head.table_at + 24 * number + 16, (size + 1).to_bytes(8, "little"))),
            pytest.raises(CorruptRecordError, match=f"its payloads overlap at {pointer + size}"),
        ):
            read_all(path)
    assert len(read_all(path)["image"]) == 7


def test_a_manifest_of_a_later_version_is_refused(ours: Path) -> None:
    tail_at = read_head(str(ours)).table_at - 44
    tail = bytearray(ours.read_bytes()[tail_at : tail_at + 40])
    tail[16] = 3
    with (
        changed(ours, (tail_at, bytes(tail) + google_crc32c.value(bytes(tail) + bytes(4)).to_bytes(4, "little"))),
        pytest.raises(CorruptRecordError, match="its manifest is of version 3, and this package reads version 2"),
    ):
        BetonSource(ours)


def test_the_memory_of_checking_pointers_grows_by_a_few_bytes_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations, "_SLICE", 64)
    peaks = []
    for number in (1000, 9000):
        path = tmp_path / f"{number}.beton"
        with BetonWriter(path, {"text": BetonBytes(), "more": BetonBytes()}, number) as writer:
            for n in range(number):
                writer.add((b"a", b"b" * (n % 5)))
        reader = BetonReader(read_head(str(path)))
        tracemalloc.start()
        allocations.check_allocations(reader.head, reader.rows, reader.mapped)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 4 * 8000  # Two payloads each; as int64, one column of the table has 16 times 8,000.


@pytest.mark.usefixtures("slices")
def test_two_samples_with_one_payload_are_an_error(theirs: Path) -> None:
    head = read_head(str(theirs))
    size, first = head.layout.row_type.itemsize, head.layout.metadata_at
    row = theirs.read_bytes()[first : first + size]
    with changed(theirs, (first + size, row)):
        expect_an_error(theirs, "a row twice")


def test_a_file_that_was_cut_anywhere_is_an_error(ours: Path, theirs: Path, tmp_path: Path) -> None:
    for path in (ours, theirs):
        content = path.read_bytes()
        table_at = read_head(str(path)).table_at
        for length in (
            0,
            1,
            23,
            24,
            1000,
            9000,
            PAGE,
            2 * PAGE,
            table_at - 1,
            table_at,
            table_at + 24,
            len(content) - 1,
        ):
            (tmp_path / "cut.beton").write_bytes(content[:length])
            expect_an_error(tmp_path / "cut.beton", length)
        (tmp_path / "cut.beton").write_bytes(content + b"\0")
        expect_an_error(tmp_path / "cut.beton", "a byte more")


def test_right_checksums_do_not_make_pointers_right(tmp_path: Path) -> None:
    """Whoever wants to do harm can write checksums, too."""
    path = tmp_path / "a.beton"
    write_images(path, 3)
    head = read_head(str(path))
    assert head.manifest is not None
    content = bytearray(path.read_bytes())
    row_at = head.layout.metadata_at
    old, new, pointer = head.manifest.facts.metadata[1], 0, 2**63
    while len(str(old)) != len(str(new)):  # The manifest keeps its size.
        pointer += 1
        content[row_at + 5 : row_at + 13] = pointer.to_bytes(8, "little")
        new = google_crc32c.value(bytes(content[row_at : head.layout.metadata_end]))
    content = bytearray(bytes(content).replace(str(old).encode(), str(new).encode()))
    tail_at = head.table_at - 44
    text_bytes = struct.unpack_from("<I", content, tail_at + 20)[0]
    struct.pack_into("<I", content, tail_at + 32, google_crc32c.value(bytes(content[tail_at - text_bytes : tail_at])))
    tail = bytes(content[tail_at : tail_at + 40])
    struct.pack_into("<I", content, tail_at + 40, google_crc32c.value(tail + bytes(4)))
    path.write_bytes(content)
    source = BetonSource(path)
    with pytest.raises(CorruptRecordError, match=f"the pointer {pointer} of field 'image' of sample 0 is not that of"):
        source.check()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.mkfifo(path), lambda path: None])
def test_what_is_not_a_file_is_an_error(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "a.beton")
    with pytest.raises(ShardError, match=r"is a directory|is a FIFO|is missing"):
        BetonSource(tmp_path / "a.beton")


def test_foreign_bytes_before_the_table_are_read_over(theirs: Path, tmp_path: Path) -> None:
    head, content = read_head(str(theirs)), bytearray(theirs.read_bytes())
    content[head.table_at : head.table_at] = b"anything" * 1000
    content[16:24] = (head.table_at + 8000).to_bytes(8, "little")
    (tmp_path / theirs.name).write_bytes(content)
    assert read_all(tmp_path / theirs.name) == read_all(theirs)
