"""The suites of whole batches, with the preprocess in the pipeline: `jpeg`, `jpeg_eval`, `png32` and `memory`."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tfds_torch.bench.contests import CONFIGURED, FRESH, PSS, STOPPED, Work, compete, in_fresh_processes, in_turns
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.fused_targets import judge_jpeg, judge_memory, judge_png32
from tfds_torch.bench.import_times import import_s
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target
from tfds_torch.bench.task import (
    BASELINE,
    BATCHED,
    EIGHT_WORKERS,
    EVAL,
    FFCV,
    FUSED_PEERS,
    IMAGE_SHAPE,
    OURS,
    OURS_IN_PROCESS,
    PLAIN,
    TIMM,
    Peer,
)
from tfds_torch.runtime import fresh_process

_NUM_PNGS_FOR_A_PHOTO = 5
_IMPORTED = "torch"

_PHOTOS = "Every contestant reads the same photographs (the demo dataset `photos`: JPEG, about 500x375, 60 to 120 KB), "
_DELIVERS = (
    "and delivers batches uint8 {} to the training process, which does nothing else. Each does it in its own fastest "
    "way. "
)
_BASELINE = "The baseline is an older revision of this package, at the same work and with the same settings. "
_LIMIT = (
    "The limit, `decode and crop alone`, decodes from memory, on all cores, by tensorflow's decoder; it resizes "
    "nothing and hands nothing over. "
)
_TURNS = (
    "Contestants live in processes of their own and take turns, epoch by epoch; a warm-up epoch is not counted; "
    f"{STOPPED}Examples per second are those of whole epochs, and without the tail after the last batch; ratios are "
    "those of epochs of one turn: median (least to greatest)."
)


def _measure_jpeg(run: Run) -> Found:
    return compete(run, Work(), in_turns(run, run.settings.num_repeats), judge_jpeg)


def _measure_jpeg_eval(run: Run) -> Found:
    return compete(run, Work(EVAL), in_turns(run, 1), lambda _: [])


def _measure_png32(run: Run) -> Found:
    work = Work(PLAIN, "cifar10", (3, 32, 32), _NUM_PNGS_FOR_A_PHOTO)
    return compete(run, work, in_turns(run, run.settings.num_repeats), judge_png32)


def _measure_memory(run: Run) -> Found:
    run.say(f"importing {_IMPORTED}")
    took_s = Spread.of(fresh_process.call(import_s, _IMPORTED) for _ in range(run.settings.num_repeats))
    batch_bytes = run.settings.batch_size * math.prod(IMAGE_SHAPE)

    def judge(outcomes: Sequence[Outcome]) -> list[Target]:
        return judge_memory(outcomes, took_s, run.settings.num_workers, batch_bytes)

    found = compete(run, Work(), in_fresh_processes(run), judge)
    return replace(found, sections=[_import_section(took_s)])


def _import_section(took_s: Spread | None) -> Section:
    return Section(
        "imports",
        "what an import alone takes",
        "In a fresh process that has imported nothing else, in the same run.",
        [Column("module", "module"), Column("import_s", "import, s", "{:.2f}")],
        [{"module": _IMPORTED, "import_s": took_s}],
    )


def _insert_after(name: str, peer: Peer, peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """Returns contestants with one more, whose turn follows that of a named one."""
    return tuple(each for known in peers for each in ((known, peer) if known.name == name else (known,)))


JPEG = Suite(
    "jpeg",
    "photographs a second into the training process, in whole batches",
    f"{_PHOTOS}shuffled, cuts and resizes a random piece of each to 224x224, bilinear and antialiased, flips half of "
    f"them, {_DELIVERS.format('[B, 3, 224, 224]')}{_BASELINE}{_LIMIT}{_TURNS}",
    _measure_jpeg,
    CONFIGURED,
    FUSED_PEERS,
)
JPEG_EVAL = Suite(
    "jpeg_eval",
    "photographs of an evaluation a second into the training process, in whole batches",
    f"{_PHOTOS}in the order of the files, resizes their short side to 256, bilinear and antialiased, cuts the middle "
    f"224x224, {_DELIVERS.format('[B, 3, 224, 224]')}{_LIMIT}{_TURNS} One epoch of each is measured.",
    _measure_jpeg_eval,
    CONFIGURED,
    tuple(peer for peer in FUSED_PEERS if peer.name != BASELINE),
)
PNG32 = Suite(
    "png32",
    "small images a second into the training process, in whole batches",
    "Every contestant reads the same 32x32 PNG images (cifar10 with made-up content), shuffled, decodes them, "
    f"{_DELIVERS.format('[B, 3, 32, 32]')}FFCV reads pixels, not PNG. {_BASELINE}{_LIMIT}{_TURNS}",
    _measure_png32,
    CONFIGURED,
    _insert_after(OURS, BATCHED, FUSED_PEERS),
)
MEMORY = Suite(
    "memory",
    "how training in whole batches begins, and in how much memory",
    f"The work of the suite `jpeg`; WebDataset and Grain do the same in the suite `start`. {FRESH}The first column "
    "counts from the start of the process, imports included, the second one from asking for the first epoch's "
    f"iterator. {_BASELINE}{PSS}",
    _measure_memory,
    CONFIGURED,
    _insert_after(
        OURS_IN_PROCESS,
        EIGHT_WORKERS,
        [peer for peer in FUSED_PEERS if peer.name in (OURS, BASELINE, OURS_IN_PROCESS, TIMM, FFCV)],
    ),
)
