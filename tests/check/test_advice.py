"""Advice: each sentence exactly when it is true, its figures checked by brute force."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfds_torch.check.advice import AdviceInput, advise
from tfds_torch.check.reading import STAGES, RankReading
from tfds_torch.engines.options import ReadOptions
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import WorkerChoice
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.network import NetworkStats

GIB = 2**30
GOLDEN = Path(__file__).with_name("golden") / "advice.txt"
PLAN = {"num_examples", "batch_size", "remainder", "is_training", "shuffle", "repeats"}
"""Arguments of `facts` that belong to the plan."""


def facts(num_replicas: int = 1, num_workers: int = 2, **changes: Any) -> AdviceInput:
    """Returns facts of which nothing is to be said, and changes of them."""
    world = World(0, num_replicas, 0, num_workers)
    is_training = changes.get("is_training", True)
    plan = EpochPlan(
        **{
            "order": Passes(changes.pop("num_examples", 6400), shuffle=changes.pop("shuffle", is_training)),
            "world": world,
            "batch_size": 32,
            "remainder": EpochPlan.default_remainder(is_training, world),
            "is_training": is_training,
            **{name: value for name, value in changes.items() if name in PLAN},
        }
    )
    good = AdviceInput(
        dataset="cats:1.0.0",
        split="train",
        plan=plan,
        mode="examples",
        read=ReadOptions(),
        is_built_here=False,
        num_files=64,
        is_remote=False,
        mean_example_bytes=100_000,
        mean_image_bytes=500_000.0,
        available_bytes=8 * GIB,
        num_cores=8,
    )
    return replace(good, **{name: value for name, value in changes.items() if name not in PLAN})


def said(word: str, **changes: Any) -> str:
    """Returns the one sentence with a word in it; nothing when it is not said."""
    found = [sentence for sentence in advise(facts(**changes)) if word in sentence]
    assert len(found) <= 1, found
    return next(iter(found), "")


EMPTY: dict[str, Any] = {"num_examples": 0, "num_files": 0, "is_training": False, "mean_image_bytes": None}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_training": False},
        {"num_replicas": 3, "num_workers": 4, "num_examples": 9600, "is_training": False},
        {"mean_image_bytes": None},
        {"available_bytes": None},
        {**EMPTY, "num_workers": 1, "mean_example_bytes": 0},
        {**EMPTY, "num_workers": 1, "mean_example_bytes": 0, "num_replicas": 3, "available_bytes": 0},
        {**EMPTY, "num_workers": 1, "num_replicas": 3},
    ],
)
def test_where_all_is_well_nothing_is_said(changes: dict[str, Any]) -> None:
    assert advise(facts(**changes)) == []


def measured(num_batches: int = 8, **stages: float) -> RankReading:
    """Returns what was measured in ten seconds."""
    seconds = dict.fromkeys(STAGES, 0.0) | {"decode": 18.0, "waiting": 9.9} | stages
    return RankReading(0, [EpochTimes(2.5, 0.0, 10.0, num_batches)], [14_800], stages=seconds)


def in_first_epoch(**stages: float) -> RankReading:
    """Returns what was measured where the first of two epochs took 40 seconds, with such stages."""
    return replace(
        measured(download=0.0),
        times=[EpochTimes(4.0, 0.0, 40.0, 8), EpochTimes(2.5, 0.0, 10.0, 8)],
        num_examples=[14_800] * 2,
        first_stages=dict.fromkeys(STAGES, 0.0) | {"download": 50.0, "decode": 18.0, "waiting": 38.0} | stages,
        networks=[NetworkStats(bytes_fetched=480_000_000), NetworkStats()],
    )


MUCH: dict[str, Any] = {"available_bytes": 10**15, "free_disk_bytes": 10**15}
IDLE: dict[str, Any] = {"num_examples": 64, "batch_size": 32}
BUFFER, BUFFERS, BATCHES, FILES, CACHE = "shuffle_buffer=", "The buffers", "Whole batches", "lies in", "cache"
AUTO = WorkerChoice(7, "7 workers: 8 cores.")
TINY, LARGE = ReadOptions(ram_budget_bytes=1), {"num_examples": 64_000}
BOUNDS: list[tuple[str, dict[str, Any], bool | str]] = [
    # 4096 examples of a worker, of 100 kB each: 409.6 MB.
    (BUFFER, {**LARGE, "read": ReadOptions(ram_budget_bytes=409_600_000)}, False),
    (BUFFER, {**LARGE, "read": ReadOptions(ram_budget_bytes=409_599_999)}, True),
    (BUFFER, {**LARGE, "read": TINY}, True),
    (BUFFER, {**LARGE, "read": TINY, "shuffle": False}, False),
    (BUFFER, {**LARGE, "read": TINY, "is_training": False}, False),
    # 3,200 examples of a worker: a buffer larger than the split asks for the split only.
    (BUFFER, {"num_examples": 6400, "read": ReadOptions(ram_budget_bytes=320_000_000)}, False),
    (BUFFER, {"num_examples": 6402, "read": ReadOptions(ram_budget_bytes=320_000_000)}, "640 MB"),
    (BUFFER, {"num_examples": 12_800, "num_replicas": 2, "read": ReadOptions(ram_budget_bytes=320_000_000)}, False),
    # Shuffled 6,400 x 100 kB, ready 1 batch x 32 images x 2 workers x 500 kB.
    (BUFFERS, {"available_bytes": 672_000_000}, False),
    (BUFFERS, {"available_bytes": 671_999_999}, True),
    (BUFFERS, {"available_bytes": None}, False),
    (BUFFERS, {"available_bytes": 1_344_000_000, "num_replicas": 2, "num_examples": 12_800}, False),
    (BUFFERS, {"available_bytes": 1_343_999_999, "num_replicas": 2, "num_examples": 12_800}, True),
    (BUFFERS, {"available_bytes": 32_000_000, "is_training": False}, False),
    (BUFFERS, {"available_bytes": 31_999_999, "is_training": False}, True),
    (BUFFERS, {"available_bytes": 6_399_999, "is_training": False, "mean_image_bytes": None}, "6.4 MB"),
    # Shards, of six pipelines.
    *[(FILES, {"num_replicas": 2, "num_workers": 3, "num_files": number}, number < 6) for number in (1, 6, 7)],
    (
        FILES,
        {"num_replicas": 2, "num_workers": 3, "num_files": 1},
        "1 shard, fewer than the 6 pipelines (2 ranks x 3 w",
    ),
    (
        FILES,
        {"num_replicas": 2, "num_workers": 3, "num_files": 5},
        "train lies in 5 shards, fewer than the 6 pipelines",
    ),
    (FILES, {"num_files": 1, "mode": "index"}, False),
    (FILES, {"num_workers": 4, "num_files": 1, "batch_size": 1, "num_examples": 3}, False),
    (FILES, {"num_workers": 4, "num_files": 1, "batch_size": 1, "num_examples": 4}, True),
    # Workers.
    ("workers", IDLE, False),
    (
        "workers",
        {**IDLE, "num_workers": 5},
        "A rank has 2 batches per epoch and 5 workers: 3 of them have nothing to do.",
    ),
    (
        "nothing to do",
        {"num_examples": 32},
        "A rank has 1 batch per epoch and 2 workers: 1 of them have nothing to do.",
    ),
    ("nothing to do", {**EMPTY, "num_workers": 1}, False),
    ("nothing to do", {**EMPTY, "num_workers": 2}, "0 batches per epoch and 2 workers: 2 of them"),
    *[("share", {"num_workers": number}, False) for number in (1, 8)],
    ("share", {"num_workers": 9}, "9 workers share 8 cores: they would decode faster with fewer."),
    ("share", {"num_cores": 1}, "2 workers share 1 core:"),
    ("workers", {"num_workers": 20, "num_examples": 320, "num_cores": 2}, "nothing to do"),
    ("'auto'", {"num_loader_workers": 2, "usual_workers": WorkerChoice(2, "2 workers: 3 cores.")}, False),
    ("'auto'", {"num_loader_workers": 2}, False),
    ("'auto'", {"num_loader_workers": 2, "usual_workers": AUTO, "num_examples": 64}, False),  # 2 batches.
    # By index the order is arithmetic: nothing is buffered but batches that are ready.
    *[(BUFFER, {**LARGE, "mode": "index", "read": ReadOptions(ram_budget_bytes=1, block_records=blocks)}, False)
      for blocks in (None, 64)],
    (BUFFERS, {"mode": "index", "available_bytes": 32_000_000}, False),
    (BUFFERS, {"mode": "index", "available_bytes": 31_999_999}, True),
    # What whole batches wait for.
    (BATCHES, {"throughput": replace(measured(read=19.0), stages={})}, False),
    *[(BATCHES, {"throughput": measured(read=19.0, **more)}, False) for more in ({"waiting": 4.9}, {"num_batches": 7})],
    (BATCHES, {"throughput": measured(read=18.0)}, False),
    (BATCHES, {"throughput": measured(download=18.0)}, False),
    (BATCHES, {"throughput": measured(hand_over=5.0)}, False),
    ("disk, or", {"throughput": measured(read=19.0, download=19.5)}, False),
    ("The first epoch", {"throughput": in_first_epoch(waiting=19.0)}, False),
    ("The first epoch", {"throughput": in_first_epoch(download=17.0)}, False),
    ("The first epoch", {"throughput": replace(in_first_epoch(), stages=measured(download=19.0).stages)}, False),
    ("had an index", {}, False),
    ("remote", {}, False),
    # Caches: 6,400 images of 500 kB are 3.2 GB, a quarter of the memory and half of the disk.
    *[(CACHE, {"available_bytes": memory, "free_disk_bytes": disk}, is_said) for memory, disk, is_said in (
        (12_800_000_000, 6_400_000_000, True), (12_799_999_999, 6_400_000_000, False), (None, 6_400_000_000, False),
        (12_800_000_000, 6_399_999_999, False), (12_800_000_000, None, False))],
    (CACHE, MUCH, True),
    (CACHE, {**MUCH, "mean_image_bytes": None}, False),
    (CACHE, {**MUCH, "mean_image_bytes": 0.0}, False),
    (CACHE, {**MUCH, "is_training": False}, False),
]  # fmt: skip


@pytest.mark.parametrize(("word", "changes", "is_said"), BOUNDS)
def test_each_sentence_is_said_exactly_when_it_is_true(word: str, changes: dict[str, Any], is_said: bool | str) -> None:
    sentence = said(word, **changes)
    assert bool(sentence) is bool(is_said)
    assert isinstance(is_said, bool) or is_said in sentence


FULL_DISK: dict[str, Any] = {"available_bytes": 12_800_000_000, "free_disk_bytes": 6_400_000_000}
SENTENCES: dict[str, dict[str, Any]] = {
    "everything at once": {
        "num_replicas": 2, "num_workers": 16, "num_examples": 1100, "batch_size": 512, "num_files": 1,
        "is_remote": True, "available_bytes": 100, "mean_image_bytes": 0.01, "free_disk_bytes": 10**9, "read": TINY},
    "a buffer that is cut": {**LARGE, "read": ReadOptions(ram_budget_bytes=100_000_000)},
    "buffers of two ranks": {"num_replicas": 2, "num_examples": 12_800, "available_bytes": 10**9},
    "batches that are ready, by index": {"mode": "index", "available_bytes": 10**6},
    "the disk": {"throughput": measured(read=19.0)},
    "the network": {"throughput": measured(read=19.0, download=19.5)},
    "the network, in the first epoch": {"throughput": in_first_epoch()},
    "the way from the workers": {"throughput": measured(hand_over=5.1)},
    "no index": {"unindexed_url": "s3://bucket/it's"},
    "another number of workers": {"num_loader_workers": 2, "usual_workers": AUTO},
    "few shards": {"num_files": 1, "dataset": "cats/big:1.0.0"},
    "few shards that are built here": {"num_files": 1, "is_built_here": True},
    "remote shards": {"is_remote": True},
    "remote shards, in evaluation": {"is_remote": True, "is_training": False},
    "a cache, by index": {**FULL_DISK, "mode": "index"},
    "a cache": FULL_DISK,
}  # fmt: skip


def test_the_sentences_are_the_golden_ones() -> None:
    """The weightiest first. To change one on purpose: `python -m check.test_advice` in `tests`."""
    assert write_sentences() == GOLDEN.read_text()


def write_sentences() -> str:
    parts = ["\n".join([f"# {name}", *advise(facts(**changes))]) for name, changes in SENTENCES.items()]
    return "\n\n".join(parts) + "\n"


@given(st.integers(1, 40), st.integers(1, 20_000), st.integers(1, 100_000))
def test_a_buffer_that_only_does_not_divide_among_the_workers_is_not_spoken_of(
    num_workers: int, buffer: int, num_examples: int
) -> None:
    read = ReadOptions(shuffle_buffer=buffer, ram_budget_bytes=2**40)
    assert said("shuffle_buffer=", num_workers=num_workers, num_examples=num_examples, read=read) == ""


@pytest.mark.parametrize("stage", ["read", "download", "hand_over"])
@pytest.mark.parametrize(
    ("whole_s", "waiting_s", "stage_s", "is_said"),
    [
        (0.04, 0.03, 0.03, False),  # All of next to nothing.
        (1.9, 0.99, 1.2, False),
        (1.9, 1.2, 0.99, False),
        (1.9, 1.2, 1.0, True),
        (100.0, 60.0, 50.0, False),  # A small share, however long.
        (100.0, 60.0, 51.0, True),
        (100.0, 50.0, 51.0, False),
    ],
)
def test_what_is_slow_is_a_large_share_and_a_long_time(
    stage: str, whole_s: float, waiting_s: float, stage_s: float, is_said: bool
) -> None:
    speed = measured(decode=0.0, waiting=waiting_s)
    speed = replace(speed, stages={**speed.stages, stage: stage_s})
    later = replace(speed, times=[EpochTimes(0.01, 0.0, whole_s, 8)])
    assert bool(said("Whole batches", throughput=later)) is is_said
    first = replace(
        measured(decode=0.0),
        times=[EpochTimes(0.01, 0.0, whole_s, 8), EpochTimes(2.5, 0.0, 10.0, 8)],
        num_examples=[14_800] * 2,
        first_stages=speed.stages,
        networks=[NetworkStats(bytes_fetched=1), NetworkStats()],
    )
    assert bool(said("The first epoch waited", throughput=first)) is (is_said and stage == "download")


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_the_advised_number_of_shards_can_be_prepared_and_is_enough(
    num_replicas: int, num_workers: int, num_examples: int, num_files: int, is_built_here: bool
) -> None:
    """TFDS writes no empty shards, so --shards refuses more shards than there are examples."""
    assume(num_files <= num_examples)
    places = {"num_replicas": num_replicas, "num_workers": num_workers, "is_built_here": is_built_here}
    sentence = said("lies in", **places, num_examples=num_examples, num_files=num_files, batch_size=1)
    assert bool(sentence) is (num_files < num_replicas * num_workers <= num_examples)
    if sentence:
        num_shards = int(re.search(r"shards[ =](\d+)", sentence)[1])
        assert num_replicas * num_workers <= num_shards <= num_examples


if __name__ == "__main__":
    GOLDEN.write_text(write_sentences())
