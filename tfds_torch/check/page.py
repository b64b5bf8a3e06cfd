"""What the page shows, from the findings and the JSON report: plain values and drawings, by the template's names."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from tfds_torch.check import report as printed
from tfds_torch.check.contact_sheet import Picture
from tfds_torch.check.content import LabelCount, choose_shown
from tfds_torch.check.expectation import Expectation
from tfds_torch.check.figures import plural, show_bytes, show_seconds
from tfds_torch.check.findings import Findings
from tfds_torch.check.metadata import Metadata, read_metadata
from tfds_torch.check.page_order import show_order
from tfds_torch.check.page_plan import show_plan
from tfds_torch.check.promises import allow
from tfds_torch.check.reference import CheckedParser, place_of, promised_by
from tfds_torch.check.svg import draw_bar, draw_dots, draw_profile
from tfds_torch.plan.epoch import Remainder

_MOST_ROWS = 24
_STAGES = {
    "read": "reading encoded examples",
    "decode": "decoding and resizing their images",
    "fetch": "all that the dataset does, waiting for its threads included",
    "collate": "putting batches together",
    "hand_over": "batches on their way from the workers while the loop waited",
    "waiting": "the training loop waited for a batch",
}


def fill_page(findings: Findings, report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the template; what a check did not get to know is None or empty."""
    parser, expected = findings.parser, findings.expected
    plan = None
    if parser is not None and expected is not None and findings.pipelines:  # Ctrl-C may come before they are counted.
        plan = show_plan(parser, expected, findings)
    return {
        "report": report,
        "verdict": _verdict(findings),
        "facts": _facts(findings),
        "dataset": None if parser is None else _dataset(parser),
        "ledger": None if expected is None else _ledger(findings, expected),
        "plan": plan,
        "reading": "" if findings.delivery is None else str(findings.delivery),
        "ranks": printed.describe_ranks(findings) if findings.readings else "",
        "stages": _stages(findings),
        "memory": _memory(findings),
        "labels": _labels(findings.labels),
        "sizes": _sizes(findings),
        "pictures": [_picture(one) for one in findings.pictures],
        "order": show_order(findings),
        "show_seconds": show_seconds,
        "most_rows": _MOST_ROWS,
    }


def _verdict(findings: Findings) -> dict[str, str]:
    """Returns in one line how the check ended: kind `good`, `bad` or `unknown`, headline and detail."""
    num, broken = len(findings.promises), sum(not promise.kept for promise in findings.promises)
    if broken:
        names = [promise.name for promise in findings.promises if not promise.kept]
        detail = "; ".join([*names, *([str(findings.error)] if findings.error else [])])
        return {"kind": "bad", "headline": f"{broken} of {plural(num, 'promise')} broken", "detail": detail}
    if findings.error is not None:
        headline = f"The check ended with a {type(findings.error).__name__}"
        return {"kind": "bad", "headline": headline, "detail": str(findings.error)}
    if findings.is_interrupted:
        detail = printed.summarize_interrupted(findings) or "Nothing had been read."
        return {"kind": "unknown", "headline": "Interrupted", "detail": detail}
    if not num:
        return {"kind": "unknown", "headline": "No promise was judged", "detail": ""}
    detail = f"{plural(findings.num_batches, 'batch')} read in {plural(len(findings.counts), 'epoch')}."
    return {"kind": "good", "headline": f"All {num} promises kept", "detail": detail}


def _facts(findings: Findings) -> list[tuple[str, str, str]]:
    """Returns (what, figure, note) of the few figures that matter most."""
    parser, expected = findings.parser, findings.expected
    facts = []
    if parser is not None:
        total = parser.mean_example_bytes * parser.num_examples
        facts.append(("Examples", f"{parser.num_examples:,}", parser.split))
        kind = "Shards" if parser.source.has_shards else "Files"
        facts.append((kind, f"{parser.num_shards:,}", "of this split"))
        facts.append(("Size", show_bytes(total), f"{show_bytes(parser.mean_example_bytes)} an example"))
        if parser.class_names:
            facts.append(("Classes", f"{len(parser.class_names):,}", ""))
    if expected is not None:
        workers = f"{plural(findings.num_workers, 'worker')} each" if findings.num_workers else "each reads by itself"
        facts.append(("Ranks", f"{expected.num_replicas:,}", workers))
    if findings.is_torchrun and len(findings.readings) > 1:
        speed = sum(rank.examples_per_s for rank in findings.readings)
        facts.append(("Examples/s", f"{speed:,.0f}", "all ranks together"))
    elif findings.readings:
        facts.append(("Examples/s", f"{findings.readings[0].examples_per_s:,.0f}", "rank 0, alone on this machine"))
    return facts


def _dataset(parser: CheckedParser) -> dict[str, Any]:
    place = place_of(parser)
    metadata = Metadata() if place.is_file() else read_metadata(place)
    return {
        "metadata": metadata,
        "place": "file" if place.is_file() else "folder",
        "shards": plural(parser.num_shards, "shard" if parser.source.has_shards else "file"),
        "features": printed.describe_features(parser),
        "promised_by": promised_by(parser),
        "urls": [(url, url.startswith(("https://", "http://"))) for url in metadata.urls],
    }


def _ledger(findings: Findings, expected: Expectation) -> dict[str, Any]:
    """Returns what was planned of every epoch, beside which the report's figures stand."""
    plan, allowed = expected.plan, allow(expected)
    num_slots = plan.num_batches * plan.global_batch_size
    delivered = plan.num_valid if plan.remainder is Remainder.KEEP else num_slots
    return {
        "planned": {
            "num_batches": plan.num_batches,
            "num_delivered": delivered,
            "num_valid": delivered - allowed.num_padded,
            "num_padded": allowed.num_padded,
            "num_missing": allowed.num_missing,
            "num_twice": allowed.num_twice,
        },
        # Uneven files: of so many no more is known.
        "is_at_most": expected.mode == "files",
        "num_promised": len(expected.ids),
        "num_passes": plan.num_passes,
        "is_dropping": plan.remainder is Remainder.DROP,
    }


def _stages(findings: Findings) -> dict[str, Any] | None:
    """Returns what the loop of rank 0 waited for."""
    if not findings.readings or not findings.readings[0].stages:
        return None
    rank = findings.readings[0]
    most = max(rank.stages.values()) or 1.0
    return {
        "rows": [
            (name.replace("_", "-"), show_seconds(seconds), draw_bar(seconds / most), _STAGES[name])
            for name, seconds in rank.stages.items()
        ],
        "num_batches": plural(rank.num_batches, "batch"),
        "time": show_seconds(rank.timed_s),
    }


def _memory(findings: Findings) -> dict[str, Any] | None:
    """Returns what the processes of the rank held that took most."""
    if not findings.readings:
        return None
    heaviest = printed.find_heaviest(findings.readings)
    if not heaviest.memory:
        return None
    (main, held), *children = heaviest.memory.items()
    rows = [(f"rank {heaviest.rank}, process {main}", held)]
    rows += [(f"its child {pid}", size) for pid, size in sorted(children, key=lambda child: -child[1])]
    most = max(size for _, size in rows) or 1
    total = sum(sum(rank.memory.values()) for rank in findings.readings) if findings.is_torchrun else None
    return {
        "rows": [(name, show_bytes(size), draw_bar(size / most)) for name, size in rows[:_MOST_ROWS]],
        "num_more": max(0, len(rows) - _MOST_ROWS),
        "sum": show_bytes(sum(heaviest.memory.values())),
        "all_ranks": None if total is None or len(findings.readings) == 1 else show_bytes(total),
    }


def _labels(labels: Sequence[LabelCount]) -> dict[str, Any] | None:
    if not labels:
        return None
    shown, note = choose_shown(labels)
    most = max(count.num_examples for count in labels) or 1
    numbers = [count.num_examples for count in labels]
    return {
        "rows": [(one.name, one.num_examples, draw_bar(one.num_examples / most)) for one in shown],
        "note": note,
        "profile": draw_profile(numbers, f"examples of each of {len(labels)} labels, in their order") if note else None,
        "num_labels": len(labels),
        "most": most,
        "total": sum(numbers),
    }


def _sizes(findings: Findings) -> dict[str, Any] | None:
    found = findings.image_sizes
    if found is None:
        return None
    top = _round_up(max(max(size) for size in findings.sizes))
    x, y = (np.array(findings.sizes)[:, side] / top for side in (0, 1))
    drawing = draw_dots(x, y, f"width and height of {plural(found.num_images, 'image')}")
    line = printed.describe_sizes(found).removeprefix("Images: ")
    # A single dot tells no more than the line.
    return {"line": line, "plot": drawing if found.smallest != found.largest else None, "top": top}


def _round_up(number: int) -> int:
    """Returns the next number that is easy to read on an axis."""
    steps: Iterator[int] = (step * 10**power for power in range(12) for step in (1, 2, 4, 5, 6, 8))
    return next((step for step in steps if step >= number), number)


def _picture(picture: Picture) -> dict[str, Any]:
    """Returns a picture as a URI that holds it: small ones exactly, others as JPEG."""
    file = io.BytesIO()
    is_small = picture.factor > 1
    kind = "png" if is_small else "jpeg"
    picture.image.save(file, kind, **({"optimize": True} if is_small else {"quality": 85}))
    return {
        # Markup, which is put into the page as it is, however long.
        "uri": Markup("data:image/{};base64,{}").format(kind, base64.b64encode(file.getvalue()).decode()),
        "width": picture.image.width * picture.factor,
        "height": picture.image.height * picture.factor,
        "is_small": is_small,
        "caption": picture.caption,
    }
