"""`python -m benchmarks.picture` draws the picture of the README, docs/assets/speed.svg, from the report `jpeg`."""

from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.report import Report, read_reports
from benchmarks.tables import Row, Spread

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "speed.svg"

_SHOWN = ("ours", "ffcv", "dali", "webdataset", "grain", "data_source", "hugging_face", "timm")
_SPEED = "examples_per_s"
_LINE, _LEFT, _WIDEST, _WIDTH = 30, 290, 390, 760

_STYLE = """
    .ground { fill: #ffffff; }
    text { fill: #1c2333; }
    .small { fill: #4b5468; font-size: 12px; }
    .ours { fill: #3f51b5; }
    .peer { fill: #b6bed6; }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #1a1e29; }
      text { fill: #eef1f8; }
      .small { fill: #b7bfd2; }
      .ours { fill: #8fa2dd; }
      .peer { fill: #4b5570; }
    }"""


def draw(report: Report) -> str:
    """Return a bar chart of the photographs a second of each peer, as SVG for light and dark pages."""
    by_name = {row.name: row for row in report.tables[0].rows}
    measured = [by_name[name] for name in _SHOWN if name in by_name and by_name[name].figures.get(_SPEED)]
    rows = sorted(measured, key=_speed_of, reverse=True)
    fastest, settings = _speed_of(rows[0]), report.settings
    heading = "Photographs a second into the training loop: random crop, resize to 224 x 224, flip"
    below = (
        f"{settings['num_photos']:,} JPEG images, {settings['num_workers']} workers on {report.machine['num_cores']} "
        "cores, all in one run, in turns"
    )
    height = _LINE * len(rows) + 76
    bars = []
    for number, row in enumerate(rows):
        top, width = 40 + _LINE * number, max(2, round(_WIDEST * _speed_of(row) / fastest))
        kind, weight = ("ours", ' font-weight="600"') if row.name == "ours" else ("peer", "")
        bars += [
            f'  <text x="{_LEFT - 10}" y="{top + 16}" text-anchor="end"{weight}>{escape(row.title)}</text>',
            f'  <rect class="{kind}" x="{_LEFT}" y="{top}" width="{width}" height="{_LINE - 8}" rx="3"/>',
            f'  <text x="{_LEFT + width + 8}" y="{top + 16}"{weight}>{_speed_of(row):,.0f}</text>',
        ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label='
            f'"{escape(heading)}" font-family="system-ui, sans-serif" font-size="14">',
            f"  <style>{_STYLE}\n  </style>",
            f'  <rect class="ground" width="{_WIDTH}" height="{height}" rx="8"/>',
            f'  <text class="small" x="16" y="24">{escape(heading)}</text>',
            *bars,
            f'  <text class="small" x="16" y="{height - 12}">{escape(below)}</text>',
            "</svg>",
            "",
        ]
    )


def _speed_of(row: Row) -> float:
    figure = row.figures[_SPEED]
    if not isinstance(figure, Spread):
        raise TypeError(f"{row.name} has no speed: {figure!r}")
    return figure.median


if __name__ == "__main__":
    PICTURE.write_text(draw(read_reports()["jpeg"]), encoding="utf-8")
