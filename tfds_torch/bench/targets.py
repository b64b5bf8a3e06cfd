"""Our own targets: what must be measured, what was measured, and whether it is enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.task import OURS, TIMM, WEBDATASET

LEAST_SPEED_RATIO = 2.0
LEAST_WEBDATASET_RATIO = 1.1
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
    """Returns the targets of the suite `sample`: ratios are medians of those of all turns."""
    return [
        judge_speed(outcomes, LEAST_SPEED_RATIO, TIMM, "timm's"),
        judge_speed(outcomes, LEAST_WEBDATASET_RATIO, WEBDATASET, "WebDataset's, with the same transform"),
    ]


def judge_start(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of the suite `start`."""
    return [
        judge_first_batch(outcomes, MOST_FIRST_BATCH_S),
        judge_tail(outcomes, MOST_TAIL_S),
        judge_memory_ratio(outcomes, MOST_MEMORY_RATIO),
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


def judge_speed(outcomes: Sequence[Outcome], least: float, other: str, whose: str, ours: str = OURS) -> Target:
    """Returns the target of our examples per second by another's: the median of the ratios of all turns.

    Args:
        outcomes: what all contestants did.
        least: the ratio that is wanted.
        other: the name of whom we are compared with.
        whose: the same in words, as in "at least 2 x timm's".
        ours: which of our own contestants is judged.
    """
    return judge_outcomes(
        f"speed against {other}" if ours == OURS else f"speed of {ours} against {other}",
        f"at least {least:g} x {whose}",
        outcomes,
        (ours, other),
        lambda one, another: median_of(figures.speed_ratio(one, another)),
        lambda ratio: ratio >= least,
        "{:.2f} x",
    )


def judge_first_batch(outcomes: Sequence[Outcome], most_s: float, *, or_equal: bool = False) -> Target:
    """Returns the target of our first batch of later epochs: less than `most_s`, seconds, or that at most."""
    name, figure = "first batch of later epochs", figures.first_batch_s
    return judge_seconds(name, outcomes, figure, "{:.2f} s", most_s, or_equal=or_equal)


def judge_tail(outcomes: Sequence[Outcome], most_s: float, *, or_equal: bool = False) -> Target:
    """Returns the target of our tail of an epoch: less than `most_s`, seconds, or that at most."""
    return judge_seconds("tail of an epoch", outcomes, figures.tail_s, "{:.3f} s", most_s, or_equal=or_equal)


def judge_seconds(
    name: str,
    outcomes: Sequence[Outcome],
    figure: Callable[[Outcome], figures.Spread | None],
    form: str,
    most_s: float,
    *,
    or_equal: bool,
    peer: str = OURS,
) -> Target:
    """Returns the target of a duration of one of our contestants: less than `most_s`, seconds, or that at most."""
    return judge_outcomes(
        name,
        f"{'at most' if or_equal else 'less than'} {most_s:g} s",
        outcomes,
        (peer,),
        lambda ours: median_of(figure(ours)),
        lambda seconds: seconds < most_s or (or_equal and seconds == most_s),
        form,
    )


def judge_memory_ratio(outcomes: Sequence[Outcome], most: float) -> Target:
    """Returns the target of the memory of all of our processes, by that of all of timm's."""
    return judge_outcomes(
        "memory of all processes",
        f"at most {most:g} x timm's",
        outcomes,
        (OURS, TIMM),
        lambda ours, timm: _ratio(_total_bytes(ours), _total_bytes(timm)),
        lambda ratio: ratio <= most,
        "{:.2f} x",
    )


def judge_outcomes(
    name: str,
    wanted: str,
    outcomes: Sequence[Outcome],
    needed: Sequence[str],
    figure_of: Callable[..., float | None],
    is_enough: Callable[[float], bool],
    form: str,
) -> Target:
    """Returns a target for a figure of some contestants; where one of them has none, it is not kept.

    Args:
        name: what is judged.
        wanted: the limit, in words.
        outcomes: what all contestants did.
        needed: names of those that the figure is made of.
        figure_of: takes their outcomes; None: there is no figure.
        is_enough: whether a figure is within the limit.
        form: how it is written, as for `str.format`.
    """
    there = {outcome.peer.name: outcome for outcome in outcomes}
    for peer in needed:
        if peer not in there:
            return Target(name, wanted, f"cannot be judged: {peer} did not take part", False)
        if there[peer].missing is not None:
            return Target(name, wanted, f"cannot be judged: {peer} is missing: {there[peer].missing}", False)
    return judge_figure(name, wanted, figure_of(*(there[peer] for peer in needed)), form, is_enough)


def median_of(spread: figures.Spread | None) -> float | None:
    """Returns the median, where there is one."""
    return None if spread is None else spread.median


def _total_bytes(outcome: Outcome) -> float | None:
    return None if outcome.memory is None else outcome.memory.total_bytes


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours / theirs
