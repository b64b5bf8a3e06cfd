"""Report: the findings of a check, as plain data. Text, page and JSON (`render`) show the same sections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from tfds_torch.check.ledger import EpochCounts


@dataclass(frozen=True)
class Promise:
    """A promise and whether it was kept; `detail` has the figures, and what broke it."""

    name: str
    kept: bool
    detail: str


@dataclass(frozen=True)
class NotJudged:
    """A promise that cannot be judged, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """A value that people are shown in another form than JSON.

    Attributes:
        value: for JSON: plain values.
        text: for people; empty if they are not shown it.
        mark: `good`, `bad` or `unknown`; empty for other values.
        share: 0 to 1, which is drawn as a bar; None without one.
        html: the markup that the page shows in the place of the text; None for the text.
    """

    value: Any
    text: str
    mark: str = ""
    share: float | None = None
    html: Markup | None = None


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Attributes:
        caption: below it.
        drawing: SVG; or None for an image.
        title: above a drawing.
        uri: of an image, which holds its bytes.
        is_enlarged: whether an image is shown larger than it is, unsmoothed.
    """

    caption: str
    drawing: Markup | None = None
    title: str = ""
    uri: Markup | None = None
    is_enlarged: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a report: a sentence, facts, a table, pictures; empty parts are left out.

    Facts and cells of the table are plain values, or Cells. Their names are the keys in JSON; people are shown those
    that `columns` names, with headings made of the names.

    Attributes:
        key: where it is in JSON, and its element on the page.
        title: its heading.
        note: a sentence for people.
        columns: names of the facts and of the table's columns that people are shown, in order.
        facts: name -> value.
        rows: of the table, column -> value. A row of one column "" is a plain value in JSON.
        shown: the rows that people are shown instead; None for `rows`.
        of: a noun for the rows, for "and 5 more ...".
        rows_key: the rows' key among the facts in JSON, where there are both.
        pictures: of the page.
        folded: (summary, texts) that the page shows when asked to.
        is_printed: whether the text has it; the page and JSON have every section.
    """

    key: str
    title: str
    note: str = ""
    columns: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    shown: Sequence[Mapping[str, Any]] | None = None
    of: str = "rows"
    rows_key: str = ""
    pictures: Sequence[Picture] = ()
    folded: Sequence[tuple[str, Sequence[str]]] = ()
    is_printed: bool = True


@dataclass
class Report:
    """The findings of `prove`; `check_parser` returns it. `assert report.is_kept, report` is a test.

    It is filled as results become known: after an error or Ctrl-C it has the sections until then.

    Attributes:
        promises: each with its `name`, whether it was `kept`, and a `detail` with figures and what broke it.
        not_judged: promises that this parser cannot be asked for, each with its `name` and `reason`.
        counts: epoch -> batches of each rank, and how many examples were valid, padded, missing, twice or unknown; of
            those epochs that every rank has read.
        sections: the sections that are shown, in order.
        num_batches: batches that came, of all ranks and epochs.
        num_planned_batches: batches that were to come; None if that did not become known.
        is_torchrun: whether the ranks were processes of torch.distributed that read at the same time.
        images_path: the contact sheet that was written; None without one.
        error: the error that ended the check early; None without one.
        is_interrupted: whether Ctrl-C ended it.
    """

    promises: Sequence[Promise] = ()
    not_judged: Sequence[NotJudged] = ()
    counts: "Mapping[int, EpochCounts]" = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    num_batches: int = 0
    num_planned_batches: int | None = None
    is_torchrun: bool = False
    images_path: Path | None = None
    error: Exception | None = None
    is_interrupted: bool = False

    def put(self, section: Section) -> None:
        """Add a section, or replace the one of the same key."""
        keys = [one.key for one in self.sections]
        if section.key in keys:
            self.sections[keys.index(section.key)] = section
        else:
            self.sections.append(section)

    @property
    def is_kept(self) -> bool:
        """Whether promises were judged, and every one of them kept, in a check that came to its end."""
        return self.error is None and not self.is_interrupted and bool(self.promises) and not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether a promise was judged and found broken."""
        return not all(promise.kept for promise in self.promises)

    @property
    def text(self) -> str:
        """The report as it is printed."""
        from tfds_torch.check.render import as_text  # It imports this module.

        return as_text(self)

    def __str__(self) -> str:
        return self.text


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 batch`, `1,437 examples`."""
    ending = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{ending}"


def show_bytes(number: float) -> str:
    """Return a size with three digits, in units of 1000: `276 kB`."""
    rounded = float(f"{number:.3g}")  # First, so that 999.6 kB are 1 MB.
    power = min(4, max(0, len(f"{rounded:.0f}") - 1) // 3)
    if power == 0:
        return plural(round(rounded), "byte")
    size = rounded / 1000**power
    shown = f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"
    return f"{shown} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def show_seconds(seconds: float) -> str:
    """Return a duration with three digits at most: `12.3 s`, `340 ms`, `0.4 ms`."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 9.95 else f"{milliseconds:.1f} ms"
