"""The check's findings as one HTML page for people: tables, and pictures of labels, images and the shuffle.

The page holds all that it shows, and asks nothing of any network.
"""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from tfds_torch.check import report as printed
from tfds_torch.check.contact_sheet import Picture
from tfds_torch.check.content import choose_shown
from tfds_torch.check.expectation import Expectation
from tfds_torch.check.figures import describe_members, plural, show_bytes, show_seconds
from tfds_torch.check.findings import Findings
from tfds_torch.check.mixture_page import Part, mixture_part
from tfds_torch.check.network_report import describe_network, network_rows
from tfds_torch.check.order_sample import OrderSample
from tfds_torch.check.promises import allow
from tfds_torch.check.reference import CheckedParser, place_of, promised_by
from tfds_torch.check.throughput import RankReading
from tfds_torch.errors import TfdsTorchError
from tfds_torch.images.decoders import jpeg
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.tfds.folder import INFO, metadata_of
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.epoch import Remainder
from tfds_torch.runtime.printable import printable

_MOST_ROWS, _MOST_CLASSES, _MOST_URLS = 24, 10, 3
_MOST_CHARACTERS, _MOST_OF_NAME = 4_000, 80
_FEWEST_TO_CORRELATE = 3
_STAGES = {
    "read": "reading encoded examples",
    "download": "waiting for bytes of the object store",
    "decode": "decoding and resizing their images",
    "fetch": "all that the dataset does, waiting for its threads included",
    "collate": "putting batches together",
    "hand_over": "batches on their way from the workers while the loop waited",
    "waiting": "the training loop waited for a batch",
}
_SVG = Markup(
    '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}"><path d="{}"/></svg>'
)


def render_page(findings: Findings, report: Mapping[str, Any]) -> str:
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
    template = environment.get_template("page.html.jinja")
    kind, headline, detail = _verdict(findings)
    return template.render(
        report=report,
        kind=kind,
        headline=headline,
        detail=detail,
        parts=list(_parts(findings, report)),
        most_rows=_MOST_ROWS,
        duration=show_seconds(report["duration_s"]),
    )


def _make_harmless(value: Any) -> Any:
    """Returns a text of anybody's as it can be shown, and cut; Jinja escapes it afterwards. Markup was made here."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}…")


def _verdict(findings: Findings) -> tuple[str, str, str]:
    """Returns how the check ended: `good`, `bad` or `unknown`, a headline, and details."""
    num, broken = len(findings.promises), [promise.name for promise in findings.promises if not promise.kept]
    if broken:
        detail = "; ".join(broken + ([str(findings.error)] if findings.error else []))
        return "bad", f"{len(broken)} of {plural(num, 'promise')} broken", detail
    if findings.error is not None:
        return "bad", f"The check ended with a {type(findings.error).__name__}", str(findings.error)
    if findings.is_interrupted:
        return "unknown", "Interrupted", printed.summarize_interrupted(findings) or "Nothing had been read."
    if not num:
        return "unknown", "No promise was judged", ""
    detail = f"{plural(findings.num_batches, 'batch')} read in {plural(len(findings.counts), 'epoch')}."
    return "good", f"All {num} promises kept", detail


def _parts(findings: Findings, report: Mapping[str, Any]) -> Iterator[Part]:
    if findings.promises or findings.not_judged:
        rows = [(_mark(one.kept), one.name, one.detail) for one in findings.promises]
        rows += [(Markup('<b class="unknown">not judged</b>'), one.name, one.reason) for one in findings.not_judged]
        yield Part("promises", "Promises", headings=("verdict", "promise", "detail"), rows=rows)
    if findings.parser is not None:
        facts = [fact for fact in _dataset(findings, findings.parser) if fact[1]]
        yield Part("dataset", "Dataset", headings=("what", "content"), rows=facts)
        if findings.expected is not None and findings.counts:
            yield _ledger(findings, findings.expected, promised_by(findings.parser))
            if findings.ledger is not None and findings.ledger.members is not None:
                yield mixture_part(findings.expected.plan, findings.counts, findings.ledger.members)
    if findings.expected is not None and findings.pipelines:  # Ctrl-C may come before they are counted.
        yield _plan(findings, findings.expected)
    if findings.readings:
        yield from _readings(findings)
    if findings.labels:
        yield _labels(findings)
    if findings.pictures:
        note = f"The first {len(findings.pictures)} images of epoch 0, as they are decoded, before they are cropped."
        yield Part("sheet", "Contact sheet", note, images=[_image(one) for one in findings.pictures])
    if findings.order is not None and findings.expected is not None and len(findings.order.came[0]):
        yield _order(findings.order, findings.expected)
    if report["advice"]:
        yield Part("advice", "Advice", sentences=report["advice"])


def _mark(is_kept: bool) -> Markup:
    return Markup('<b class="good">kept</b>') if is_kept else Markup('<b class="bad">BROKEN</b>')


def _dataset(findings: Findings, parser: CheckedParser) -> Iterator[tuple[str, object]]:
    place = None if isinstance(parser, ParserMixture) else place_of(parser)
    info = _read_info(parser) if isinstance(parser, ParserTfds) else {}
    yield "split", printed.describe_split(parser)
    size = parser.mean_example_bytes
    yield "size", f"{show_bytes(size * parser.num_examples)}, {show_bytes(size)} an example"
    if isinstance(parser, ParserMixture):
        yield "members", "\n".join(describe_members(parser))
    if place is not None:
        yield "URL" if isinstance(place, str) else "file" if place.is_file() else "folder", str(place)
    yield "features", "\n".join(f"{key} {form}" for key, form in printed.describe_features(parser))
    if parser.class_names:
        more = ", …" if len(parser.class_names) > _MOST_CLASSES else ""
        names = ", ".join(_cut(name) for name in parser.class_names[:_MOST_CLASSES])
        yield "classes", f"{names}{more} ({len(parser.class_names):,})"
    if findings.image_sizes is not None:
        yield "images", printed.describe_sizes(findings.image_sizes).removeprefix("Images: ")
    descriptions = (info.get("description"), info.get("configDescription"))
    terms = info.get("redistributionInfo") or {}
    yield "description", "\n\n".join(text.strip() for text in descriptions if text)
    yield "credits", (info.get("citation") or "").strip()
    yield "license", (terms.get("license") or "").strip()
    urls = ((info.get("location") or {}).get("urls") or [])[:_MOST_URLS]
    yield "home page", Markup(" ").join(_link(_make_harmless(url)) for url in urls)
    yield "fingerprint", parser.fingerprint


def _read_info(parser: ParserTfds) -> dict[str, Any]:
    """Return `dataset_info.json`, where the texts of TFDS's catalogue are; nothing where there is none."""
    try:
        info: dict[str, Any] = json.loads(metadata_of(parser).read(INFO) or b"{}")
    except (TfdsTorchError, ValueError):  # What reads the examples reports it.
        return {}
    return info


def _link(url: str) -> Markup | str:
    is_link = url.startswith(("https://", "http://"))
    return Markup('<a href="{0}" rel="noopener noreferrer">{0}</a>').format(url) if is_link else url


def _ledger(findings: Findings, expected: Expectation, source: str) -> Part:
    """Returns what came of every epoch, beside what was planned."""
    plan, allowed = expected.plan, allow(expected)
    delivered = plan.num_valid if plan.remainder is Remainder.KEEP else plan.num_batches * plan.global_batch_size
    is_bound = expected.mode == "files" or (plan.order.is_endless and plan.remainder is Remainder.DROP)
    at_most = "up to " if is_bound else ""  # Of uneven files no more is known.
    missing = "left out" if plan.remainder is Remainder.DROP else "missing"
    planned = [delivered, delivered - allowed.num_padded, allowed.num_padded]
    rows: list[Sequence[object]] = [
        (
            "planned",
            printed.describe_batches([plan.num_batches] * expected.num_replicas),
            *(f"{number:,}" for number in planned),
            *(f"{at_most if number else ''}{number:,}" for number in (allowed.num_missing, allowed.num_twice)),
            "0",
        )
    ]
    details = []
    for epoch, counts in sorted(findings.counts.items()):
        ids = {missing: counts.missing, "twice": counts.twice, "unknown": counts.unknown}
        numbers = [counts.num_valid + counts.num_padded, counts.num_valid, counts.num_padded]
        is_wrong = [False, False, counts.num_padded != allowed.num_padded]
        numbers += [found.number for found in ids.values()]
        is_wrong += [counts.missing.number > allowed.num_missing, counts.twice.number > allowed.num_twice]
        is_wrong += [counts.unknown.number > 0]
        cells = [
            Markup('<b class="bad">{}</b>').format(f"{number:,}") if wrong else f"{number:,}"
            for number, wrong in zip(numbers, is_wrong, strict=True)
        ]
        rows.append((epoch, printed.describe_batches(counts.batches), *cells))
        for name, found in ids.items():
            if found and len(rows) <= _MOST_ROWS + 1:
                first = f", the first {len(found.first)}" if found.number > len(found.first) else ""
                details.append((f"Epoch {epoch}: {found.number:,} {name}{first}", found.first))
    if plan.order.is_endless:
        passes = f"; an epoch is the next {plan.num_own_slots:,} examples, and {missing} and twice are of all "
        passes += "passes that began until its end"
    else:
        passes = f", and an epoch has {plan.num_passes} passes" if plan.num_passes > 1 else ""
    note = f"{source[0].upper() if source.startswith('the ') else source[0]}{source[1:]} promises "
    num_examples = plural(expected.plan.order.promise().pass_size, "example")
    note += f"{num_examples} per pass{passes}. Counted by the examples' ids, over all ranks."
    headings = ("epoch", "batches", "delivered", "valid", "padded", missing, "twice", "unknown")
    return Part("ledger", "Ledger", note, headings, rows, details=details)


def _plan(findings: Findings, expected: Expectation) -> Part:
    reading = f". Read by {findings.delivery}" if findings.delivery is not None else ""
    if findings.parser is not None and findings.parser.dataset.image_key is not None:
        reading += f". JPEG is decoded by {jpeg.describe(findings.parser.read.jpeg_decoder)}"
    headings, rows = printed.plan_rows(expected, findings.pipelines, findings.num_workers)
    return Part("plan", "Plan", f"{printed.describe_plan(expected)}{reading}.", headings, rows)


def _readings(findings: Findings) -> Iterator[Part]:
    readings, first = findings.readings, findings.readings[0]
    rate = "examples per second are the median of the epochs after the first"
    note = f"Measured with {printed.describe_ranks(findings)}. An epoch is timed from asking for its first batch to "
    note += f"the end of the loop; {rate if first.times[1:] else 'there was only one'}."
    if findings.is_torchrun and len(readings) > 1:
        note += f" All ranks together: {sum(rank.examples_per_s for rank in readings):,.0f} examples/s."
    yield Part("speed", "Speed", note, *printed.speed_rows(readings))
    if network := describe_network(findings):
        note = f"{network.removeprefix('Network: ')}. "
        note += "What is read comes from the network once, and from this machine's cache later."
        headings, rows = network_rows(findings) or ((), ())
        note += (
            " While rank 0 read; other: before, when shards without an index are fetched, and after." if rows else ""
        )
        yield Part("network", "Network", note, headings, rows)
    if first.stages:
        yield _stages(first)
    heaviest = printed.find_heaviest(readings)
    if heaviest.memory:
        (main, held), *children = heaviest.memory.items()
        sizes = [(f"rank {heaviest.rank}, process {main}", held)]
        sizes += [(f"its child {pid}", size) for pid, size in sorted(children, key=lambda child: -child[1])]
        note = f"{show_bytes(sum(heaviest.memory.values()))} in the middle of epoch 0; what processes share is divided "
        note += "among them (PSS)."
        if findings.is_torchrun and len(readings) > 1:
            note += f" All ranks: {show_bytes(sum(sum(rank.memory.values()) for rank in readings))}."
        memory = [(name, show_bytes(size)) for name, size in sizes]
        yield Part("memory", "Memory", note, ("process", "size"), memory)


def _stages(first: RankReading) -> Part:
    """Returns the times of the stages; of remote files also those of the first epoch, which fills the cache."""
    note = f"{plural(first.num_batches, 'batch')} of rank 0 in {show_seconds(first.timed_s)}"
    headings, columns = ["stage", "time"], [first.stages]
    if first.first_stages:
        note += f"; the first epoch took {show_seconds(first.times[0].whole_s)}"
        headings, columns = ["stage", "first epoch", "later epochs"], [first.first_stages, first.stages]
    note += ". The time of all workers and threads together: it may exceed that."
    rows = [
        (name.replace("_", "-"), *(show_seconds(one[name]) for one in columns), _STAGES[name]) for name in first.stages
    ]
    return Part("stages", "Stages", note, (*headings, "meaning"), rows)


def _labels(findings: Findings) -> Part:
    """Returns a bar for each label; of many labels also a column for each."""
    shown, rest = choose_shown(findings.labels)
    numbers = [count.num_examples for count in findings.labels]
    most = max(numbers) or 1
    rows = [
        (_cut(one.name), f"{one.num_examples:,}", _draw_columns([one.num_examples], most, "bar", _cut(one.name)))
        for one in shown
    ]
    note = f"{sum(numbers):,} examples of epoch 0, each counted once{f'; below, {rest}' if rest else ''}."
    caption = f"Examples of each of the {len(numbers):,} labels, in their order; the highest has {most:,}."
    drawings = [("", _draw_columns(numbers, most, "profile", caption), caption)] if rest else []
    return Part("labels", "Labels", note, ("label", "examples", "share of the most frequent"), rows, drawings)


def _cut(name: str) -> str:
    return name if len(name) <= _MOST_OF_NAME else f"{name[:_MOST_OF_NAME]}…"


def _draw_columns(values: Sequence[int], most: int, kind: str, label: str) -> Markup:
    """Returns a column for each value, `most` as high as the drawing; a `bar` lies on its side."""
    shares = [max(3, round(1000 * value / most)) if value else 0 for value in values]
    if kind == "bar":
        return _SVG.format(kind, 1000, 1, _make_harmless(label), f"M0 0H{shares[0]}V1H0z")
    path = "".join(f"V{1000 - share}h1" for share in shares)
    return _SVG.format(kind, len(values), 1000, label, f"M0 1000{path}V1000z")


def _image(picture: Picture) -> tuple[Markup, bool, str]:
    """Returns a picture as a URI that holds it: a small one exactly, another one as JPEG."""
    file, is_small = io.BytesIO(), picture.factor > 1
    kind = "png" if is_small else "jpeg"
    picture.image.save(file, kind, **({"optimize": True} if is_small else {"quality": 85}))
    # Markup, which is put into the page as it is, however long.
    uri = Markup("data:image/{};base64,{}").format(kind, base64.b64encode(file.getvalue()).decode())
    return uri, is_small, _cut(picture.caption)


def _order(order: OrderSample, expected: Expectation) -> Part:
    """Returns the order that came."""
    positions, indices = order.came
    plan, num_positions = expected.plan, order.num_positions
    ranks = ", batch after batch of all ranks" if expected.num_replicas > 1 else ""
    number = "all" if len(positions) == plan.num_examples else f"{len(positions):,} of"
    note = f"Where the examples of the dataset came in epoch 0{ranks}: {number} {plan.num_examples:,} examples"
    note += ", at random positions." if len(positions) < num_positions else "."
    note += " To the right: position in the epoch. Upwards: index in the dataset."
    dots = _draw_dots(positions / num_positions, indices / plan.num_examples)
    caption = f"What was delivered, in read mode {expected.mode}.{_correlation(positions, indices)}"
    is_shuffled = plan.order.shuffle and not plan.order.is_endless  # Weights are a pattern of their own.
    note += " In a perfect shuffle no pattern can be seen." if is_shuffled else ""
    return Part("order", "Shuffle" if is_shuffled else "Order", note, drawings=[("", dots, caption)])


def _draw_dots(x: NDArray[np.float64], y: NDArray[np.float64]) -> Markup:
    """Returns a dot for each point, 0..1 to the right and upwards."""
    places = np.stack([x * 1000, 1000 - y * 1000], axis=1).round().astype(int).tolist()
    # A line of no length with round ends is a dot.
    path = "".join(f"M{left} {down}h0" for left, down in places)
    return _SVG.format("dots", 1000, 1000, "position in the epoch and index in the dataset", path)


def _correlation(positions: NDArray[np.int64], indices: NDArray[np.int64]) -> str:
    """Returns a sentence about the correlation; nothing where there are too few points for one."""
    if len(positions) < _FEWEST_TO_CORRELATE or not np.ptp(indices):
        return ""
    return f" Correlation of position and index: {np.corrcoef(positions, indices)[0, 1]:.2f}."
