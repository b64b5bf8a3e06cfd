"""`python -m tfds_torch.export cache list` and `cache clear`: which decoded caches there are, and deleting them."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.cache.decoded_cache import CacheEntry, DecodedCache, clear_caches, list_caches
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.terminal import print_json, run_action

_DESCRIPTION = """Lists or deletes the decoded caches that parsers have written (ParserTfds(..., cache=DecodedCache())).
clear deletes caches only, and what killed builders left of them, whatever else lies in the folder; a cache that is
being built stays. Exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""


def run(argv: Sequence[str]) -> int:
    """Runs the command with the words that follow `cache`, and returns its exit code."""
    try:
        flags = _make_parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed why.
        return int(end.code or 0)
    act: Callable[[argparse.Namespace, Console], None] = _list if flags.action == "list" else _clear
    interrupted = "Interrupted. What was deleted is gone, all else is as it was."
    return run_action(partial(act, flags), interrupted=interrupted, failed="this cannot be printed")


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tfds_torch.export cache", description=_DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument("action", choices=("list", "clear"), help="what to do")
    parser.add_argument("--folder", metavar="F", help="where the caches lie (the user's cache folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _list(flags: argparse.Namespace, console: Console) -> None:
    folder, entries = _folder(flags), list_caches(flags.folder)
    if flags.json:
        print_json(console, {"folder": folder, "caches": list(map(_plain, entries))})
        return
    if not entries:
        console.print(Text(f"There are no decoded caches in {folder}."), soft_wrap=True)
        return
    console.print(_table(folder, entries))
    console.print(f"{_count(entries)}, {decimal(sum(entry.num_bytes for entry in entries))}.", soft_wrap=True)


def _clear(flags: argparse.Namespace, console: Console) -> None:
    folder, deleted = _folder(flags), clear_caches(flags.folder)
    kept = list_caches(flags.folder)
    if flags.json:
        values = {"deleted": list(map(_plain, deleted)), "kept": list(map(_plain, kept))}
        print_json(console, {"folder": folder, **values})
        return
    size = decimal(sum(entry.num_bytes for entry in deleted))
    report = f"Deleted {_count(deleted)} in {folder}: {size}."
    console.print(Text(report if deleted else f"There was nothing to delete in {folder}."), soft_wrap=True)
    if kept:
        console.print(Text(f"{_count(kept)} being built stays: delete it when that has ended."), soft_wrap=True)


def _table(folder: str, entries: Sequence[CacheEntry]) -> Table:
    table = Table(title=Text(f"decoded caches in {folder}"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    has_limits = any(entry.max_resolution is not None for entry in entries)
    is_complete = all(entry.state == "complete" for entry in entries)
    for title, is_shown in (
        ("dataset", True),
        ("split", True),
        ("side", has_limits),
        ("examples", True),
        ("size", True),
        ("last used", True),
        ("state", not is_complete),
    ):
        is_number = title in ("side", "examples", "size")
        if is_shown:
            table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    table.add_column("file", overflow="fold")
    for entry in entries:
        longest = "all" if entry.max_resolution is None else f"{entry.max_resolution} px"
        examples = "?" if entry.num_examples is None else f"{entry.num_examples:,}"
        used = "never" if entry.last_used is None else time.strftime("%Y-%m-%d", time.localtime(entry.last_used))
        texts = [entry.dataset or "?", entry.split or "?", *[longest] * has_limits, examples, decimal(entry.num_bytes)]
        texts += [used, *[entry.state] * (not is_complete), entry.path.name]
        table.add_row(*(Text(printable(text)) for text in texts))
    return table


def _folder(flags: argparse.Namespace) -> str:
    """Returns the folder; the user's own need not be there, and one that is named must."""
    path = DecodedCache(flags.folder).path
    if flags.folder is not None and not path.exists():
        raise ConfigError(f"There is no folder {path}.")
    return printable(str(path))


def _plain(entry: CacheEntry) -> dict[str, Any]:
    return asdict(entry) | {"path": str(entry.path)}


def _count(entries: Sequence[CacheEntry]) -> str:
    return f"{len(entries)} decoded cache{'s' * (len(entries) != 1)}"
