"""What loaders and Feeders have done, as Prometheus reads it; needs the extra `prometheus`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.feed_metrics import FeederStats
from tfds_torch.runtime.metrics import STAGES, WORKER_STAGES, LoaderStats

Stats = FeederStats | LoaderStats


def prometheus_text(stats: Stats | Mapping[str, Stats]) -> str:
    """Returns figures in Prometheus's text format.

    Args:
        stats: `feeder.metrics()`, `loader.stats()`, or several of them: name -> stats. The name is the label `loader`
            of every sample; that of one alone is `feeder` or `loader`.

    Raises:
        ConfigError: the package prometheus-client is not installed.
    """
    client = _import_client()
    named = stats if isinstance(stats, Mapping) else {_name_of(stats): stats}
    registry = client.CollectorRegistry()
    registry.register(StatsCollector({name: _constant(one) for name, one in named.items()}))
    text: str = client.generate_latest(registry).decode()
    return text


class StatsCollector:
    """A collector for a registry of prometheus_client: `registry.register(StatsCollector({"train": loader.stats}))`.

    Every scrape asks for the figures anew; a registry's own server, or any other, does the rest.

    Args:
        loaders: name -> what returns its stats: `feeder.metrics`, `loader.stats`. The name is the label `loader`.

    Raises:
        ConfigError: the package prometheus-client is not installed.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Stats]]) -> None:
        _import_client()
        self._loaders = dict(loaders)

    def collect(self) -> Iterator[Any]:
        """Yields the metric families."""
        families = _Families()
        for name, read in self._loaders.items():
            stats = read()
            if isinstance(stats, FeederStats):
                _add_feeder(families, name, stats)
            elif isinstance(stats, LoaderStats):
                _add_loader(families, name, stats)
            else:
                raise ConfigError(f"{name!r}: {type(stats).__name__} is neither FeederStats nor LoaderStats.")
        yield from families.found.values()


class _Families:
    """Metric families by name, made when the first sample comes."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._client = _import_client()

    def count(self, name: str, help_text: str, labels: dict[str, str], value: float) -> None:
        """Adds a sample of what only grows."""
        self._add(self._client.core.CounterMetricFamily, name, help_text, labels, value)

    def gauge(self, name: str, help_text: str, labels: dict[str, str], value: float) -> None:
        """Adds a sample of what goes up and down."""
        self._add(self._client.core.GaugeMetricFamily, name, help_text, labels, value)

    def _add(self, kind: Any, name: str, help_text: str, labels: dict[str, str], value: float) -> None:
        if name not in self.found:
            self.found[name] = kind(f"tfds_torch_{name}", help_text, labels=list(labels))
        self.found[name].add_metric(list(labels.values()), value)


def _add_feeder(families: _Families, name: str, stats: FeederStats) -> None:
    for source in stats.sources.values():
        of = {"loader": name, "source": source.source}
        families.count("feeder_batches", "Batches that training loops have taken.", of, source.batches)
        families.gauge("feeder_queue_chunks", "Chunks in the queue.", of, source.queue_size)
        families.gauge(
            "feeder_queue_occupancy",
            "How full the queue is. 0: training loops wait for data; 1: the fetchers wait for training loops.",
            of,
            source.queue_occupancy,
        )
        families.gauge("feeder_ready_batches", "Batches made ahead.", of, source.ready_batches)
        families.count("feeder_waiting_seconds", "Training loops waited for a batch.", of, source.waiting_s)
        for worker in source.workers:
            of_worker = of | {"worker": str(worker.worker)}
            families.count("feeder_chunks", "Chunks put into the queue.", of_worker, worker.chunks)
            families.count("feeder_examples", "Examples put into the queue.", of_worker, worker.examples)
            for stage, seconds in (("fetch", worker.fetch_s), ("enqueue", worker.enqueue_s)):
                families.count(
                    "feeder_stage_seconds", "Time of fetchers, by stage.", of_worker | {"stage": stage}, seconds
                )


def _add_loader(families: _Families, name: str, stats: LoaderStats) -> None:
    of = {"loader": name}
    families.count("loader_batches", "Batches delivered to the training loop.", of, stats.batches)
    families.count("loader_examples", "Examples delivered to the training loop.", of, stats.examples)
    families.count("loader_replaced", "Damaged examples that others took the place of.", of, stats.replaced)
    figures = stats.to_dict()
    for stage in (*STAGES, "waiting", "consumer"):
        families.count(
            "loader_stage_seconds",
            "Time by stage, all processes together; waiting and consumer: of the training loop.",
            of | {"stage": stage},
            figures[f"{stage}_s"],
        )
    for worker in figures["workers"]:
        of_worker = of | {"worker": str(worker["worker"])}
        families.count("loader_worker_examples", "Examples that a worker made.", of_worker, worker["examples"])
        for stage in WORKER_STAGES:
            families.count(
                "loader_worker_stage_seconds",
                "Time of a worker, by stage.",
                of_worker | {"stage": stage},
                worker[f"{stage}_s"],
            )


def _constant(stats: Stats) -> Callable[[], Stats]:
    return lambda: stats


def _name_of(stats: Stats) -> str:
    return "feeder" if isinstance(stats, FeederStats) else "loader"


def _import_client() -> Any:
    try:
        import prometheus_client.core
    except ImportError:
        raise ConfigError(
            "Prometheus text needs the package prometheus-client: pip install 'tfds-torch[prometheus]'."
        ) from None
    return prometheus_client
