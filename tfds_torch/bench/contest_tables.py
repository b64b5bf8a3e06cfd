"""What tables say of contestants: a row for each, and the columns of every suite."""

from collections.abc import Callable, Sequence

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.section import spread_text
from tfds_torch.bench.task import OURS, TIMM

Table = tuple[list[str], list[list[str]]]
"""Headings, and rows as text."""

_Cell = Callable[[Outcome, Sequence[Outcome]], str]


def table_of(suite: str, outcomes: Sequence[Outcome]) -> Table:
    """Returns a row for every contestant of a suite that has some; those missing have dashes."""
    columns = _COLUMNS[suite]
    rows = []
    for outcome in outcomes:
        cells = [cell(outcome, outcomes) if outcome.missing is None else "-" for _, cell in columns]
        rows.append([outcome.peer.title, *cells])
    return ["contestant", *(heading for heading, _ in columns)], rows


def short_table_of(outcomes: Sequence[Outcome]) -> Table:
    """Returns contestants, examples per second of whole epochs, and how many times as fast we are, turn by turn."""
    rows = []
    for outcome in outcomes:
        speed, ratio = figures.examples_per_s(outcome), _our_ratio(outcome, outcomes)
        rows.append([outcome.peer.title, _median(speed, "{:,.0f}"), _median(ratio, "{:.2f}")])
    return ["contestant", "examples/s", "tfds_torch by it"], rows


def times_timm(outcome: Outcome, outcomes: Sequence[Outcome]) -> float | None:
    """Returns the quotient of the medians of examples per second; None where one of them is missing."""
    timm = next((other for other in outcomes if other.peer.name == TIMM and other.missing is None), None)
    ours, theirs = figures.examples_per_s(outcome), timm and figures.examples_per_s(timm)
    return ours.median / theirs.median if ours and theirs and outcome.missing is None else None


def _our_ratio(outcome: Outcome, outcomes: Sequence[Outcome]) -> Spread | None:
    """Returns our examples per second by those of a contestant, turn by turn."""
    ours = next((other for other in outcomes if other.peer.name == OURS and other.missing is None), None)
    return None if ours is None or outcome.missing is not None else figures.speed_ratio(ours, outcome)


def _median(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else form.format(spread.median)


def _middle(figure: Callable[[Outcome], Spread | None], form: str) -> _Cell:
    return lambda outcome, outcomes: _median(figure(outcome), form)


def _spread(figure: Callable[[Outcome], Spread | None], form: str) -> _Cell:
    return lambda outcome, outcomes: spread_text(figure(outcome), form)


def _speed_ratio(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    ratio = times_timm(outcome, outcomes)
    return "-" if ratio is None else f"{ratio:.2f}"


def _our_ratio_text(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return spread_text(_our_ratio(outcome, outcomes), "{:.2f}")


def _our_ratio_median(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return _median(_our_ratio(outcome, outcomes), "{:.2f}")


def _num_examples(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    found = sorted({epoch.num_examples for epoch in outcome.epochs})
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _memory(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return "-" if outcome.memory is None else _megabytes(outcome.memory.total_bytes)


def _memory_parts(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    if outcome.memory is None:
        return "-"
    return " + ".join(map(_megabytes, (outcome.memory.training_bytes, *outcome.memory.worker_bytes)))


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f}"


_SPEED = ("examples/s", _spread(figures.examples_per_s, "{:,.0f}"))
_TAIL = ("tail, s", _spread(figures.tail_s, "{:.3f}"))
_START = ("process start to first batch, s", _spread(figures.start_s, "{:.2f}"))
_LATER_BATCH = ("first batch of a later epoch, s", _spread(figures.first_batch_s, "{:.2f}"))
_MEMORY = [("memory, MB", _memory), ("of these: training process + others", _memory_parts)]
_FUSED: list[tuple[str, _Cell]] = [
    _SPEED,
    ("tfds_torch by it", _our_ratio_text),
    ("x timm", _speed_ratio),
    ("examples/s without tail", _middle(figures.examples_per_s_without_tail, "{:,.0f}")),
    ("first batch, s", _middle(figures.first_batch_s, "{:.2f}")),
    ("tail, s", _middle(figures.tail_s, "{:.3f}")),
    ("processor time of an example, us", _middle(figures.cpu_us_per_example, "{:,.0f}")),
    ("examples an epoch", _num_examples),
]
_COLUMNS: dict[str, list[tuple[str, _Cell]]] = {
    "sample": [
        _SPEED,
        ("tfds_torch by it", _our_ratio_median),
        ("first batch, s", _spread(figures.first_batch_s, "{:.2f}")),
        _TAIL,
        ("examples an epoch", _num_examples),
    ],
    "start": [_START, _LATER_BATCH, _TAIL, *_MEMORY],
    "jpeg": _FUSED,
    "jpeg_eval": _FUSED,
    "png32": _FUSED,
    "memory": [
        _START,
        ("its first epoch to first batch, s", _spread(figures.first_epoch_batch_s, "{:.2f}")),
        _LATER_BATCH,
        _TAIL,
        *_MEMORY,
    ],
}
