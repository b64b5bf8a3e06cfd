"""The order tells the fetcher what comes: every byte is fetched once, and before it is needed."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.faulty_server import Fault, FaultyFolder

from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.storage.network import waited_s
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
BLOCKS = ReadOptions(block_records=4, shuffle_buffer=8)
NOWHERE = ReadOptions(block_records=None)
PARTS = {"a": "train[:20]", "b": "train[20:]"}


def open_far(url: str, cache: Path, split: str = "train", read: ReadOptions = BLOCKS) -> ParserTfds:
    remote = RemoteOptions(cache_dir=cache)
    return ParserTfds(url, "numbered:1.0.0", split, is_training=True, batch_size=3, read=read, remote=remote)


def open_single(url: str, cache: Path) -> DatasetParser:
    return open_far(url, cache)


def open_global(url: str, cache: Path) -> DatasetParser:
    return open_far(url, cache, read=NOWHERE)


def open_mixture(url: str, cache: Path) -> DatasetParser:
    members = {name: open_far(url, cache, split) for name, split in PARTS.items()}
    return ParserMixture(members, {"a": 0.5, "b": 0.5}, batch_size=3, is_training=True)


def fetched(server: FaultyFolder) -> int:
    """Returns the bytes of shards that were fetched."""
    return sum(size for path, size in server.ledger().bytes_by_path.items() if "tfrecord" in path)


def size_of(root: str) -> int:
    """Returns the bytes of all shards."""
    return sum(path.stat().st_size for path in Path(root).rglob("numbered-train.*"))


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until, "It did not happen within 20 s."
        time.sleep(0.02)


@pytest.mark.parametrize("open_parser", [open_single, open_global, open_mixture])
def test_all_blocks_are_fetched_once_and_before_they_are_read(
    serve: Serve,
    faulty_server: FaultyFolder,
    numbered_root: str,
    tmp_path: Path,
    open_parser: Callable[[str, Path], DatasetParser],
) -> None:
    url = serve(numbered_root)
    list(open_parser(url, tmp_path / "first").batches(fields=("label",)))  # Its shards are indexed.
    parser, before = open_parser(url, tmp_path / "second"), fetched(faulty_server)
    batches = parser.batches(fields=("label",))
    labels = next(batches).label.tolist()
    size = size_of(numbered_root)
    wait_until(lambda: fetched(faulty_server) - before >= size)
    faulty_server.fault("*tfrecord*", Fault(status=403))
    before_s = waited_s()
    labels += [label for batch in batches for label in batch.label.tolist()]
    assert set(range(41)) <= set(labels)
    assert waited_s() == before_s
    assert fetched(faulty_server) - before == size


def test_a_worker_has_the_blocks_fetched_that_it_needs_from_a_resume_on(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str, tmp_path: Path
) -> None:
    url = serve(numbered_root)
    whole = [batch.label.tolist() for batch in open_far(url, tmp_path / "first").batches(fields=("label",))]
    parser, before = open_far(url, tmp_path / "second"), fetched(faulty_server)
    world = World(0, 1, 1, 2)
    tail = [batch.label.tolist() for batch in parser.batches(world, 0, 10, fields=("label",))]
    assert tail == whole[11::2]
    assert fetched(faulty_server) - before < size_of(numbered_root) / 2


def test_workers_share_what_the_store_says_of_shards(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str, tmp_path: Path
) -> None:
    parser = open_far(serve(numbered_root), tmp_path / "cache")
    with create_loader(ImageDataset(parser, fields=("label",)), num_workers=2) as loader:
        assert sum(len(labels) for (labels,) in loader) >= 41
    asked = faulty_server.ledger().requests
    looks = Counter(one.path for one in asked if one.method == "HEAD" and "train.tfrecord" in one.path)
    assert set(looks.values()) == {1}
