"""The reports that a command line asks for, written at the end of a check however it ended."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfds_torch.check.findings import Findings
from tfds_torch.check.json_report import make_report, render_report
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.atomic_file import write_atomically


def save_reports(
    paths: Mapping[str, Path], findings: Findings, command: Sequence[str], started: float, exit_code: int
) -> Iterator[str]:
    """Writes every report, each whole or not at all, and yields a message of each that could not be written.

    Args:
        paths: flag -> the report's file.
        findings: what is known.
        command: the arguments of the check.
        started: when it began, seconds since 1970.
        exit_code: how it ended.
    """
    report = make_report(findings, command, started, exit_code) if paths else {}
    for flag, path in paths.items():
        try:
            save_output(flag, path, findings, report)
        except ConfigError as error:
            yield str(error)


def save_output(flag: str, path: Path, findings: Findings, report: dict[str, Any]) -> None:
    """Writes one output; the file is there whole or not at all.

    Args:
        flag: that asks for it, `--json` or `--html`.
        path: where to.
        findings: what is known.
        report: the same as plain values, see `make_report`.

    Raises:
        ConfigError: the file cannot be written.
    """
    if flag == "--html":
        from tfds_torch.check.page import render_page  # Only now: no other output takes Jinja.

        name, content = "page", render_page(findings, report)
    else:
        name, content = "report", render_report(report)
    try:
        write_atomically(path, content.encode())
    except OSError as error:
        raise ConfigError(f"The {name} {path} cannot be written: {error}.") from None
