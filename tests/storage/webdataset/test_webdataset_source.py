"""WebDatasetSource: encoded members by number, in few reads, and an error for a tar that is not what was indexed."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage.webdataset.made_tars import samples_of, write_samples, write_tar

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.storage import open_files
from tfds_torch.storage.open_files import OpenFiles
from tfds_torch.storage.webdataset import reader
from tfds_torch.storage.webdataset.source import WebDatasetSource

FIELDS = {"image": "jpg;png", "label": "cls"}
NUM_SAMPLES = 30


@pytest.fixture
def tars(tmp_path: Path, cache_home: Path) -> list[Path]:
    """Three tars of ten samples; the last one's images are PNG by name."""
    rng = np.random.default_rng(0)
    paths = []
    for tar in range(3):
        samples = [
            {
                "__key__": f"{n:03d}",
                "png" if tar == 2 else "jpg": rng.bytes(int(rng.integers(0, 9000))),
                "cls": b"%d" % n,
            }
            for n in range(10 * tar, 10 * tar + 10)
        ]
        paths.append(write_samples(tmp_path / f"{tar}.tar", samples))
    return paths


@pytest.fixture
def source(tars: list[Path]) -> WebDatasetSource:
    return WebDatasetSource(str(tars[0].parent / "{0..2}.tar"), FIELDS)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(tar, bytes) of every read."""
    done: list[tuple[int, int]] = []
    read = OpenFiles.read

    def count(self: OpenFiles, file: int, offset: int, size: int) -> bytes:
        done.append((file, size))
        return read(self, file, offset, size)

    monkeypatch.setattr(OpenFiles, "read", count)
    return done


def expected(tars: list[Path]) -> list[tuple[bytes, bytes]]:
    return [(sample.get("jpg", sample.get("png")), sample["cls"]) for sample in samples_of(tars)]


def columns(source: WebDatasetSource, index: Any) -> list[tuple[bytes, bytes]]:
    found = source.read(np.array(index, np.int64), ["image", "label"])
    return list(zip(found["image"], found["label"], strict=True))


def test_samples_are_those_of_webdataset_in_any_order(source: WebDatasetSource, tars: list[Path]) -> None:
    all_of_them = expected(tars)
    assert len(source) == NUM_SAMPLES
    for index in (range(NUM_SAMPLES), [7, 29, 7, 0, 15], [], np.random.default_rng(0).permutation(NUM_SAMPLES)):
        assert columns(source, index) == [all_of_them[number] for number in index]


def test_members_that_lie_side_by_side_are_read_at_once(source: WebDatasetSource, reads: list[tuple[int, int]]) -> None:
    columns(source, [4])
    assert len(reads) == 1
    reads.clear()
    columns(source, range(NUM_SAMPLES))
    assert sorted(tar for tar, _ in reads) == [0, 1, 2]


def test_a_field_alone_does_not_bring_the_others(
    source: WebDatasetSource, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_GAP_BYTES", 0)
    source.read(np.arange(NUM_SAMPLES), ["label"])
    assert sum(size for _, size in reads) < NUM_SAMPLES * 600


def test_large_ranges_are_read_in_parts(
    source: WebDatasetSource, tars: list[Path], reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "_RANGE_BYTES", 10_000)
    assert columns(source, range(NUM_SAMPLES)) == expected(tars)
    assert len(reads) > 6


def test_what_a_source_tells(source: WebDatasetSource, tars: list[Path]) -> None:
    assert source.name == "0.tar..2.tar"
    assert WebDatasetSource(tars[1], FIELDS).name == "1.tar"
    assert set(source.specs) == {"image", "label"}
    assert [(item.path, item.take, item.first_index) for item in source.instructions] == [
        (str(path), 10, 10 * number) for number, path in enumerate(tars)
    ]
    assert source.mean_example_bytes == sum(path.stat().st_size for path in tars) // NUM_SAMPLES
    assert (source.can_stream, source.obstacle, source.has_shards) == (False, None, True)


def test_ids_are_keys_and_are_found(source: WebDatasetSource) -> None:
    assert list(source.ids(np.array([11, 0]))) == ["011", "000"]
    assert [source.find(id) for id in source.ids(np.arange(NUM_SAMPLES))] == list(range(NUM_SAMPLES))
    for id in ("0110", "11", "", "0.tar/001", "\0", "\ud800"):
        with pytest.raises(ExampleNotFoundError, match=r"there is no example .*: it has 30 samples, such as '000'"):
            source.find(id)


def test_ids_have_their_tar_where_keys_are_in_several(tmp_path: Path, cache_home: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = [("1.jpg", b"x"), ("b/1.jpg", b"y")]
    paths = [write_tar(tmp_path / name, files) for name in ("a/0.tar", "b/0.tar")]
    source = WebDatasetSource(paths, {"image": "jpg"})
    ids = list(source.ids(np.arange(4)))
    assert ids == ["a/0.tar/1", "a/0.tar/b/1", "b/0.tar/1", "b/0.tar/b/1"]
    assert [source.find(id) for id in ids] == [0, 1, 2, 3]
    with pytest.raises(ExampleNotFoundError):
        source.find("b/1")


def test_the_identity_tells_samples_and_neither_paths_nor_fields(source: WebDatasetSource, tars: list[Path]) -> None:
    folder = tars[0].parent / "moved"
    folder.mkdir()
    moved = [path.rename(folder / path.name) for path in tars]
    assert WebDatasetSource(moved, FIELDS).identity == source.identity
    assert WebDatasetSource(moved, {"image": "jpg;png"}).identity == source.identity
    assert WebDatasetSource(moved[::-1], FIELDS).identity != source.identity


def test_a_pickled_source_reads_the_same_without_scanning(
    source: WebDatasetSource, tars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns(source, [0])
    pickled = pickle.dumps(source)
    assert len(pickled) < 3000

    def refuse(*arguments: object) -> None:
        raise AssertionError("it was scanned again")

    monkeypatch.setattr("tfds_torch.storage.webdataset.tar_index.scan_tar", refuse)
    assert columns(pickle.loads(pickled), range(NUM_SAMPLES)) == expected(tars)


def test_a_closed_source_opens_its_tars_again(source: WebDatasetSource, tars: list[Path]) -> None:
    columns(source, [0])
    source.close()
    source.close()
    assert columns(source, [1]) == [expected(tars)[1]]


def test_announcing_asks_for_what_was_read_last(source: WebDatasetSource, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(OpenFiles, "advise", lambda self, *place: asked.append(place))
    source.announce(np.arange(3))
    assert asked == []
    source.read(np.arange(3), ["label"])
    source.announce(np.arange(3))
    source.announce(np.arange(3))
    assert [tar for tar, *_ in asked] == [0, 1, 2]  # Small tars as wholes, once.
    monkeypatch.setattr(open_files, "_READ_AS_WHOLE_BYTES", 0)
    source.close()
    asked.clear()
    source.announce(np.array([25, 3]))
    assert [tar for tar, *_ in asked] == [0, 2]
    assert all(size < 600 for *_, size in asked)


# What is asked for and is not there


def test_an_index_outside_and_an_unknown_field_are_errors(source: WebDatasetSource) -> None:
    for index in (-1, NUM_SAMPLES):
        with pytest.raises(ExampleNotFoundError, match=f"has no example {index}: it has 30 samples, counted from 0"):
            columns(source, [0, index])
    with pytest.raises(ConfigError, match="has no field 'mask': its fields are image, label"):
        source.read(np.arange(1), ["mask"])
    with pytest.raises(ConfigError, match="has no records"):
        source.parse([], np.arange(0), [])


def test_a_sample_that_lacks_a_member_is_named(tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("1.cls", b"1"), ("\x1b2.jpg", b"x"), ("3.cls", b"1")])
    said = (
        rf"{path}: sample '\x1b2' has no member .cls for the field 'label', as 2 other samples have; it has 'jpg'. 1 of"
    )
    with pytest.raises(ShardError, match=re.escape(said)):
        WebDatasetSource(path, {"label": "cls"})


def test_what_a_sample_lacks_is_none_and_never_another_member(tmp_path: Path, cache_home: Path) -> None:
    files = [("1.cls", b"1"), ("2.cls", b"2"), ("2.txt", b"two"), ("3.txt", b"three"), ("4.cls", b"4")]
    source = WebDatasetSource(write_tar(tmp_path / "a.tar", files), {"label": "cls", "text": "txt"}, is_complete=False)
    read = source.read(np.array([3, 0, 2, 1, 0]), ["text", "label"])
    assert read == {"text": [None, None, b"three", b"two", None], "label": [b"4", b"1", None, b"2", b"1"]}
    source.announce(np.arange(4))
    assert [source.num_without(name) for name in ("label", "text")] == [1, 2]
    assert source.complete(["label", "text"]).tolist() == [False, True, False, False]
    assert source.read(np.empty(0, np.int64), ["text"]) == {"text": []}
    with pytest.raises(ShardError, match=r"sample '4' has no member \.txt .* 1 of 2 samples lack it"):
        source.check_field("text", np.array([1, 3]))
    source.check_field("text", np.array([1, 2]))


def test_images_of_a_further_kind_are_read_once_it_is_named(tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("2.gif", b"y")])
    with pytest.raises(
        ShardError, match=r"it has 'gif'\. .* name its extension in fields=\{'image': 'jpg;png;\.\.\.'\}"
    ):
        WebDatasetSource(path, {"image": "jpg;png"})
    source = WebDatasetSource(path, {"image": "jpg;png;gif"})
    assert source.read(np.arange(2), ["image"])["image"] == [b"x", b"y"]


def test_a_field_that_no_sample_has_is_absent(tars: list[Path]) -> None:
    source = WebDatasetSource(tars, {"image": "jpg;png", "mask": "seg.png"})
    assert (source.has("image"), source.has("mask")) == (True, False)
    assert set(source.specs) == {"image"}
    with pytest.raises(
        ConfigError, match=r"no sample has the field 'mask', a member \.seg\.png\. .* are there: image\."
    ):
        source.read(np.arange(1), ["image", "mask"])


def test_of_several_extensions_the_first_one_that_is_there_is_taken(tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.png", b"p"), ("1.jpg", b"j"), ("2.png", b"q")])
    read = [
        WebDatasetSource(path, {"image": one}).read(np.arange(2), ["image"])["image"]
        for one in ("jpg;png", ".PNG; jpg")
    ]
    assert read == [[b"j", b"q"], [b"p", b"q"]]


@pytest.mark.parametrize("asked", ["É", "é", ".É"])
def test_an_extension_outside_of_ascii_can_be_asked_for(asked: str, tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.É", b"x"), ("2.é", b"y")])
    assert WebDatasetSource(path, {"raw": asked}).read(np.arange(2), ["raw"]) == {"raw": [b"x", b"y"]}


def test_a_missing_tar_is_named_with_the_nearest(tars: list[Path]) -> None:
    with pytest.raises(ShardError, match=r"There is no file '.*/22\.tar'\. Did you mean '2\.tar'\?"):
        WebDatasetSource(tars[0].with_name("22.tar"), FIELDS)
    with pytest.raises(ShardError, match="Braces are expanded in one text, and not in a list"):
        WebDatasetSource([tars[0].with_name("{0..2}.tar")], FIELDS)
    with pytest.raises(ShardError, match="The folder '/nowhere' does not exist"):
        WebDatasetSource("/nowhere/a.tar", FIELDS)


def test_what_is_not_a_tar_is_not_to_be_prepared_again(source: WebDatasetSource, tars: list[Path]) -> None:
    with pytest.raises(ShardError, match=r"is a directory, not a regular file\. Give the path of a tar that is there"):
        WebDatasetSource(tars[0].parent, FIELDS)
    tars[1].unlink()
    with pytest.raises(
        ShardError, match=r"1\.tar is missing\. Give the path of a tar that is there, or make or copy it"
    ):
        columns(source, [15])


# Tars that change


def test_a_tar_that_is_cut_later_is_an_error(source: WebDatasetSource, tars: list[Path]) -> None:
    os.truncate(tars[1], 5000)
    with pytest.raises(ShardError, match=r"1\.tar"):
        source.check()
    with pytest.raises(ShardError, match=r"1\.tar changed while it was in use"):
        columns(source, [15])


def test_a_tar_that_was_only_touched_goes_on(source: WebDatasetSource, tars: list[Path]) -> None:
    columns(source, [0])
    os.utime(tars[1], ns=(5, 5))
    source.check()
    assert columns(source, range(NUM_SAMPLES)) == expected(tars)


def test_other_samples_in_place_of_the_first_are_an_error(source: WebDatasetSource, tars: list[Path]) -> None:
    write_samples(tars[1], [{"__key__": "9", "jpg": b"x", "cls": b"1"}])
    with pytest.raises(ShardError, match="changed while it was in use: the tars hold other samples now"):
        source.check()
    with pytest.raises(ShardError, match="the tars hold other samples now"):
        source.check()


def test_a_tar_of_the_same_size_and_time_is_found_by_its_headers(source: WebDatasetSource, tars: list[Path]) -> None:
    status = tars[0].stat()
    write_samples(tars[0], [{"__key__": f"{n:03d}", "cls": b"1", "jpg": b"x"} for n in range(4)])
    with tars[0].open("r+b") as file:
        file.truncate(status.st_size)
    os.utime(tars[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptRecordError, match=r"0\.tar: the header at offset \d+ is not the one that was indexed"):
        columns(source, range(10))


def test_an_undecodable_sample_is_named_with_tar_key_and_index(source: WebDatasetSource, tars: list[Path]) -> None:
    error = source.undecodable(12, "It is bad.")
    assert str(error) == (
        f"{tars[1]}: sample '012' (index 12) cannot be decoded: it is damaged, or was written that way. It is bad."
    )


@pytest.mark.parametrize("extensions", ["", ";", "jpg;", 3, None])
def test_fields_without_an_extension_are_refused(extensions: Any, tars: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"fields\['image'\]=.* must be an extension, or several"):
        WebDatasetSource(tars, {"image": extensions})
