"""All suites: `suites.toml`, with the function that measures each; and a run of one of them."""

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import (
    cached_costs,
    comparisons,
    episode_costs,
    export_costs,
    loader_costs,
    machine,
    mixture_costs,
    remote_costs,
    resuming,
)
from benchmarks.comparison import measure_comparisons
from benchmarks.figures import OURS_BY_IT
from benchmarks.report import Report
from benchmarks.tables import COMPETITORS, Table
from benchmarks.targets import RELATIONS, Target, judge
from benchmarks.task import PEERS, SINGLE_PEERS, Peer, Run, Settings, ShowProgress
from tfds_torch import demo
from tfds_torch.images.decoders import jpeg


@dataclass(frozen=True)
class Suite:
    """A suite of measurements, with our own targets.

    Attributes:
        title: a line about what it measures.
        method: a paragraph about how it measures.
        measure: yields its tables.
        peers: competitors that the command line may choose from; empty where all take part always.
        distributions: packages that always take part, for the list of versions.
        configured: where to read the configuration of the competitors.
    """

    name: str
    title: str
    method: str
    measure: Callable[[Run], Iterator[Table]]
    targets: Sequence[Target] = ()
    peers: Sequence[Peer] = ()
    distributions: Sequence[str] = ()
    configured: str = "benchmarks.peers"


_MEASURES: dict[str, Callable[[Run], Iterator[Table]]] = {
    "sample": measure_comparisons(comparisons.SAMPLE),
    "start": measure_comparisons(comparisons.STARTING),
    "index": comparisons.measure_index,
    "state": resuming.measure_state,
    "jpeg": measure_comparisons(comparisons.JPEG),
    "jpeg_eval": measure_comparisons(comparisons.JPEG_EVAL),
    "png32": measure_comparisons(comparisons.PNG32),
    "memory": comparisons.measure_memory,
    "notebook": comparisons.measure_notebook,
    "ready": loader_costs.measure_ready,
    "multi": loader_costs.measure_multi,
    "feeder": loader_costs.measure_feeder,
    "scale": comparisons.measure_scale,
    "export": export_costs.measure_export,
    "cached": cached_costs.measure_cached,
    "mixture": mixture_costs.measure_mixture,
    "episodes": episode_costs.measure_episodes,
    "remote": remote_costs.measure_remote,
}
_SINGLE = ("sample", "start")
_DEFAULTS = {"table": COMPETITORS, "column": OURS_BY_IT.key}


def _read() -> tuple[Suite, ...]:
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    phrases = data.pop("phrases")
    phrases["single"] = phrases["single"].format(**phrases)
    return tuple(_suite(name, fields, phrases) for name, fields in data.items())


def _suite(name: str, fields: Mapping[str, Any], phrases: Mapping[str, str]) -> Suite:
    peers = SINGLE_PEERS if name in _SINGLE else PEERS
    given: dict[str, Any] = {
        "method": " ".join(fields["method"].format(**phrases).split()),
        "peers": tuple(peers[peer] for peer in fields.get("peers", ())),
        "targets": tuple(map(_target, fields.get("targets", ()))),
    }
    return Suite(name=name, measure=_MEASURES[name], **{**fields, **given})


def _target(fields: Mapping[str, Any]) -> Target:
    given = dict(fields)
    ((relation, limit),) = ((known, given.pop(known)) for known in RELATIONS if known in fields)
    return Target(relation=relation, limit=limit, **{**_DEFAULTS, **given})


SUITES = _read()


def run(suite: Suite, settings: Settings, command: str, show_progress: ShowProgress) -> Report:
    """Measures a suite.

    Raises:
        TfdsTorchError: the datasets could not be made. A competitor that fails is reported, not raised.
    """
    found_machine = machine.describe_machine()  # First: the load before the start.
    date, began_s = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    data_dir = demo.prepare("photos", num_examples=settings.num_photos, num_shards=settings.num_shards)
    asked = Run(suite.peers, settings, data_dir, show_progress)
    tables = list(suite.measure(asked))
    taking_part = suite.peers or [PEERS["ours"]]
    distributions = [*(name for peer in taking_part for name in peer.distributions), *suite.distributions]
    return Report(
        suite=suite.name,
        title=suite.title,
        method=suite.method,
        command=command,
        date=date,
        took_s=round(time.monotonic() - began_s, 1),
        machine=found_machine,
        versions=machine.describe_versions(distributions) | asked.versions | {"JPEG decoded by": jpeg.describe("auto")},
        settings=asdict(settings) | {"num_shards": settings.num_shards},
        tables=tables,
        targets=judge(suite.targets, tables),
        configured=suite.configured,
    )
