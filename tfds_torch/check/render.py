"""A report as text, as one HTML page, and as JSON: the same sections, three times.

The form of the JSON is stable: keys may be added, and existing keys keep their name, unit and meaning while
`schema_version` is 2. Keys that end in `_s` are seconds, in `_bytes` bytes; `num_` counts. Values that a check did not
learn, because an error ended it, are null or empty.

    schema_version  2
    command         arguments of `python -m tfds_torch.check`
    started         UTC, ISO 8601;  duration_s
    exit_code       0 all promises kept, 1 one broken or a shard damaged, 2 wrong usage or no such dataset,
                    130 interrupted
    is_interrupted  whether Ctrl-C ended it: `promises` and `epochs` then cover what had come until then
    error           null, or {type, message}
    machine         python, platform, num_cores, packages {name: version}
    dataset         name (your own dataset: its type), split, data_dir (null: a mixture, or your own data), members of a
                    mixture [{name, dataset_name, split, num_examples, num_shards, fingerprint}], is_fake, num_examples,
                    num_shards, num_skipped_files (of tars; null: of other formats), class_names, fingerprint,
                    mean_example_bytes, features {key: {dtype, shape} or nested}, image_sizes {smallest, median, largest
                    [width, height], mean_pixels} of num_images images
    plan            is_training, shuffle, seed, remainder, read_mode (index, files or examples), jpeg_decoder (what
                    decodes JPEG, with its version), schedule of a mixture's weights [{start: example of the mixture,
                    weights {member: share}}], batch_size, num_batches, num_replicas, num_workers (0: a rank reads
                    by itself), pipelines [{rank, worker, num_batches, num_examples, num_fill, num_available}] of
                    epoch 0
    reading         loader (create_loader or DataLoader), is_batched (whole batches or single examples), preprocess,
                    is_own (it is the recipe's; else the usual one), reason (of single examples) or null
    num_batches_read  of all ranks and epochs
    epochs          of those that every rank has read: [{epoch, num_batches of each rank, num_delivered, num_valid,
                    num_padded, num_missing, num_twice, num_unknown, and of missing, twice and unknown ids the first
                    100; of a mixture
                    members [{name, num_valid, num_planned, most_off (examples, the farthest from n x weight; null:
                    without weights), is_within (as near as promised)}], and missing and twice are of all epochs until
                    then}]
    labels          [{label, name, num_examples, share (of the most frequent)}]
    is_torchrun     true: the ranks were processes of torch.distributed and read at the same time, so that `throughput`
                    is what each had of the machine; false: one after the other, each alone on it
    throughput      [{rank, first_batch_s, later_first_batch_s, examples_per_s, tail_s, epochs [{first_batch_s, tail_s,
                    whole_s, num_batches}], processes [{pid, pss_bytes}], and of the epochs after the first (of one
                    epoch, of that) num_batches, timed_s, stages}]; of files in object stores first_stages (of the first
                    of several epochs) and networks [as `network`] of each epoch, else nothing; stages are seconds of
                    all workers and threads: {read, download (of object stores), decode,
                    fetch (all that a dataset does), collate, hand_over, waiting (the loop, for batches)}, or nothing
                    where the loader does not report them
    promises        [{name, kept, detail}]; read_mode index makes more than the streams
    not_judged      [{name, reason}] of promises that this dataset cannot be asked for
    network         null, or of files in object stores {requests, retries (of them), bytes_fetched, bytes_delivered (to
                    readers, out of the cache too), waited_s (of all readers)} of the whole check, and epochs [{epoch,
                    whole_s, examples_per_s, fetched_bytes, wait_s}] of those that rank 0 read, and of the rest
    advice          sentences
    images          path of the contact sheet, or null

Where they are known, there are also the tables catalogue {description, credits, license, home_page [URL]} of what TFDS
says of the dataset, mixture [a row for each member and epoch], stages [{stage, whole_s, meaning}] of rank 0 (of object
stores first_epoch_s and later_s) and memory [{process, pss_bytes}].
"""

import io
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import tfds_torch
from tfds_torch.check.report import Cell, Report, Section, plural, show_seconds
from tfds_torch.check.sections import MOST_ROWS
from tfds_torch.runtime.limits import num_cores
from tfds_torch.runtime.printable import printable

SCHEMA_VERSION = 2
_PACKAGES = ("numpy", "pillow", "tensorflow", "tensorflow-cpu", "tensorflow-datasets", "torch")
_WIDTH, _BAR_WIDTH = 120, 40
_MOST_CHARACTERS = 4_000
_THOUSAND = 999.5  # Three digits of it have a fourth.
_STYLES = {"good": "green", "bad": "bold red", "": ""}
_WITHOUT_SECTIONS: Mapping[str, Any] = {
    "dataset": None,
    "plan": None,
    "reading": None,
    "epochs": [],
    "labels": [],
    "throughput": [],
    "promises": [],
    "not_judged": [],
    "network": None,
    "advice": [],
}


@dataclass(frozen=True)
class Run:
    """The command of a report.

    Attributes:
        command: its arguments.
        started: when it began, seconds since the epoch.
        exit_code: how it ended.
    """

    command: Sequence[str]
    started: float
    exit_code: int


@dataclass(frozen=True)
class Verdict:
    """How a check ended: `good`, `bad` or `unknown`, a headline, and details."""

    kind: str
    headline: str
    detail: str = ""


def verdict_of(report: Report) -> Verdict:
    """Return how a check ended."""
    num, broken = len(report.promises), [one.name for one in report.promises if not one.kept]
    if broken:
        detail = "; ".join(broken + ([str(report.error)] if report.error else []))
        return Verdict("bad", f"{len(broken)} of {plural(num, 'promise')} broken", detail)
    if report.error is not None:
        return Verdict("bad", f"The check ended with a {type(report.error).__name__}", str(report.error))
    if report.is_interrupted:
        return Verdict("unknown", "Interrupted", summarize_interrupted(report) or "Nothing had been read.")
    if not num:
        return Verdict("unknown", "No promise was judged")
    read = f"{plural(report.num_batches, 'batch')} read in {plural(len(report.counts), 'epoch')}."
    return Verdict("good", f"All {num} promises kept", read)


def summarize_interrupted(report: Report) -> str:
    """Return how far an interrupted reading came, and its results; nothing where it had not begun."""
    if report.num_planned_batches is None or not report.num_batches:
        return ""
    broken = sum(not one.kept for one in report.promises)
    known = f"{broken} of {len(report.promises)} promises broken" if broken else "no promise broken"
    whole = plural(len(report.counts), "whole epoch")
    total = plural(report.num_planned_batches, "batch")
    return f"{report.num_batches:,} of {total} had come, {whole}; {known} until then."


def _value(cell: Any) -> Any:
    return cell.value if isinstance(cell, Cell) else cell


def _text(cell: Any) -> str:
    """Return a cell as people read it; of a float three digits."""
    if isinstance(cell, Cell):
        return cell.text
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= _THOUSAND else f"{cell:.3g}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return "-" if cell is None else str(cell)


def _heading(name: str) -> str:
    """Return the heading of a fact or a column: `later first batch s` of `later_first_batch_s`."""
    return name.removeprefix("num_").replace("_per_", "/").replace("_", " ")


def _facts(section: Section) -> list[tuple[str, Any]]:
    """Return (heading, cell) of those facts that people are shown."""
    of_rows = _columns(section)
    facts = {name: section.facts.get(name) for name in section.columns if name not in of_rows}
    return [(_heading(name), cell) for name, cell in facts.items() if cell is not None and _text(cell)]


def _columns(section: Section) -> dict[str, str]:
    """Return column -> heading of those columns that people are shown."""
    there = {name for row in section.rows for name in row}
    return {name: _heading(name) for name in section.columns if name in there}


def _rows(section: Section) -> Sequence[Mapping[str, Any]]:
    return section.rows if section.shown is None else section.shown


def _is_left(section: Section, column: str) -> bool:
    """Return whether a column is aligned to the left: the first one, words, and bars."""
    cells = [row.get(column) for row in section.rows]
    return column == next(iter(_columns(section))) or all(_is_prose(cell) or _share(cell) is not None for cell in cells)


def _is_prose(cell: Any) -> bool:
    return isinstance(_value(cell), str | bool)


def _share(cell: Any) -> float | None:
    return cell.share if isinstance(cell, Cell) else None


# Text


def plain(text: str) -> Text:
    """Return text from a dataset or a user as it is: no markup or emoji codes, control characters made visible."""
    return Text(printable(text))


def as_text(report: Report) -> str:
    """Return a report as it is printed, 120 characters wide."""
    file = io.StringIO()
    console = Console(file=file, width=_WIDTH, emoji=False, highlight=False)
    print_sections(console, report.sections)
    print_verdict(console, report)
    return file.getvalue().rstrip()


def print_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print those sections that the text has."""
    for section in sections:
        if section.is_printed:
            _print(console, section)


def print_verdict(console: Console, report: Report) -> None:
    """Print how many promises were kept."""
    verdict = verdict_of(report)
    style = {"good": "bold green", "bad": "bold red", "unknown": "bold yellow"}[verdict.kind]
    console.print(Text(f"{verdict.headline}.", style=style))


def _print(console: Console, section: Section) -> None:
    facts, columns, rows = _facts(section), _columns(section), _rows(section)
    if facts:
        table = _grid(2)
        for heading, cell in facts:
            table.add_row(heading, plain(_text(cell)))
        console.print(Panel(table, title=section.title, title_align="left", expand=False))
    if section.note:
        console.print(Text.assemble((f"{section.title}: ", "bold"), plain(section.note)))
    if not columns or not rows:
        return
    if all(_is_prose(row.get(column)) for column in columns for row in section.rows):
        table = _grid(len(columns))
        for row in rows:
            table.add_row(*(_styled(row.get(column)) for column in columns))
        console.print(Panel(table, title="" if section.note else section.title, title_align="left", expand=False))
        return
    table = Table()
    for column, heading in columns.items():
        table.add_column(heading, justify="left" if _is_left(section, column) else "right", overflow="fold")
    for row in rows[: MOST_ROWS + 1]:
        table.add_row(*(_styled(row.get(column)) for column in columns))
    if len(rows) > MOST_ROWS + 1:
        table.caption = f"and {len(rows) - MOST_ROWS - 1} more {section.of}"
    console.print(table)


def _styled(cell: Any) -> Text:
    share = _share(cell)
    if share is not None:
        return Text("█" * round(_BAR_WIDTH * share) or ("▏" if share else ""), style="cyan")
    text = plain(_text(cell))
    text.stylize(_STYLES.get(cell.mark, "") if isinstance(cell, Cell) else "")
    return text


def _grid(num_columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(num_columns):
        table.add_column(overflow="fold")  # A path or a reason is printed whole, however narrow the terminal.
    return table


# JSON


def as_values(report: Report, run: Run) -> dict[str, Any]:
    """Return a report of plain values, as the JSON has it."""
    found = {one.key: _values(one) for one in report.sections if one.facts or one.rows}
    error = report.error
    return {
        "schema_version": SCHEMA_VERSION,
        "command": list(run.command),
        "started": datetime.fromtimestamp(run.started, UTC).isoformat(timespec="seconds"),
        "duration_s": round(time.time() - run.started, 3),
        "exit_code": run.exit_code,
        "is_interrupted": report.is_interrupted,
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
        "machine": _machine(),
        "num_batches_read": report.num_batches,
        "is_torchrun": report.is_torchrun,
        "images": None if report.images_path is None else str(report.images_path),
        **_WITHOUT_SECTIONS,
        **found,
    }


def as_json(report: Report, run: Run) -> str:
    """Return a report as JSON; the module's docstring has its keys."""
    return json.dumps(as_values(report, run), indent=2, allow_nan=False) + "\n"


def _values(section: Section) -> Any:
    facts = {name: _value(cell) for name, cell in section.facts.items()}
    rows = [{column: _value(cell) for column, cell in row.items()} for row in section.rows]
    if not section.facts:
        return [row[""] if list(row) == [""] else row for row in rows]
    return {**facts, section.rows_key: rows} if section.rows_key else facts


def _machine() -> dict[str, Any]:
    packages = {"tfds-torch": tfds_torch.__version__}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "num_cores": num_cores(),
        "packages": packages,
    }


# Page


def as_page(report: Report, run: Run) -> str:
    """Return a report as one HTML page, which holds all that it shows and asks nothing of any network."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # Only now: nothing else takes it.

    environment = Environment(
        loader=PackageLoader("tfds_torch.check", ""),
        autoescape=True,
        finalize=_make_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(facts_of=_facts, columns_of=_columns, rows_of=_rows, shown=_shown, is_left=_is_left)
    values = as_values(report, run)
    ordered = sorted(report.sections, key=lambda one: one.key not in ("promises", "not_judged"))
    return environment.get_template("page.html.jinja").render(
        report=values,
        verdict=verdict_of(report),
        sections=ordered,
        most_rows=MOST_ROWS,
        duration=show_seconds(values["duration_s"]),
    )


def _shown(cell: Any) -> Any:
    """Return a cell as the page shows it."""
    if not isinstance(cell, Cell):
        return _text(cell)
    if cell.html is not None:
        return cell.html
    return Markup('<b class="{}">{}</b>').format(cell.mark, _make_harmless(cell.text)) if cell.mark else cell.text


def _make_harmless(value: Any) -> Any:
    """Return a text of anybody's as it can be shown, and cut; Jinja escapes it afterwards. Markup was made here."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}…")
