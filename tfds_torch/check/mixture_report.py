"""What a report says of a mixture: its members, and what came of each."""

from collections.abc import Mapping

from tfds_torch.check.figures import Rows, plural
from tfds_torch.check.ledger import EpochCounts
from tfds_torch.check.reference import datasets_of, place_of
from tfds_torch.parsers.mixture_parser import ParserMixture


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
