"""The check's findings as one page for people: it holds all that it shows, and asks nothing of any network."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tfds_torch.check.findings import Findings
from tfds_torch.check.page import fill_page
from tfds_torch.runtime.printable import printable

_TEMPLATE = "page.html.jinja"
_MOST_CHARACTERS = 4_000


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
