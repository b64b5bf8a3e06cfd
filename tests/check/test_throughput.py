"""RankReading: which epochs the figures of a rank come from."""

from tfds_torch.check.findings import Findings
from tfds_torch.check.network_report import network_rows
from tfds_torch.check.throughput import RankReading
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.network import NetworkStats


def reading(*epochs: tuple[float, float, float, int]) -> RankReading:
    """Returns what rank 3 read: (first batch, tail, whole, number of examples) of each epoch, in batches of 4."""
    return RankReading(
        3,
        [EpochTimes(first, tail, whole, -(-number // 4)) for first, tail, whole, number in epochs],
        [number for *_, number in epochs],
    )


def test_one_epoch_gives_all_figures_but_the_later_first_batch() -> None:
    figures = reading((2.5, 0.25, 4.0, 20))
    assert (figures.first_batch_s, figures.later_first_batch_s) == (2.5, None)
    assert (figures.examples_per_s, figures.tail_s) == (5.0, 0.25)
    assert (figures.num_batches, figures.timed_s) == (5, 4.0)


def test_later_epochs_tell_the_speed_without_the_start() -> None:
    figures = reading((9.0, 0.5, 10.0, 10), (0.25, 0.125, 1.0, 10))
    assert (figures.first_batch_s, figures.later_first_batch_s) == (9.0, 0.25)
    assert figures.examples_per_s == 10.0
    assert (figures.num_batches, figures.timed_s) == (3, 1.0)


def test_of_several_later_epochs_it_is_the_median_and_of_tails_the_longest() -> None:
    slow = (0.75, 4.0, 100.0, 10)
    figures = reading((9.0, 0.5, 50.0, 10), (0.125, 0.25, 1.0, 10), slow, (0.5, 0.0, 2.0, 10))
    assert figures.later_first_batch_s == 0.5
    assert figures.examples_per_s == 5.0
    assert figures.tail_s == 4.0
    assert (figures.num_batches, figures.timed_s) == (9, 103.0)


def test_the_longest_tail_may_be_the_first_epochs() -> None:
    assert reading((1.0, 7.0, 9.0, 1), (1.0, 2.0, 9.0, 1)).tail_s == 7.0


def test_an_empty_split_has_a_speed_of_zero() -> None:
    figures = reading((0.5, 0.5, 0.5, 0), (0.25, 0.25, 0.25, 0))
    assert (figures.examples_per_s, figures.later_first_batch_s) == (0.0, 0.25)


def test_the_network_is_told_of_by_epoch() -> None:
    times = [EpochTimes(1.0, 0.0, 40.0, 8), EpochTimes(0.5, 0.0, 10.0, 8)]
    networks = [NetworkStats(bytes_fetched=480_000_000, waited_s=50.0), NetworkStats()]
    findings = Findings(network=NetworkStats(bytes_fetched=500_000_000, waited_s=51.0))
    assert network_rows(findings) is None
    findings.readings = [RankReading(0, times, [4000, 4000], networks=networks)]
    assert network_rows(findings) == (
        ["epoch", "seconds", "examples/s", "fetched", "MB/s", "waited s"],
        [
            ["0", "40.00", "100", "480 MB", "12.0", "50.00"],
            ["1", "10.00", "400", "0 bytes", "0.0", "0.00"],
            ["other", "", "", "20 MB", "", "1.00"],
        ],
    )
