"""`python -m tfds_torch.remote list` and `clear`: what is cached of object stores, and removing it."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from tfds_torch.errors import ConfigError
from tfds_torch.remote.arguments import parse_arguments
from tfds_torch.remote.indexing import index_shards
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.terminal import prepare_output, print_json, run_action
from tfds_torch.storage.remote.cache_content import CachedObject, cached_objects, clear_cache
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.urls import split, without_secrets


def run(argv: Sequence[str]) -> int:
    """Runs the command with the words that follow `tfds_torch.remote`, and returns its exit code."""
    try:
        flags = parse_arguments(argv)
    except SystemExit as end:  # argparse has printed why.
        return int(end.code or 0)
    prepare_output()
    interrupted = f"Interrupted. {_INTERRUPTED[flags.action]}"
    return run_action(partial(_ACTIONS[flags.action], flags), interrupted=interrupted, failed="this cannot be done")


def _list(flags: argparse.Namespace, console: Console) -> None:
    folder = _folder(flags)
    found = cached_objects(folder, flags.url)
    if flags.json:
        print_json(console, {"folder": str(folder), "objects": [asdict(one) for one in found]})
        return
    if not found:
        console.print(Text(f"Nothing{_below(flags)} is cached in {printable(str(folder))}."), soft_wrap=True)
        return
    console.print(Text(f"Objects cached in {printable(str(folder))}:"), soft_wrap=True)
    console.print(_table(found))
    console.print(f"{_count(found)}, {decimal(sum(one.num_bytes for one in found))}.", soft_wrap=True)


def _clear(flags: argparse.Namespace, console: Console) -> None:
    folder = _folder(flags)
    removed = clear_cache(folder, flags.url)
    kept = cached_objects(folder, flags.url)
    if flags.json:
        values = {"removed": [asdict(one) for one in removed], "kept": [asdict(one) for one in kept]}
        print_json(console, {"folder": str(folder), **values})
        return
    size, shown = decimal(sum(one.num_bytes for one in removed)), printable(str(folder))
    report = (
        f"Removed {_count(removed)} from {shown}: {size}." if removed else f"There was nothing to remove in {shown}."
    )
    console.print(Text(report), soft_wrap=True)
    if kept:
        console.print(Text(f"Blocks of {_count(kept)} are being fetched, and stay."), soft_wrap=True)


def _index(flags: argparse.Namespace, console: Console) -> None:
    found = index_shards(flags.url, RemoteOptions(cache_dir=flags.cache_dir))
    if flags.json:
        print_json(console, asdict(found))
        return
    steps = f", and the steps of {', '.join(found.sequences)}" if found.sequences else ""
    report = f"Indexed {found.num_shards:,} shards of {found.dataset}: {found.num_examples:,} examples{steps}."
    where = f"Their indices lie beside them, {decimal(found.num_bytes)}."
    if found.refusal is not None:
        where = f"Their indices are kept in {found.folder}; beside the shards nothing can be written: {found.refusal}"
    console.print(Text(printable(f"{report} {where}")), soft_wrap=True)


_ACTIONS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "list": _list,
    "clear": _clear,
    "index": _index,
}


_INTERRUPTED = {
    "list": "Nothing was changed.",
    "clear": "What was removed is gone, all else is as it was.",
    "index": "What was fetched stays in the cache: the same command goes on.",
}


def _table(found: Sequence[CachedObject]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    has_parts = any(one.num_parts for one in found)
    table.add_column("object", overflow="fold")
    for name in ("size", "cached", "blocks", *["in flight"] * has_parts, "fetched"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        size = "?" if one.size is None else decimal(one.size)
        fetched = time.strftime("%Y-%m-%d", time.localtime(one.fetched_at))
        texts = [one.url or "?", size, decimal(one.num_bytes), f"{one.num_blocks:,}"]
        texts += [*[f"{one.num_parts:,}"] * has_parts, fetched]
        table.add_row(*(Text(printable(text)) for text in texts))
    return table


def _folder(flags: argparse.Namespace) -> Path:
    """Returns the folder; the user's own need not be there, and one that is named must."""
    if flags.url is not None:
        split(flags.url)
        flags.url = without_secrets(flags.url)
    folder = RemoteOptions(cache_dir=flags.cache_dir).folder
    if flags.cache_dir is not None and not folder.exists():
        raise ConfigError(f"There is no folder {printable(str(folder))}.")
    return folder


def _below(flags: argparse.Namespace) -> str:
    return "" if flags.url is None else f" below {printable(flags.url)}"


def _count(found: Sequence[CachedObject]) -> str:
    return f"{len(found)} object{'s' * (len(found) != 1)}"
