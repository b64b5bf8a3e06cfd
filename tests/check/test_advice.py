"""Advice: each sentence exactly when it is true, its figures checked by brute force."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfds_torch.check.advice import AdviceInput, advise
from tfds_torch.check.throughput import STAGES, RankReading
from tfds_torch.engines.options import ReadOptions
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import WorkerChoice
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.network import NetworkStats

GIB = 2**30
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


def test_where_all_is_well_nothing_is_said() -> None:
    assert advise(facts()) == []
    assert advise(facts(is_training=False)) == []
    assert advise(facts(num_replicas=3, num_workers=4, num_examples=9600, is_training=False)) == []
    assert advise(facts(mean_image_bytes=None)) == []
    assert advise(facts(available_bytes=None)) == []


def test_an_empty_split_divides_by_nothing() -> None:
    empty = {"num_examples": 0, "num_files": 0, "is_training": False, "mean_image_bytes": None, "num_workers": 1}
    assert advise(facts(**empty, mean_example_bytes=0)) == []
    assert advise(facts(**empty, mean_example_bytes=0, num_replicas=3, available_bytes=0)) == []
    assert advise(facts(**empty, num_replicas=3)) == []


def test_everything_at_once_is_a_sentence_each_the_weightiest_first() -> None:
    sentences = advise(
        facts(
            num_replicas=2,
            num_workers=16,
            num_examples=1100,
            batch_size=512,
            num_files=1,
            is_remote=True,
            available_bytes=100,
            mean_image_bytes=0.01,
            free_disk_bytes=10**9,
            read=ReadOptions(ram_budget_bytes=1),
        )
    )
    starts = ["shuffle_buffer=", "The buffers of 2 ranks", "train lies in 1 shard,", "batch_size 512", "A rank has 2 "]
    starts += ["The shards are remote", "All decoded images"]
    assert [sentence[: len(start)] for sentence, start in zip(sentences, starts, strict=True)] == starts
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)


# The shuffle buffer against its own budget.


def test_a_shuffle_buffer_within_its_budget_is_not_spoken_of() -> None:
    """4096 examples of a worker, of 100 kB each: 409.6 MB."""
    for budget, is_said in ((409_600_000, False), (409_599_999, True)):
        sentence = said("shuffle_buffer=", num_examples=64_000, read=ReadOptions(ram_budget_bytes=budget))
        assert bool(sentence) is is_said, budget


def test_a_shuffle_buffer_that_is_cut_is_told_with_what_is_held() -> None:
    sentence = said("shuffle_buffer=", num_examples=64_000, read=ReadOptions(ram_budget_bytes=100_000_000))
    assert sentence == (
        "shuffle_buffer=8192 would take 819 MB on each rank, more than its memory budget: 2,000 examples are held. "
        "ReadOptions(ram_budget_bytes=...), per worker, raises it."
    )


def test_a_buffer_larger_than_the_split_asks_for_the_split_only() -> None:
    read = ReadOptions(ram_budget_bytes=320_000_000)  # 3,200 examples of a worker.
    assert said("shuffle_buffer=", num_examples=6400, read=read) == ""
    assert "640 MB" in said("shuffle_buffer=", num_examples=6402, read=read)
    assert said("shuffle_buffer=", num_examples=12_800, num_replicas=2, read=read) == ""


def test_without_shuffling_no_buffer_is_spoken_of() -> None:
    read = ReadOptions(ram_budget_bytes=1)
    assert said("shuffle_buffer=", num_examples=64_000, read=read) != ""
    assert said("shuffle_buffer=", num_examples=64_000, read=read, shuffle=False) == ""
    assert said("shuffle_buffer=", num_examples=64_000, read=read, is_training=False) == ""


@given(st.integers(1, 40), st.integers(1, 20_000), st.integers(1, 100_000))
def test_a_buffer_that_only_does_not_divide_among_the_workers_is_not_spoken_of(
    num_workers: int, buffer: int, num_examples: int
) -> None:
    read = ReadOptions(shuffle_buffer=buffer, ram_budget_bytes=2**40)
    assert said("shuffle_buffer=", num_workers=num_workers, num_examples=num_examples, read=read) == ""


def test_where_nothing_is_buffered_no_buffer_is_spoken_of() -> None:
    """In mode `index` the order is arithmetic, also that of blocks."""
    for blocks in (None, 64):
        read = ReadOptions(ram_budget_bytes=1, block_records=blocks)
        assert said("shuffle_buffer", num_examples=64_000, read=read, mode="index") == ""
    for available, is_said in ((32_000_000, False), (31_999_999, True)):
        assert bool(said("The buffers", mode="index", available_bytes=available)) is is_said
    assert said("The buffers", mode="index", available_bytes=10**6) == (
        "The buffers of 1 rank would hold 32 MB (prefetch_batches 32 MB each), and 1 MB of memory are free here: make "
        "them, batch_size or the number of workers smaller."
    )


# Whole batches.


def measured(num_batches: int = 8, **stages: float) -> RankReading:
    """Returns what was measured in ten seconds."""
    seconds = dict.fromkeys(STAGES, 0.0) | {"decode": 18.0, "waiting": 9.9} | stages
    return RankReading(0, [EpochTimes(2.5, 0.0, 10.0, num_batches)], [14_800], stages=seconds)


def test_a_loader_that_tells_no_stages_is_not_spoken_of() -> None:
    assert said("Whole batches", throughput=replace(measured(read=19.0), stages={})) == ""


def test_where_whole_batches_wait_for_the_disk_it_is_told() -> None:
    assert said("disk", throughput=measured(read=19.0)) == (
        "Whole batches wait for the disk: reading took 19.0 s and decoding 18.0 s. A faster or local disk, or "
        "ReadOptions(block_records=256), which reads neighbours together, would help."
    )
    assert said("disk", throughput=measured(read=18.0)) == ""
    assert said("disk", throughput=measured(read=19.0, waiting=4.9)) == ""
    assert said("disk", throughput=measured(read=19.0, num_batches=7)) == ""


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


def test_where_whole_batches_wait_for_the_network_it_is_told_instead() -> None:
    speed = measured(read=19.0, download=19.5)
    assert said("disk, or", throughput=speed) == ""
    assert said("the network", throughput=speed) == (
        "Whole batches wait for the network: the workers waited 19.5 s for bytes of the object store, reading took "
        "19.0 s and decoding 18.0 s. A cache that holds the split (RemoteOptions(max_bytes=...)) waits in the first "
        "epoch only; RemoteOptions(connections=..., ahead_bytes=...) fetch more at a time; or copy the dataset to "
        "this machine."
    )
    assert said("the network", throughput=measured(download=18.0)) == ""


def test_where_only_the_first_epoch_waits_for_the_network_it_is_told() -> None:
    first = dict.fromkeys(STAGES, 0.0) | {"download": 50.0, "decode": 18.0, "waiting": 38.0}
    speed = replace(
        measured(download=0.0),
        times=[EpochTimes(4.0, 0.0, 40.0, 8), EpochTimes(2.5, 0.0, 10.0, 8)],
        num_examples=[14_800] * 2,
        first_stages=first,
        networks=[NetworkStats(bytes_fetched=480_000_000), NetworkStats()],
    )
    assert said("The first epoch waited", throughput=speed) == (
        "The first epoch waited for the network, which gave 12.0 MB/s: 370 examples/s, and 1,480 in later epochs, out "
        "of the cache. Where that is too slow and the link is not full, RemoteOptions(connections=...) sends more "
        "requests at a time; a machine in the bucket's region, or a copy made before, waits less."
    )
    for other in ({"waiting": 19.0}, {"download": 17.0}):
        assert said("The first epoch", throughput=replace(speed, first_stages=first | other)) == ""
    assert said("The first epoch", throughput=replace(speed, stages=measured(download=19.0).stages)) == ""


def test_shards_without_an_index_are_told_of() -> None:
    assert said("had an index", unindexed_url="s3://bucket/it's") == (
        "No shard had an index beside it: all were fetched as wholes to find their records, before the first batch. "
        "`python -m tfds_torch.remote index 's3://bucket/it'\"'\"'s'` writes the indices once, for every machine."
    )
    assert said("had an index") == ""


def test_where_whole_batches_are_long_on_their_way_it_is_told() -> None:
    assert said("on their way", throughput=measured(hand_over=5.1)) == (
        "Whole batches were on their way from the workers for 51% of the time: a larger batch_size than 32 hands them "
        "over less often."
    )
    assert said("on their way", throughput=measured(hand_over=5.0)) == ""


def test_another_number_of_workers_that_auto_would_choose_is_told_with_its_reason() -> None:
    auto = WorkerChoice(7, "7 workers: 8 cores.")
    assert said("'auto'", num_loader_workers=2, usual_workers=auto) == (
        "create_loader(dataset, num_workers='auto') would choose 7 workers: 8 cores."
    )
    assert said("'auto'", num_loader_workers=2, usual_workers=WorkerChoice(2, "2 workers: 3 cores.")) == ""
    assert said("'auto'", num_loader_workers=2) == ""
    assert said("'auto'", num_loader_workers=2, usual_workers=auto, num_examples=64) == ""  # 2 batches.


# The buffers against the machine's memory.


def test_buffers_larger_than_the_memory_are_told_from_the_first_byte() -> None:
    """Shuffled 6,400 x 100 kB, ready 1 batch x 32 images x 2 workers x 500 kB."""
    needed = 640_000_000 + 32_000_000
    for available, is_said in ((needed, False), (needed - 1, True), (None, False)):
        assert bool(said("The buffers", available_bytes=available)) is is_said
        twice = said("The buffers", num_replicas=2, num_examples=12_800, available_bytes=available and 2 * available)
        assert bool(twice) is is_said


def test_buffers_larger_than_the_memory_are_told_apart() -> None:
    assert said("The buffers", num_replicas=2, num_examples=12_800, available_bytes=10**9) == (
        "The buffers of 2 ranks would hold 1.34 GB (shuffle_buffer 640 MB and prefetch_batches 32 MB each), and 1 GB "
        "of memory are free here: make them, batch_size or the number of workers smaller."
    )


def test_in_evaluation_only_the_batches_that_are_ready_take_memory() -> None:
    for available, is_said in ((32_000_000, False), (31_999_999, True)):
        assert bool(said("The buffers", is_training=False, available_bytes=available)) is is_said
    without_images = {"is_training": False, "mean_image_bytes": None, "available_bytes": 6_399_999}
    assert "6.4 MB" in said("The buffers", **without_images)


# Shards.


@pytest.mark.parametrize(("num_files", "is_said"), [(1, True), (5, True), (6, False), (7, False)])
def test_fewer_shards_than_pipelines_are_told(num_files: int, is_said: bool) -> None:
    sentence = said("lies in", num_replicas=2, num_workers=3, num_files=num_files)
    assert bool(sentence) is is_said
    if is_said:
        assert (
            f"lies in {num_files} shard{'s' * (num_files > 1)}, fewer than the 6 pipelines (2 ranks x 3 wor" in sentence
        )


def test_by_index_few_shards_do_no_harm() -> None:
    assert said("lies in", num_files=1) != ""
    assert said("lies in", num_files=1, mode="index") == ""


def test_the_way_to_more_shards_is_the_datasets_own() -> None:
    command = "tfds build cats/big --num_shards=8 --overwrite"
    assert f"Prepared anew with {command}, each" in said("lies in", num_files=1, dataset="cats/big:1.0.0")
    assert "Prepared anew with --shards 8, each" in said("lies in", num_files=1, is_built_here=True)


def test_more_pipelines_than_examples_are_not_cured_by_shards() -> None:
    few = {"num_workers": 4, "num_files": 1, "batch_size": 1}
    assert said("lies in", num_examples=3, **few) == ""
    assert said("lies in", num_examples=4, **few) != ""


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
        num_shards = int(re.search(r"--(?:num_)?shards[ =](\d+)", sentence)[1])
        assert num_replicas * num_workers <= num_shards <= num_examples


# Workers.


def test_workers_without_a_batch_are_told() -> None:
    idle = {"num_examples": 64, "batch_size": 32}
    assert said("workers", **idle, num_workers=2) == ""
    assert said("workers", **idle, num_workers=5) == (
        "A rank has 2 batches per epoch and 5 workers: 3 of them have nothing to do."
    )
    assert said("nothing to do", num_examples=32, num_workers=2) == (
        "A rank has 1 batch per epoch and 2 workers: 1 of them have nothing to do."
    )


def test_an_empty_split_leaves_every_worker_idle_but_one_is_not_too_many() -> None:
    empty = {"num_examples": 0, "num_files": 0, "is_training": False}
    assert said("nothing to do", **empty, num_workers=1) == ""
    assert "0 batches per epoch and 2 workers: 2 of them" in said("nothing to do", **empty, num_workers=2)


@pytest.mark.parametrize(("num_workers", "is_said"), [(1, False), (7, False), (8, False), (9, True)])
def test_more_workers_than_cores_are_told(num_workers: int, is_said: bool) -> None:
    wanted = "9 workers share 8 cores: they would decode faster with fewer." if is_said else ""
    assert said("share", num_workers=num_workers) == wanted
    assert "share 1 core:" in said("share", num_workers=2, num_cores=1)


def test_idle_workers_are_not_also_told_that_they_are_too_many() -> None:
    sentences = [s for s in advise(facts(num_workers=20, num_examples=320, num_cores=2)) if "workers" in s]
    assert len(sentences) == 1
    assert "nothing to do" in sentences[0]


# Caches.


def test_a_cache_helps_where_decoded_images_are_a_quarter_of_the_free_memory_and_half_of_the_disk() -> None:
    """6,400 images of 500 kB: 3.2 GB."""
    memory, disk = 12_800_000_000, 6_400_000_000
    for available, is_said in ((memory, True), (memory - 1, False), (None, False)):
        assert bool(said("cache", available_bytes=available, free_disk_bytes=disk)) is is_said
    for free, is_said in ((disk, True), (disk - 1, False), (None, False)):
        assert bool(said("cache", available_bytes=memory, free_disk_bytes=free)) is is_said
    sentence = (
        "All decoded images of the split are 3.2 GB, and 12.8 GB of memory and 6.4 GB of disk are free here: with "
        "ParserTfds(..., cache=tfds_torch.DecodedCache()) they are decoded once, into a file, and later epochs only "
        "copy them."
    )
    assert said("cache", available_bytes=memory, free_disk_bytes=disk, mode="index") == sentence
    assert said("cache", available_bytes=memory, free_disk_bytes=disk) == f"{sentence} It needs read mode 'index'."


def test_a_cache_does_not_help_without_images_or_later_epochs() -> None:
    much = {"available_bytes": 10**15, "free_disk_bytes": 10**15}
    assert said("cache", **much) != ""
    assert said("cache", **much, mean_image_bytes=None) == ""
    assert said("cache", **much, mean_image_bytes=0.0) == ""
    assert said("cache", **much, is_training=False) == ""


@pytest.mark.parametrize("is_training", [True, False])
def test_remote_shards_are_told_with_what_is_transferred(is_training: bool) -> None:
    assert said("remote", is_remote=False, is_training=is_training) == ""
    assert said("remote", is_remote=True, is_training=is_training) == (
        "The shards are remote, and every epoch transfers 640 MB anew: a copy on a local disk would be read at its "
        "speed, and in mode 'index', which remote shards do not have: shuffled as a whole, and resumed at any batch."
    )


# Sizes.


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (12_345, "12.3 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (999_999_999, "1 GB"),
        (5_000_000_000_000, "5 TB"),
        (5_000_000_000_000_000, "5,000 TB"),
    ],
)
def test_sizes_are_shown_in_three_digits_of_their_unit(size: int, shown: str) -> None:
    sentence = said("remote", is_remote=True, num_examples=1, num_files=1, mean_example_bytes=size, batch_size=1)
    assert f"transfers {shown} anew" in sentence


@given(st.integers(1, 10**15))
def test_sizes_are_shown_without_powers_and_within_a_hundredth(size: int) -> None:
    sentence = said("remote", is_remote=True, num_examples=1, num_files=1, mean_example_bytes=size, batch_size=1)
    shown = re.search(r"transfers ([\d.,]+) (bytes?|kB|MB|GB|TB) anew", sentence)
    assert shown is not None, sentence
    power = ("byte", "kB", "MB", "GB", "TB").index(shown[2].removesuffix("s"))
    number = float(shown[1].replace(",", ""))
    assert number * 1000**power == pytest.approx(size, rel=0.01)
    assert number < 1000 or power == 4
