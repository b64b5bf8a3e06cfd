"""Paths of tars from braces, as a shell expands them, and from lists."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset import shardlists

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.storage.webdataset import shard_paths as paths
from tfds_torch.storage.webdataset.shard_paths import expand_braces, expand_urls, look_at, shard_paths


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{000..003}.tar", ["a-000.tar", "a-001.tar", "a-002.tar", "a-003.tar"]),
        ("a-{8..11}.tar", ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]),
        ("a-{08..10}", ["a-08", "a-09", "a-10"]),
        ("a-{3..1}", ["a-3", "a-2", "a-1"]),
        ("a-{0..9..4}", ["a-0", "a-4", "a-8"]),
        ("{train,val}-{0..1}", ["train-0", "train-1", "val-0", "val-1"]),
        ("{a{1..2},b}", ["a1", "a2", "b"]),
        ("{a..c}", ["a", "b", "c"]),
        ("x{,y}", ["x", "xy"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{one}", ["{one}"]),
    ],
)
def test_braces_are_expanded_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert list(expand_braces(pattern)) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a-{0..1}.tar::b-{0..2}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar", "b-2.tar"]),
        ("s3://b/a-{0..1}.tar::gs://c/{x,y}.tar", ["s3://b/a-0.tar", "s3://b/a-1.tar", "gs://c/x.tar", "gs://c/y.tar"]),
        ("a.tar::b/c.tar::d.tar", ["a.tar", "b/c.tar", "d.tar"]),
        ("http://[::1]:80/a-{0..1}.tar", ["http://[::1]:80/a-0.tar", "http://[::1]:80/a-1.tar"]),
        ("http://[fe80::1]/a.tar::http://[::2]/b.tar", ["http://[fe80::1]/a.tar", "http://[::2]/b.tar"]),
        ("a::b-{0..1}.tar", ["a::b-0.tar", "a::b-1.tar"]),
    ],
)
def test_parts_with_two_colons_between_are_those_of_webdataset(text: str, names: list[str]) -> None:
    assert list(expand_urls(text)) == names
    if "[" not in text and "a::" not in text:
        assert shardlists.expand_urls(text) == names


def test_the_tars_of_all_parts_are_read_in_their_order(tmp_path: Path) -> None:
    text = f"{tmp_path}/a-{{0..1}}.tar::{tmp_path}/b.tar"
    assert shard_paths(text) == tuple(str(tmp_path / name) for name in ("a-0.tar", "a-1.tar", "b.tar"))
    assert shard_paths([f"{tmp_path}/a::b.tar"]) == (f"{tmp_path}/a::b.tar",)
    with pytest.raises(ConfigError, match=r"a-1\.tar' is named twice"):
        shard_paths("a-{0..1}.tar::a-1.tar")
    with pytest.raises(ConfigError, match="names no tar"):
        shard_paths("a.tar::")
    with pytest.raises(ConfigError, match=r"'simplecache::s3://b/a\.tar' is neither a file of this machine nor a URL"):
        shard_paths("simplecache::s3://b/a.tar")


PIECES = st.recursive(
    st.sampled_from(["a", "", "x-", "{one}", "{}", "{0..3}", "{07..11}", "{5..2}", "{0..8..3}", "{b..e}", "{-2..2}"]),
    lambda inner: st.lists(inner, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}"),
    max_leaves=4,
)


@given(st.lists(PIECES, max_size=3).map("".join))
def test_names_are_counted_before_they_are_made(pattern: str) -> None:
    assert paths._count_names(pattern) == len(list(expand_braces(pattern)))


@pytest.mark.parametrize("pattern", ["a-{0..3", "a-0..3}", "{a{b}"])
def test_braces_that_are_not_closed_are_an_error(pattern: str) -> None:
    with pytest.raises(ConfigError, match="a brace is not closed, or not opened"):
        shard_paths(pattern)


def test_too_many_names_are_an_error_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths._MOST_PATHS == 1_000_000
    monkeypatch.setattr(paths, "_MOST_PATHS", 1000)
    many = "{" + 5000 * "9" + "..0}"
    for pattern in (
        "{0..600}.tar::{0..600}.tar",
        "a-{0..999999999999}.tar",
        "{0..40}{0..40}",
        "{{0..999999}{0..999999},x}",
        "{a,b}" * 60,
        many,
    ):
        with pytest.raises(ConfigError, match="makes more than 1,000 names"):
            shard_paths(pattern)


@pytest.mark.parametrize("pattern", ["{a,b}" * 5000, "{a," * 5000 + "}" * 5000, "{x}" * 5000])
def test_too_many_braces_are_an_error(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"has 5000 braces, and 100 are expanded at most\. Give a list") as caught:
        shard_paths(pattern)
    assert len(str(caught.value)) < 500


def test_as_many_braces_as_are_taken_are_expanded() -> None:
    assert list(expand_braces("{a,b}" + "{x..x}" * 99)) == ["a" + "x" * 99, "b" + "x" * 99]
    assert list(expand_braces("{a," * 100 + "}" * 100))[:2] == ["a", "a"]


def test_a_list_is_taken_as_it_is(tmp_path: Path) -> None:
    assert shard_paths([tmp_path / "{a}.tar", "b-{0..1}.tar"]) == (
        str(tmp_path / "{a}.tar"),
        str(Path.cwd() / "b-{0..1}.tar"),
    )
    assert shard_paths(tmp_path / "a.tar") == (str(tmp_path / "a.tar"),)


def test_paths_mean_the_same_after_a_change_of_the_working_folder() -> None:
    assert shard_paths("a.tar") == (str(Path.cwd() / "a.tar"),)
    assert shard_paths("file:/data/a.tar") == shard_paths("file:///data/a.tar") == ("/data/a.tar",)


@pytest.mark.parametrize("url", ["hf://b/a-{0..1}.tar", "ftp://host/a.tar", "pipe:cat a.tar", "s3://"])
def test_urls_that_are_not_read_are_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is neither a file of this machine nor a URL .* Copy the tars to a"):
        shard_paths(url)


@pytest.mark.parametrize("urls", [3, None, b"a.tar", [3], ["a.tar", None], {"a.tar"}])
def test_what_names_no_paths_is_refused(urls: object) -> None:
    with pytest.raises(ConfigError, match="must be a text such as"):
        shard_paths(urls)


@pytest.mark.parametrize("urls", ["", [], [""], ["a.tar", ""]])
def test_no_tar_is_an_error(urls: object) -> None:
    with pytest.raises(ConfigError, match="names no tar"):
        shard_paths(urls)


@pytest.mark.parametrize("urls", ["{a,a}.tar", ["a.tar", "./a.tar"]])
def test_a_tar_that_is_named_twice_is_an_error(urls: object) -> None:
    with pytest.raises(ConfigError, match=r"a\.tar' is named twice"):
        shard_paths(urls)


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("x-{0...3}.tar", r"{0...3} is not a range: write {0..3}."),
        ("x-{0-3}.tar", r"{0-3} is not a range: write {0..3}."),
        ("{000.099}/x.tar", r"{000.099} is not a range: write {000..099}."),
        ("x-{0 .. 3}.tar", r"{0 .. 3} is not a range: write {0..3}."),
        ("x-{a:c}.tar", r"{a:c} is not a range: write {a..c}."),
        ("x-{0-b}.tar", r"{0-b} is neither a range"),
        ("x-{}.tar", r"{} is neither a range, such as {000..099}, nor a choice, such as {train,val}."),
        (["x-{0..3}.tar"], "Braces are expanded in one text, and not in a list of paths or a Path."),
        (Path("x-{a,b}.tar"), "Braces are expanded in one text, and not in a list of paths or a Path."),
        ("x-*.tar", "Stars are not expanded: write train-{000..099}.tar, or in Python sorted(glob.glob('/"),
        ("x-?.tar", "Stars are not expanded: "),
        ("/nowhere/x.tar", "The folder '/nowhere' does not exist."),
        ("x.tar/y.tar", "x.tar' does not exist."),
    ],
)
def test_a_path_that_is_not_there_is_named_with_what_to_write(
    urls: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShardError, match=r"^There is no file '/") as caught:
        look_at(shard_paths(urls))
    assert said in str(caught.value)


def test_a_range_that_is_not_mistyped_is_found(tmp_path: Path) -> None:
    paths = [tmp_path / f"x-{number}.tar" for number in range(3)]
    for path in paths:
        path.write_bytes(b"x")
    assert [size for size, _ in look_at(shard_paths(f"{tmp_path}/x-{{0..2}}.tar"))] == [1, 1, 1]
    (tmp_path / "x-[1]*{0-3}.tar").touch()
    assert [size for size, _ in look_at(shard_paths(f"{tmp_path}/x-[1]*{{0-3}}.tar"))] == [0]


def test_a_folder_that_one_may_not_enter_or_list_is_a_shard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "y.tar").touch()
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ShardError, match=r"^There is no file '.*x\.tar'\.$"):
        look_at([str(tmp_path / "x.tar")])
    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(ShardError, match=r"x\.tar cannot be read: Permission denied"):
        look_at([str(tmp_path / "x.tar")])


def test_a_leading_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = (str(tmp_path / "x.tar"),)
    assert shard_paths("~/x.tar") == shard_paths(["~/x.tar"]) == shard_paths(Path("~/x.tar")) == expected
    assert shard_paths("./~/x.tar") == (str(Path.cwd() / "~/x.tar"),)


def test_entries_of_a_folder_are_paths_unless_they_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.tar").touch()
    (entry,) = os.scandir(tmp_path)
    assert shard_paths([entry]) == shard_paths(entry) == (str(tmp_path / "x.tar"),)
    (entry_of_bytes,) = os.scandir(os.fsencode(tmp_path))
    for urls in (entry_of_bytes, [entry_of_bytes]):
        with pytest.raises(ConfigError, match=r"urls=.*DirEntry b'x\.tar'.* must be a text such as"):
            shard_paths(urls)


def test_text_that_cannot_be_a_path_is_refused() -> None:
    assert shard_paths("\udcff.tar")[0].endswith("/\udcff.tar")  # A name that is not UTF-8.
    with pytest.raises(ConfigError, match=r"urls: '\\ud800\.tar' is not a path: a file's name cannot hold such"):
        shard_paths("\ud800.tar")


def test_a_null_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds a null character"):
        shard_paths("a\0.tar")
