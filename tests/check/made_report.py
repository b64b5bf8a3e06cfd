"""A report made by hand, with every kind of section.

`python -m check.made_report`, run in `tests`, writes its golden text, page and JSON anew. An issue that changes a
golden line on purpose commits the diff and says why.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from mixed_numbers import mix_numbered
from numbered_fixtures import NUMBERED_SHARDS
from PIL import Image
from tfds_fixtures import write_numbered

from check.played_ledger import play_plan
from tfds_torch.check import sections
from tfds_torch.check.delivery import Delivery, ImageSizes
from tfds_torch.check.expected import count_pipelines, expect
from tfds_torch.check.ledger import Received
from tfds_torch.check.pictures import OrderSample, Sample, picture_of
from tfds_torch.check.promises import judge
from tfds_torch.check.reading import STAGES, RankReading
from tfds_torch.check.render import Run, as_page, as_text, as_values
from tfds_torch.check.report import NotJudged, Report, Section
from tfds_torch.errors import ShardError
from tfds_torch.images.decoders import jpeg
from tfds_torch.parsers.tfds.parser import TfdsDataset
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.network import NetworkStats

GOLDEN = Path(__file__).with_name("golden")
HOSTILE = "<script>alert(1)</script>\x1b[31m \u202e[bold]{{ 7 * 7 }}"
INFO = {
    "description": f"What it is. {HOSTILE}",
    "citation": "@misc{x}",
    "redistributionInfo": {"license": "CC BY 4.0"},
    "location": {"urls": ["https://example.org/\u202e<b>", "javascript:alert(1)", "http://c", "http://d"]},
}
PATCHES = (
    mock.patch.object(jpeg, "describe", return_value="DECODER"),
    mock.patch.object(TfdsDataset, "paths", [Path("/data/numbered/1.0.0")]),
)


def wrong_id(batch: Received) -> Received:
    return replace(batch, id=[HOSTILE, *batch.id[1:]])


def make_report(root: str) -> Report:
    """Returns the report of a mixture of parts of `numbered`, in which an id is wrong, by two ranks."""
    report = Report(is_torchrun=True, images_path=Path("/data/sheet.png"), error=ShardError(f"{HOSTILE} is damaged"))
    parser = mix_numbered(root, batch_size=8)
    sizes = ImageSizes(9, (8, 8), (30, 20), (500, 375), 9_000.0)
    expected = expect(parser, 2, 2, 2)
    ledger = play_plan(expected, wrong_id, class_names=[HOSTILE, *(f"class {label}" for label in range(1, 30))])
    order = OrderSample(expected.plan)
    for rank in range(2):
        for number in range(expected.plan.num_batches):
            order.add(rank, expected.share(rank, 0).index[expected.batch_slice(number)])
    times = [EpochTimes(1.25, 0.5, 40.0, 3), EpochTimes(0.125, 0.0625, 10.0, 3)]
    stages = {stage: 0.25 + number for number, stage in enumerate(STAGES)}
    networks = [NetworkStats(12, 1, 480_000_000, 480_000_000, 50.0), NetworkStats(0, 0, 0, 480_000_000, 0.0)]
    first = RankReading(
        0,
        times,
        [24, 24],
        {11: 300_000_000, 12: 5_000_000, 13: 900_000_000},
        stages,
        dict.fromkeys(STAGES, 2.5),
        networks,
    )
    readings = [first, RankReading(1, times, [24, 12_344], {21: 100_000_000})]
    catalogued = mock.Mock()
    catalogued.provenance().folder.read = lambda name: json.dumps(INFO).encode()
    catalogue = sections.describe_catalogue(catalogued)
    report.promises, report.not_judged = judge(ledger), [NotJudged("a promise", f"a reason {HOSTILE}")]
    report.counts, report.num_batches, report.num_planned_batches = ledger.counts, ledger.num_batches, 12
    images = [Sample(Image.new("RGB", (size, 8), "#123456"), caption) for size, caption in ((8, "a"), (99, HOSTILE))]
    parts = [
        sections.describe_dataset(parser, sizes),
        catalogue,
        sections.describe_plan(parser, expected, count_pipelines(parser, expected), 2),
        sections.describe_promises(report.promises),
        sections.describe_not_judged(report.not_judged),
        sections.describe_ledger(parser, expected, ledger.counts),
        sections.describe_shares(ledger),
        sections.describe_labels(ledger.labels.counts()),
        sections.describe_delivery(Delivery("create_loader", False, None, False, f"a reason {HOSTILE}"), sizes),
        sections.describe_speed(readings, is_together=True),
        sections.describe_stages(first),
        sections.describe_memory(readings, is_together=True),
        sections.describe_network(parser, sum(networks, NetworkStats(2, 0, 20_000_000, 0, 1.0)), readings),
        sections.describe_advice(["A sentence.", HOSTILE]),
        sections.describe_order(order, expected),
        Section("sheet", "Contact sheet", "Two images.", pictures=list(map(picture_of, images)), is_printed=False),
    ]
    for section in parts:
        assert section is not None
        report.put(section)
    return report


def render_all(root: str) -> dict[str, str]:
    """Returns the report by the golden file's name, without what differs from run to run."""
    with PATCHES[0], PATCHES[1]:
        report, run = make_report(root), Run(["--name", HOSTILE], 0.0, 1)
        page, values = as_page(report, run), as_values(report, run)
    changes = {
        r"Begun (\S+), [\d,]+ s": r"Begun \1, 1 s",
        r"Python [^<]*": "Python.",
        r"(data:image/\w+;base64,)[\w+/=]+": r"\1...",
        r"<style>.*</style>": "<style>...</style>",
    }
    for pattern, word in changes.items():
        page = re.sub(pattern, word, page, flags=re.DOTALL)
    values |= {"duration_s": 1.5, "machine": {name: type(value).__name__ for name, value in values["machine"].items()}}
    return {"report.txt": as_text(report) + "\n", "report.json": dump(values), "report.html": page}


def dump(values: Mapping[str, Any]) -> str:
    """Returns JSON with a line for each key, and for each row of a table."""
    rows = {
        key: "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        if isinstance(value, list)
        else json.dumps(value)
        for key, value in values.items()
    }
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {text}" for key, text in rows.items()) + "\n}\n"


def main(root: str) -> None:
    write_numbered(Path(root), {"train": NUMBERED_SHARDS})
    for name, text in render_all(root).items():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
