"""The suite `cached`: images that are stored as pixels, in a `.beton` file or a decoded cache.

Command: `python -m tfds_torch.bench cached`. Explanation: what is left of reading is memory: 256 images of 32x32 pixels
are copied from random places in 75 us, and read in 15. FFCV's compiled threads add little to that; we add some 100 us
for every batch, of the order, the loader and handing over to a thread. Cutting and mirroring is numpy's.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch import demo
from tfds_torch.bench import figures
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.contests import STOPPED
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.many_samples import Opening, measure_opening
from tfds_torch.bench.report import epoch_as_dict, missing_outcomes
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_figure, judge_seconds, judge_speed
from tfds_torch.bench.task import FFCV, OURS, PLAIN, TIMM, TRAIN, Peer, Task
from tfds_torch.bench.turns import take_turns
from tfds_torch.runtime import fresh_process
from tfds_torch.storage.beton.fields import BetonField, BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

LEAST_FFCV_RATIOS = {PLAIN: 2.0, TRAIN: 3.0}
LEAST_TIMM_RATIO = 100.0
MOST_FIRST_BATCH_S = 0.3
MOST_OPEN_S = 1.0
MOST_OPEN_BYTES_A_SAMPLE = 8

_SHAPE = (3, 32, 32)
_BATCH_SIZE = 256
_PIXELS_FOR_A_PHOTO, _PNGS_FOR_A_PHOTO, _SAMPLES_FOR_A_PHOTO = 12, 5, 256
_TURNS_FOR_A_REPEAT = 4  # Epochs of some 0.1 s.
_PEERS = "tfds_torch.bench.peers"
_FROM_BETON = (
    Peer(OURS, "tfds_torch", f"{_PEERS}.small_pixels:load"),
    Peer(FFCV, "FFCV", f"{_PEERS}.small_pixels:load_ffcv"),
)
_FROM_PNG = (
    Peer(OURS, "tfds_torch, decoded cache", f"{_PEERS}.decoded_cache:load"),
    Peer(TIMM, "timm create_loader", f"{_PEERS}.timm_loader:load"),
)
_TITLES = {PLAIN: "pixels as they are", TRAIN: "pixels, flipped and cut out of a padded image"}


def _measure(run: Run) -> Found:
    sections, targets = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run.say("writing small images")
        fresh_process.call(write_pixels, name, run.settings.num_photos * _PIXELS_FOR_A_PHOTO)
        for work in LEAST_FFCV_RATIOS:
            outcomes = _read_pixels(run, name, work)
            sections.append(_contest(work, _TITLES[work], _NOTE, outcomes, outcomes[-1]))
            targets += judge_pixels(work, outcomes)
        outcomes = _read_cache(run, folder / "cache")
        sections.append(_contest("cache", "a decoded cache", _CACHE_NOTE, outcomes, outcomes[-1]))
        targets.append(judge_cache(outcomes))
        run.say("opening a file of many samples")
        many = run.settings.num_photos * _SAMPLES_FOR_A_PHOTO
        openings = [measure_opening(folder, many) for _ in range(run.settings.num_repeats)]
    return Found([*targets, *judge_opening(openings)], sections=[*sections, _opening_section(openings)])


def write_pixels(folder: str, num_images: int) -> None:
    """Writes `images.beton` with random pixels, uint8 [32, 32, 3], and labels."""
    pixels = np.random.default_rng(0).integers(0, 256, (1024, *_SHAPE[1:], _SHAPE[0]), np.uint8)
    fields: dict[str, BetonField] = {"image": BetonImage("raw"), "label": BetonInt()}
    with BetonWriter(Path(folder) / "images.beton", fields, num_images) as writer:
        for number in range(num_images):
            writer.add((pixels[number % len(pixels)], number % 10))


def _read_pixels(run: Run, folder: str, work: str) -> list[Outcome]:
    settings = run.settings
    task = Task(
        str(run.data_dir),
        folder,
        settings.num_photos * _PIXELS_FOR_A_PHOTO,
        _BATCH_SIZE,
        settings.num_workers,
        image_shape=_SHAPE,
        work=work,
    )
    contestants = [ContestantProcess(peer, task, settings.timeout_s) for peer in _FROM_BETON]
    return take_turns(contestants, _TURNS_FOR_A_REPEAT * settings.num_repeats, run.say)


def _read_cache(run: Run, folder: Path) -> list[Outcome]:
    settings = run.settings
    num_examples = settings.num_photos * _PNGS_FOR_A_PHOTO
    run.say("preparing cifar10")
    data_dir = demo.prepare_fake("cifar10", num_examples=num_examples, num_shards=settings.num_shards, progress=False)
    task = Task(
        str(data_dir),
        str(folder),
        num_examples,
        _BATCH_SIZE,
        settings.num_workers,
        dataset="cifar10",
        image_shape=_SHAPE,
        work=PLAIN,
    )
    contestants = [ContestantProcess(peer, task, settings.timeout_s) for peer in _FROM_PNG]
    return take_turns(contestants, settings.num_repeats, run.say)


def judge_pixels(work: str, outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of reading pixels."""
    speed = judge_speed(outcomes, LEAST_FFCV_RATIOS[work], FFCV, "FFCV's")
    return [
        replace(speed, name=f"{speed.name}, {_TITLES[work]}"),
        judge_seconds(
            f"very first batch, {_TITLES[work]}",
            outcomes,
            figures.first_epoch_batch_s,
            "{:.3f} s",
            MOST_FIRST_BATCH_S,
            or_equal=False,
        ),
    ]


def judge_cache(outcomes: Sequence[Outcome]) -> Target:
    """Returns the target of the decoded cache, from its second epoch on."""
    speed = judge_speed(outcomes, LEAST_TIMM_RATIO, TIMM, "timm's")
    return replace(speed, name=f"{speed.name}, from a decoded cache")


def judge_opening(openings: Sequence[Opening]) -> list[Target]:
    """Returns the targets of opening a file of very many samples."""
    slowest = max(opening.open_s for opening in openings)
    kept = [opening.kept_bytes / opening.num_samples for opening in openings if opening.kept_bytes is not None]
    name = f"opening {openings[0].num_samples:,} samples"
    return [
        judge_figure(name, f"less than {MOST_OPEN_S:g} s", slowest, "{:.3f} s", lambda took_s: took_s < MOST_OPEN_S),
        judge_figure(
            f"memory of {name}",
            f"at most {MOST_OPEN_BYTES_A_SAMPLE} bytes a sample",
            max(kept, default=None),
            "{:.1f} bytes",
            lambda size: size <= MOST_OPEN_BYTES_A_SAMPLE,
        ),
    ]


def _contest(name: str, title: str, note: str, outcomes: Sequence[Outcome], other: Outcome) -> Section:
    return Section(
        name,
        title,
        note,
        [
            Column("contestant", "contestant"),
            Column("examples_per_s", "examples/s"),
            Column("ratio", f"x {other.peer.title}, turn by turn", "{:.2f}"),
            Column("cpu_us", "processor time of an example, us", "{:.2f}"),
            Column("very_first_batch_s", "very first batch, s", "{:.3f}"),
            Column("first_batch_s", "first batch of later epochs, s", "{:.3f}"),
        ],
        [_row(outcome, other) for outcome in outcomes],
        missing_outcomes(outcomes),
        bars="examples_per_s",
    )


def _row(outcome: Outcome, other: Outcome) -> dict[str, Any]:
    if outcome.missing is not None:
        return {"contestant": outcome.peer.title}
    return {
        "contestant": outcome.peer.title,
        "examples_per_s": figures.examples_per_s(outcome),
        "ratio": figures.speed_ratio(outcome, other),
        "cpu_us": figures.cpu_us_per_example(outcome),
        "very_first_batch_s": figures.first_epoch_batch_s(outcome),
        "first_batch_s": figures.first_batch_s(outcome),
        "epochs": [epoch_as_dict(epoch) for epoch in outcome.epochs],
    }


def _opening_section(openings: Sequence[Opening]) -> Section:
    return Section(
        "opening",
        "opening a file of many samples",
        "Each a few bytes and a number, with ids; in a fresh process, from the page cache, all pointers and the "
        "checksums of metadata and table checked.",
        [
            Column("samples", "samples"),
            Column("open_s", "opening, s", "{:.3f}"),
            Column("kept_mb", "resident memory kept, MB", "{:.1f}"),
        ],
        [
            {
                "samples": f"{openings[0].num_samples:,}",
                "open_s": Spread.of(opening.open_s for opening in openings),
                "kept_mb": Spread.of(opening.kept_bytes and opening.kept_bytes / 1e6 for opening in openings),
            }
        ],
    )


_NOTE = (
    "uint8 [32, 32, 3] in one `.beton` file in the page cache, in a random order, whole epochs in batches of 256, "
    "nothing dropped; every byte of a batch is read. A warm-up epoch is not counted, but its first batch is told: what "
    "FFCV compiles is in it, and what is imported before is not."
)
_CACHE_NOTE = (
    "32x32 PNG images (cifar10 with made-up content), shuffled, in batches of 256 as they are. The cache is built "
    "before the warm-up epoch, which is not counted. timm decodes in its workers."
)
CACHED = Suite(
    "cached",
    "images stored as pixels: a .beton file, and the decoded cache",
    "This package against FFCV at one and the same file, and its decoded cache against timm's reader. Contestants live "
    f"in processes of their own and take turns, epoch by epoch; {STOPPED}Median (least to greatest).",
    _measure,
    "how each contestant is configured, and why: tfds_torch.bench.peers.small_pixels, decoded_cache and timm_loader",
    distributions=("ffcv", "numba", "timm"),
)
