"""The sections of a report, in words: the dataset, the plan, the received examples, and the speed.

Each is a function of the results of `prove`. A new one is a function here and a line in `prove`; `render` decides how
it looks in text, page and JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from tfds_torch import demo
from tfds_torch.check.delivery import Delivery, ImageSizes
from tfds_torch.check.expected import Expectation, PipelineCounts
from tfds_torch.check.ledger import EpochCounts, LabelCount, Ledger
from tfds_torch.check.pictures import OrderSample, chip, cut, draw_bar, draw_order, draw_profile, draw_shares
from tfds_torch.check.promises import allow
from tfds_torch.check.reading import RankReading
from tfds_torch.check.report import Cell, NotJudged, Promise, Section, plural, show_bytes, show_seconds
from tfds_torch.errors import TfdsTorchError
from tfds_torch.images.decoders import jpeg
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.parsers.tfds.folder import INFO
from tfds_torch.plan.drawn import Drawn
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.mixed import Mixed
from tfds_torch.runtime.printable import printable
from tfds_torch.storage.network import NetworkStats
from tfds_torch.storage.source import FieldSpec

MOST_ROWS = 24
"""Of a table for people; of more, the first ones."""
_MOST_CLASSES, _NUM_EXTREME, _MOST_URLS = 10, 5, 3
_MADE_UP = "made up: its form is the dataset's, its images and labels mean nothing"
_STAGES = {
    "read": "reading encoded examples",
    "download": "waiting for bytes of the object store",
    "decode": "decoding and resizing their images",
    "fetch": "all that the dataset does, waiting for its threads included",
    "collate": "putting batches together",
    "hand_over": "batches on their way from the workers while the loop waited",
    "waiting": "the training loop waited for a batch",
}


# The dataset


def describe_dataset(parser: DatasetParser, sizes: ImageSizes | None = None) -> Section:
    """Return the section of the dataset; `sizes` are those of some images, once they are known."""
    found, names, is_fake = parser.provenance(), parser.class_names, is_made_up(parser)
    fields = {key: spec for key, spec in parser.element_spec.fields.items() if key not in METADATA_FIELDS}
    split, size = f"{parser.split}: {plural(parser.num_examples, 'example')}", parser.mean_example_bytes
    if found.has_files:
        split += f" in {plural(parser.num_shards, 'shard' if parser.source.has_shards else 'file')}"
    skipped = [one.num_skipped_files for one in (found, *(one.provenance() for one in found.members.values()))]
    num_skipped = None if all(one is None for one in skipped) else sum(one or 0 for one in skipped)
    facts = {
        "name": parser.dataset_name,
        "is_fake": Cell(is_fake, _MADE_UP if is_fake else ""),
        "split": Cell(parser.split, split),
        "mean_example_bytes": Cell(size, f"{show_bytes(size)}, of all {show_bytes(size * parser.num_examples)}"),
        "members": Cell(_members(parser), "\n".join(_describe_members(parser))),
        "data_dir": None if found.place is None else str(found.place),
        "num_examples": parser.num_examples,
        "num_shards": parser.num_shards,
        "num_skipped_files": Cell(
            num_skipped, f"{num_skipped:,}, of no sample, such as tar tools leave them" if num_skipped else ""
        ),
        "class_names": Cell(names, _describe_classes(names)),
        "features": Cell(
            {key: _feature(spec) for key, spec in fields.items()},
            "\n".join(f"{key} {_describe(spec)}" for key, spec in fields.items()),
        ),
        "image_sizes": Cell(None if sizes is None else asdict(sizes), describe_sizes(sizes)),
        "fingerprint": parser.fingerprint,
    }
    columns = [name for name in facts if name not in ("num_examples", "num_shards")]
    return Section("dataset", "Dataset", columns=columns, facts=facts)


def is_made_up(parser: DatasetParser) -> bool:
    """Return whether a dataset, or a member of it, was built with made-up content."""
    found = parser.provenance()
    places = [found.place, *(one.provenance().place for one in found.members.values())]
    return any(isinstance(place, Path) and demo.is_fake(place) for place in places)


def describe_catalogue(parser: DatasetParser) -> Section | None:
    """Return the entries of TFDS's catalogue for a dataset; None without any."""
    folder = parser.provenance().folder
    try:
        info = {} if folder is None else json.loads(folder.read(INFO) or b"{}")
    except (TfdsTorchError, ValueError):  # Reading the examples reports it.
        return None
    urls = ((info.get("location") or {}).get("urls") or [])[:_MOST_URLS]
    facts = {
        "description": "\n\n".join(filter(None, (info.get("description"), info.get("configDescription")))).strip(),
        "credits": (info.get("citation") or "").strip(),
        "license": ((info.get("redistributionInfo") or {}).get("license") or "").strip(),
        "home_page": Cell(urls, " ".join(urls), html=Markup(" ").join(map(_link, urls))),
    }
    if not (urls or any(facts[name] for name in ("description", "credits", "license"))):
        return None
    return Section("catalogue", "TFDS's catalogue", columns=list(facts), facts=facts, is_printed=False)


def _link(url: str) -> Markup:
    is_link = url.startswith(("https://", "http://"))
    shown = printable(url)
    return Markup('<a href="{0}" rel="noopener noreferrer">{0}</a>').format(shown) if is_link else escape(shown)


def schedule_of(parser: DatasetParser) -> list[dict[str, Any]]:
    """Return the weights of a mixture, {start, weights {member: share}} for each part; empty of other parsers."""
    order, members = parser.order, parser.provenance().members
    if not isinstance(order, Mixed) or not members:
        return []
    shares = [[count / one.period for count in one.counts] for one in order.segments]
    starts = [one.start for one in order.segments]
    return [
        {"start": start, "weights": dict(zip(members, own, strict=True))}
        for start, own in zip(starts, shares, strict=True)
    ]


def _members(parser: DatasetParser) -> list[dict[str, Any]]:
    names = ("dataset_name", "split", "num_examples", "num_shards", "fingerprint")
    members = parser.provenance().members
    return [{"name": name, **{key: getattr(one, key) for key in names}} for name, one in members.items()]


def _describe_members(parser: DatasetParser) -> list[str]:
    """Return a line for each member: its dataset, its weight in each part of the schedule, and where it lies."""
    lines, schedule = [], schedule_of(parser)
    for name, dataset in parser.provenance().members.items():
        weights = [_show_weight(part["start"], part["weights"][name]) for part in schedule]
        weight = f", weight {' and '.join(weights)}" if weights else ""
        place = dataset.provenance().place
        where = "" if place is None else f", in {place}"
        examples = plural(dataset.num_examples, "example")
        lines.append(f"{name}: {dataset.dataset_name} {dataset.split}, {examples}{weight}{where}")
    return lines if len(lines) <= MOST_ROWS else [*lines[:MOST_ROWS], f"and {len(lines) - MOST_ROWS} more"]


def _show_weight(start: int, share: float) -> str:
    return f"from example {start:,} on {share:.4g}" if start else f"{share:.4g}"


def _describe_classes(names: Sequence[str] | None) -> str:
    if not names:
        return ""
    more = " ..." if len(names) > _MOST_CLASSES else ""
    return f"{', '.join(map(cut, names[:_MOST_CLASSES]))}{more} ({len(names):,} classes)"


def _feature(spec: Any) -> dict[str, Any]:
    """Return {dtype, shape} with null for a size that varies, or one of these for every nested key."""
    if spec is None:  # A field that a transform returns, and does not declare.
        return {"dtype": None, "shape": None}
    if not isinstance(spec, FieldSpec):
        return {key: _feature(inner) for key, inner in spec.items()}
    is_text = spec.dtype in (object, str, bytes)
    return {"dtype": "string" if is_text else np.dtype(spec.dtype).name, "shape": list(spec.shape)}


def _describe(spec: Any) -> str:
    """Return dtype and shape of a feature, as `uint8[8, 8, 1]`."""
    if spec is None:
        return "made by a transform"
    if not isinstance(spec, FieldSpec):
        return "{" + ", ".join(f"{key} {_describe(inner)}" for key, inner in spec.items()) + "}"
    shape = ", ".join("?" if size is None else str(size) for size in spec.shape)
    kind = "str" if spec.dtype in (object, str, bytes) else getattr(spec.dtype, "__name__", str(spec.dtype))
    return f"{kind}[{shape}]" if spec.shape else kind


def describe_sizes(sizes: ImageSizes | None) -> str:
    """Return the sizes of images; nothing where they are not known."""
    if sizes is None:
        return ""
    smallest, median, largest = (f"{width}x{height}" for width, height in (sizes.smallest, sizes.median, sizes.largest))
    found = f"all {median}" if smallest == largest else f"{smallest} to {largest}, median {median}"
    return f"{found} ({plural(sizes.num_images, 'image')} looked at)"


# The plan


def describe_plan(
    parser: DatasetParser, expected: Expectation, pipelines: Sequence[PipelineCounts], num_workers: int
) -> Section:
    """Return how an epoch is read, and how much of it each pipeline must read."""
    plan, decoder = expected.plan, jpeg.describe(parser.read.jpeg_decoder)
    facts = {
        "is_training": plan.is_training,
        "shuffle": plan.order.shuffle,
        "seed": plan.seed,
        "remainder": plan.remainder.value,
        "read_mode": expected.mode,
        "jpeg_decoder": decoder,
        "batch_size": plan.batch_size,
        "num_batches": plan.num_batches,
        "num_replicas": plan.world.num_replicas,
        "num_workers": num_workers,
        "schedule": schedule_of(parser),
    }
    kind = "Training" if plan.is_training else "Evaluation"
    ranks = "one rank" if expected.num_replicas == 1 else f"each of {expected.num_replicas} ranks"
    note = f"{kind}: {plural(plan.num_batches, 'batch')} of {plan.batch_size} on {ranks}, remainder "
    note += f"{plan.remainder.value!r}, read mode {expected.mode!r}."
    if parser.dataset.image_key is not None:
        note += f" JPEG is decoded by {decoder}."
    columns = ["rank", "worker", "num_batches", "num_examples", "num_fill"]
    columns += ["num_available"] * (expected.mode == "files")
    worker = {} if num_workers else {"worker": Cell(0, "-")}
    rows = [asdict(one) | worker for one in pipelines]
    return Section("plan", "Plan", note, columns, facts, rows, of="pipelines", rows_key="pipelines")


def describe_delivery(delivery: Delivery, sizes: ImageSizes | None) -> Section:
    """Return how examples were read."""
    images = "" if sizes is None else f" Images: {describe_sizes(sizes)}."
    return Section("reading", "Reading", f"By {delivery}.{images}", facts=asdict(delivery))


# The received examples


def describe_promises(promises: Sequence[Promise]) -> Section:
    """Return which promises were kept."""
    kept, broken = Cell(True, "kept", "good"), Cell(False, "BROKEN", "bad")
    rows = [{"kept": kept if one.kept else broken, "name": one.name, "detail": one.detail} for one in promises]
    return Section("promises", "Promises", columns=["kept", "name", "detail"], rows=rows)


def describe_not_judged(skipped: Sequence[NotJudged]) -> Section:
    """Return which promises cannot be judged."""
    return Section("not_judged", "Not judged", columns=["name", "reason"], rows=[asdict(one) for one in skipped])


def describe_ledger(parser: DatasetParser, expected: Expectation, counts: Mapping[int, EpochCounts]) -> Section:
    """Return the examples that came in every epoch, beside the planned ones."""
    plan, allowed = expected.plan, allow(expected)
    delivered = plan.num_valid if plan.remainder is Remainder.KEEP else plan.num_batches * plan.global_batch_size
    is_bound = expected.mode == "files" or (plan.order.is_endless and plan.remainder is Remainder.DROP)
    planned = {
        "epoch": "planned",
        "num_batches": _describe_batches([plan.num_batches] * expected.num_replicas),
        "num_delivered": delivered,
        "num_valid": delivered - allowed.num_padded,
        "num_padded": allowed.num_padded,
        "num_missing": _at_most(allowed.num_missing, is_bound),
        "num_twice": _at_most(allowed.num_twice, is_bound),
        "num_unknown": 0,
    }
    rows, folded = [], []
    for epoch, one in sorted(counts.items()):
        rows.append(
            {
                "epoch": epoch,
                "num_batches": Cell(list(one.batches), _describe_batches(one.batches)),
                "num_delivered": one.num_valid + one.num_padded,
                "num_valid": one.num_valid,
                "num_padded": _number(one.num_padded, one.num_padded != allowed.num_padded),
                "num_missing": _number(one.missing.number, one.missing.number > allowed.num_missing),
                "num_twice": _number(one.twice.number, one.twice.number > allowed.num_twice),
                "num_unknown": _number(one.unknown.number, one.unknown.number > 0),
                "missing": one.missing.first,
                "twice": one.twice.first,
                "unknown": one.unknown.first,
                "members": [asdict(member) for member in one.members],
            }
        )
        for name, ids in (("missing", one.missing), ("twice", one.twice), ("unknown", one.unknown)):
            if ids and len(rows) <= MOST_ROWS:
                first = f", the first {len(ids.first)}" if ids.number > len(ids.first) else ""
                folded.append((f"Epoch {epoch}: {ids.number:,} {name}{first}", ids.first))
    note, shown = _describe_promised(parser, expected), [planned, *rows]
    columns = list(planned)
    return Section("epochs", "Ledger", note, columns, rows=rows, shown=shown, of="epochs", folded=folded)


def _number(number: int, is_bad: bool) -> Cell:
    return Cell(number, f"{number:,}", "bad" if is_bad else "")


def _at_most(number: int, is_bound: bool) -> Cell:
    """Return an allowed number; for uneven files only a bound is known."""
    return Cell(number, f"{'up to ' if is_bound and number else ''}{number:,}")


def _describe_batches(batches: Sequence[int]) -> str:
    """Return how many batches each rank had: `45`, `23 on each of 2`, `23 22`."""
    if len(set(batches)) == 1:
        return f"{batches[0]} on each of {len(batches)}" if len(batches) > 1 else str(batches[0])
    return " ".join(map(str, batches))


def _describe_promised(parser: DatasetParser, expected: Expectation) -> str:
    """Return how many examples must come, and the source of this number."""
    plan, source = expected.plan, parser.provenance().promised_by
    missing = "left out" if plan.remainder is Remainder.DROP else "missing"
    if isinstance(plan.order, Drawn):
        drawn = plural(plan.num_own_slots, "example")
        promised = f"the weights draw {drawn} of {plan.num_examples:,} in an epoch, in an order of their own"
    else:
        promised = f"{source} promises {plural(plan.order.promise().pass_size, 'example')} per pass"
    if plan.order.is_endless and not isinstance(plan.order, Drawn):
        promised += f"; an epoch is the next {plan.num_own_slots:,} examples, and {missing} and twice are of all "
        promised += "passes that began until its end"
    elif plan.num_passes > 1:
        promised += f", and an epoch has {plan.num_passes} passes"
    if promised.startswith("the "):
        promised = f"T{promised[1:]}"
    return f"{promised}. Counted by the examples' ids, over all ranks."


def describe_shares(ledger: Ledger) -> Section | None:
    """Return the examples that came of every member, or class, in every epoch; None where there are none."""
    counts, members, plan = ledger.counts, ledger.members, ledger.expected.plan
    if members is None or not any(count.members for count in counts.values()):
        return None
    order, whose, pictures = plan.order, "member", []
    said = "The mixture has no weights: it has every example of every member, once in each pass."
    if isinstance(order, Mixed):
        whose = order.whose
        said = f"In each part of a schedule, the first n examples have within 1 of n x weight of each {whose}."
        pictures = draw_shares(order, members, plan.seed) if 0 in counts else []
    rows = []
    for epoch, count in sorted(counts.items()):
        total = max(1, sum(one.num_valid for one in count.members))
        for number, one in enumerate(count.members):
            name = Cell(one.name, one.name, html=chip(number, one.name) if pictures else None)
            share = Cell(one.num_valid / total, f"{one.num_valid / total:.2%}")
            rows.append({"epoch": epoch, whose: name, "num_valid": one.num_valid, "num_planned": one.num_planned})
            rows[-1] |= {"share": share, "farthest_from_n_x_weight": one.most_off}
    note = f"Examples of each {whose}, by their ids, without those that fill the last batch. {said}"
    title = "Classes" if whose == "class" else "Mixture"
    return Section("mixture", title, note, list(rows[0]), rows=rows, of="rows", pictures=pictures)


def describe_labels(labels: Sequence[LabelCount]) -> Section:
    """Return how often each label came, with a bar; of many labels the most frequent and the rarest."""
    numbers = [one.num_examples for one in labels]
    most = max(1, *numbers)
    rows = [_label(one, most) for one in labels]
    note = f"{sum(numbers):,} examples of epoch 0, each counted once"
    shown, pictures = rows, []
    if len(rows) > MOST_ROWS:
        by_number = sorted(labels, key=lambda one: -one.num_examples)
        shown = [_label(one, most) for one in (*by_number[:_NUM_EXTREME], *by_number[-_NUM_EXTREME:])]
        absent = sum(not number for number in numbers)
        note += f": the {_NUM_EXTREME} most frequent and the {_NUM_EXTREME} rarest of {len(labels):,} labels"
        note += f"; {absent:,} do not occur" if absent else ""
        caption = f"Examples of each of the {len(labels):,} labels, in their order; the highest has {most:,}."
        pictures = [draw_profile(numbers, caption)]
    columns = ["name", "num_examples", "share"]
    return Section("labels", "Labels", f"{note}.", columns, rows=rows, shown=shown, pictures=pictures)


def _label(one: LabelCount, most: int) -> dict[str, Any]:
    name, share = cut(one.name), one.num_examples / most
    bar = Cell(round(share, 4), "", share=share, html=draw_bar(share, name))
    return {"label": one.label, "name": Cell(one.name, name), "num_examples": one.num_examples, "share": bar}


def describe_order(order: OrderSample, expected: Expectation) -> Section | None:
    """Return in which order examples came, as a picture; None where none came."""
    num_came, plan = len(order.came[0]), expected.plan
    if not num_came:
        return None
    ranks = ", batch after batch of all ranks" if expected.num_replicas > 1 else ""
    number = "all" if num_came == plan.num_examples else f"{num_came:,} of"
    note = f"Where the examples of the dataset came in epoch 0{ranks}: {number} {plan.num_examples:,} examples"
    note += ", at random positions." if num_came < order.num_positions else "."
    note += " To the right: position in the epoch. Upwards: index in the dataset."
    is_shuffled = plan.order.shuffle and not plan.order.is_endless  # Weights have their own pattern.
    note += " In a perfect shuffle no pattern can be seen." if is_shuffled else ""
    pictures = [draw_order(order, plan.num_examples, expected.mode)]
    return Section("order", "Shuffle" if is_shuffled else "Order", note, pictures=pictures, is_printed=False)


# How fast


def describe_speed(readings: Sequence[RankReading], *, is_together: bool) -> Section:
    """Return how fast each rank read; `is_together`: all of them at the same time."""
    num_ranks = len(readings)
    ranks = f"{plural(num_ranks, 'rank')} of torch.distributed" if is_together else "each rank"
    company = "at the same time" if is_together and num_ranks > 1 else "alone"
    rate = "examples/s are the median of the epochs after the first" if readings[0].times[1:] else "there was only one"
    note = f"Measured with {ranks} {company} on this machine. An epoch is timed from asking for its first batch to the "
    note += f"end of the loop; {rate}."
    if num_ranks > 1 and is_together:
        note += f" All ranks together: {sum(rank.examples_per_s for rank in readings):,.0f} examples/s."
    columns = ["rank", "first_batch_s", "later_first_batch_s", "examples_per_s", "tail_s"]
    rows = [
        {name: getattr(one, name) for name in (*columns, "num_batches", "timed_s")}
        | {"stages": dict(one.stages), "epochs": [asdict(times) for times in one.times]}
        | {"first_stages": dict(one.first_stages), "networks": [asdict(network) for network in one.networks]}
        | {"processes": [{"pid": pid, "pss_bytes": size} for pid, size in one.memory.items()]}
        for one in readings
    ]
    return Section("throughput", "Speed", note, columns, rows=rows, of="ranks")


def describe_stages(first: RankReading) -> Section | None:
    """Return the times of the stages of rank 0; of remote files also those of the first epoch, which fills the cache.

    None where the loader does not report them.
    """
    note = f"{plural(first.num_batches, 'batch')} of rank 0 in {show_seconds(first.timed_s)}"
    if first.first_stages:
        note += f"; the first epoch took {show_seconds(first.times[0].whole_s)}"
    note += ". The time of all workers and threads together: it may exceed that."
    rows = [
        {"stage": name.replace("_", "-")}
        | ({"first_epoch_s": first.first_stages[name]} if first.first_stages else {})
        | {"later_s" if first.first_stages else "whole_s": seconds, "meaning": _STAGES[name]}
        for name, seconds in first.stages.items()
    ]
    return Section("stages", "Stages", note, list(rows[0]), rows=rows) if rows else None


def describe_memory(readings: Sequence[RankReading], *, is_together: bool) -> Section | None:
    """Return the memory of the processes of the rank that took most; None where the system does not report it."""
    heaviest = max(readings, key=lambda rank: sum(rank.memory.values()))
    if not heaviest.memory:
        return None
    (main, held), *children = heaviest.memory.items()
    sizes = [(f"rank {heaviest.rank}, process {main}", held)]
    sizes += [(f"its child {pid}", size) for pid, size in sorted(children, key=lambda child: -child[1])]
    note = f"{show_bytes(sum(heaviest.memory.values()))} in the middle of epoch 0; what processes share is divided "
    note += "among them (PSS)."
    if is_together and len(readings) > 1:
        note += f" All ranks: {show_bytes(sum(sum(rank.memory.values()) for rank in readings))}."
    rows = [{"process": name, "pss_bytes": Cell(size, show_bytes(size))} for name, size in sizes]
    return Section("memory", "Memory", note, ["process", "pss_bytes"], rows=rows, of="processes")


def describe_network(parser: DatasetParser, network: NetworkStats, readings: Sequence[RankReading]) -> Section:
    """Return the requests to object stores: all of them, and those while rank 0 read each epoch."""
    split_bytes = len(parser.source) * parser.mean_example_bytes
    share = f" ({network.bytes_fetched / split_bytes:.2f} of the split)" if split_bytes else ""
    again = f", {network.retries} of them sent again" if network.retries else ""
    note = f"{plural(network.requests, 'request')}{again}; {show_bytes(network.bytes_fetched)} fetched{share}, "
    note += f"{show_bytes(network.bytes_delivered)} read; readers waited {network.waited_s:.1f} s, all together. "
    note += "What is read comes from the network once, and from this machine's cache later."
    rows: list[dict[str, Any]] = []
    if readings and readings[0].networks:
        first = readings[0]
        for epoch, (one, times, number) in enumerate(zip(first.networks, first.times, first.num_examples, strict=True)):
            rows.append({"epoch": str(epoch), "whole_s": times.whole_s, "examples_per_s": number / times.whole_s})
            rows[-1] |= _asked(one)
        rows.append({"epoch": "other", **_asked(network - sum(first.networks, NetworkStats()))})
        note += " While rank 0 read; other: before, when shards without an index are fetched, and after."
    columns = list(rows[0]) if rows else []
    return Section("network", "Network", note, columns, asdict(network), rows, rows_key="epochs")


def _asked(network: NetworkStats) -> dict[str, Any]:
    fetched = max(0, network.bytes_fetched)
    return {"fetched_bytes": Cell(fetched, show_bytes(fetched)), "wait_s": max(0.0, network.waited_s)}


def describe_advice(sentences: Sequence[str]) -> Section:
    """Return the advice to the user."""
    return Section("advice", "Advice", columns=[""], rows=[{"": sentence} for sentence in sentences])
