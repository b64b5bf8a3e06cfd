"""The command `python -m tfds_torch.export`."""

import argparse
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from msgspec import structs
from rich.console import Console
from rich.progress import TaskID
from rich.text import Text

from tfds_torch.check.opening import open_parser
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.export.api import check_format, export_dataset, local_path
from tfds_torch.export.folder import verify_shards
from tfds_torch.export.plan import SHARDED, ExportReport, Part
from tfds_torch.parsers.one_split import is_one_split
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.parsers.recipes import Config
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.runtime.printable import printable, quoted
from tfds_torch.runtime.terminal import PatientConsole, ProgressBar, prepare_output
from tfds_torch.storage.beton.format import DEFAULT_PAGE
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import check_target

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_COMMAND = "python -m tfds_torch.export"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with its arguments (None: those of this process) and return its exit code.

    It is 0: written, 1: not written or not verified, 2: wrong usage or no such dataset, or 130: interrupted.
    """
    from tfds_torch.export.__main__ import parse_arguments

    return run(parse_arguments(arguments))


def run(flags: argparse.Namespace) -> int:
    """Run the command with its flags and return its exit code, as `main`."""
    prepare_output()
    console = PatientConsole(emoji=False, highlight=False)
    errors = Console(stderr=True, emoji=False, highlight=False)
    report: ExportReport | None = None
    flags.out = os.path.expanduser(flags.out)  # As export_dataset does, where no shell has.
    was = _identity(flags.out)
    before = signal.signal(signal.SIGTERM, _interrupt)  # SIGTERM leaves nothing behind, either.
    try:
        report = _export(flags, errors)
        if flags.verify:
            report = _verify(report, errors)
        _print_report(console, report, flags.json)
        return OK
    except KeyboardInterrupt:
        is_written = report is not None or (_identity(flags.out) != was and flags.format not in SHARDED)
        state = "is written, and was not verified" if is_written else _unwritten(flags)
        errors.print(Text(printable(f"Interrupted: {flags.out} {state}.")), soft_wrap=True)
        return INTERRUPTED
    except TfdsTorchError as error:
        if report is not None:
            _print_report(console, replace(report, verified=False), flags.json)
        elif flags.json:
            console.print(Text(json.dumps({"error": str(error), "type": type(error).__name__})), soft_wrap=True)
        errors.print("[bold red]error:[/]", Text(printable(str(error))), soft_wrap=True)
        return USAGE if isinstance(error, ConfigError | DatasetNotFoundError) else FAILED
    except OSError as error:
        if report is None:
            raise
        console.on_broken_pipe()  # Python would try it once more at its end.
        why = f"the report cannot be written: {error.strerror}. {report.path} is written."
        errors.print("[bold red]error:[/]", Text(printable(why)), soft_wrap=True)
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


def _identity(path: str) -> tuple[int, int] | None:
    """Return an identity that differs from that of a file in the same place later; None: there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character.
        return None
    return status.st_ino, status.st_mtime_ns


def _unwritten(flags: argparse.Namespace) -> str:
    """Return the end of a sentence about the files that an interrupted export has left."""
    if flags.format not in SHARDED or _identity(flags.out) is None:
        return "is as it was"
    return "has the shards that were complete, which stay: the same command goes on with the others"


def _export(flags: argparse.Namespace, errors: Console) -> ExportReport:
    page_size = DEFAULT_PAGE if flags.page_size is None else flags.page_size
    at_least = {"fake": 1, "workers": 0, "shuffle_seed": 0, "shards": 1, "max_count": 1, "max_bytes": 1}
    for name, least in at_least.items():
        number = getattr(flags, name)
        if number is not None and number < least:
            raise ConfigError(f"--{name.replace('_', '-')} {number}: must be at least {least}.")
    check_format(flags.format)
    out = Path(local_path(flags.out))  # Only now: of a URL, a Path makes a folder here.
    if flags.format not in SHARDED:
        if out.exists() and not flags.overwrite and not out.is_dir():
            raise ConfigError(f"{out} is there already: --overwrite replaces it.")
        check_target(out, page_size, flags.overwrite)  # Before a dataset is built for it.
    part = None if flags.part is None else Part.of_argument(flags.part)
    fields, rename = _pairs("--field", flags.field), _pairs("--rename", flags.rename)
    parser = open_parser(_config(flags), flags.root, num_fake=flags.fake, command=_COMMAND)
    if isinstance(parser, ParserWebDataset) and parser.other_extensions:
        errors.print("[bold]note:[/]", Text(printable(_left_out(parser))), soft_wrap=True)
    with _progress("samples", errors) as show:
        return export_dataset(
            parser,
            out,
            format=flags.format,
            fields=fields,
            rename=rename,
            num_workers=flags.workers,
            shuffle_seed=flags.shuffle_seed,
            page_size=page_size,
            num_shards=flags.shards,
            max_count=flags.max_count,
            max_bytes=flags.max_bytes,
            key=flags.key,
            part=part,
            overwrite=flags.overwrite,
            progress=show,
        )


def _left_out(parser: ParserWebDataset) -> str:
    others = ", ".join(f".{name}" for name in parser.other_extensions)
    return (
        f"not exported are the members {others}: only {', '.join(parser.extensions)} are. To export them, too, name "
        f"them in Python: export_dataset(ParserWebDataset(urls, fields=...), ...)."
    )


def _config(flags: argparse.Namespace) -> Config:
    if flags.name is None and flags.config is None:
        raise ConfigError("Which dataset? Give --name, or --config with a recipe.")
    config = Config(name=flags.name) if flags.config is None else load_config(flags.config)
    if config.mixture is not None:
        raise ConfigError(
            f"--config {flags.config}: it is the recipe of a mixture, and one dataset is exported at a time. Export "
            f"its members one by one: a mixture reads their .beton files and tars as it reads the originals."
        )
    name = flags.name or config.name
    is_whole = config.source is not None or is_one_split(name)
    split = flags.split or config.split or (None if is_whole else "train")
    # Every example once, in order: a recipe's options for training have no use here.
    return structs.replace(config.for_evaluation(), name=name, split=split, read=ReadOptions())


def _pairs(flag: str, words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not (name and separator and value):
            raise ConfigError(f"{flag} {quoted(word)}: must have the form NAME=VALUE.")
        if name in pairs:
            raise ConfigError(f"{flag} names {quoted(name)} twice.")
        pairs[name] = value
    return pairs


@contextmanager
def _progress(unit: str, errors: Console) -> Iterator[Callable[[int, int], None]]:
    """Show progress on a terminal, from the first step on, since workers are forked before."""
    progress = ProgressBar(errors)
    task: TaskID | None = None

    def show(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            progress.start()
            task = progress.add_task(unit, total=total, rate="")
        speed = progress.tasks[0].speed
        progress.update(task, completed=done, rate=f"{speed:,.0f} {unit}/s" if speed else "")

    try:
        yield show
    finally:
        progress.stop()


def _verify(report: ExportReport, errors: Console) -> ExportReport:
    with errors.status("verifying") if errors.is_terminal else nullcontext():
        if report.num_shards is not None:
            verify_shards(report.path, report.split, report.part)
            return replace(report, verified=True)
        found = verify(report.path)
    return replace(report, verified=True, unchecked=found.unchecked)


def _print_report(console: Console, report: ExportReport, is_json: bool) -> None:
    if is_json:
        console.print(Text(json.dumps(report.to_dict(), indent=2)), soft_wrap=True)
        return
    processes = f"{report.num_workers} process{'es' * (report.num_workers != 1)}"
    what = report.path if report.part is None else f"{report.path}, part {report.part}"
    shards = "" if report.num_shards is None else f"{report.num_shards:,} shard{'s' * (report.num_shards != 1)}, "
    lines = [
        f"{what}: {report.num_samples:,} samples, {shards}{report.num_bytes:,} bytes, "
        f"in {report.elapsed_s:.3g} s "
        f"({report.samples_per_s:,.0f} samples/s, {processes})",
        *(f"  {name}: {field}" for name, field in report.fields.items()),
    ]
    if report.num_kept:
        shards = "1 shard was" if report.num_kept == 1 else f"{report.num_kept:,} shards were"
        lines.append(f"  {shards} complete already, and as before")
    if report.part is not None:
        left = f"  {report.num_missing:,} shards of other parts are still to be written"
        lines.append(left if report.num_missing else "  all parts are complete")
    if report.num_reencoded:
        lines.append(
            f"  {report.num_reencoded:,} samples have an image that FFCV cannot read as it was: it is encoded as JPEG "
            f"(--field image=raw keeps its pixels)"
        )
    if report.verified is not None:
        lines.append("Verified: everything is as it was written." if report.verified else "NOT VERIFIED.")
    lines += report.unchecked
    console.print(Text(printable("\n".join(lines))), soft_wrap=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
