"""The command line of `python -m benchmarks`."""

import argparse
import logging
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from benchmarks import output, pages, suites
from benchmarks.report import Report
from benchmarks.suites import SUITES, Suite
from benchmarks.task import BASELINE_REVISION, Settings
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.terminal import QUIET_ENVIRON

_WIDTH_OF_A_FILE = 120
PAGES = "pages"
OK, MISSED, USAGE, INTERRUPTED = 0, 1, 2, 130
T = TypeVar("T")

_DESCRIPTION = """Measures this package, against its peers in the same run and by itself, and
writes <suite>.json. An older revision of this package, from the git repository, takes part as
`baseline`. Peers come with the extras `bench` and `ffcv`; DALI is installed into an environment of
its own, and Streaming and litData into another one; a peer that is not installed is reported as
missing. `pages` measures nothing: it writes the tables of README and docs and the README's chart
from the committed reports. Exit code: 0 when
all of our own targets were kept; 1 when one was missed or could not be judged (never with --only);
2 wrong usage; 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
        arguments: what follows the command's name; None: those of this process.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(typed)
    os.environ.update(QUIET_ENVIRON | os.environ)
    logging.getLogger("absl").setLevel(logging.ERROR)
    console, errors = Console(emoji=False, highlight=False), Console(stderr=True, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    before = signal.signal(signal.SIGTERM, _interrupt)  # The competitors end with this process.
    try:
        if options.suites == [PAGES]:
            return _write_pages(pages.read_reports(), console)
        return _bench(options, typed, console, errors)
    except KeyboardInterrupt:
        errors.print("Interrupted; all competitors have ended.")
        return INTERRUPTED
    except TfdsTorchError as error:
        errors.print("[bold red]error:[/]", Text(printable(str(error))), soft_wrap=True)
        return USAGE if isinstance(error, ConfigError) else MISSED
    finally:
        signal.signal(signal.SIGTERM, before)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=_DESCRIPTION,
        epilog="\n".join(["suites:", *(f"  {suite.name:<12}{suite.title}" for suite in SUITES)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    peers = ",".join(_peer_names(SUITES))
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"see below (all); or {PAGES}")
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        metavar="N",
        help="measured epochs of each (%(default)s); one in sample, jpeg_eval and scale",
    )
    parser.add_argument(
        "--photos", type=int, default=4096, metavar="N", help="photos of an epoch; other sizes follow (%(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=128, metavar="B", help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=2, metavar="W", help="loader processes of each (%(default)s)")
    parser.add_argument("--only", metavar="PEERS", help=f"some of {peers} (all), where there are competitors")
    parser.add_argument(
        "--baseline",
        default=BASELINE_REVISION,
        metavar="REV",
        help="git revision of this package that takes part as `baseline` (%(default)s)",
    )
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="of an epoch, seconds (%(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for the reports (./bench_results; without any argument: results/ beside the code)",
    )
    return parser.parse_args(arguments)


def _write_pages(reports: Mapping[str, Report], console: Console) -> int:
    for path in pages.write_pages(reports):
        console.print(Text(str(path)), soft_wrap=True)
    return OK


def _bench(options: argparse.Namespace, typed: Sequence[str], console: Console, errors: Console) -> int:
    if PAGES in options.suites:
        raise ConfigError(f"{PAGES} measures nothing, and stands alone: python -m benchmarks {PAGES}.")
    chosen: list[Suite] = _choose("suite", options.suites, SUITES, lambda suite: suite.name)
    if options.only is not None:
        chosen = _only(options.only.split(","), chosen)
    for name, least in (("repeats", 1), ("batch_size", 1), ("workers", 0)):
        if getattr(options, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least {least}.")
    if options.photos < options.batch_size * max(1, options.workers):
        raise ConfigError(
            f"--photos {options.photos}: {max(1, options.workers)} workers with batches of {options.batch_size} need "
            f"at least {options.batch_size * max(1, options.workers)}."
        )
    if not (math.isfinite(options.timeout) and options.timeout > 0):
        raise ConfigError(f"--timeout {options.timeout:g}: must be a number of seconds, more than 0.")
    # Only a run of all suites with the default settings replaces the committed reports, and what is made from them.
    is_full = not typed
    folder = options.out or (pages.RESULTS if is_full else Path("bench_results"))
    output.check_folder(folder, [suite.name for suite in chosen])
    settings = Settings(
        options.photos, options.batch_size, options.workers, options.repeats, options.timeout, options.baseline
    )
    found = []
    for suite in chosen:
        command = shlex.join(["python", "-m", "benchmarks", *typed])
        with errors.status(suite.name) as status:
            report = suites.run(
                suite,
                settings,
                command,
                lambda text: status.update(Text(f"{suite.name}, {text}")),  # noqa: B023 (called in this round only)
            )
        output.show(report, console)
        output.write(report, folder)
        found.append(report)
    output.show_overview(found, console)
    if is_full:
        try:
            _write_pages({report.suite: report for report in found}, console)
        except ConfigError as error:  # Not every peer can be installed on every machine.
            console.print(Text(f"README and docs stay as they are. {error}"), soft_wrap=True)
    console.print(Text(f"Reports are in {folder}."), soft_wrap=True)
    all_kept = all(target.kept for report in found for target in report.targets)
    return OK if all_kept or options.only is not None else MISSED


def _only(wanted: Sequence[str], chosen: Sequence[Suite]) -> list[Suite]:
    """Returns the suites with the wanted competitors; suites without competitors stay as they are.

    Raises:
        ConfigError: no competitor has a name, or a suite has no competitor left.
    """
    _choose("peer", wanted, _peer_names(SUITES), str)
    suites_left = []
    for suite in chosen:
        peers = tuple(peer for peer in suite.peers if peer.name in wanted)
        if suite.peers and not peers:
            there = ", ".join(peer.name for peer in suite.peers)
            raise ConfigError(f"None of {', '.join(wanted)} takes part in the suite {suite.name}: choose from {there}.")
        suites_left.append(replace(suite, peers=peers))
    return suites_left


def _peer_names(chosen: Sequence[Suite]) -> list[str]:
    """Returns the names of all competitors of some suites, each once."""
    return list(dict.fromkeys(peer.name for suite in chosen for peer in suite.peers))


def _choose(kind: str, wanted: Sequence[str], there: Sequence[T], name_of: Callable[[T], str]) -> list[T]:
    """Returns the wanted items in their own order, or all when none is wanted.

    Raises:
        ConfigError: no item has a name.
    """
    names = [name_of(item) for item in there]
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"There is no {kind} {name!r}: choose from {', '.join(names)}."
                f"{did_you_mean(name, [*names, PAGES] if kind == 'suite' else names)}"
            )
    return [item for item in there if not wanted or name_of(item) in wanted]


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
