"""The command line of `python -m tfds_torch.check`."""

import argparse
import logging
import multiprocessing
import os
import threading
import traceback
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tfds_torch import demo
from tfds_torch.check import report
from tfds_torch.check.ledger import RankEpoch, judge
from tfds_torch.check.reading import expectation, read_rank
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.pipeline.tensorflow_runtime import QUIET_ENVIRON
from tfds_torch.plan.world import World

OK, BROKEN, USAGE, INTERRUPTED = 0, 1, 2, 130
_GRACE_S = 20.0

_DESCRIPTION = """Reads a TFDS dataset through ParserTfds and ImageDataset, with every rank and real worker processes,
and proves from the ids of the examples what came. Without --root, the names digits and photos stand for the embedded
datasets, which are built at their first use. Exit code: 0 all promises kept, 1 one broken, 2 wrong usage or no such
dataset."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check and returns its exit code: 0 all kept, 1 a promise broken, 2 wrong usage or no such dataset."""
    options = _parse(arguments)
    os.environ.update(QUIET_ENVIRON | os.environ)
    logging.getLogger("absl").setLevel(logging.ERROR)
    console, errors = Console(emoji=False, highlight=False), Console(stderr=True, emoji=False, highlight=False)
    try:
        return _check(options, console)
    except KeyboardInterrupt as interrupt:
        errors.print("Interrupted.")
        _release_workers(interrupt)
        return INTERRUPTED
    except (ConfigError, DatasetNotFoundError) as error:
        errors.print("[bold red]error:[/]", report.plain(str(error)), soft_wrap=True)
        return USAGE
    except TfdsTorchError as error:
        errors.print("[bold red]BROKEN:[/]", report.plain(_last_message(error)), soft_wrap=True)
        return BROKEN


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.check", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--name", default="digits", help="dataset: name, name/config, name:version (%(default)s)")
    parser.add_argument("--root", help="TFDS data directory, or a version directory (TFDS's default)")
    parser.add_argument(
        "--split", help="TFDS split expression, such as train[:10%%] (train; with --eval: test, validation or train)"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="B", help="per rank (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, metavar="W", help="loader processes per rank (%(default)s)")
    parser.add_argument("--replicas", type=int, default=1, metavar="R", help="ranks (%(default)s)")
    parser.add_argument("--eval", action="store_true", help="evaluation: every example exactly once")
    parser.add_argument("--read-mode", default="auto", metavar="M", help="auto, files or examples (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2, metavar="E", help="epochs to read (%(default)s)")
    return parser.parse_args(arguments)


def _check(options: argparse.Namespace, console: Console) -> int:
    for name, least in (("workers", 0), ("replicas", 1), ("epochs", 1)):
        if getattr(options, name) < least:
            raise ConfigError(f"--{name} {getattr(options, name)}: must be at least {least}.")
    parser = _open(options)
    expected = expectation(parser, options.replicas, options.workers, options.epochs)
    report.print_card(console, parser)
    report.print_plan(console, parser, options.replicas, options.workers, expected.mode)
    received = _read(parser, options, expected.plan.num_batches)
    report.print_ledger(console, expected, received)
    promises = judge(expected, received)
    report.print_promises(console, promises)
    broken = [promise.name for promise in promises if not promise.kept]
    if broken:
        console.print(f"[bold red]{len(broken)} of {len(promises)} promises broken.[/]")
        return BROKEN
    console.print(f"[bold green]All {len(promises)} promises kept.[/]")
    return OK


def _open(options: argparse.Namespace) -> ParserTfds:
    root, base_name = options.root, options.name.partition(":")[0]
    if root is None and base_name in demo.DEMO_NAMES:
        root = demo.prepare(base_name)
    try:
        there = ParserTfds.split_names(root, options.name)
    except DatasetNotFoundError as error:
        if options.root is not None:
            raise
        raise DatasetNotFoundError(f"{error} Embedded: {' and '.join(demo.DEMO_NAMES)}.") from None
    return ParserTfds(
        root,
        options.name,
        split=_usual_split(there, options.eval) if options.split is None else options.split,
        is_training=not options.eval,
        batch_size=options.batch_size,
        read=ReadOptions(mode=options.read_mode),
    )


def _usual_split(there: Sequence[str], is_evaluation: bool) -> str:
    wanted = ("test", "validation", "train") if is_evaluation else ("train",)
    return next((split for split in wanted if split in there), next(iter(there), "train"))


def _read(parser: ParserTfds, options: argparse.Namespace, num_batches: int) -> list[RankEpoch]:
    received = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("batches", total=num_batches * options.replicas * options.epochs)
        for rank in range(options.replicas):
            progress.update(task, description=f"rank {rank}")
            world = World(rank, options.replicas)
            received += read_rank(parser, world, options.workers, options.epochs, lambda: progress.advance(task))
    return received


def _release_workers(interrupt: KeyboardInterrupt) -> None:
    """Ends the loader of an interrupted reading.

    torch asks its workers to stop under a lock that an interrupted worker may hold for ever: where it does, the workers
    and this process end at once.
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


def _last_message(error: TfdsTorchError) -> str:
    """Returns the message without the traceback that torch puts before a worker's."""
    text = str(error)
    marker = f"{type(error).__name__}: "
    return text.rpartition(marker)[2].strip() if marker in text else text
