"""The part of the report page about a mixture, with a picture of its shares over an epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from tfds_torch.check.figures import count_rows
from tfds_torch.check.ledger import EpochCounts
from tfds_torch.check.member_counts import Int64Array, MemberCounts, draw_independently, expected_counts
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.mixed import Mixed
from tfds_torch.runtime.printable import printable


@dataclass(frozen=True)
class Part:
    """A part of the page; what is empty is left out.

    Attributes:
        id: of its element, for links.
        title: its heading.
        note: a sentence below it.
        headings: of a table.
        rows: of the table; a cell that is Markup was made here.
        drawings: (title, SVG, caption) each.
        images: (URI, whether it is enlarged, caption) each.
        details: (summary, ids) each, folded.
        sentences: a list.
    """

    id: str
    title: str
    note: str = ""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    drawings: Sequence[tuple[str, Markup, str]] = ()
    images: Sequence[tuple[Markup, bool, str]] = ()
    details: Sequence[tuple[str, Sequence[str]]] = ()
    sentences: Sequence[str] = ()


_MOST_DRAWN = 8
_MOST_STEPS = 50


def mixture_part(plan: EpochPlan, counts: Mapping[int, EpochCounts], members: MemberCounts) -> Part:
    """Returns the part of the page about a mixture: what came of its members, and their shares over epoch 0."""
    headings, rows = count_rows(counts)
    note = "Examples of each member, by their ids, without those that fill the last batch."
    order = plan.order
    if not isinstance(order, Mixed):
        note += " The mixture has no weights: it has every example of every member, once in each pass."
        return Part("mixture", "Mixture", note, headings, rows)
    note += " In each part of a schedule, the first n examples have within 1 of n x weight of each member, for every n."
    colours = {name: f"m{min(number, _MOST_DRAWN - 1)}" for number, name in enumerate(members.names)}
    chips: list[list[object]] = [
        [epoch, Markup('<i class="chip {}"></i> {}').format(colours[name], printable(name)), *others]
        for epoch, name, *others in rows
    ]
    drawings = _draw_shares(order, members, plan.seed) if 0 in counts else []
    return Part("mixture", "Mixture", note, headings, chips, drawings)


def _draw_shares(order: Mixed, members: MemberCounts, seed: int) -> list[tuple[str, Markup, str]]:
    """Returns the shares that came in epoch 0, and those of members drawn at random, which many loaders do."""
    steps = -(-members.num_windows // _MOST_STEPS)
    firsts = np.arange(0, members.num_windows, steps)
    ends = members.ends[np.minimum(firsts + steps, members.num_windows) - 1]
    came = np.add.reduceat(members.windows(0), firsts, axis=0)
    drawn = draw_independently(order, ends.tolist(), seed)
    found = []
    for title, windows, said in (
        ("This run", came, "What came in epoch 0"),
        ("Members drawn at random", drawn, "Simulated: each example's member is drawn by the weights"),
    ):
        off = float(np.abs(np.cumsum(windows, axis=0) - expected_counts(order, ends)[0]).max())
        caption = f"{said}. Farthest from n x weight: {off:.2f} examples."
        found.append((title, _draw_areas(windows, ends, title), caption))
    return found


def _draw_areas(windows: Int64Array, ends: Int64Array, title: str) -> Markup:
    """Returns a band for each member, as broad as its share of each window; of many members the last ones together."""
    drawn = windows[:, :_MOST_DRAWN].copy()
    drawn[:, -1] += windows[:, _MOST_DRAWN:].sum(axis=1)
    shares = np.cumsum(drawn, axis=1) / np.maximum(1, drawn.sum(axis=1, keepdims=True))
    tops = (1000 - 1000 * np.hstack([np.zeros((len(shares), 1)), shares])).round().astype(int)
    places = (1000 * np.array([0, *ends.tolist()]) / max(1, int(ends[-1]))).round().astype(int).tolist()
    bands = Markup("")
    for number in range(drawn.shape[1]):
        there = "".join(f"V{top}H{stop}" for top, stop in zip(tops[:, number + 1].tolist(), places[1:], strict=True))
        back = "".join(
            f"V{bottom}H{start}" for bottom, start in zip(tops[::-1, number].tolist(), places[-2::-1], strict=True)
        )
        bands += Markup('<path class="m{}" d="M0 {}{}{}z"/>').format(number, tops[0, number], there, back)
    return Markup(
        '<svg class="shares" viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        'aria-label="shares of the members over epoch 0: {}">{}</svg>'
    ).format(title, bands)
