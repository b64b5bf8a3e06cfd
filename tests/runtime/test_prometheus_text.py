"""Figures of loaders and Feeders in Prometheus's format, by its own client library."""

import builtins
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.feed_metrics import FeederStats, FetcherStats, SourceStats
from tfds_torch.runtime.metrics import LoaderStats, MemberStats, WorkerStats
from tfds_torch.runtime.prometheus_text import StatsCollector, prometheus_text

WORKERS = (FetcherStats(3, 4, 40, 1.5, 0.25), FetcherStats(5, 6, 60, 2.5, 0.5))
SOURCE = SourceStats(
    source='tr"ain',
    elapsed_s=10,
    chunks=10,
    examples=100,
    batches=9,
    examples_per_s=10,
    recent_examples_per_s=12,
    queue_size=2,
    queue_occupancy=0.5,
    mean_occupancy=0.25,
    ready_batches=4,
    fetch_s=4,
    enqueue_s=0.75,
    waiting_s=7.5,
    workers=WORKERS,
)
FEED = FeederStats({SOURCE.source: SOURCE})
LOADER = LoaderStats(
    batches=3,
    examples=12,
    examples_per_s=4.0,
    read_s=0.1,
    decode_s=0.2,
    transform_s=0.3,
    fetch_s=0.4,
    collate_s=0.5,
    hand_over_s=0.6,
    device_copy_s=0.7,
    waiting_s=0.8,
    consumer_s=0.9,
    replaced=1,
    workers=(WorkerStats(0, 123, 3, 12, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),),
    members=(MemberStats("droid", 9, 0.25, 0.0625),),
)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Returns (name, labels) -> value, as Prometheus's own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> Any:
    return f"tfds_torch_{name}", frozenset(labels.items())


def test_a_feeders_figures_are_told_by_source_and_worker() -> None:
    text = prometheus_text(FEED)
    found = samples(text)
    of: Any = {"loader": "feeder", "source": 'tr"ain'}
    assert found[key("feeder_batches_total", **of)] == 9
    assert found[key("feeder_queue_chunks", **of)] == 2
    assert found[key("feeder_queue_occupancy", **of)] == 0.5
    assert found[key("feeder_ready_batches", **of)] == 4
    assert found[key("feeder_waiting_seconds_total", **of)] == 7.5
    assert found[key("feeder_chunks_total", worker="5", **of)] == 6
    assert found[key("feeder_examples_total", worker="3", **of)] == 40
    assert found[key("feeder_stage_seconds_total", worker="3", stage="fetch", **of)] == 1.5
    assert found[key("feeder_stage_seconds_total", worker="5", stage="enqueue", **of)] == 0.5
    assert "0: training loops wait for data; 1: the fetchers wait for training loops." in text


def test_a_loaders_figures_are_told_by_stage_and_worker() -> None:
    found = samples(prometheus_text(LOADER))
    assert found[key("loader_batches_total", loader="loader")] == 3
    assert found[key("loader_examples_total", loader="loader")] == 12
    assert found[key("loader_replaced_total", loader="loader")] == 1
    stages = ("read", "decode", "transform", "fetch", "collate", "hand_over", "device_copy", "waiting", "consumer")
    for tenths, stage in enumerate(stages, 1):
        assert found[key("loader_stage_seconds_total", loader="loader", stage=stage)] == pytest.approx(tenths / 10)
    assert found[key("loader_worker_examples_total", loader="loader", worker="0")] == 12
    assert found[key("loader_member_examples_total", loader="loader", member="droid")] == 9
    assert found[key("loader_member_read_seconds_total", loader="loader", member="droid")] == 0.0625
    assert found[key("loader_worker_stage_seconds_total", loader="loader", worker="0", stage="collate")] == 0.5


def test_several_have_one_family_each_and_their_names_as_labels() -> None:
    text = prometheus_text({"train": LOADER, "test": LOADER, "feed": FEED})
    assert text.count("# TYPE tfds_torch_loader_batches_total counter") == 1
    found = samples(text)
    assert found[key("loader_batches_total", loader="train")] == found[key("loader_batches_total", loader="test")] == 3
    assert key("feeder_batches_total", loader="feed", source='tr"ain') in found


def test_a_registry_asks_anew_at_every_scrape() -> None:
    stats = iter([FEED, FeederStats({}), FEED])
    registry = prometheus_client.CollectorRegistry()
    registry.register(StatsCollector({"feed": lambda: next(stats)}))
    texts = [prometheus_client.generate_latest(registry).decode() for _ in range(3)]
    assert [len(samples(text)) > 0 for text in texts] == [True, False, True]


def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="'train': int is neither FeederStats nor LoaderStats"):
        prometheus_text({"train": 3})  # type: ignore[dict-item]


def test_without_the_client_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(name: str, *arguments: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", importing)
    for use in (lambda: prometheus_text(FEED), lambda: StatsCollector({})):
        with pytest.raises(ConfigError, match=r"pip install 'tfds-torch\[prometheus\]'"):
            use()
