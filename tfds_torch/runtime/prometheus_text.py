"""What loaders and Feeders have done, as Prometheus reads it; needs the extra `prometheus`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.feed_metrics import FeederStats
from tfds_torch.runtime.metrics import STAGES, WORKER_STAGES, LoaderStats

Stats = FeederStats | LoaderStats

_GAUGES = {
    "feeder_queue_chunks": "Chunks in the queue.",
    "feeder_queue_occupancy": "How full the queue is. 0: training loops wait for data; 1: the fetchers wait for "
    "training loops.",
    "feeder_ready_batches": "Batches made ahead.",
}
_COUNTERS = {
    "feeder_batches": "Batches that training loops have taken.",
    "feeder_waiting_seconds": "Training loops waited for a batch.",
    "feeder_chunks": "Chunks put into the queue.",
    "feeder_examples": "Examples put into the queue.",
    "feeder_stage_seconds": "Time of fetchers, by stage.",
    "loader_batches": "Batches delivered to the training loop.",
    "loader_examples": "Examples delivered to the training loop.",
    "loader_replaced": "Damaged examples that others took the place of.",
    "loader_stage_seconds": "Time by stage, all processes together; waiting and consumer: of the training loop.",
    "loader_member_examples": "Examples read of a member of a mixture.",
    "loader_member_read_seconds": "Reading the examples of a member of a mixture, all processes together.",
    "loader_worker_examples": "Examples that a worker made.",
    "loader_worker_stage_seconds": "Time of a worker, by stage.",
}


def prometheus_text(stats: Stats | Mapping[str, Stats]) -> str:
    """Returns figures in Prometheus's text format.

    Args:
        stats: `feeder.metrics()`, `loader.stats()`, or several of them: name -> stats. The name is the label `loader`
            of every sample; that of one alone is `feeder` or `loader`.

    Raises:
        ConfigError: the package prometheus-client is not installed.
    """
    client = _import_client()
    if not isinstance(stats, Mapping):
        stats = {"feeder" if isinstance(stats, FeederStats) else "loader": stats}
    registry = client.CollectorRegistry()
    registry.register(StatsCollector({name: partial(_same, one) for name, one in stats.items()}))
    text: str = client.generate_latest(registry).decode()
    return text


class StatsCollector:
    """A collector for a registry of prometheus_client: `registry.register(StatsCollector({"train": loader.stats}))`.

    Every scrape asks for the figures anew; a registry's own server, or any other, does the rest.

    Args:
        loaders: name -> what returns its stats: `feeder.metrics`, `loader.stats`. The name is the label `loader`.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Stats]]) -> None:
        _import_client()
        self._loaders = dict(loaders)

    def collect(self) -> Iterator[Any]:
        """Yields the metric families."""
        client = _import_client()
        families: dict[str, Any] = {}
        for loader, read in self._loaders.items():
            for name, labels, value in _samples(loader, read()):
                if name not in families:
                    kind = client.core.GaugeMetricFamily if name in _GAUGES else client.core.CounterMetricFamily
                    help_text = _GAUGES.get(name) or _COUNTERS[name]
                    families[name] = kind(f"tfds_torch_{name}", help_text, labels=["loader", *labels])
                families[name].add_metric([loader, *labels.values()], value)
        yield from families.values()


def _samples(loader: str, stats: Stats) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yields the name, the labels and the value of every sample."""
    if isinstance(stats, FeederStats):
        yield from _samples_of_feeder(stats)
    elif isinstance(stats, LoaderStats):
        yield from _samples_of_loader(stats)
    else:
        raise ConfigError(f"{loader!r}: {type(stats).__name__} is neither FeederStats nor LoaderStats.")


def _samples_of_feeder(stats: FeederStats) -> Iterator[tuple[str, dict[str, str], float]]:
    for source in stats.sources.values():
        of = {"source": source.source}
        yield "feeder_batches", of, source.batches
        yield "feeder_queue_chunks", of, source.queue_size
        yield "feeder_queue_occupancy", of, source.queue_occupancy
        yield "feeder_ready_batches", of, source.ready_batches
        yield "feeder_waiting_seconds", of, source.waiting_s
        for worker in source.workers:
            of_worker = of | {"worker": str(worker.worker)}
            yield "feeder_chunks", of_worker, worker.chunks
            yield "feeder_examples", of_worker, worker.examples
            yield "feeder_stage_seconds", of_worker | {"stage": "fetch"}, worker.fetch_s
            yield "feeder_stage_seconds", of_worker | {"stage": "enqueue"}, worker.enqueue_s


def _samples_of_loader(stats: LoaderStats) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "loader_batches", {}, stats.batches
    yield "loader_examples", {}, stats.examples
    yield "loader_replaced", {}, stats.replaced
    for stage in (*STAGES, "waiting", "consumer"):
        yield "loader_stage_seconds", {"stage": stage}, getattr(stats, f"{stage}_s")
    for member in stats.members:
        yield "loader_member_examples", {"member": member.name}, member.examples
        yield "loader_member_read_seconds", {"member": member.name}, member.read_s
    for worker in stats.workers:
        of_worker = {"worker": str(worker.worker)}
        yield "loader_worker_examples", of_worker, worker.examples
        for stage in WORKER_STAGES:
            yield "loader_worker_stage_seconds", of_worker | {"stage": stage}, getattr(worker, f"{stage}_s")


def _same(stats: Stats) -> Stats:
    return stats


def _import_client() -> Any:
    try:
        import prometheus_client.core
    except ImportError:
        raise ConfigError(
            "Prometheus text needs the package prometheus-client: pip install 'tfds-torch[prometheus]'."
        ) from None
    return prometheus_client
