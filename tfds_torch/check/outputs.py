"""The reports that a command line asks for, written at the end of a check however it ended."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfds_torch.check.findings import Findings
from tfds_torch.check.json_report import save_report
from tfds_torch.errors import ConfigError


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
    for flag, path in paths.items():
        try:
            if flag == "--html":
                from tfds_torch.check.html_report import save_page  # Only now: no other output takes Jinja.

                save_page(path, findings, command, started, exit_code)
            else:
                save_report(path, findings, command, started, exit_code)
        except ConfigError as error:
            yield str(error)
