"""Our own targets: what must be measured, what was measured, and whether it is enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.task import OURS, TIMM

LEAST_SPEED_RATIO = 2.0
MOST_FIRST_BATCH_S = 0.7
MOST_TAIL_S = 0.1
MOST_MEMORY_RATIO = 0.5


@dataclass(frozen=True)
class Target:
    """A target of ours.

    Attributes:
        name: what is judged.
        wanted: the limit, in words.
        found: the figure, or why there is none.
        kept: whether the figure is there and within the limit.
    """

    name: str
    wanted: str
    found: str
    kept: bool


def judge_sample(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the target of the suite `sample`."""
    return [
        _judge(
            "speed of whole epochs",
            f"at least {LEAST_SPEED_RATIO:g} x timm's",
            outcomes,
            (OURS, TIMM),
            lambda ours, timm: _ratio(_median(figures.examples_per_s(ours)), _median(figures.examples_per_s(timm))),
            lambda ratio: ratio >= LEAST_SPEED_RATIO,
            "{:.2f} x",
        )
    ]


def judge_start(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of the suite `start`."""
    return [
        _judge(
            "first batch of later epochs",
            f"less than {MOST_FIRST_BATCH_S:g} s",
            outcomes,
            (OURS,),
            lambda ours: _median(figures.first_batch_s(ours)),
            lambda seconds: seconds < MOST_FIRST_BATCH_S,
            "{:.2f} s",
        ),
        _judge(
            "tail of an epoch",
            f"less than {MOST_TAIL_S:g} s",
            outcomes,
            (OURS,),
            lambda ours: _median(figures.tail_s(ours)),
            lambda seconds: seconds < MOST_TAIL_S,
            "{:.3f} s",
        ),
        _judge(
            "memory of all processes",
            f"at most {MOST_MEMORY_RATIO:g} x timm's",
            outcomes,
            (OURS, TIMM),
            lambda ours, timm: _ratio(_total_bytes(ours), _total_bytes(timm)),
            lambda ratio: ratio <= MOST_MEMORY_RATIO,
            "{:.2f} x",
        ),
    ]


def judge_figure(name: str, wanted: str, figure: float | None, form: str, is_enough: Callable[[float], bool]) -> Target:
    """Returns a target for one figure; one that is not there is not kept.

    Args:
        name: what is judged.
        wanted: the limit, in words.
        figure: what was measured; None: the system does not tell, or the measurement failed.
        form: how it is written, as for `str.format`.
        is_enough: whether it is within the limit.
    """
    if figure is None:
        return Target(name, wanted, "cannot be judged: there is no figure on this system", False)
    return Target(name, wanted, form.format(figure), is_enough(figure))


def _judge(
    name: str,
    wanted: str,
    outcomes: Sequence[Outcome],
    needed: Sequence[str],
    figure_of: Callable[..., float | None],
    is_enough: Callable[[float], bool],
    form: str,
) -> Target:
    there = {outcome.peer.name: outcome for outcome in outcomes}
    for peer in needed:
        if peer not in there:
            return Target(name, wanted, f"cannot be judged: {peer} did not take part", False)
        if there[peer].missing is not None:
            return Target(name, wanted, f"cannot be judged: {peer} is missing: {there[peer].missing}", False)
    return judge_figure(name, wanted, figure_of(*(there[peer] for peer in needed)), form, is_enough)


def _median(spread: figures.Spread | None) -> float | None:
    return None if spread is None else spread.median


def _total_bytes(outcome: Outcome) -> float | None:
    return None if outcome.memory is None else outcome.memory.total_bytes


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours / theirs
