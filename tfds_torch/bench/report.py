"""The report of a suite: everything that was measured, as data, as rows of text, and as Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.contest_tables import table_of, times_timm
from tfds_torch.bench.figures import EpochFigures, Outcome, Spread
from tfds_torch.bench.section import Section
from tfds_torch.bench.targets import Target

SCHEMA = 1

_SUMMARIES: dict[str, Callable[[Outcome], Spread | None]] = {
    "start_s": figures.start_s,
    "first_epoch_batch_s": figures.first_epoch_batch_s,
    "examples_per_s": figures.examples_per_s,
    "examples_per_s_without_tail": figures.examples_per_s_without_tail,
    "first_batch_s": figures.first_batch_s,
    "tail_s": figures.tail_s,
    "cpu_us_per_example": figures.cpu_us_per_example,
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
        "times_timm": times_timm(outcome, outcomes),
        "memory": memory and asdict(memory) | {"total_bytes": memory.total_bytes},
        "warm_ups": [epoch_as_dict(epoch) for epoch in outcome.warm_ups],
        "epochs": [epoch_as_dict(epoch) for epoch in outcome.epochs],
    }


def _spread_as_dict(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def epoch_as_dict(epoch: EpochFigures) -> dict[str, Any]:
    """Returns all figures of an epoch as JSON has them."""
    figure = asdict(epoch)
    return {**figure.pop("times"), **figure, "examples_per_s": epoch.examples_per_s}


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
        lines += table_lines(*table_of(report.suite, report.outcomes), missing(report))
    lines += [f"![{report.title}]({chart})", ""] if chart else []
    for section in report.sections:
        lines += [f"## {section.title[0].upper()}{section.title[1:]}", "", section.note, ""]
        lines += table_lines(*section.table(), section.missing)
    if report.targets:
        lines += ["## Targets", "", _row(["target", "wanted", "found", ""]), "|---|---|---|---|"]
        for target in report.targets:
            lines.append(_row([target.name, target.wanted, target.found, "kept" if target.kept else "**MISSED**"]))
        lines.append("")
    lines += ["## Where and how", "", *(f"- {fact}" for fact in facts(report))]
    return "\n".join(lines) + "\n"


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]], reasons: Sequence[str] = ()) -> list[str]:
    """Returns a table in Markdown, with a paragraph for every reason."""
    lines = [_row(headings), "|---|" + "---:|" * (len(headings) - 1), *map(_row, rows), ""]
    return lines + [line for reason in reasons for line in (f"{reason.rstrip('.')}.", "")]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
