"""The paths of tars, from one text with braces or from a list, and whether the tars exist."""

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence

import braceexpand

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.open_files import Stamp, stamp_of
from tfds_torch.storage.remote.urls import SCHEMES, is_object_url
from tfds_torch.storage.shard_errors import shard_status, unreadable
from tfds_torch.storage.webdataset.tar_members import TAR_REMEDY

_MOST_PATHS = 1_000_000
_MOST_BRACES = 100  # Each brace inside of another one takes a few of Python's stack frames.
_SHOWN = 200
_MOST_DIGITS = 18
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")
_MISTYPED_RANGE = re.compile(r"\s*(-?\w+)\s*(?:\.+|-|:)\s*(-?\w+)\s*")
_BETWEEN = re.compile(r"::(?![0-9A-Fa-f:.]*\])")
_BRACES = re.compile(r"\{([^{}]*)\}")


def shard_paths(urls: object) -> tuple[str, ...]:
    """Return the absolute paths of tars, or their URLs, in the order of their samples.

    Args:
        urls: one text, as `expand_urls` takes it: `train-{000..099}.tar`, `{train,val}.tar`, `a-{0..3}.tar::b.tar`; or
            a path or URL, or a sequence of these, which are used without changes. `~` is the home folder; a leading
            `file:` is left out.

    Raises:
        ConfigError: `urls` is none of these, is empty, names a tar twice, has a scheme that is not read, or braces are
            not closed.
    """
    if isinstance(urls, str):
        found = list(expand_urls(urls))
    elif isinstance(urls, os.PathLike):
        found = [_text(urls, urls)]
    elif isinstance(urls, Sequence) and not isinstance(urls, bytes | bytearray):
        found = [_text(url, urls) for url in urls]
    else:
        raise _refusal(urls)
    if not found or "" in found:
        raise ConfigError(f"urls={quoted(urls)} names no tar: give at least one path.")
    paths = tuple(_local(url) for url in found)
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ConfigError(f"urls: {quoted(twice)} is named twice, and each of its samples would come twice.")
    return paths


def look_at(paths: Sequence[str]) -> tuple[Stamp, ...]:
    """Return size and modification time of each tar."""
    for path in paths:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ShardError(f"There is no file {quoted(path)}.{_remedy(path)}") from None
        except OSError as error:
            raise unreadable(path, error, TAR_REMEDY) from error
    return tuple(stamp_of(shard_status(path, TAR_REMEDY)) for path in paths)


def expand_urls(text: str) -> Iterator[str]:
    """Expand a text as WebDataset does: parts with `::` between them, and the braces of each.

    The `::` of an IPv6 address, `https://[::1]/a.tar`, stays, and so does that of fsspec's chains,
    `simplecache::s3://b/a.tar`.

    Raises:
        ConfigError: see `expand_braces`; all names together are counted.
    """
    parts = _BETWEEN.split(text)
    if any(part.isidentifier() for part in parts):
        parts = [text]
    names = [expand_braces(part) for part in parts]
    if len(parts) > 1 and sum(map(_count_names, parts)) > _MOST_PATHS:
        raise _too_many(text)
    return itertools.chain.from_iterable(names)


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand braces like a shell: `{a,b}`, `{000..009}`, `{0..90..10}`, `{a..f}`; also inside of each other.

    Braces that hold neither a comma nor a range stay as they are.

    Raises:
        ConfigError: braces are not closed, there are more than 100 of them, or they make more than a million names.
    """
    if pattern.count("{") > _MOST_BRACES:
        raise ConfigError(
            f"urls={pattern[:_SHOWN]!r}... has {pattern.count('{')} braces, and {_MOST_BRACES} are expanded at most. "
            f"Give a list of paths."
        )
    if _count_names(pattern) > _MOST_PATHS:
        raise _too_many(pattern)
    try:
        return iter(braceexpand.braceexpand(pattern, escape=False))
    except ValueError:
        raise ConfigError(
            f"urls={quoted(pattern)}: a brace is not closed, or not opened. Write train-{{000..099}}.tar; for a file "
            f"with braces in its name, give a list of paths."
        ) from None


def _too_many(text: str) -> ConfigError:
    return ConfigError(f"urls={quoted(text)} makes more than {_MOST_PATHS:,} names.")


def _count_names(pattern: str) -> int:
    """Return how many names braces make, counted from the innermost braces outwards, without making the names."""
    counts: list[int] = []

    def product(text: str) -> int:
        return math.prod(counts[int(number)] for number in re.findall("\0(\\d+)\0", text))

    def count(braces: "re.Match[str]") -> str:
        choices = braces[1].split(",")
        counts.append(_range_length(braces[1]) or sum(map(product, choices)))
        return f"\0{len(counts) - 1}\0"

    text, num_replaced = pattern.replace("\0", ""), 1
    while num_replaced:
        text, num_replaced = _BRACES.subn(count, text)
    return product(text)


def _range_length(text: str) -> int:
    """Return how many numbers or letters a range has; 0: the text is not a range."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return 0
    first, last, step, first_letter, last_letter, letter_step = found.groups()
    if max(map(len, (first or "", last or "", step or letter_step or ""))) > _MOST_DIGITS:
        return _MOST_PATHS + 1
    ends = (int(first), int(last)) if first else (ord(first_letter), ord(last_letter))
    return abs(ends[1] - ends[0]) // (int(step or letter_step or 1) or 1) + 1


def _local(url: str) -> str:
    if is_object_url(url):
        return url
    path = url.removeprefix("file://").removeprefix("file:")
    if "://" in path or path.startswith("pipe:"):
        raise ConfigError(
            f"urls: {quoted(url)} is neither a file of this machine nor a URL of {', '.join(SCHEMES)}, from which "
            f"samples are read by number. Copy the tars to a local folder, or mount the bucket as one."
        )
    if "\0" in path:
        raise ConfigError(f"urls: {quoted(url)} is not a path: it holds a null character.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ConfigError(f"urls: {quoted(url)} is not a path: a file's name cannot hold such characters.") from None
    return os.path.abspath(os.path.expanduser(path))


def _remedy(path: str) -> str:
    """Return advice for a path that does not exist."""
    if any(star in path for star in "*?["):
        return f" Stars are not expanded: write train-{{000..099}}.tar, or in Python sorted(glob.glob({quoted(path)}))."
    braces = _BRACES.search(path)
    if braces is not None:
        if "," in braces[1] or _RANGE.fullmatch(braces[1]):
            return " Braces are expanded in one text, and not in a list of paths or a Path."
        ends = _MISTYPED_RANGE.fullmatch(braces[1])
        if ends is not None and _RANGE.fullmatch(f"{ends[1]}..{ends[2]}"):
            return f" {braces[0]} is not a range: write {{{ends[1]}..{ends[2]}}}."
        return f" {braces[0]} is neither a range, such as {{000..099}}, nor a choice, such as {{train,val}}."
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        return f" The folder {quoted(folder)} does not exist."
    try:
        return did_you_mean(name, sorted(os.listdir(folder)))
    except OSError:  # The user may enter the folder, but not list it.
        return ""


def _text(url: object, urls: object) -> str:
    path = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(path, str):  # A path of bytes is an os.PathLike, too.
        raise _refusal(urls)
    return path


def _refusal(urls: object) -> ConfigError:
    return ConfigError(
        f"urls={quoted(urls)} must be a text such as 'train-{{000..099}}.tar', a path, or a sequence of paths."
    )
