"""The command line of `python -m benchmarks`."""

import argparse
import logging
import math
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks import machine
from benchmarks.report import Report
from benchmarks.suites import SUITES
from benchmarks.turns import Run, Settings, Suite
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.images.decoders import jpeg
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.terminal import QUIET_ENVIRON

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_WIDTH_OF_A_FILE = 120

_DESCRIPTION = """Measures this package, against its peers in the same run and by itself. Each suite prints
tables, and writes them as <suite>.json and as the page <suite>.md. Peers come with the extras
`bench` and `ffcv`; DALI, Streaming and litData want environments of their own, which --venv names.
A peer that is not installed is a row without figures, with the reason. Exit code: 0 when all suites
were measured; 1 when one failed; 2 wrong usage; 130 interrupted."""


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
    before = signal.signal(signal.SIGTERM, _interrupt)  # The peers end with this process.
    try:
        _bench(options, shlex.join(["python", "-m", "benchmarks", *typed]), console, errors)
        return OK
    except KeyboardInterrupt:
        errors.print("Interrupted; all peers have ended.")
        return INTERRUPTED
    except TfdsTorchError as error:
        errors.print("[bold red]error:[/]", Text(printable(str(error))), soft_wrap=True)
        return USAGE if isinstance(error, ConfigError) else FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


def measure(suite: Suite, run: Run, command: str) -> Report:
    """Measures a suite.

    Raises:
        TfdsTorchError: its data could not be made. A peer that fails is in the report, not raised.
    """
    found_machine = machine.describe_machine()  # First: the load before the start.
    date, began_s = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    tables = list(suite.measure(run))
    return Report(
        suite=suite.name,
        title=suite.title,
        method=" ".join(suite.method.split()),
        command=command,
        date=date,
        took_s=round(time.monotonic() - began_s, 1),
        machine=found_machine,
        versions=machine.describe_versions(run.versions) | {"JPEG decoded by": jpeg.describe("auto")},
        settings=run.settings.as_dict(),
        tables=tables,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=_DESCRIPTION,
        epilog="\n".join(["suites:", *(f"  {suite.name:<12}{suite.title}" for suite in SUITES.values())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("suites", nargs="*", metavar="suite", help="see below (all)")
    for name, default, told in (
        ("--repeats", 2, "measured rounds"),
        ("--photos", 4096, "photographs of an epoch; other sizes follow"),
        ("--batch-size", 128, "images of a batch"),
        ("--workers", 2, "loader processes of each peer"),
    ):
        parser.add_argument(name, type=int, default=default, metavar="N", help=f"{told} (%(default)s)")
    peers = ",".join(_peer_names())
    parser.add_argument("--only", default="", metavar="PEERS", help=f"some of {peers} (all), in suites that have them")
    parser.add_argument(
        "--venv",
        action="append",
        default=[],
        metavar="PEER=DIR",
        help="the virtual environment of a peer, such as dali=~/venvs/dali (that of this command); may be repeated",
    )
    parser.add_argument(
        "--baseline", default="", metavar="DIR", help="folder with another tfds_torch, which takes part as `baseline`"
    )
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="of an epoch, seconds (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench_results"), metavar="DIR", help="for the reports (./%(default)s)"
    )
    return parser.parse_args(arguments)


def _bench(options: argparse.Namespace, command: str, console: Console, errors: Console) -> None:
    for name in options.suites:
        _check_name("suite", name, SUITES)
    chosen = [suite for suite in SUITES.values() if suite.name in options.suites or not options.suites]
    settings, only = _settings(options), [name for name in options.only.split(",") if name]
    for name in only:
        _check_name("peer", name, _peer_names())
    for suite in chosen:
        if only and suite.peers and not set(only).intersection(suite.peers):
            raise ConfigError(
                f"None of {', '.join(only)} takes part in the suite {suite.name}: choose from {', '.join(suite.peers)}."
            )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=options.out):
            pass
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {options.out}: {error}. Choose another --out.") from error
    for suite in chosen:
        with errors.status(suite.name) as status:
            run = Run(
                settings,
                only if suite.peers else (),
                lambda text: status.update(Text(f"{suite.name}, {text}")),  # noqa: B023 (called in this round only)
            )
            report = measure(suite, run, command)
        report.show(console)
        report.write(options.out)
    console.print(Text(f"Reports are in {options.out}."), soft_wrap=True)


def _settings(options: argparse.Namespace) -> Settings:
    for name, least in (("repeats", 1), ("batch_size", 1), ("workers", 0)):
        if getattr(options, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least {least}.")
    least = options.batch_size * max(1, options.workers)
    if options.photos < least:
        raise ConfigError(
            f"--photos {options.photos}: {max(1, options.workers)} workers with batches of {options.batch_size} need "
            f"at least {least}."
        )
    if not (math.isfinite(options.timeout) and options.timeout > 0):
        raise ConfigError(f"--timeout {options.timeout:g}: must be a number of seconds, more than 0.")
    if options.baseline and not (Path(options.baseline) / "tfds_torch" / "__init__.py").exists():
        raise ConfigError(
            f"--baseline {options.baseline}: there is no tfds_torch in it. `git archive REVISION tfds_torch | tar -x "
            f"-C DIR` writes one."
        )
    venvs = {}
    for given in options.venv:
        name, _, folder = given.partition("=")
        _check_name("peer", name, _peer_names())
        venvs[name] = str(Path(folder).expanduser().absolute())
        if not (Path(venvs[name]) / "bin" / "python").exists():
            raise ConfigError(f"--venv {given}: there is no {venvs[name]}/bin/python. `python -m venv DIR` makes one.")
    baseline = options.baseline and str(Path(options.baseline).absolute())
    return Settings(
        options.photos, options.batch_size, options.workers, options.repeats, options.timeout, baseline, venvs
    )


def _peer_names() -> list[str]:
    return list(dict.fromkeys(name for suite in SUITES.values() for name in (*suite.peers, *suite.own_venvs)))


def _check_name(kind: str, name: str, there: Iterable[str]) -> None:
    if name not in there:
        raise ConfigError(
            f"There is no {kind} {name!r}: choose from {', '.join(there)}.{did_you_mean(name, list(there))}"
        )


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
