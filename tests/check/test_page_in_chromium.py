"""The page in a real browser: it asks for nothing, complains of nothing, and fits narrow and wide windows."""

from pathlib import Path

import pytest
from PIL import Image

from check import chromium
from check.chromium import start_chromium
from check.machine import Machine
from check.test_render import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.COMMAND is None, reason="needs Debian's package chromium"),
]
WIDTHS = (400, 1400)
SCROLLED = "document.scrollingElement.scrollWidth <= innerWidth"
TEXT = "document.body.innerText"
# The boxes that reach beyond the window, as far as they are not cut off on purpose.
BEYOND = (
    "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + .5).length"
)
SMALLEST = "Math.min(...[...document.querySelectorAll('main *')].map(e => parseFloat(getComputedStyle(e).fontSize)))"
GROUND = "getComputedStyle(document.body).backgroundColor"


def test_the_page_asks_for_nothing_and_fits_any_width(machine: Machine, own_digits: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    (own_digits / "label.labels.txt").write_text("\n".join(HOSTILE) + "\n", encoding="utf-8")
    checked = machine.check("--root", own_digits, "--replicas", "2", "--html", page)
    assert checked.code == 0, checked.errors
    grounds = set()
    with start_chromium(tmp_path) as browser:
        for width in WIDTHS:
            for is_dark in (False, True):
                expressions = (SCROLLED, BEYOND, SMALLEST, GROUND, TEXT)
                visit = browser.visit(page, width, is_dark=is_dark, expressions=expressions)
                is_scrolled, num_beyond, smallest, ground, text = visit.values
                assert visit.complaints == []
                assert visit.requests[0] == page.as_uri()
                assert len(visit.requests) > 1
                assert all(request.startswith("data:") for request in visit.requests[1:])
                assert (is_scrolled, num_beyond) == (True, 0)
                assert smallest >= 12
                grounds.add((is_dark, ground))
                assert all(name in text for name in HOSTILE if name.isprintable() and len(name) < 100)
                (tmp_path / "page.png").write_bytes(visit.png)
                with Image.open(tmp_path / "page.png") as picture:
                    assert picture.width == width
                    assert len(picture.getcolors(2**20) or ()) > 100
    assert len(grounds) == 2


def test_the_browser_tells_of_a_request_a_script_and_a_wide_box(tmp_path: Path) -> None:
    """What the test above asks for can fail."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<main><div style='width:3000px'>wide</div><img src='http://127.0.0.1:9/x.png'></main>"
        "<script>console.error('spoke')</script>"
    )
    with start_chromium(tmp_path) as browser:
        visit = browser.visit(page, 400, expressions=(SCROLLED, BEYOND))
    assert visit.values[0] is False
    assert visit.values[1] > 0
    assert "http://127.0.0.1:9/x.png" in visit.requests
    assert any("spoke" in complaint for complaint in visit.complaints)
