"""All suites, and a run of one of them."""

import time
from dataclasses import asdict

from tfds_torch import demo
from tfds_torch.bench import machine
from tfds_torch.bench.cached_suite import CACHED
from tfds_torch.bench.contests import SAMPLE, START
from tfds_torch.bench.export_suite import EXPORT
from tfds_torch.bench.feeder_suite import FEEDER
from tfds_torch.bench.fused_suites import JPEG, JPEG_EVAL, MEMORY, PNG32
from tfds_torch.bench.index_suite import INDEX_SUITE
from tfds_torch.bench.multi_suite import MULTI
from tfds_torch.bench.notebook_suite import NOTEBOOK
from tfds_torch.bench.ready_suite import READY
from tfds_torch.bench.report import Report
from tfds_torch.bench.scale_suite import SCALE
from tfds_torch.bench.state_suite import STATE_SUITE
from tfds_torch.bench.suite import Run, Settings, Suite
from tfds_torch.bench.task import PEERS
from tfds_torch.bench.turns import Say

SUITES = (
    SAMPLE,
    START,
    INDEX_SUITE,
    STATE_SUITE,
    JPEG,
    JPEG_EVAL,
    PNG32,
    MEMORY,
    NOTEBOOK,
    READY,
    MULTI,
    FEEDER,
    SCALE,
    EXPORT,
    CACHED,
)


def run(suite: Suite, settings: Settings, command: str, say: Say) -> Report:
    """Measures a suite.

    Raises:
        TfdsTorchError: the datasets could not be made. A contestant that fails is reported, not raised.
    """
    found_machine = machine.describe_machine()  # First: the load before the start.
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    data_dir = demo.prepare("photos", num_examples=settings.num_photos, num_shards=settings.num_shards)
    found = suite.measure(Run(suite.peers, settings, data_dir, say))
    taking_part = suite.peers or PEERS[:1]
    return Report(
        suite=suite.name,
        title=suite.title,
        method=suite.method,
        command=command,
        date=date,
        machine=found_machine,
        versions=machine.describe_versions(
            [*(name for peer in taking_part for name in peer.distributions), *suite.distributions]
        )
        | dict(found.versions),
        settings=asdict(settings) | {"num_shards": settings.num_shards},
        outcomes=found.outcomes,
        targets=found.targets,
        sections=found.sections,
        configured=suite.configured,
    )
