"""Numbers and tables as a reader is shown them. Pure."""

from collections.abc import Mapping

from tfds_torch.check.ledger import EpochCounts
from tfds_torch.check.reference import datasets_of, place_of
from tfds_torch.parsers.mixture import ParserMixture

Rows = tuple[list[str], list[list[str]]]
"""Headings of a table, and its rows."""


def plural(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 batch`, `1,437 examples`."""
    ending = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{ending}"


def show_bytes(number: float) -> str:
    """Returns a size with three digits, in units of 1000: `276 kB`."""
    rounded = float(f"{number:.3g}")  # First, so that 999.6 kB are 1 MB.
    power = min(4, max(0, len(f"{rounded:.0f}") - 1) // 3)
    if power == 0:
        return plural(round(rounded), "byte")
    size = rounded / 1000**power
    shown = f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"
    return f"{shown} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def show_seconds(seconds: float) -> str:
    """Returns a duration with three digits at most: `12.3 s`, `340 ms`, `0.4 ms`."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 9.95 else f"{milliseconds:.1f} ms"


def describe_members(parser: ParserMixture) -> list[str]:
    """Returns a line for each member: what it is, its weight in each part of the schedule, and where it lies."""
    lines = []
    for name, dataset in datasets_of(parser).items():
        weights = [_show_weight(start, shares[name]) for start, shares in parser.weights or ()]
        weight = f", weight {' and '.join(weights)}" if weights else ""
        examples = plural(dataset.num_examples, "example")
        place = place_of(dataset)
        where = "" if place is None else f", in {place}"
        lines.append(f"{name}: {dataset.dataset_name} {dataset.split}, {examples}{weight}{where}")
    return lines


def _show_weight(start: int, share: float) -> str:
    return f"from example {start:,} on {share:.4g}" if start else f"{share:.4g}"


def count_rows(counts: Mapping[int, EpochCounts], kind: str = "member") -> Rows:
    """Returns the table of what came of every member (or class) in every epoch, without what fills the last batch."""
    rows = []
    for epoch, count in sorted(counts.items()):
        total = max(1, sum(one.num_valid for one in count.members))
        for one in count.members:
            off = "-" if one.most_off is None else f"{one.most_off:.2f}"
            numbers = f"{one.num_valid:,}", f"{one.num_planned:,}", f"{one.num_valid / total:.2%}", off
            rows.append([str(epoch), one.name, *numbers])
    return ["epoch", kind, "came", "announced", "share", "farthest from n x weight"], rows
