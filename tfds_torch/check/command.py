"""The command `python -m tfds_torch.check`."""

import argparse
import io
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tfds_torch import demo
from tfds_torch.check import report
from tfds_torch.check.advice import Facts, advise
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.contact_sheet import check_has_images, save_contact_sheet
from tfds_torch.check.content import ImageSizes, count_labels, first_epoch, measure_images
from tfds_torch.check.expected_ids import is_image_folder
from tfds_torch.check.findings import Findings
from tfds_torch.check.fused import FusedMeasure
from tfds_torch.check.fused_reading import measure_fused
from tfds_torch.check.index_promises import TFDS_PROMISE, judge_index
from tfds_torch.check.json_report import save_report
from tfds_torch.check.ledger import Expectation, NotJudged, count_epoch
from tfds_torch.check.opening import is_built_here, open_parser
from tfds_torch.check.other_world import OtherWorld
from tfds_torch.check.pipelines import count_pipelines
from tfds_torch.check.promises import judge
from tfds_torch.check.reading import RankReading, expectation, read_rank, read_ranks
from tfds_torch.check.settings import Settings, check_json, resolve
from tfds_torch.check.tfds_sample import compare_with_tfds
from tfds_torch.check.throughput import measure
from tfds_torch.engines.tensorflow_runtime import QUIET_ENVIRON
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.runtime.machine_share import choose_workers, num_cores, usable_cores
from tfds_torch.runtime.memory_limits import available_bytes
from tfds_torch.storage.file_instruction import is_local

OK, BROKEN, USAGE, INTERRUPTED = 0, 1, 2, 130
_GRACE_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check and returns its exit code.

    Args:
        arguments: what follows the command's name; None: those of this process.

    Returns:
        0 all promises kept, 1 one broken, 2 wrong usage or no such dataset, 130 interrupted.
    """
    return run(parse_arguments(arguments), sys.argv[1:] if arguments is None else list(arguments))


def run(flags: argparse.Namespace, command: Sequence[str]) -> int:
    """Runs the check and returns its exit code, as `main`.

    Args:
        flags: what was asked for.
        command: the words of it, for the report.
    """
    os.environ.update(QUIET_ENVIRON | os.environ)
    logging.getLogger("absl").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        # What a log file's encoding lacks, such as a class's name, is escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    console, errors = Console(emoji=False, highlight=False), Console(stderr=True, emoji=False, highlight=False)
    started = time.time()
    findings = Findings()
    json_path = None
    try:
        json_path = check_json(flags)
        settings = resolve(flags)
        code = _check(settings, console, findings)
    except KeyboardInterrupt as interrupt:
        errors.print("Interrupted.")
        _release_workers(interrupt)
        return INTERRUPTED
    except TfdsTorchError as error:
        is_usage = isinstance(error, ConfigError | DatasetNotFoundError)
        code = BROKEN if findings.is_broken or not is_usage else USAGE
        headline = "error:" if is_usage else "BROKEN:"
        findings.error = error
        errors.print(f"[bold red]{headline}[/]", report.plain(str(error)), soft_wrap=True)
    if json_path is not None:
        try:
            save_report(json_path, findings, command, started, code)
        except ConfigError as error:
            errors.print("[bold red]error:[/]", report.plain(str(error)), soft_wrap=True)
            return code or USAGE
    return code


def _check(settings: Settings, console: Console, findings: Findings) -> int:
    parser = open_parser(settings)
    if settings.images_path is not None:
        check_has_images(parser)
    num_workers = settings.config.num_workers
    findings.parser, findings.num_workers = parser, num_workers
    findings.is_torchrun = settings.is_torchrun
    findings.is_fake = demo.is_fake(parser.data_dir)
    expected = findings.expected = expectation(parser, settings.num_replicas, num_workers, settings.num_epochs)
    report.print_card(console, parser, findings.is_fake)
    pipelines = count_pipelines(parser, settings.num_replicas, max(1, num_workers), expected.mode)
    findings.pipelines = pipelines
    report.print_plan(console, expected, pipelines, num_workers)
    readings = findings.readings = _read(parser, settings, expected.plan.num_batches)
    received = [epoch for reading in readings for epoch in reading.epochs]
    findings.counts = [count_epoch(expected, [r for r in received if r.epoch == epoch]) for epoch in expected.epochs]
    findings.promises = judge(expected, received)
    examples = first_epoch(received)
    findings.labels = count_labels(examples, parser.class_names)
    findings.image_sizes = measure_images(examples)
    findings.throughputs = [measure(reading) for reading in readings]
    findings.fused = _measure_fused(parser, settings, findings.image_sizes)
    findings.advice = advise(_facts(parser, expected, findings, is_built_here(settings)))
    if expected.mode == "index":
        _judge_index(parser, settings, findings, expected)
    report.print_findings(console, findings)
    if settings.images_path is not None:
        made_up = ", made-up content" if findings.is_fake else ""
        save_contact_sheet(parser, settings.images_path, f"{parser.dataset_name}  {parser.split}{made_up}")
        findings.images_path = settings.images_path
        console.print("Contact sheet:", report.plain(str(settings.images_path)), soft_wrap=True)
    report.print_verdict(console, findings.promises)
    return OK if findings.is_kept else BROKEN


def _read(parser: ParserTfds, settings: Settings, num_batches: int) -> list[RankReading]:
    readings = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = num_batches * settings.num_replicas * settings.num_epochs
        task = progress.add_task("batches", total=total, rate="")

        def on_batch() -> None:
            progress.advance(task)
            speed = progress.tasks[task].speed
            progress.update(task, rate=f"{speed * (parser.batch_size or 1):,.0f} examples/s" if speed else "")

        num_workers, num_epochs = settings.config.num_workers, settings.num_epochs
        if settings.is_torchrun:
            progress.update(task, description="all ranks")
            return read_ranks(parser, settings.num_replicas, num_workers, num_epochs, on_batch)
        for rank in range(settings.num_replicas):
            progress.update(task, description=f"rank {rank}")
            world = World(rank, settings.num_replicas)
            readings.append(read_rank(parser, world, num_workers, num_epochs, on_batch))
    return readings


def _measure_fused(parser: ParserTfds, settings: Settings, sizes: ImageSizes | None) -> FusedMeasure | None:
    if sizes is None:
        return None
    with _busy("whole batches, preprocessed"):
        return measure_fused(settings.config, parser, sizes, settings.num_replicas, settings.config.num_workers)


@contextmanager
def _busy(text: str) -> Iterator[None]:
    """Shows on a terminal what is being done, and for how long."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(text, total=None)
        yield


def _judge_index(parser: ParserTfds, settings: Settings, findings: Findings, expected: Expectation) -> None:
    """Adds the promises of mode `index`."""
    with _busy("another number of workers, TFDS's own reader"):
        other = OtherWorld(parser, settings.num_replicas, settings.config.num_workers)  # Its workers start meanwhile.
        sample = compare_with_tfds(parser)
        states = findings.readings[0].resumed if findings.readings else ()
        reading = other.read(states, settings.num_epochs)
    findings.promises = [*findings.promises, *judge_index(expected, findings.readings, reading, sample)]
    if sample is None:
        findings.not_judged = [NotJudged(TFDS_PROMISE, "an image folder has no records, and so no index of them")]


def _facts(parser: ParserTfds, expected: Expectation, findings: Findings, is_built_here: bool) -> Facts:
    sizes, num_replicas = findings.image_sizes, expected.plan.world.num_replicas
    num_channels = CHANNELS[parser.image_mode] or 3
    is_crowded = findings.is_torchrun and num_replicas > 1
    return Facts(
        dataset=parser.dataset_name,
        split=parser.split,
        plan=expected.plan,
        mode=expected.mode,
        # Of an image folder only paths are shuffled.
        read=replace(parser.read, shuffle_buffer=1) if is_image_folder(parser.data_dir) else parser.read,
        is_built_here=is_built_here,
        num_files=parser.num_shards,
        is_remote=not all(is_local(run.path) for run in parser.files),
        mean_example_bytes=parser.mean_example_bytes,
        mean_image_bytes=sizes.mean_pixels * num_channels if sizes else None,
        available_bytes=available_bytes(),
        num_cores=num_cores(),
        # Ranks at the same time had less of the machine than the one that read whole batches.
        single_examples_per_s=None if is_crowded else findings.throughputs[0].examples_per_s,
        fused=findings.fused,
        usual_workers=choose_workers(usable_cores(), num_replicas, available_bytes()),
    )


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
