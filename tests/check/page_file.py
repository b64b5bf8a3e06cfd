"""A page that `--html` wrote, read as a browser would: its parts, and nothing in it that could act or ask."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img"}
ALLOWED_TAGS = """
html head meta title link style body main header footer section nav div p h1 h2 h3 b i strong bdi code a
svg path ul li table thead tbody tr th td details summary figure figcaption img
"""


@dataclass
class Page(HTMLParser):
    """The parts of a page.

    Attributes:
        texts: id -> the words inside that element, one space between them.
        rows: id -> the rows of its tables, heading -> cell.
        tags: how often each tag occurs.
        paths: id -> what is drawn inside that element.
        images: attributes of the images.
        addresses: what it refers to, by link or source.
        title: of the page.
    """

    texts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    paths: dict[str, list[str]] = field(default_factory=dict)
    images: list[dict[str, str]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    title: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED_TAGS.split(), f"<{tag}>"
        found = {name: value or "" for name, value in attributes}
        assert len(found) == len(attributes), attributes
        assert not any(name.startswith("on") or name == "style" for name in found), found
        self.addresses += [found[name] for name in ("href", "src", "xlink:href", "action") if name in found]
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag == "img":
            self.images.append(found)
        if tag == "path":
            for id in self._ids():
                self.paths.setdefault(id, []).append(found["d"])
        if tag == "tr":
            for id in self._ids():
                self.rows.setdefault(id, []).append({})
        if tag not in VOID:
            self._open.append((tag, found))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "style":
            return
        if self._open and self._open[-1][0] == "title":
            self.title += data
        for id in self._ids():
            self.texts[id] = self.texts.get(id, "") + data
        for _, found in self._open:
            if "data-of" in found:
                for id in self._ids():
                    row = self.rows[id][-1]
                    row[found["data-of"]] = row.get(found["data-of"], "") + data

    def table(self, id: str) -> list[dict[str, str]]:
        """Returns the rows of a part's table, without its head."""
        return [row for row in self.rows[id] if row]

    def _ids(self) -> list[str]:
        return [found["id"] for _, found in self._open if "id" in found]

    def close(self) -> None:
        super().close()
        assert self._open == []


def load(path: Path) -> Page:
    """Returns a page that is whole, acts on nothing, and refers to nothing but itself and home pages."""
    text = path.read_bytes().decode()
    assert text.endswith("</html>\n")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in text
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url\(|@import", style)
    page = Page()
    page.feed(text)
    page.close()
    assert all(re.match(r"data:|#|https?://", address) for address in page.addresses), page.addresses
    page.texts = {id: " ".join(words.split()) for id, words in page.texts.items()}
    for row in (row for rows in page.rows.values() for row in rows):
        row.update({heading: " ".join(words.split()) for heading, words in row.items()})
    return page
