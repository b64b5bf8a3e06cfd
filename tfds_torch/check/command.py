"""The command `python -m tfds_torch.check`."""

import argparse
import multiprocessing
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tfds_torch import demo
from tfds_torch.check import report
from tfds_torch.check.advice import AdviceInput, advise
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.contact_sheet import check_has_images, has_images, read_pictures, save_contact_sheet
from tfds_torch.check.content import measure_images
from tfds_torch.check.delivery import choose_delivery, read_sizes
from tfds_torch.check.expectation import Expectation, count_pipelines, expect
from tfds_torch.check.findings import Findings
from tfds_torch.check.index_promises import judge_index
from tfds_torch.check.json_report import make_report, render_report
from tfds_torch.check.ledger import EpochEnd, Ledger
from tfds_torch.check.network_rate import NetworkRate
from tfds_torch.check.opening import is_built_here, open_parser
from tfds_torch.check.order_sample import OrderSample
from tfds_torch.check.promises import judge
from tfds_torch.check.reading import (
    HowRead,
    kept_batches,
    read_other_world,
    read_rank,
    read_ranks,
)
from tfds_torch.check.reference import CheckedParser, choose_examples, datasets_of, place_of
from tfds_torch.check.resume import choose_points
from tfds_torch.check.sample import find_why_no_pixels, judge_compared, read_compared
from tfds_torch.check.settings import Settings, check_reports, resolve
from tfds_torch.check.throughput import RankReading
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.parsers.cache import CACHED_MODES, DecodedCache
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.limits import available_bytes, choose_workers, num_cores, usable_cores
from tfds_torch.runtime.terminal import PatientConsole, ProgressBar, prepare_output
from tfds_torch.storage.network import NetworkStats, total_stats
from tfds_torch.storage.remote.urls import LISTED_SCHEMES
from tfds_torch.storage.source import is_local

OK, BROKEN, USAGE, INTERRUPTED = 0, 1, 2, 130
_GRACE_S = 20.0
_LARGE_PART = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check and returns its exit code: 0 kept, 1 a promise broken, 2 wrong usage, 130 interrupted."""
    return run(parse_arguments(arguments), sys.argv[1:] if arguments is None else list(arguments))


def run(flags: argparse.Namespace, command: Sequence[str], *, is_interrupted: bool = False) -> int:
    """Runs the check and returns its exit code, as `main`; `is_interrupted`: Ctrl-C was pressed before."""
    prepare_output()
    is_reported = flags.json is not None or flags.html is not None
    console = (PatientConsole if is_reported else Console)(emoji=False, highlight=False)
    errors = Console(stderr=True, emoji=False, highlight=False)
    started = time.time()
    findings = Findings()
    paths, interrupt = dict[str, Path](), None
    try:
        for flag, path in check_reports(flags):
            paths[flag] = path
        if is_interrupted:
            raise KeyboardInterrupt
        settings = resolve(flags)
        code = _check(settings, console, findings)
    except KeyboardInterrupt as error:
        interrupt, code = error, INTERRUPTED
        findings.interrupt()
        errors.print(f"Interrupted. {report.summarize_interrupted(findings)}".strip(), soft_wrap=True)
    except TfdsTorchError as error:
        is_usage = isinstance(error, ConfigError | DatasetNotFoundError)
        code = BROKEN if findings.is_broken or not is_usage else USAGE
        headline = "error:" if is_usage else "BROKEN:"
        findings.error = error
        errors.print(f"[bold red]{headline}[/]", report.plain(str(error)), soft_wrap=True)
    try:
        plain_report = make_report(findings, command, started, code) if paths else {}
        for flag, path in paths.items():
            try:
                save_output(flag, path, findings, plain_report)
            except ConfigError as error:
                errors.print("[bold red]error:[/]", report.plain(str(error)), soft_wrap=True)
                code = code or USAGE
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        code = INTERRUPTED
    if interrupt is not None:
        _release_workers(interrupt)
    return code


def save_output(flag: str, path: Path, findings: Findings, plain_report: dict[str, Any]) -> None:
    """Writes what `--json` or `--html` asks for; the file is there whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    if flag == "--html":
        from tfds_torch.check.page import render_page  # Only now: nothing else takes Jinja.

        name, content = "page", render_page(findings, plain_report)
    else:
        name, content = "report", render_report(plain_report)
    try:
        write_atomically(path, content.encode())
    except OSError as error:
        raise ConfigError(f"The {name} {path} cannot be written: {error}.") from None


def _check(settings: Settings, console: Console, findings: Findings) -> int:
    parser = open_parser(settings.config, settings.root, num_fake=settings.num_fake, num_shards=settings.num_shards)
    if settings.images_path is not None:
        check_has_images(parser)
    num_workers, num_replicas = settings.config.num_workers, settings.num_replicas
    findings.parser, findings.num_workers = parser, num_workers
    findings.is_torchrun = settings.is_torchrun
    places = [place_of(one) for one in datasets_of(parser).values()]
    findings.is_fake = any(isinstance(place, Path) and demo.is_fake(place) for place in places)
    expected = findings.expected = expect(parser, num_replicas, num_workers, settings.num_epochs)
    report.print_card(console, parser, findings.is_fake)
    findings.pipelines = count_pipelines(parser, expected)
    report.print_plan(console, expected, findings.pipelines, num_workers)
    indices = choose_examples(parser.files, parser.mean_example_bytes, parser.seed)
    before = total_stats(parser.source.networks)
    findings.sizes = read_sizes(parser, indices)
    unindexed_url = _find_unindexed(parser, before)
    findings.image_sizes = measure_images(findings.sizes)
    findings.order = OrderSample(expected.plan) if settings.html_path is not None else None
    findings.delivery, reading_parser = choose_delivery(
        settings.config, parser, findings.image_sizes, is_plain=settings.is_plain, is_single=settings.is_single
    )
    why_no_pixels = find_why_no_pixels(reading_parser, indices)
    has_pixels = why_no_pixels is None
    networks = parser.source.networks
    how = HowRead(num_workers, settings.num_epochs, settings.is_plain, frozenset(indices), has_pixels, networks)
    is_index = expected.mode == "index"
    points = choose_points(expected.plan, expected.num_epochs) if is_index else []
    kept = kept_batches(points, expected.plan.num_batches, expected.num_epochs)
    findings.ledger = Ledger(expected, parser.class_names, kept)
    findings.readings = _read(reading_parser, settings, how, findings.ledger, findings.order)
    findings.promises = judge(findings.ledger)
    findings.advice = advise(
        replace(
            _facts(parser, expected, findings, is_built_here(settings.config, settings.root, settings.num_fake)),
            unindexed_url=unindexed_url,
        )
    )
    with _busy("another reader, Pillow" + ", another number of workers" * is_index):
        sample = read_compared(parser, expected, indices)
        if is_index:
            states = findings.readings[0].resumed if findings.readings else ()
            other = read_other_world(reading_parser, expected, how, states)
            findings.promises = [*findings.promises, *judge_index(findings.ledger, findings.readings, other)]
        judge_compared(findings, findings.ledger, reading_parser, sample, why_no_pixels=why_no_pixels)
    findings.network = total_stats(parser.source.networks)
    report.print_findings(console, findings)
    if settings.images_path is not None:
        made_up = ", made-up content" if findings.is_fake else ""
        save_contact_sheet(parser, settings.images_path, f"{parser.dataset_name}  {parser.split}{made_up}")
        findings.images_path = settings.images_path
        console.print("Contact sheet:", report.plain(str(settings.images_path)), soft_wrap=True)
    if settings.html_path is not None and has_images(parser):
        findings.pictures = read_pictures(parser)
    report.print_verdict(console, findings.promises)
    return OK if findings.is_kept else BROKEN


def _read(
    parser: CheckedParser, settings: Settings, how: HowRead, ledger: Ledger, order: OrderSample | None
) -> list[RankReading]:
    num_replicas = settings.num_replicas
    readings = {}
    console = Console(stderr=True)
    networks = parser.source.networks if console.is_terminal else ()
    batch_bytes = (parser.batch_size or 1) * parser.mean_example_bytes
    with NetworkRate(networks) as network, ProgressBar(console, lambda: network.text) as progress:
        total = ledger.expected.plan.num_batches * num_replicas * how.num_epochs
        task = progress.add_task("all ranks" if settings.is_torchrun else "rank 0", total=total, rate="")
        if settings.is_torchrun:
            steps = read_ranks(parser, how, num_replicas)
        else:
            worlds = World.grid(num_replicas, 1)
            steps = ((world.rank, step) for world in worlds for step in read_rank(parser, how, world))
        epochs = dict.fromkeys(range(num_replicas), 0)
        for rank, step in steps:
            if isinstance(step, RankReading):
                readings[rank] = step
            elif isinstance(step, EpochEnd):
                ledger.end(rank, epochs[rank], step)
                epochs[rank] += 1
                network.begin_epoch()
            else:
                ledger.add(rank, epochs[rank], step)
                if order is not None and epochs[rank] == 0:
                    order.add(rank, step.index)
                network.need(batch_bytes)
                speed = progress.tasks[task].speed
                rate = f"{speed * (parser.batch_size or 1):,.0f} examples/s" if speed else ""
                description = "all ranks" if settings.is_torchrun else f"rank {rank}"
                progress.update(task, advance=1, rate=rate, description=description)
    return [reading for _, reading in sorted(readings.items())]


@contextmanager
def _busy(text: str) -> Iterator[None]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(text, total=None)
        yield


def _facts(parser: CheckedParser, expected: Expectation, findings: Findings, is_built_here: bool) -> AdviceInput:
    sizes, num_replicas = findings.image_sizes, expected.plan.world.num_replicas
    num_channels = CHANNELS[parser.dataset.image_mode] or 3
    is_crowded = findings.is_torchrun and num_replicas > 1
    is_batched = findings.delivery is not None and findings.delivery.is_batched
    return AdviceInput(
        dataset=parser.dataset_name,
        split=parser.split,
        plan=expected.plan,
        mode=expected.mode,
        read=parser.read,
        is_built_here=is_built_here,
        num_files=parser.num_shards,
        # What is read by index has a cache on this machine.
        is_remote=expected.mode != "index" and not all(is_local(run.path) for run in parser.files),
        mean_example_bytes=parser.mean_example_bytes,
        mean_image_bytes=sizes.mean_pixels * num_channels if sizes else None,
        available_bytes=available_bytes(),
        free_disk_bytes=_free_disk_bytes(parser),
        num_cores=num_cores(),
        num_loader_workers=findings.num_workers,
        # Ranks at the same time had less of the machine than one alone.
        throughput=findings.readings[0] if is_batched and not is_crowded else None,
        usual_workers=choose_workers(usable_cores(), num_replicas, available_bytes()) if is_batched else None,
    )


def _find_unindexed(parser: CheckedParser, before: NetworkStats | None) -> str | None:
    """Returns the URL of shards that were fetched whole to read a few examples: they have no index; None: they have.

    Of a web server, where no index can be written, it is None, too.
    """
    after = total_stats(parser.source.networks)
    if before is None or after is None or isinstance(parser, ParserMixture):
        return None
    place, split_bytes = place_of(parser), len(parser.source) * parser.mean_example_bytes
    if not isinstance(place, str) or not place.startswith(tuple(f"{one}://" for one in LISTED_SCHEMES)):
        return None
    return place if (after - before).bytes_fetched > _LARGE_PART * split_bytes else None


def _free_disk_bytes(parser: CheckedParser) -> int | None:
    """Returns how much room there is for a decoded cache; None where the parser cannot have one."""
    is_possible = isinstance(parser, ParserTfds) and parser.dataset.image_mode in CACHED_MODES
    if not is_possible or parser.source.obstacle is not None:
        return None
    folder = DecodedCache().path
    try:
        return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except OSError:
        return None


def _release_workers(interrupt: KeyboardInterrupt) -> None:
    """Ends the loader of an interrupted reading.

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
