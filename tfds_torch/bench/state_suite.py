"""The suite `state`: what a state costs, and how long it takes from a state to the next batch.

Command: `python -m tfds_torch.bench state`. Result, on 2 cores that others used as well: 431 bytes of JSON, 0.3 ms to
save and 1.5 ms to load; from a state to the first batch 0.2 s in mode `index` and 0.4 s in the stream modes, anywhere
in an epoch. Explanation: `index` reads the batch and what is fetched ahead of the next ones; a stream first fills its
shuffle buffer, which holds all of these 4,096 photographs, so that its position does not show.
"""

from collections.abc import Sequence

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.resuming import POSITIONS, Resumption, StateCost, measure_states, resume_again_and_again
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.bench.task import Task
from tfds_torch.engines.options import ReadOptions
from tfds_torch.runtime import fresh_process

MOST_STATE_BYTES = 1000
MOST_GROWTH = 1.5

_MODES = ("index", "files", "examples")
_NUM_STATES = 200


def _measure(run: Run) -> Found:
    settings = run.settings
    task = Task(str(run.data_dir), None, settings.num_photos, settings.batch_size, num_workers=0)
    run.say("saving and loading states")
    costs = fresh_process.call(measure_states, task, _MODES, _NUM_STATES)
    resumptions = []
    num_all = settings.num_repeats * len(_MODES) * len(POSITIONS)
    run.say("resuming, a round that is not counted")
    for resumption in fresh_process.iterate(resume_again_and_again, task, _MODES, settings.num_repeats):
        resumptions.append(resumption)
        run.say(f"resuming, {len(resumptions)} of {num_all}")
    sections = [_state_section(costs), _resumption_section(resumptions, settings.num_photos)]
    return Found(judge_state(costs, resumptions, settings.batch_size), sections=sections)


def _state_section(costs: Sequence[StateCost]) -> Section:
    return Section(
        "state",
        "a state",
        f"`ImageDataset.state_dict` and `load_state_dict` in the middle of an epoch, {_NUM_STATES} times, in a process "
        "without tensorflow. The size is that of its JSON.",
        [
            Column("mode", "read mode"),
            Column("json_bytes", "JSON, bytes"),
            Column("save_ms", "state_dict, ms", "{:.2f}"),
            Column("load_ms", "load_state_dict, ms", "{:.2f}"),
        ],
        [
            {
                "mode": cost.mode,
                "json_bytes": cost.json_bytes,
                "save_ms": Spread.of(seconds * 1e3 for seconds in cost.save_s),
                "load_ms": Spread.of(seconds * 1e3 for seconds in cost.load_s),
            }
            for cost in costs
        ],
    )


def _resumption_section(resumptions: Sequence[Resumption], num_photos: int) -> Section:
    rows = []
    for mode in _MODES:
        for position in POSITIONS:
            own = _of(resumptions, mode, position)
            rows.append(
                {
                    "where": f"{mode}, {position}",
                    "first_batch_s": Spread.of(one.first_batch_s for one in own),
                    "num_read": Spread.of(one.num_read for one in own),
                    "read_mb": Spread.of(one.read_bytes and one.read_bytes / 1e6 for one in own),
                }
            )
    return Section(
        "resuming",
        "from a state to the first batch",
        f"{num_photos:,} photographs in the page cache; `load_state_dict`, then a whole batch of decoded images, in a "
        "process that has tensorflow; modes and positions take turns. Beginning, middle and end: the first, the middle "
        "and the last batch of an epoch. What is read is counted until the iteration has been closed after that batch, "
        "so that what was fetched ahead is in it.",
        [
            Column("where", "read mode, position"),
            Column("first_batch_s", "state to first batch, s", "{:.2f}"),
            Column("num_read", "records read by index"),
            Column("read_mb", "MB read", "{:,.1f}"),
        ],
        rows,
        bars="first_batch_s",
    )


def judge_state(costs: Sequence[StateCost], resumptions: Sequence[Resumption], batch_size: int) -> list[Target]:
    """Returns the targets of states and of resuming in mode `index`."""
    times = [Spread.of(one.first_batch_s for one in _of(resumptions, "index", position)) for position in POSITIONS]
    # The batch itself, those that are decoded ahead, and as much as one more that is fetched meanwhile.
    num_batches = 2 + ReadOptions().prefetch_batches
    most_read = num_batches * batch_size
    first, *later = [spread.median if spread else 0.0 for spread in times]
    return [
        judge_figure(
            "size of a state",
            f"less than {MOST_STATE_BYTES:,} bytes",
            max(cost.json_bytes for cost in costs),
            "{:,.0f} bytes",
            lambda size: size < MOST_STATE_BYTES,
        ),
        judge_figure(
            "mode index: state to first batch, middle and end of an epoch",
            f"at most {MOST_GROWTH:g} x that at its beginning",
            max(later) / first if first else None,
            "{:.2f} x",
            lambda ratio: ratio <= MOST_GROWTH,
        ),
        judge_figure(
            "mode index: records read for it, anywhere in an epoch",
            f"at most {most_read:,}: {num_batches} batches",
            max((one.num_read for one in resumptions if one.num_read is not None), default=None),
            "{:,.0f}",
            lambda number: number <= most_read,
        ),
    ]


def _of(resumptions: Sequence[Resumption], mode: str, position: str) -> list[Resumption]:
    return [one for one in resumptions if (one.mode, one.position) == (mode, position)]


STATE_SUITE = Suite(
    "state",
    "what a state costs, and how soon training goes on",
    "This package alone, without workers: sizes and times of states, and the time from a state to the first batch at "
    "different positions of an epoch, median (least to greatest). Mode `index` fetches what comes next; the stream "
    "modes pass over the encoded examples that come before.",
    _measure,
    "how it is measured, and why: tfds_torch.bench.state_suite",
)
