"""The command `python -m tfds_torch.check`: flags, `prove`, and the report as text, page and JSON."""

import argparse
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.ledger import EpochEnd
from tfds_torch.check.network_rate import NetworkRate
from tfds_torch.check.opening import open_parser
from tfds_torch.check.pictures import check_has_images, save_contact_sheet
from tfds_torch.check.prove import How, Note, Watch, prove
from tfds_torch.check.reading import RankReading, Step
from tfds_torch.check.render import (
    Run,
    as_json,
    as_page,
    plain,
    print_sections,
    print_verdict,
    summarize_interrupted,
)
from tfds_torch.check.report import Report
from tfds_torch.check.sections import is_made_up
from tfds_torch.check.settings import check_reports, resolve
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.terminal import PatientConsole, ProgressBar, prepare_output

OK, BROKEN, USAGE, INTERRUPTED = 0, 1, 2, 130
_GRACE_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and return its exit code: 0 kept, 1 a promise broken, 2 wrong usage, 130 interrupted."""
    return run(parse_arguments(arguments), sys.argv[1:] if arguments is None else list(arguments))


def run(flags: argparse.Namespace, command: Sequence[str], *, is_interrupted: bool = False) -> int:
    """Run the check and return its exit code, as `main`; `is_interrupted`: Ctrl-C was pressed before."""
    prepare_output()
    is_reported = flags.json is not None or flags.html is not None
    console = (PatientConsole if is_reported else Console)(emoji=False, highlight=False)
    errors = Console(stderr=True, emoji=False, highlight=False)
    started = time.time()
    report = Report()
    paths, interrupt = dict[str, Path](), None
    try:
        for flag, path in check_reports(flags):
            paths[flag] = path
        if is_interrupted:
            raise KeyboardInterrupt
        _check(flags, console, report)
        code = OK if report.is_kept else BROKEN
    except KeyboardInterrupt as error:
        interrupt, code = error, INTERRUPTED
        report.is_interrupted = True
        errors.print(f"Interrupted. {summarize_interrupted(report)}".strip(), soft_wrap=True)
    except TfdsTorchError as error:
        is_usage = isinstance(error, ConfigError | DatasetNotFoundError)
        code = BROKEN if report.is_broken or not is_usage else USAGE
        report.error = error
        _print_error(errors, error, "error:" if is_usage else "BROKEN:")
    except OSError as error:  # Of standard output.
        code = BROKEN
        _print_error(errors, ConfigError(f"The report cannot be printed: {error.strerror}."))
    try:
        for flag, path in paths.items():
            try:
                save_report(flag, path, report, Run(command, started, code))
            except ConfigError as error:
                _print_error(errors, error)
                code = code or USAGE
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        code = INTERRUPTED
    if interrupt is not None:
        _release_workers(interrupt)
    return code


def save_report(flag: str, path: Path, report: Report, run: Run) -> None:
    """Write the report of `--json` or `--html`; the file is there whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    name, render = ("page", as_page) if flag == "--html" else ("report", as_json)
    try:
        write_atomically(path, render(report, run).encode())
    except OSError as error:
        raise ConfigError(f"The {name} {path} cannot be written: {error}.") from None


def _print_error(errors: Console, error: Exception, headline: str = "error:") -> None:
    errors.print(f"[bold red]{headline}[/]", plain(str(error)), soft_wrap=True)


def _check(flags: argparse.Namespace, console: Console, report: Report) -> None:
    config, how = resolve(flags)
    parser = open_parser(config, flags.root, num_fake=flags.fake, num_shards=flags.shards)
    if flags.images is not None:
        check_has_images(parser)
    terminal = _Terminal(console, how)
    prove(parser, how, report=report, watch=terminal)
    print_sections(console, [one for one in report.sections if one.key not in terminal.printed])
    if flags.images is not None:
        made_up = ", made-up content" if is_made_up(parser) else ""
        save_contact_sheet(parser, flags.images, f"{parser.dataset_name}  {parser.split}{made_up}")
        report.images_path = flags.images
        console.print("Contact sheet:", plain(str(flags.images)), soft_wrap=True)
    print_verdict(console, report)


class _Terminal(Watch):
    """Prints the dataset and the plan, and shows a bar during the reading."""

    def __init__(self, console: Console, how: How) -> None:
        self._console, self._how = console, how
        self.printed: set[str] = set()

    def planned(self, report: Report) -> None:
        print_sections(self._console, report.sections)
        self.printed = {one.key for one in report.sections}

    @contextmanager
    def reading(self, parser: DatasetParser, num_batches: int) -> Iterator[Note]:
        console = Console(stderr=True)
        networks = parser.source.networks if console.is_terminal else ()
        batch_size = parser.batch_size or 1
        with NetworkRate(networks) as network, ProgressBar(console, lambda: network.text) as progress:
            whose = "all ranks" if self._how.is_torchrun else "rank 0"
            task = progress.add_task(whose, total=num_batches, rate="")

            def note(rank: int, step: Step) -> None:
                if isinstance(step, EpochEnd):
                    network.begin_epoch()
                elif not isinstance(step, RankReading):
                    network.need(batch_size * parser.mean_example_bytes)
                    speed = progress.tasks[task].speed
                    rate = f"{speed * batch_size:,.0f} examples/s" if speed else ""
                    description = "all ranks" if self._how.is_torchrun else f"rank {rank}"
                    progress.update(task, advance=1, rate=rate, description=description)

            yield note

    @contextmanager
    def comparing(self, what: str) -> Iterator[None]:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            progress.add_task(what, total=None)
            yield


def _release_workers(interrupt: KeyboardInterrupt) -> None:
    """End the loader of an interrupted reading.

    torch asks its workers to stop under a lock that an interrupted worker may hold for ever: then the workers and this
    process end at once.
    """
    watchdog = threading.Timer(_GRACE_S, _end_at_once)
    watchdog.daemon = True
    watchdog.start()
    traceback.clear_frames(interrupt.__traceback__)
    watchdog.cancel()


def _end_at_once() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(INTERRUPTED)
