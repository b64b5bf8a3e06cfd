"""The weights of a mixture as periods of whole slots: checked, taken to the power 1/T, rounded where too fine."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import MOST_SLOTS
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.runtime.printable import quoted

MOST_PERIOD = 65_536
"""The largest number of slots of a period."""

SIZES = "sizes"
"""The value of `weights` that weights members by their numbers of examples."""

_MOST_EXACT_POWER = 16
_LARGE_CHANGE = Fraction(1, 100)  # A larger change of a weight by rounding is reported.


@dataclass(frozen=True)
class Segment:
    """The part of a mixture's row that has the same weights.

    Attributes:
        start: its first slot. The segment ends at the next segment's first slot; the last one does not end.
        counts: how many of `period` slots each member has, >= 0; their greatest common divisor is 1.
    """

    start: int
    counts: tuple[int, ...]

    @property
    def period(self) -> int:
        """Slots after which the order of the members begins anew, in 1..65,536."""
        return sum(self.counts)


@dataclass(frozen=True)
class Rounded:
    """A weight that rounding to 1/65,536 moves by more than 1 %: its member, its first slot and its new value."""

    name: str
    start: int
    asked: float
    found: float


def make_segments(
    sizes: Mapping[str, int], weights: object, temperature: object = 1.0
) -> tuple[tuple[Segment, ...], tuple[Rounded, ...]]:
    """Return the segments of a schedule of weights, and which weights they move by more than 1 %.

    Args:
        sizes: member -> its number of examples, > 0.
        weights: member -> number >= 0; or "sizes"; or a list of (first example, one of these), from example 0 on.
        temperature: T > 0; weights are taken to the power 1/T.

    Raises:
        ConfigError: a weight is missing, negative, not a finite number, or too fine; all of them are 0; there is no
            such member; the schedule does not begin at 0 or is out of order.
    """
    power = _inverse(temperature)
    segments, rounded = [], []
    for start, one in _check_schedule(weights):
        where = f" from example {start:,} on" if start else ""
        shares = _shares(_check_weights(one, sizes, where), power)
        counts = _round(shares, where)
        period = sum(counts.values())
        segments.append(Segment(start, tuple(counts.values())))
        rounded += [
            Rounded(name, start, float(share), counts[name] / period)
            for name, share in shares.items()
            if abs(Fraction(counts[name], period) - share) > share * _LARGE_CHANGE
        ]
    return tuple(segments), tuple(rounded)


def _inverse(temperature: object) -> Fraction:
    """Return 1/T."""
    number = _as_number(temperature)
    if number is None or number <= 0:
        raise ConfigError(
            f"temperature={quoted(temperature)} must be a number > 0: weights are taken to the power 1/temperature."
        )
    return 1 / number


def _check_schedule(weights: object) -> list[tuple[int, object]]:
    if isinstance(weights, str | Mapping):
        return [(0, weights)]
    advice = "a mapping from member to number, 'sizes', or a list of (first example, one of these)"
    if not isinstance(weights, Sequence):
        raise ConfigError(f"weights={quoted(weights)} must be {advice}, or None for a concatenation.")
    if not weights:
        raise ConfigError(f"weights={quoted(weights)} has no segment: it must be {advice}.")
    if all(_as_number(entry) is not None for entry in weights):
        raise ConfigError(
            f"weights={quoted(weights)} does not say whose the numbers are: give a mapping from member to number, such "
            f"as {{'a': 0.7, 'b': 0.3}}."
        )
    schedule: list[tuple[int, object]] = []
    for number, entry in enumerate(weights):
        if isinstance(entry, str | Mapping) or not isinstance(entry, Sequence) or len(entry) != 2:
            raise ConfigError(
                f"weights: entry {number} of the schedule is {quoted(entry)}, and must be a pair "
                f"(first example, weights), such as (2_000_000, {{'a': 0.5, 'b': 0.5}})."
            )
        start = check_integer(f"weights: the first example of entry {number}", entry[0], 0, MOST_SLOTS)
        if not schedule and start:
            raise ConfigError(f"weights: the schedule begins at example {start:,}: give weights for example 0 first.")
        if schedule and start <= schedule[-1][0]:
            raise ConfigError(
                f"weights: the schedule is out of order: entry {number} begins at example {start:,}, and the one "
                f"before it at example {schedule[-1][0]:,}. Give segments in ascending order."
            )
        schedule.append((start, entry[1]))
    return schedule


def _check_weights(weights: object, sizes: Mapping[str, int], where: str) -> dict[str, Fraction]:
    """Return member -> weight, in the order of the members."""
    if isinstance(weights, str) and weights == SIZES:
        return {name: Fraction(size) for name, size in sizes.items()}
    if not isinstance(weights, Mapping):
        hint = did_you_mean(weights, [SIZES]) if isinstance(weights, str) else ""
        raise ConfigError(
            f"weights={quoted(weights)}{where} must be a mapping from member to number, or 'sizes'.{hint}"
        )
    if weights and all(isinstance(one, Mapping) for one in weights.values()):
        raise ConfigError(
            f"weights{where}: {quoted(weights)} looks like a schedule, which is a list of pairs: "
            f"[(0, {{'a': 0.5, 'b': 0.5}}), (2_000_000, {{...}})]."
        )
    for name in weights:
        if name not in sizes:
            known = ", ".join(map(quoted, sizes))
            raise ConfigError(
                f"weights{where}: {quoted(name)} is not a member: the members are {known}.{did_you_mean(name, sizes)}"
            )
    missing = [name for name in sizes if name not in weights]
    if missing:
        raise ConfigError(
            f"weights{where}: there is none for {', '.join(map(quoted, missing))}. Every member needs a weight; 0 "
            f"leaves it out."
        )
    found = {}
    for name in sizes:
        number = _as_number(weights[name])
        if number is None or number < 0:
            raise ConfigError(
                f"weights{where}: {quoted(weights[name])} of {quoted(name)} must be a finite number >= 0."
            )
        found[name] = number
    if not any(found.values()):
        raise ConfigError(f"weights{where}: all of them are 0, so that no member has a share. Make one positive.")
    return found


def _as_number(value: Any) -> Fraction | None:
    """Return a finite number as it is written, 0.7 as 7/10 and 0.06 * 30 as 9/5; None for any other value."""
    if isinstance(value, float):  # 15 digits keep a decimal as written; the rest is the rounding of a product.
        return Fraction(f"{value:.15g}") if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return None
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    try:
        return Fraction(str(value)) if math.isfinite(value) else None
    except ValueError:  # A signalling NaN of decimal.
        return None


def _shares(weights: Mapping[str, Fraction], power: Fraction) -> dict[str, Fraction]:
    """Return member -> weight ** power, divided by their sum."""
    largest = max(weights.values())
    powers = {name: _to_power(one, power, largest) for name, one in weights.items()}
    total = sum(powers.values())
    return {name: one / total for name, one in powers.items()}


def _to_power(weight: Fraction, power: Fraction, largest: Fraction) -> Fraction:
    """Return a weight to a power, up to a factor that is the same for all weights."""
    if not weight or power == 1:
        return weight
    if power.denominator == 1 and power <= _MOST_EXACT_POWER:
        return weight**power.numerator
    # The power of the ratio: no ratio is too large for a float, and one too small for a float is too fine in the end.
    return max(Fraction(float(weight / largest) ** float(power)), Fraction(sys.float_info.min))


def _round(shares: Mapping[str, Fraction], where: str) -> dict[str, int]:
    """Return member -> slots of a period: exact where 65,536 slots are enough, else rounded by largest remainder."""
    period = math.lcm(*(share.denominator for share in shares.values()))
    if period <= MOST_PERIOD:
        return {name: int(share * period) for name, share in shares.items()}
    num_positive = sum(share > 0 for share in shares.values())
    if num_positive > MOST_PERIOD:
        raise ConfigError(
            f"weights{where}: {num_positive:,} members have a share, and a period has at most {MOST_PERIOD:,} slots. "
            f"Put members together: ParserMixture without weights is one dataset of them."
        )
    for name, share in shares.items():
        if 0 < share * MOST_PERIOD < Fraction(1, 2):
            raise ConfigError(
                f"weights{where}: the share of {quoted(name)} is {float(share):.3g}, less than half of "
                f"1/{MOST_PERIOD:,}, the finest share of a mixture. Give it a larger weight, or a temperature nearer "
                f"to 1; or 0, which leaves it out."
            )
    exact = {name: share * MOST_PERIOD for name, share in shares.items()}
    counts = {name: max(int(one), 1 if one else 0) for name, one in exact.items()}
    while missing := MOST_PERIOD - sum(counts.values()):
        step = 1 if missing > 0 else -1
        able = [name for name, one in exact.items() if one and (missing > 0 or counts[name] > 1)]
        by_need = sorted(able, key=lambda name: step * (counts[name] - exact[name]))
        for name in by_need[: abs(missing)]:
            counts[name] += step
    divisor = math.gcd(*counts.values())
    return {name: count // divisor for name, count in counts.items()}
