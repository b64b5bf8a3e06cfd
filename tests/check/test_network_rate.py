"""NetworkRate: what a progress bar says of the network."""

import pytest

from tfds_torch.check.network_rate import NetworkRate
from tfds_torch.errors import WorkerError
from tfds_torch.storage.network import NetworkStats


class Counts:
    """A network whose counts a test sets, and a clock."""

    def __init__(self) -> None:
        self.now, self.now_s, self.is_gone = NetworkStats(), 0.0, False

    def network_stats(self) -> NetworkStats:
        if self.is_gone:
            raise WorkerError("The fetcher ended.")
        return self.now

    def __call__(self) -> float:
        return self.now_s


def sampled(counts: Counts, rate: NetworkRate, seconds: float, megabytes: int, retries: int = 0) -> str:
    """Returns the text after some bytes came in some seconds."""
    counts.now_s += seconds
    counts.now += NetworkStats(bytes_fetched=megabytes * 10**6, retries=retries)
    rate.sample()
    return rate.text


def test_it_tells_rate_bytes_and_the_part_out_of_the_cache() -> None:
    counts = Counts()
    rate = NetworkRate([counts], counts)
    assert rate.text == ""
    counts.now = NetworkStats(bytes_fetched=10**9)  # Before: of metadata, or of another reader.
    assert sampled(counts, rate, 1, 0) == "network: 0.0 MB/s, 0 MB fetched"
    assert sampled(counts, rate, 2, 50) == "network: 25.0 MB/s, 50 MB fetched"
    rate.need(40e6)  # The rest was fetched ahead.
    assert "cache" not in rate.text
    rate.need(60e6)
    assert rate.text == "network: 25.0 MB/s, 50 MB fetched, 50% of what was read came from the cache"
    rate.begin_epoch()
    rate.need(100e6)
    assert sampled(counts, rate, 10, 0).endswith("0 MB fetched, 100% of what was read came from the cache")
    assert rate.fetched_bytes == 0


def test_the_rate_is_of_the_last_seconds_and_a_stall_shows() -> None:
    counts = Counts()
    rate = NetworkRate([counts], counts)
    sampled(counts, rate, 0, 0)
    for _ in range(60):
        text = sampled(counts, rate, 1, 8)
    assert text == "network: 8.0 MB/s, 480 MB fetched"
    for _ in range(5):
        text = sampled(counts, rate, 1, 0, retries=1)
    assert text == "network: 0.0 MB/s, 480 MB fetched, 5 requests sent again"


def test_another_fetcher_counts_from_nothing() -> None:
    counts = Counts()
    rate = NetworkRate([counts], counts)
    sampled(counts, rate, 1, 0)
    sampled(counts, rate, 1, 500)
    counts.now = NetworkStats()
    sampled(counts, rate, 1, 0)
    assert sampled(counts, rate, 1, 30) == "network: 30.0 MB/s, 30 MB fetched"


def test_local_files_have_no_line_and_no_thread() -> None:
    with NetworkRate([]) as rate:
        rate.sample()
        rate.need(5)
        assert (rate.text, rate.fetched_bytes) == ("", 0)


def test_its_thread_asks_and_ends_with_the_network() -> None:
    counts = Counts()
    with NetworkRate([counts]) as rate:
        thread = rate._thread
        assert thread is not None
        counts.is_gone = True
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(WorkerError):
        rate.sample()
