"""The check's findings as one page for people: it holds all that it shows, and asks nothing of any network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tfds_torch.check.findings import Findings
from tfds_torch.check.json_report import make_report
from tfds_torch.check.page import fill_page
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.whole_file import write_whole

_TEMPLATE = "page.html.jinja"
_MOST_CHARACTERS = 4_000


def save_page(path: Path, findings: Findings, command: Sequence[str], started: float, exit_code: int) -> None:
    """Writes the page; the file is there whole or not at all.

    Args:
        path: where to.
        findings: what is known.
        command: the arguments of the check.
        started: when it began, seconds since 1970.
        exit_code: how it ended.

    Raises:
        ConfigError: the file cannot be written.
    """
    page = render_page(findings, make_report(findings, command, started, exit_code))
    try:
        write_whole(path, page.encode())
    except OSError as error:
        raise ConfigError(f"The page {path} cannot be written: {error}.") from None


def render_page(findings: Findings, report: dict[str, Any]) -> str:
    """Returns the page of what is known and its JSON report."""
    environment = Environment(
        loader=PackageLoader("tfds_torch.check", ""),
        autoescape=True,
        finalize=_make_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(fill_page(findings, report))


def _make_harmless(value: Any) -> Any:
    """Returns what is put into the page: of texts that anybody may have written, what can be shown, and not for ever.

    Jinja escapes it afterwards. What is markup already was made here.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}…")
