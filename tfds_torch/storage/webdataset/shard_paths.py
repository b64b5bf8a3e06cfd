"""The paths of tars, from one text with braces or from a list, and whether they are there."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.atomic_folder import settle_folder
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.open_files import Stamp, stamp_of
from tfds_torch.storage.remote.urls import SCHEMES, is_object_url
from tfds_torch.storage.shard_errors import shard_status, unreadable
from tfds_torch.storage.webdataset.tar_members import TAR_REMEDY

_MOST_PATHS = 1_000_000
_MOST_BRACES = 100  # Each takes a few of Python's stack frames.
_SHOWN = 200
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?(\d{1,18}))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d{1,18}))?")
_MISTYPED_RANGE = re.compile(r"\s*(-?\w+)\s*(?:\.+|-|:)\s*(-?\w+)\s*")
_BRACES = re.compile(r"\{([^{}]*)\}")


def shard_paths(urls: object) -> tuple[str, ...]:
    """Returns the absolute paths of tars, or their URLs, in the order of their samples.

    Args:
        urls: one text, in which braces are expanded as a shell does: `train-{000..099}.tar`, `{train,val}.tar`; or a
            path or URL, or a sequence of these, which are taken as they are. `~` is the home folder; a leading `file:`
            is left out.

    Raises:
        ConfigError: it is none of these, is empty, names a tar twice, is of no scheme that is read, or braces are not
            closed.
    """
    if isinstance(urls, str):
        found = list(expand_braces(urls))
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
    """Returns size and modification time of each tar."""
    for path in paths:
        try:
            if not os.path.lexists(path):
                settle_folder(os.path.dirname(path))  # An export may have been killed while it replaced the folder.
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ShardError(f"There is no file {quoted(path)}.{_remedy(path)}") from None
        except OSError as error:
            raise unreadable(path, error, TAR_REMEDY) from error
    return tuple(stamp_of(shard_status(path, TAR_REMEDY)) for path in paths)


def expand_braces(pattern: str) -> Iterator[str]:
    """Expands braces as a shell does: `{a,b}`, `{000..009}`, `{0..90..10}`, `{a..f}`; also inside of each other.

    Braces that hold neither a comma nor a range stay as they are.

    Raises:
        ConfigError: braces are not closed, are more than 100, or make more than a million names.
    """
    if pattern.count("{") > _MOST_BRACES:
        raise ConfigError(
            f"urls={pattern[:_SHOWN]!r}... has {pattern.count('{')} braces, and {_MOST_BRACES} are expanded at most. "
            f"Give a list of paths."
        )
    names = _expand(pattern, pattern)
    for count, name in enumerate(names):
        if count == _MOST_PATHS:
            raise ConfigError(f"urls={quoted(pattern)} makes more than {_MOST_PATHS:,} names.")
        yield name


def _expand(text: str, pattern: str) -> Iterator[str]:
    opened = text.find("{")
    if opened < 0:
        if "}" in text:
            raise _unbalanced(pattern)
        yield text
        return
    if "}" in text[:opened]:
        raise _unbalanced(pattern)
    closed, commas = _find_end(text, opened, pattern)
    before, inner, after = text[:opened], text[opened + 1 : closed], text[closed + 1 :]
    if commas:
        edges = [opened, *commas, closed]
        parts: Iterator[str] = (
            name for start, stop in itertools.pairwise(edges) for name in _expand(text[start + 1 : stop], pattern)
        )
    elif match := _RANGE.fullmatch(inner):
        parts = _range(match)
    else:
        parts = (f"{{{name}}}" for name in _expand(inner, pattern))
    for middle in parts:
        for rest in _expand(after, pattern):
            yield before + middle + rest


def _find_end(text: str, opened: int, pattern: str) -> tuple[int, list[int]]:
    """Returns where an opened brace is closed, and the commas between that are inside of no other one."""
    depth = 0
    commas: list[int] = []
    for at in range(opened, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if not depth:
                return at, commas
        elif text[at] == "," and depth == 1:
            commas.append(at)
    raise _unbalanced(pattern)


def _range(match: "re.Match[str]") -> Iterator[str]:
    first, last, step, first_letter, last_letter, letter_step = match.groups()
    if first is None:
        start, stop, by = ord(first_letter), ord(last_letter), int(letter_step or 1) or 1
        numbers = range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by)
        return (chr(number) for number in numbers if chr(number).isalpha())
    start, stop, by = int(first), int(last), int(step or 1) or 1
    is_padded = any(one.lstrip("-").startswith("0") and len(one.lstrip("-")) > 1 for one in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    return (
        f"{number:0{width}d}"
        for number in (range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by))
    )


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
    """Returns the advice for a path that is not there."""
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
    except OSError:  # One may enter the folder, and not list it.
        return ""


def _unbalanced(pattern: str) -> ConfigError:
    return ConfigError(
        f"urls={quoted(pattern)}: a brace is not closed, or not opened. Write train-{{000..099}}.tar; for a file with "
        f"braces in its name, give a list of paths."
    )


def _text(url: object, urls: object) -> str:
    path = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(path, str):  # A path of bytes is one too.
        raise _refusal(urls)
    return path


def _refusal(urls: object) -> ConfigError:
    return ConfigError(
        f"urls={quoted(urls)} must be a text such as 'train-{{000..099}}.tar', a path, or a sequence of paths."
    )
