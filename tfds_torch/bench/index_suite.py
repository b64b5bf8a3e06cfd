"""The suite `index`: what an index costs, what its order costs, and how fast mode `index` reads.

Command: `python -m tfds_torch.bench index`. Result, on 2 cores that others used as well: an index of 1,280,000 records
in 2 s and 27 MB, opened in 6 ms; a slice of the order of 10^10 in 0.4 ms; mode `index` between 0.92 and 1.09 times as
fast as `examples` with files in the page cache, and 1.2 times from the disk. Explanation: decoding is nearly all of the
work; `index` has no shuffle buffer to fill when an epoch begins, and spends about 7 us of Python on a small record. A
busy machine spreads the ratios of single turns from 0.8 to 1.4: a median near the limit may fall on either side.
"""

from collections.abc import Iterator, Sequence

from tfds_torch import demo
from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.index_costs import measure_building, measure_locality, measure_order
from tfds_torch.bench.read_modes import (
    EXAMPLES,
    INDEX,
    NO_CHECKSUMS,
    Contest,
    ReadMode,
    compete,
    find_outcome,
    section_of,
)
from tfds_torch.bench.section import Section
from tfds_torch.bench.suite import HALF, Found, Run, Suite
from tfds_torch.bench.system import can_drop
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.bench.task import Task

LEAST_SPEED_RATIO = 0.95

_MOST_COLD_EPOCHS = 3
_PNGS_FOR_A_PHOTO = 5
_BLOCK_RECORDS = 64

_BLOCKS = ReadMode(
    "index, blocks", {"mode": "index", "block_records": _BLOCK_RECORDS, "shuffle_buffer": 8 * _BLOCK_RECORDS}
)
_VERIFIED, _ALL_MODES = (INDEX, EXAMPLES), (INDEX, NO_CHECKSUMS, EXAMPLES)
_WARM = (
    Contest("photos_parser", "photographs, one process", "parser_level", "photos", _ALL_MODES),
    Contest("photos_decoded", "photographs behind workers, decoded", "decoded", "photos", _VERIFIED),
    Contest("photos_transformed", "photographs behind workers, transformed", "transformed", "photos", _VERIFIED),
    Contest("png_parser", "32x32 PNG, one process", "parser_level", "cifar10", _ALL_MODES, num_turns=2),
    Contest("png_arrays", "32x32 PNG behind workers", "as_arrays", "cifar10", _VERIFIED, num_turns=2),
)
_COLD = Contest(
    "photos_cold", "photographs from the disk, one process", "parser_level", "photos", (INDEX, _BLOCKS, EXAMPLES), True
)


def _measure(run: Run) -> Found:
    sections, targets = [], []
    for section, judged in (
        measure_building(run.settings, run.say),
        measure_order(run.say),
        (measure_locality(run.settings), []),
        *_measure_modes(run),
    ):
        sections.append(section)
        targets += judged
    return Found(targets, sections=sections)


def _measure_modes(run: Run) -> Iterator[tuple[Section, list[Target]]]:
    settings = run.settings
    num_pngs = _PNGS_FOR_A_PHOTO * settings.num_photos
    run.say("preparing the PNG files")
    pngs = demo.prepare_fake("cifar10", num_examples=num_pngs, num_shards=settings.num_shards)
    task = Task(str(run.data_dir), None, settings.num_half, settings.batch_size, settings.num_workers, split=HALF)
    tasks = {"photos": task, "cifar10": Task(str(pngs), None, num_pngs, settings.batch_size, settings.num_workers)}
    for contest in _WARM:
        outcomes = compete(contest, tasks[contest.dataset], settings.num_repeats, settings.timeout_s, run.say)
        note = (
            f"{tasks[contest.dataset].num_photos:,} examples an epoch, files in the page cache; "
            f"{_LEVELS[contest.level].format(settings.num_workers)}"
        )
        yield section_of(contest, outcomes, note), [judge_speed(contest, outcomes)]
    note = (
        f"Before every epoch the files are dropped from the page cache. Blocks: {_BLOCK_RECORDS} records, shuffled "
        f"within windows of {8 * _BLOCK_RECORDS}."
    )
    if can_drop():
        outcomes = compete(_COLD, task, min(_MOST_COLD_EPOCHS, settings.num_repeats), settings.timeout_s, run.say)
        yield section_of(_COLD, outcomes, note), []


_LEVELS = {
    "parser_level": "`ParserTfds.batches` in one process.",
    "decoded": "`ImageDataset` behind a DataLoader with {} workers; only the size of each image travels on.",
    "as_arrays": "`ImageDataset` behind a DataLoader with {} workers, batches of pixels.",
    "transformed": "`ImageDataset` behind a DataLoader with {} workers, the transform of the suite `sample`.",
}


def judge_speed(contest: Contest, outcomes: Sequence[Outcome]) -> Target:
    """Returns the target of mode `index` in a contest: the median of the ratios of all turns."""
    ours, theirs = find_outcome(outcomes, INDEX), find_outcome(outcomes, EXAMPLES)
    name, wanted = f"mode index: {contest.title}", f"at least {LEAST_SPEED_RATIO:g} x examples"
    for outcome in (ours, theirs):
        if outcome.missing is not None:
            return Target(name, wanted, f"cannot be judged: {outcome.peer.name} is missing: {outcome.missing}", False)
    ratio = figures.speed_ratio(ours, theirs)
    return judge_figure(
        name, wanted, None if ratio is None else ratio.median, "{:.2f} x", lambda value: value >= LEAST_SPEED_RATIO
    )


INDEX_SUITE = Suite(
    "index",
    "what random access costs, and how fast it reads",
    "This package alone. Indices of made-up TFRecord files are built and opened; slices of the order are computed; "
    "then read modes compete at the same work, in processes of their own that take turns, epoch by epoch, and are "
    "stopped (SIGSTOP) meanwhile; a warm-up epoch is not counted. Ratios are those of epochs of one turn: median "
    "(least to greatest).",
    _measure,
    "how it is measured, and why: tfds_torch.bench.index_suite",
)
