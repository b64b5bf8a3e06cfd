"""The report of a suite: everything that was measured, as data, as rows of text, and as Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.section import Section, spread_text
from tfds_torch.bench.targets import Target
from tfds_torch.bench.task import TIMM

SCHEMA = 1

_SUMMARIES: dict[str, Callable[[Outcome], Spread | None]] = {
    "start_s": figures.start_s,
    "examples_per_s": figures.examples_per_s,
    "first_batch_s": figures.first_batch_s,
    "tail_s": figures.tail_s,
}


@dataclass(frozen=True)
class Report:
    """What a suite found.

    Attributes:
        suite: its name.
        title: what it measures, in a line.
        method: how, in a paragraph.
        command: what was typed.
        date: when it began, ISO 8601, UTC.
        machine: see `machine.describe_machine`.
        versions: distribution -> version; None: not installed.
        settings: what the command's options were.
        outcomes: what the contestants did; none where the suite measures this package alone.
        targets: our own targets.
        sections: other tables of figures.
        configured: where to read how it is measured, and why so.
    """

    suite: str
    title: str
    method: str
    command: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    settings: dict[str, Any]
    outcomes: Sequence[Outcome]
    targets: Sequence[Target]
    sections: Sequence[Section] = ()
    configured: str = ""


def as_dict(report: Report) -> dict[str, Any]:
    """Returns the whole report as JSON has it: figures in seconds, bytes and examples per second."""
    return {
        "schema": SCHEMA,
        **{name: getattr(report, name) for name in ("suite", "title", "method", "command", "date")},
        **{name: getattr(report, name) for name in ("machine", "versions", "settings")},
        "contestants": [_outcome_as_dict(outcome, report.outcomes) for outcome in report.outcomes],
        "sections": [section.as_dict() for section in report.sections],
        "targets": [asdict(target) for target in report.targets],
    }


def _outcome_as_dict(outcome: Outcome, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    memory = outcome.memory
    return {
        "name": outcome.peer.name,
        "title": outcome.peer.title,
        "missing": outcome.missing,
        "summary": {name: _spread_as_dict(summary(outcome)) for name, summary in _SUMMARIES.items()},
        "times_timm": _times_timm(outcome, outcomes),
        "memory": memory and asdict(memory) | {"total_bytes": memory.total_bytes},
        "warm_ups": [epoch_as_dict(epoch) for epoch in outcome.warm_ups],
        "epochs": [epoch_as_dict(epoch) for epoch in outcome.epochs],
    }


def _spread_as_dict(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _times_timm(outcome: Outcome, outcomes: Sequence[Outcome]) -> float | None:
    """Returns the quotient of the medians of examples per second; None where one of them is missing."""
    timm = next((other for other in outcomes if other.peer.name == TIMM and other.missing is None), None)
    ours, theirs = figures.examples_per_s(outcome), timm and figures.examples_per_s(timm)
    return ours.median / theirs.median if ours and theirs and outcome.missing is None else None


def epoch_as_dict(epoch: figures.EpochFigures) -> dict[str, Any]:
    """Returns all figures of an epoch as JSON has them."""
    figure = asdict(epoch)
    return {**figure.pop("times"), **figure, "examples_per_s": epoch.examples_per_s}


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Returns headings and a row for every contestant of a suite that has some; those missing have dashes."""
    columns = _COLUMNS[report.suite]
    rows = []
    for outcome in report.outcomes:
        cells = [cell(outcome, report.outcomes) if outcome.missing is None else "-" for _, cell in columns]
        rows.append([outcome.peer.title, *cells])
    return ["contestant", *(heading for heading, _ in columns)], rows


def missing(report: Report) -> list[str]:
    """Returns a line for every contestant that has no figures, with the reason."""
    return missing_outcomes(report.outcomes)


def missing_outcomes(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns a line for every contestant that has no figures, with the reason."""
    return [f"{outcome.peer.title} is missing: {outcome.missing}" for outcome in outcomes if outcome.missing]


def facts(report: Report) -> list[str]:
    """Returns lines that say when, how and on what was measured."""
    machine, settings = report.machine, report.settings
    ram = "memory not known" if machine["ram_bytes"] is None else f"{machine['ram_bytes'] / 2**30:.0f} GiB"
    where = f"{machine['cpu'] or 'CPU not known'} ({machine['architecture']}), {machine['num_cores']} cores, {ram}"
    load = "not known" if machine["load_before"] is None else f"{machine['load_before']:.2f}"
    return [
        f"{report.command}, begun {report.date}",
        f"{where}, {machine['kernel']}, load before: {load}",
        f"{settings['num_photos']:,} photographs in {settings['num_shards']} shards, "
        f"batches of {settings['batch_size']}, "
        f"{settings['num_workers']} workers, {settings['num_repeats']} repeats",
        ", ".join(f"{name} {version or 'not installed'}" for name, version in report.versions.items()),
        report.configured,
    ]


def markdown(report: Report, chart: str | None) -> str:
    """Returns the report as a page.

    Args:
        report: what is reported.
        chart: the name of the chart's file, beside the page; None when there is no chart.
    """
    lines = [f"# {report.suite}: {report.title}", "", report.method, ""]
    if report.outcomes:
        lines += _table_lines(*table(report), missing(report))
    lines += [f"![{report.title}]({chart})", ""] if chart else []
    for section in report.sections:
        lines += [f"## {section.title[0].upper()}{section.title[1:]}", "", section.note, ""]
        lines += _table_lines(*section.table(), section.missing)
    lines += ["## Targets", "", _row(["target", "wanted", "found", ""]), "|---|---|---|---|"]
    for target in report.targets:
        lines.append(_row([target.name, target.wanted, target.found, "kept" if target.kept else "**MISSED**"]))
    lines += ["", "## Where and how", "", *(f"- {fact}" for fact in facts(report))]
    return "\n".join(lines) + "\n"


def _table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]], reasons: Sequence[str]) -> list[str]:
    lines = [_row(headings), "|---|" + "---:|" * (len(headings) - 1), *map(_row, rows), ""]
    return lines + [line for reason in reasons for line in (f"{reason.rstrip('.')}.", "")]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _speed(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return spread_text(figures.examples_per_s(outcome), "{:,.0f}")


def _speed_ratio(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    ratio = _times_timm(outcome, outcomes)
    return "-" if ratio is None else f"{ratio:.2f}"


def _start(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return spread_text(figures.start_s(outcome), "{:.2f}")


def _first_batch(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return spread_text(figures.first_batch_s(outcome), "{:.2f}")


def _tail(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    return spread_text(figures.tail_s(outcome), "{:.3f}")


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


_Cell = Callable[[Outcome, Sequence[Outcome]], str]
_COLUMNS: dict[str, list[tuple[str, _Cell]]] = {
    "sample": [
        ("examples/s", _speed),
        ("x timm", _speed_ratio),
        ("first batch, s", _first_batch),
        ("tail, s", _tail),
        ("examples an epoch", _num_examples),
    ],
    "start": [
        ("process start to first batch, s", _start),
        ("first batch of a later epoch, s", _first_batch),
        ("tail, s", _tail),
        ("memory, MB", _memory),
        ("of these: training process + others", _memory_parts),
    ],
}
