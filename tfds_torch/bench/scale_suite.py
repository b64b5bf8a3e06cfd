"""The suite `scale`: this package's whole batches, by workers and batch sizes.

Command: `python -m tfds_torch.bench scale`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.contests import STOPPED
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.report import epoch_as_dict, missing_outcomes
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import HALF, Found, Run, Suite
from tfds_torch.bench.task import FUSED_PEERS, Peer, Task
from tfds_torch.bench.turns import take_turns
from tfds_torch.runtime.machine_share import num_cores

_BATCH_SIZES = (32, 128, 256)


def _measure(run: Run) -> Found:
    settings, (ours, *_) = run.settings, FUSED_PEERS
    workers = list(_worker_counts(num_cores()))
    most = settings.num_half // workers[-1]
    sections = []
    for batch_size in sorted({min(size, most) for size in _BATCH_SIZES}):
        contestants = []
        for num_workers in workers:
            title = f"{num_workers} workers" if num_workers != 1 else "1 worker"
            peer = Peer(title, f"{title}, batches of {batch_size}", ours.loader)
            task = Task(str(run.data_dir), None, settings.num_half, batch_size, num_workers, split=HALF)
            contestants.append(ContestantProcess(peer, task, settings.timeout_s))
        sections.append(_section(batch_size, take_turns(contestants, 1, run.say)))
    return Found([], sections=sections)


def _worker_counts(cores: int) -> Iterator[int]:
    """Yields 0, the powers of two below the number of cores, and that number."""
    yield 0
    power = 1
    while power < cores:
        yield power
        power *= 2
    yield cores


def _section(batch_size: int, outcomes: Sequence[Outcome]) -> Section:
    return Section(
        f"batches_of_{batch_size}",
        f"batches of {batch_size}",
        "Examples per second of whole epochs; ratios are those of epochs of one turn.",
        [
            Column("workers", "workers"),
            Column("examples_per_s", "examples/s"),
            Column("ratio", "x without workers", "{:.2f}"),
            Column("cpu_us", "processor time of an example, us"),
            Column("first_batch_s", "first batch, s", "{:.2f}"),
            Column("tail_s", "tail, s", "{:.3f}"),
        ],
        [_row(outcome, outcomes[0]) for outcome in outcomes],
        missing_outcomes(outcomes),
        bars="examples_per_s",
    )


def _row(outcome: Outcome, without_workers: Outcome) -> dict[str, Any]:
    if outcome.missing is not None:
        return {"workers": outcome.peer.name}
    return {
        "workers": outcome.peer.name,
        "examples_per_s": figures.examples_per_s(outcome),
        "ratio": figures.speed_ratio(outcome, without_workers),
        "cpu_us": figures.cpu_us_per_example(outcome),
        "first_batch_s": figures.first_batch_s(outcome),
        "tail_s": figures.tail_s(outcome),
        "epochs": [epoch_as_dict(epoch) for epoch in outcome.epochs],
    }


SCALE = Suite(
    "scale",
    "whole batches by the number of workers and the size of batches",
    "This package alone, at the work of the suite `jpeg`, with half of the photographs: from no workers to one for "
    "every core, with batches of different sizes. For every size they live in processes of their own and take turns: "
    f"a warm-up epoch, which is not counted, and one more; {STOPPED}Median (least to greatest).",
    _measure,
    "how it is measured, and why: tfds_torch.bench.scale_suite",
)
