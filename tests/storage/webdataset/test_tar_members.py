"""The files of a tar from its headers: those that Python's tarfile finds, and an error for everything else."""

import io
import os
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage.webdataset.made_tars import add, files_of, patched, write_tar

from tfds_torch.errors import CorruptRecordError, ShardError, TfdsTorchError
from tfds_torch.storage.webdataset.tar_index import scan_tar
from tfds_torch.storage.webdataset.tar_members import find_members

FILES = [("a/1.jpg", b"x" * 700), ("a/1.cls", b"3"), ("a/2.jpg", b""), ("a/2.cls", b"y" * 512), ("b.c.d/3.jpg", b"z")]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "folder/" * 30 + "x" * 120 + ".jpg"


def found(path: Path) -> list[tuple[str, int, bytes]]:
    """Returns name, offset and content of every member."""
    content = path.read_bytes()
    return [
        (os.fsdecode(one.name), one.offset, content[one.offset : one.offset + one.size])
        for one in find_members(str(path))
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_files_are_those_that_tarfile_finds(name: str, tmp_path: Path) -> None:
    files = [*FILES, ("ä/ö.jpg", b"umlauts"), ("x" * 95 + ".jpg", b"long"), (f"{'p' * 90}/{'q' * 90}.jpg", b"prefix")]
    path = write_tar(tmp_path / "a.tar", files, FORMATS[name])
    assert found(path) == files_of(path)
    assert [one[0] for one in found(path)] == [one[0] for one in files]


@pytest.mark.parametrize("name", ["gnu", "pax"])
def test_long_names_are_read(name: str, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(LONG, b"1"), ("b.jpg", b"2"), (LONG + ".cls", b"3")], FORMATS[name])
    assert found(path) == files_of(path)
    assert found(path)[0][0] == LONG


def test_times_and_owners_in_extended_headers_do_no_harm(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES, tarfile.PAX_FORMAT, mtime=1.5, uname="ä" * 40, pax_headers={"x.y": "z"})
    assert found(path) == files_of(path)


def test_a_global_comment_as_git_writes_it_is_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "0123abcd"}) as tar:
        add(tar, "1.jpg", b"x")
    assert found(tmp_path / "a.tar") == files_of(tmp_path / "a.tar")


def test_folders_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "folder", type=tarfile.DIRTYPE)
        add(tar, "folder/1.jpg", b"x")
        add(tar, "old/", type=tarfile.AREGTYPE)
    assert [name for name, *_ in found(tmp_path / "a.tar")] == ["folder/1.jpg"]


def test_headers_have_the_checksum_that_is_told(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES)
    content = path.read_bytes()
    for member in find_members(str(path)):
        assert member.header_crc == google_crc32c.value(content[member.offset - 512 : member.offset])


def test_a_size_in_binary_is_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES[:2])
    content = path.read_bytes()
    path.write_bytes(patched(content[:512], size=b"\x80" + (700).to_bytes(11, "big")) + content[512:])
    assert found(path) == files_of(path)


def test_the_times_in_a_header_of_gnu_are_not_a_part_of_its_name(tmp_path: Path) -> None:
    header = patched(tarfile.TarInfo("1.jpg").tobuf(tarfile.GNU_FORMAT), prefix=b"14712345670\0")
    (tmp_path / "a.tar").write_bytes(header + bytes(1024))
    assert [name for name, *_ in found(tmp_path / "a.tar")] == ["1.jpg"]


def test_a_member_of_more_than_eight_gigabytes_is_passed_over(tmp_path: Path) -> None:
    size = 9 * 2**30
    info, last = tarfile.TarInfo("1.bin"), tarfile.TarInfo("1.cls")
    info.size = size
    with (tmp_path / "a.tar").open("wb") as file:  # A hole, which takes no space.
        file.write(info.tobuf(tarfile.PAX_FORMAT))
        file.seek(size, os.SEEK_CUR)
        file.write(last.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    assert [(one.name, one.size) for one in find_members(str(tmp_path / "a.tar"))] == [(b"1.bin", size), (b"1.cls", 0)]


def test_content_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{number}.jpg", bytes(100_000)) for number in range(30)])
    read: list[int] = []

    class Counting(io.FileIO):
        def read(self, size: int | None = -1) -> Any:
            data = super().read(size)
            read.append(len(data))
            return data

    monkeypatch.setattr(Path, "open", lambda path, *_, **__: Counting(path))
    assert len(list(find_members(str(path)))) == 30
    assert 0 < sum(read) < 200_000


def test_how_far_it_is_is_told(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{number}.jpg", bytes(100_000)) for number in range(30)])
    reached: list[int] = []
    list(find_members(str(path), reached.append))
    assert reached == sorted(reached)
    assert len(reached) >= 30


# What is refused


def tar_with(tmp_path: Path, name: str = "1.jpg", **headers: Any) -> Path:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "0.jpg", b"good")
        add(tar, name, **headers)
    return tmp_path / "a.tar"


@pytest.mark.parametrize(
    ("kind", "said", "remedy"),
    [
        (tarfile.SYMTYPE, "a symbolic link", "--dereference"),
        (tarfile.LNKTYPE, "a hard link", "--hard-dereference"),
        (tarfile.CHRTYPE, "a character device", "--exclude"),
        (tarfile.BLKTYPE, "a block device", "--exclude"),
        (tarfile.FIFOTYPE, "a FIFO", "--exclude"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file", "without --sparse"),
        (b"M", "the rest of a file of another volume", "without --multi-volume"),
        (b"V", "the label of a volume", "without --label"),
        (b"D", "a list of files of an incremental backup", "without --listed-incremental"),
        (b"N", "a list of long names of an old GNU tar", "with a tar of today"),
        (b"Z", "of the unknown type b'Z'", "--exclude"),
    ],
)
def test_what_is_not_a_plain_file_is_named_with_the_remedy(kind: bytes, said: str, remedy: str, tmp_path: Path) -> None:
    path = tar_with(tmp_path, type=kind, linkname="0.jpg")
    with pytest.raises(ShardError) as caught:
        list(find_members(str(path)))
    assert str(caught.value).startswith(
        f"{path}: the member b'1.jpg' at offset 1024 is {said}, and only plain files are read. Write the tar "
    )
    assert remedy in str(caught.value)


def test_a_sparse_file_in_the_form_of_pax_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES[:1], tarfile.PAX_FORMAT, pax_headers={"GNU.sparse.major": "1"})
    with pytest.raises(ShardError, match=r"the member b'a/1.jpg' at offset 1024 is a sparse file"):
        list(find_members(str(path)))


@pytest.mark.parametrize(
    ("name", "said"),
    [("../1.jpg", "leaves its folder"), ("a/../../1.jpg", "leaves its folder"), ("/etc/1.jpg", "is absolute")],
)
def test_names_that_leave_their_folder_are_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=re.escape(f"the name of the member {name.encode()!r} at offset 1024 {said}")):
        list(find_members(str(tar_with(tmp_path, name))))


def test_names_with_dots_that_stay_are_taken(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("./1.jpg", b"x"), ("a..b/2..jpg", b"y")])
    assert [name for name, *_ in found(path)] == ["./1.jpg", "a..b/2..jpg"]


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(ShardError) as caught:
        list(find_members(str(tar_with(tmp_path, "/\x1b[31m\x07\n.jpg"))))
    assert str(caught.value).isprintable()
    assert r"\x1b[31m\x07\n" in str(caught.value)


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_named_with_the_remedy(mode: Any, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", f"w:{mode}") as tar:  # type: ignore[call-overload]
        add(tar, "1.jpg", b"x")
    with pytest.raises(
        ShardError, match=r"a.tar is compressed \(.*\), and .* cannot be read by number. Unpack it once"
    ):
        list(find_members(str(tmp_path / "a.tar")))


def test_a_missing_file_or_a_folder_is_a_shard_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.tar"):
        with pytest.raises(ShardError, match=re.escape(str(path))):
            list(find_members(str(path)))


# Damage


def test_every_cut_is_an_error(tmp_path: Path) -> None:
    content = write_tar(tmp_path / "a.tar", FILES).read_bytes()
    whole = len(content.rstrip(b"\0")) // 512 * 512 + 512 + 1024
    for size in [*range(0, whole, 97), *range(0, whole, 512), whole - 1]:
        (tmp_path / "cut.tar").write_bytes(content[:size])
        with pytest.raises(CorruptRecordError, match=r"cut.tar.*(it was cut|is empty)"):
            list(find_members(str(tmp_path / "cut.tar")))
    (tmp_path / "cut.tar").write_bytes(content[:whole])
    assert found(tmp_path / "cut.tar") == files_of(tmp_path / "a.tar")


def test_a_flipped_bit_of_any_header_is_found(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES[:2])
    content = path.read_bytes()
    for start in (0, 1536):
        for position in range(start, start + 512, 3):
            changed = bytearray(content)
            changed[position] ^= 1
            path.write_bytes(changed)
            if start + 148 <= position < start + 156 and files_are_readable(path):
                continue  # Its own field may be written in several ways.
            with pytest.raises(CorruptRecordError, match=f"at offset {start} there is no header"):
                list(find_members(str(path)))


def files_are_readable(path: Path) -> bool:
    try:
        return bool(files_of(path))
    except tarfile.TarError:
        return False


def test_tars_put_together_with_cat_are_an_error_that_says_where(tmp_path: Path) -> None:
    one = write_tar(tmp_path / "a.tar", FILES).read_bytes()
    (tmp_path / "two.tar").write_bytes(one + one)
    with pytest.raises(CorruptRecordError, match=f"more follows at offset {len(one)}, .* tar --concatenate"):
        list(find_members(str(tmp_path / "two.tar")))


@pytest.mark.parametrize("behind", [b"garbage", bytes(3_000_000) + b"x", bytes(511) + b"\1"])
def test_garbage_behind_the_end_is_an_error(behind: bytes, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES)
    with path.open("ab") as file:
        file.write(behind)
    with pytest.raises(CorruptRecordError, match="more follows at offset"):
        list(find_members(str(path)))


def test_zeros_behind_the_end_are_none(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES)
    with path.open("ab") as file:
        file.write(bytes(3_000_001))
    assert len(found(path)) == len(FILES)


def test_a_block_of_zeros_between_members_is_an_error(tmp_path: Path) -> None:
    content = write_tar(tmp_path / "a.tar", FILES).read_bytes()
    (tmp_path / "b.tar").write_bytes(content[:1536] + bytes(512) + content[1536:])
    with pytest.raises(CorruptRecordError, match="at offset 1536 a block of zeros lies between members"):
        list(find_members(str(tmp_path / "b.tar")))


def test_an_empty_tar_has_no_files_and_an_empty_file_is_none(tmp_path: Path) -> None:
    assert found(write_tar(tmp_path / "a.tar", [])) == []
    (tmp_path / "b.tar").touch()
    with pytest.raises(CorruptRecordError, match=r"b\.tar is empty, without the two blocks of zeros"):
        list(find_members(str(tmp_path / "b.tar")))


def test_a_file_that_is_no_tar_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"PK\3\4" + os.urandom(5000))
    with pytest.raises(CorruptRecordError, match="at offset 0 there is no header of a tar's member"):
        list(find_members(str(tmp_path / "a.tar")))


# Made to do harm: the checksum is right.


def extended(kind: bytes, content: bytes) -> bytes:
    info = tarfile.TarInfo("extended")
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


HEADER = tarfile.TarInfo("1.jpg").tobuf(tarfile.USTAR_FORMAT)
HOSTILE: dict[str, bytes] = {
    "size beyond the file": patched(HEADER, size=b"77777777777\0"),
    "size of 95 bits": patched(HEADER, size=b"\x80" + b"\xff" * 11),
    "negative size": patched(HEADER, size=b"\xff" * 12),
    "size in letters": patched(HEADER, size=b"12x\0"),
    "size with underscores": patched(HEADER, size=b"1_0\0"),
    "size with a sign": patched(HEADER, size=b"-1\0"),
    "digits beyond eight": patched(HEADER, size=b"09\0"),
    "empty name": patched(HEADER, name=bytes(100)),
    "huge long name": patched(HEADER, kind=b"L", size=b"\x80" + (2**40).to_bytes(11, "big")),
    "two long names": extended(b"L", b"a.jpg\0") * 2 + HEADER,
    "long name of an empty text": extended(b"L", b"\0") + HEADER,
    "extended header at the end": extended(b"x", b"11 path=aa\n"),
    "two extended headers": extended(b"x", b"11 path=aa\n") * 2 + HEADER,
    "record too long": extended(b"x", b"99 path=aa\n") + HEADER,
    "record too short": extended(b"x", b"3 path=aa\n") + HEADER,
    "record without a length": extended(b"x", b"path=aa\n") + HEADER,
    "record of a negative length": extended(b"x", b"-11 path=aa\n") + HEADER,
    "record without a value": extended(b"x", b"8 path\n\n") + HEADER,
    "record with a long length": extended(b"x", b"9" * 400 + b" path=a\n") + HEADER,
    "path with a null": extended(b"x", b"13 path=a\0.b\n") + HEADER,
    "path that leaves": extended(b"x", b"17 path=../a.jpg\n") + HEADER,
    "size that is none": extended(b"x", b"10 size=x\n") + HEADER,
    "size with a sign in a record": extended(b"x", b"11 size=-1\n") + HEADER,
    "size of many digits": extended(b"x", b"109 size=" + b"9" * 99 + b"\n") + HEADER,
    "global path": extended(b"g", b"14 path=a.jpg\n") + HEADER,
    "folder with content": patched(HEADER, kind=b"5", size=b"00000000010\0") + bytes(512),
    "link with a long name": extended(b"K", b"a\0") + HEADER,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_an_error_and_takes_no_memory(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content + bytes(1024))
    tracemalloc.start()
    try:
        with pytest.raises(ShardError) as caught:
            list(find_members(str(path)))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "content",
    [
        patched(HEADER, size=b"\x80" + (2**63).to_bytes(11, "big")),
        patched(HEADER, size=b"\x80" + (2**64).to_bytes(11, "big")),
        extended(b"x", b"28 size=9223372036854775808\n") + HEADER,
    ],
    ids=["2^63", "2^64", "2^63 in a record"],
)
def test_a_size_that_no_file_has_reaches_nobody(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content + bytes(1024))
    with pytest.raises(CorruptRecordError, match=r"inside b'1\.jpg', .* has \d{19,20} bytes: it was cut"):
        scan_tar(str(path))
    told: list[Any] = []
    with pytest.raises(CorruptRecordError):
        told.extend(find_members(str(path)))
    assert told == []


def test_the_tests_own_headers_are_right(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(extended(b"x", b"14 path=a.jpg\n") + extended(b"L", b"b.jpg\0") + patched(HEADER) + bytes(1024))
    assert [name for name, *_ in found(path)] == ["a.jpg"]


NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0/"), min_size=1, max_size=120)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=8),
    tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_any_files_are_those_that_tarfile_finds(files: Any, tar_format: int, tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", [(f"f/{name}", content) for name, content in files if name != ".."], tar_format
    )
    assert found(path) == files_of(path)


CHANGES: st.SearchStrategy[Callable[[bytearray], object]] = st.builds(
    lambda at, value: lambda content: content.__setitem__(slice(at, at + len(value)), value),
    st.integers(0, 3000),
    st.binary(min_size=1, max_size=20),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(CHANGES, min_size=1, max_size=3), with_checksums=st.booleans(), fmt=st.sampled_from(list(FORMATS))
)
def test_changed_bytes_are_an_error_or_give_files_inside_of_the_tar(
    changes: Any, with_checksums: bool, fmt: str, tmp_path: Path
) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"1" * 600), ("ä" * 40 + ".cls", b"2")], FORMATS[fmt])
    content = bytearray(path.read_bytes())
    for change in changes:
        change(content)
    if with_checksums:
        for at in range(0, len(content) - 511, 512):
            if content[at + 257 : at + 262] == b"ustar":
                content[at : at + 512] = patched(bytes(content[at : at + 512]))
    path.write_bytes(content)
    try:
        members = list(find_members(str(path)))
    except TfdsTorchError as error:
        problem, members = str(error), []
    else:
        problem = str(path)
    assert problem.startswith(str(path))
    assert all(512 <= one.offset <= one.offset + one.size <= len(content) for one in members)
