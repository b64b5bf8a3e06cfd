"""Advice to the user, a sentence each. Pure."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tfds_torch.check.reading import RankReading
from tfds_torch.check.report import plural, show_bytes
from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.advice import describe_fill, describe_remainder
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.runtime.limits import WorkerChoice

_LARGE_SHARE_OF_TIME, _LONG_S = 0.5, 1.0
_ENOUGH_BATCHES = 8
_SMALL_SHARE_OF_MEMORY, _SMALL_SHARE_OF_DISK = 0.25, 0.5
_SHARDS_PER_PIPELINE = 4  # The shares of two pipelines then differ by a quarter at most.


@dataclass(frozen=True)
class AdviceInput:
    """The figures that advice is based on.

    Attributes:
        mode: the read mode, `index`, `files` or `examples`.
        is_built_here: whether the check builds the dataset: it is embedded or made up.
        num_files: shards of the split that hold examples.
        mean_image_bytes: size of a decoded image; None without images.
        available_bytes: memory that may still be taken; None where the system does not report it.
        free_disk_bytes: where decoded caches lie; None if images cannot be cached, or the system does not report it.
        num_loader_workers: 0: the training process reads by itself.
        throughput: of rank 0 in whole batches, alone on the machine; None if it did not read so.
        unindexed_url: URL of a bucket's shards, all of which were fetched to find their records; else None.
        usual_workers: the number that `num_workers="auto"` would choose; None if the loader does not offer it.
    """

    dataset: str
    split: str
    plan: EpochPlan
    mode: str
    read: ReadOptions
    is_built_here: bool
    num_files: int
    is_remote: bool
    mean_example_bytes: int
    mean_image_bytes: float | None
    available_bytes: int | None
    num_cores: int
    free_disk_bytes: int | None = None
    num_loader_workers: int = 0
    throughput: RankReading | None = None
    usual_workers: WorkerChoice | None = None
    unindexed_url: str | None = None


def advise(facts: AdviceInput) -> list[str]:
    """Return sentences, the most important first; none where there is no advice."""
    of_plan = filter(None, (describe_remainder(facts.plan), describe_fill(facts.plan)))
    before = [sentence for part in (_memory, _stages, _network, _shards) for sentence in part(facts)]
    return [*before, *of_plan, *_workers(facts), *_cache(facts)]


def _memory(facts: AdviceInput) -> Iterator[str]:
    world, read = facts.plan.world, facts.read
    num_workers, size = world.num_workers, max(1, facts.mean_example_bytes)
    is_buffered = facts.plan.order.shuffle and facts.mode != "index"  # There the order is arithmetic.
    asked = min(read.shuffle_buffer, -(-facts.plan.num_examples // world.num_replicas))
    held = num_workers * read.shuffle_buffer_of_worker(num_workers, size)
    if is_buffered and held < asked // num_workers * num_workers:
        yield (
            f"shuffle_buffer={read.shuffle_buffer} would take {show_bytes(asked * size)} on each rank, more than its "
            f"memory budget: {held:,} examples are held. ReadOptions(ram_budget_bytes=...), per worker, raises it."
        )
    buffered = min(asked, held) * size if is_buffered else 0
    image_bytes = facts.mean_image_bytes or facts.mean_example_bytes
    ready = read.prefetch_batches * facts.plan.batch_size * num_workers * image_bytes
    needed = (buffered + ready) * world.num_replicas
    if facts.available_bytes is not None and needed > facts.available_bytes:
        parts = f"shuffle_buffer {show_bytes(buffered)} and " if facts.mode != "index" else ""
        yield (
            f"The buffers of {plural(world.num_replicas, 'rank')} would hold {show_bytes(needed)} ({parts}"
            f"prefetch_batches {show_bytes(ready)} each), and {show_bytes(facts.available_bytes)} of "
            f"memory are free here: make them, batch_size or the number of workers smaller."
        )


def _stages(facts: AdviceInput) -> Iterator[str]:
    """Yield advice on the stage that a loop without other work waits for in whole batches, unless it decodes."""
    speed = facts.throughput
    if speed is None or not speed.stages or speed.num_batches < _ENOUGH_BATCHES:
        return
    read, decode, hand_over = (speed.stages[stage] for stage in ("read", "decode", "hand_over"))
    download = speed.stages.get("download", 0.0)
    if not _is_much(speed.stages["waiting"], speed.timed_s):
        return
    if download > max(read, decode) and _is_much(download, speed.timed_s):
        yield (
            f"Whole batches wait for the network: the workers waited {download:.1f} s for bytes of the object store, "
            f"reading took {read:.1f} s and decoding {decode:.1f} s. A cache that holds the split "
            f"(RemoteOptions(max_bytes=...)) waits in the first epoch only; RemoteOptions(connections=..., "
            f"ahead_bytes=...) fetch more at a time; or copy the dataset to this machine."
        )
    elif read > decode and read >= download and _is_much(read, speed.timed_s):
        yield (
            f"Whole batches wait for the disk: reading took {read:.1f} s and decoding {decode:.1f} s. A faster or "
            f"local disk, or ReadOptions(block_records=256), which reads neighbours together, would help."
        )
    if _is_much(hand_over, speed.timed_s):
        yield (
            f"Whole batches were on their way from the workers for {hand_over / speed.timed_s:.0%} of the time: a "
            f"larger batch_size than {facts.plan.batch_size} hands them over less often."
        )


def _is_much(seconds: float, of_s: float) -> bool:
    """Return whether a part of a duration is worth a sentence: a large share of it, and longer than chance makes it."""
    return seconds >= _LONG_S and seconds > _LARGE_SHARE_OF_TIME * of_s


def _network(facts: AdviceInput) -> Iterator[str]:
    """Yield advice on the wait of the first epoch of remote files, where the later ones do not wait."""
    if facts.unindexed_url is not None:
        yield (
            f"No shard had an index beside it: all were fetched as wholes to find their records, before the first "
            f"batch. `python -m tfds_torch.remote index {shlex.quote(facts.unindexed_url)}` writes the indices once, "
            f"for every machine."
        )
    speed = facts.throughput
    if speed is None or not speed.first_stages or not speed.networks or speed.times[0].num_batches < _ENOUGH_BATCHES:
        return
    stages, took_s = speed.first_stages, speed.times[0].whole_s
    if not all(_is_much(stages[stage], took_s) for stage in ("waiting", "download")):
        return
    if stages["download"] <= max(stages["read"], stages["decode"]):
        return
    if speed.stages["download"] > max(speed.stages["read"], speed.stages["decode"]):
        return  # The later ones wait as well, which `_stages` says.
    yield (
        f"The first epoch waited for the network, which gave {speed.networks[0].bytes_fetched / 1e6 / took_s:.1f} "
        f"MB/s: {speed.num_examples[0] / took_s:,.0f} examples/s, and {speed.examples_per_s:,.0f} in later epochs, out "
        f"of the cache. Where that is too slow and the link is not full, RemoteOptions(connections=...) sends more "
        f"requests at a time; a machine in the bucket's region, or a copy made before, waits less."
    )


def _shards(facts: AdviceInput) -> Iterator[str]:
    world = facts.plan.world
    if not facts.plan.is_training or facts.mode == "index":
        return
    if facts.num_files >= world.num_pipelines or facts.plan.num_examples < world.num_pipelines:
        return
    num_shards = min(_SHARDS_PER_PIPELINE * world.num_pipelines, facts.plan.num_examples)  # TFDS writes no empty ones.
    again = (
        f"tfds.builder({facts.dataset.partition(':')[0]!r}, data_dir=<another root>).download_and_prepare("
        f"download_config=tfds.download.DownloadConfig(num_shards={num_shards}))"
    )
    yield (
        f"{facts.split} lies in {plural(facts.num_files, 'shard')}, fewer than the {world.num_pipelines} pipelines "
        f"({plural(world.num_replicas, 'rank')} x {plural(world.num_workers, 'worker')}): each reads its cut of a "
        f"file that others read as well, and whole files cannot be shuffled. Prepared anew with "
        f"{f'--shards {num_shards}' if facts.is_built_here else again}, each would have files of its own."
    )


def _workers(facts: AdviceInput) -> Iterator[str]:
    num_workers, num_batches = facts.plan.world.num_workers, facts.plan.num_batches
    if num_workers > max(1, num_batches):
        yield (
            f"A rank has {plural(num_batches, 'batch')} per epoch and {num_workers} workers: "
            f"{num_workers - num_batches} of them have nothing to do."
        )
    elif num_workers > facts.num_cores:
        yield f"{num_workers} workers share {plural(facts.num_cores, 'core')}: they would decode faster with fewer."
    if facts.usual_workers is not None:
        usual = min(facts.usual_workers.num_workers, max(1, num_batches))
        if usual != facts.num_loader_workers:
            yield f"create_loader(dataset, num_workers='auto') would choose {facts.usual_workers.reason}"


def _cache(facts: AdviceInput) -> Iterator[str]:
    encoded = facts.mean_example_bytes * facts.plan.num_examples
    if facts.is_remote:
        yield (
            f"The shards are remote, and every epoch transfers {show_bytes(encoded)} anew: a copy on a local disk "
            f"would be read at its speed, and in mode 'index', which remote shards do not have: shuffled as a whole, "
            f"and resumed at any batch."
        )
    if facts.mean_image_bytes is None or not facts.plan.is_training:
        return
    memory, disk = facts.available_bytes, facts.free_disk_bytes
    decoded = facts.mean_image_bytes * facts.plan.num_examples
    if memory is None or disk is None or decoded <= 0:
        return
    if decoded <= _SMALL_SHARE_OF_MEMORY * memory and decoded <= _SMALL_SHARE_OF_DISK * disk:
        mode = "" if facts.mode == "index" else " It needs read mode 'index'."
        yield (
            f"All decoded images of the split are {show_bytes(decoded)}, and {show_bytes(memory)} of memory and "
            f"{show_bytes(disk)} of disk are free here: with ParserTfds(..., cache=tfds_torch.DecodedCache()) they "
            f"are decoded once, into a file, and later epochs only copy them.{mode}"
        )
