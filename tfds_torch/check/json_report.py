"""The check's findings as JSON, for machines.

The form is stable: keys may be added, and what is there keeps its name, unit and meaning while `schema_version` is 2.
Keys that end in `_s` are seconds, in `_bytes` bytes; `num_` counts. What a check did not get to know, because an error
ended it, is null or empty.

    schema_version  2
    command         arguments of `python -m tfds_torch.check`
    started         UTC, ISO 8601;  duration_s
    exit_code       0 all promises kept, 1 one broken or a shard damaged, 2 wrong usage or no such dataset,
                    130 interrupted
    is_interrupted  whether Ctrl-C ended it: `promises` and `epochs` then cover what had come until then
    error           null, or {type, message}
    machine         python, platform, num_cores, packages {name: version}
    dataset         name (of one's own: its type), split, data_dir (null: of a mixture, or of one's own), members of a
                    mixture [{name, dataset_name, split, num_examples, num_shards, fingerprint}], is_fake, num_examples,
                    num_shards, num_skipped_files (of tars; null: of other formats), class_names, fingerprint,
                    mean_example_bytes, features {key: {dtype, shape} or nested}, image_sizes of num_images images
    plan            is_training, shuffle, seed, remainder, read_mode (index, files or examples), jpeg_decoder (what
                    decodes JPEG, with its version), schedule of a mixture's weights [{start: example of the mixture,
                    weights {member: share}}], batch_size, num_batches, num_replicas, num_workers (0: a rank reads
                    by itself), pipelines [{rank, worker, num_batches, num_examples, num_fill, num_available}] of
                    epoch 0
    reading         loader (create_loader or DataLoader), is_batched (whole batches or single examples), preprocess,
                    is_own (it is the recipe's; else the usual one), reason (of single examples) or null
    num_batches_read  of all ranks and epochs
    epochs          of those that every rank has read: [{epoch, num_batches of each rank, num_valid, num_padded, and for
                    missing, twice and unknown ids their number and the first 100; of a mixture members [{name,
                    num_valid, num_planned, most_off (examples, the farthest from n x weight; null: without weights),
                    is_within (as near as promised)}], and missing and twice are of all epochs until then}]
    labels          [{label, name, num_examples}]
    is_torchrun     true: the ranks were processes of torch.distributed and read at the same time, so that `throughput`
                    is what each had of the machine; false: one after the other, each alone on it
    throughput      [{rank, first_batch_s, later_first_batch_s, examples_per_s, tail_s, epochs, processes, and of the
                    epochs after the first (of one epoch, of that) num_batches, timed_s, stages}]; of files in object
                    stores first_stages (of the first of several epochs) and networks [as `network`] of each epoch, else
                    nothing; stages are seconds of all workers and threads: {read, download (of object stores), decode,
                    fetch (all that a dataset does), collate, hand_over, waiting (the loop, for batches)}, or nothing
                    where the loader does not report them
    promises        [{name, kept, detail}]; read_mode index makes more than the streams
    not_judged      [{name, reason}] of promises that this dataset cannot be asked for
    network         null, or of files in object stores {requests, retries (of them), bytes_fetched, bytes_delivered (to
                    readers, out of the cache too), waited_s (of all readers)} of the whole check
    advice          sentences
    images          path of the contact sheet, or null
"""

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

import tfds_torch
from tfds_torch.check.expectation import Expectation
from tfds_torch.check.findings import Findings
from tfds_torch.check.ledger import EpochCounts
from tfds_torch.check.reference import CheckedParser, num_skipped_files, place_of
from tfds_torch.images.decoders import jpeg
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.runtime.limits import num_cores
from tfds_torch.storage.source import FieldSpec

SCHEMA_VERSION = 2
_PACKAGES = ("numpy", "pillow", "tensorflow", "tensorflow-cpu", "tensorflow-datasets", "torch")


def render_report(report: dict[str, Any]) -> str:
    """Returns the report as JSON."""
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def make_report(findings: Findings, command: Sequence[str], started: float, exit_code: int) -> dict[str, Any]:
    """Returns the report as it is written, of plain values."""
    error = findings.error
    return {
        "schema_version": SCHEMA_VERSION,
        "command": list(command),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "duration_s": round(time.time() - started, 3),
        "exit_code": exit_code,
        "is_interrupted": findings.is_interrupted,
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
        "machine": _machine(),
        "dataset": None if findings.parser is None else _dataset(findings, findings.parser),
        "plan": None if findings.expected is None else _plan(findings, findings.expected),
        "reading": None if findings.delivery is None else asdict(findings.delivery),
        "num_batches_read": findings.num_batches,
        "epochs": [_epoch(number, counts) for number, counts in sorted(findings.counts.items())],
        "labels": [asdict(count) for count in findings.labels],
        "is_torchrun": findings.is_torchrun,
        "throughput": _throughput(findings),
        "promises": [asdict(promise) for promise in findings.promises],
        "not_judged": [asdict(skipped) for skipped in findings.not_judged],
        "network": None if findings.network is None else asdict(findings.network),
        "advice": list(findings.advice),
        "images": None if findings.images_path is None else str(findings.images_path),
    }


def _machine() -> dict[str, Any]:
    packages = {"tfds-torch": tfds_torch.__version__}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "num_cores": num_cores(),
        "packages": packages,
    }


def _dataset(findings: Findings, parser: CheckedParser) -> dict[str, Any]:
    features = {key: spec for key, spec in parser.element_spec.fields.items() if key not in METADATA_FIELDS}
    return {
        "name": parser.dataset_name,
        "split": parser.split,
        "data_dir": _show_place(parser),
        "members": [_member(*one) for one in parser.members.items()] if isinstance(parser, ParserMixture) else [],
        "is_fake": findings.is_fake,
        "num_examples": parser.num_examples,
        "num_shards": parser.num_shards,
        "num_skipped_files": num_skipped_files(parser),
        "class_names": parser.class_names,
        "fingerprint": parser.fingerprint,
        "mean_example_bytes": parser.mean_example_bytes,
        "features": {key: _feature(spec) for key, spec in features.items()},
        "image_sizes": None if findings.image_sizes is None else asdict(findings.image_sizes),
    }


def _show_place(parser: CheckedParser) -> str | None:
    place = None if isinstance(parser, ParserMixture) else place_of(parser)
    return None if place is None else str(place)


def _member(name: str, dataset: DatasetParser) -> dict[str, Any]:
    names = ("dataset_name", "split", "num_examples", "num_shards", "fingerprint")
    return {"name": name, **{key: getattr(dataset, key) for key in names}}


def _feature(spec: Any) -> dict[str, Any]:
    """Returns {dtype, shape} with null for a size that varies, or one of these for every nested key."""
    if not isinstance(spec, FieldSpec):
        return {key: _feature(inner) for key, inner in spec.items()}
    is_text = spec.dtype in (object, str, bytes)
    return {"dtype": "string" if is_text else np.dtype(spec.dtype).name, "shape": list(spec.shape)}


def _plan(findings: Findings, expected: Expectation) -> dict[str, Any]:
    plan = expected.plan
    return {
        "is_training": plan.is_training,
        "shuffle": plan.order.shuffle,
        "seed": plan.seed,
        "remainder": plan.remainder.value,
        "read_mode": expected.mode,
        "jpeg_decoder": None if findings.parser is None else jpeg.describe(findings.parser.read.jpeg_decoder),
        "batch_size": plan.batch_size,
        "num_batches": plan.num_batches,
        "num_replicas": plan.world.num_replicas,
        "num_workers": findings.num_workers,
        "schedule": _schedule(findings.parser),
        "pipelines": [asdict(counts) for counts in findings.pipelines],
    }


def _schedule(parser: CheckedParser | None) -> list[dict[str, Any]]:
    weights = parser.weights if isinstance(parser, ParserMixture) else None
    return [{"start": start, "weights": shares} for start, shares in weights or ()]


def _epoch(number: int, counts: EpochCounts) -> dict[str, Any]:
    ids = {"missing": counts.missing, "twice": counts.twice, "unknown": counts.unknown}
    return {
        "epoch": number,
        "num_batches": list(counts.batches),
        "num_valid": counts.num_valid,
        "num_padded": counts.num_padded,
        **{f"num_{name}": found.number for name, found in ids.items()},
        **{name: found.first for name, found in ids.items()},
        "members": [asdict(one) for one in counts.members],
    }


def _throughput(findings: Findings) -> list[dict[str, Any]]:
    names = ("rank", "first_batch_s", "later_first_batch_s", "examples_per_s", "tail_s", "num_batches", "timed_s")
    return [
        {name: getattr(reading, name) for name in names}
        | {"stages": dict(reading.stages), "epochs": [asdict(times) for times in reading.times]}
        | {"first_stages": dict(reading.first_stages), "networks": [asdict(one) for one in reading.networks]}
        | {"processes": [{"pid": pid, "pss_bytes": size} for pid, size in reading.memory.items()]}
        for reading in findings.readings
    ]
