"""What a dataset says about itself: `dataset_info.json` has it from TFDS's catalogue."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_URLS = 3


@dataclass(frozen=True)
class Metadata:
    """Texts about a dataset, as its authors wrote them; empty where there are none.

    Attributes:
        description: what it is, that of its config included.
        citation: how to cite it.
        license: under what terms it may be used.
        urls: of its home page.
    """

    description: str = ""
    citation: str = ""
    license: str = ""
    urls: tuple[str, ...] = ()


def read_metadata(place: Path) -> Metadata:
    """Returns what the dataset in a folder says about itself; an image folder or a `.beton` file says nothing."""
    try:
        info: Any = json.loads((place / "dataset_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # Who reads its examples says so.
        return Metadata()
    location, terms = info.get("location") or {}, info.get("redistributionInfo") or {}
    parts = (info.get("description"), info.get("configDescription"))
    return Metadata(
        description="\n\n".join(part.strip() for part in parts if part),
        citation=(info.get("citation") or "").strip(),
        license=(terms.get("license") or "").strip(),
        urls=tuple(location.get("urls") or ())[:_MOST_URLS],
    )
