"""Part: one part of the report page."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


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
