"""A `.beton` file by URL is fetched in the blocks of its order: each once an epoch, whatever the cache holds."""

import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.faulty_server import Fault, FaultyFolder
from servers.s3_server import S3Server
from storage.beton.made_files import PAGE, unpack, without_manifest, write_images
from storage.beton.made_files import write_samples as write_beton
from storage.remote.object_server import object_server

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.plan.world import World
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
NUM_SAMPLES, SIDE = 600, 64
BLOCKS = ReadOptions(block_records=10, shuffle_buffer=20)
BLOCK_BYTES = 10 * 3 * SIDE**2
OPENING = 160 << 10
"""Bytes that may be fetched beyond the file: its head and its end, twice."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """7.4 MB of pixels, 10.5 MB with the rests of pages."""
    (tmp_path / "beton").mkdir()
    write_images(tmp_path / "beton" / "a.beton", NUM_SAMPLES, SIDE)
    return tmp_path / "beton" / "a.beton"


def open_far(url: str, cache: Path | None = None, read: ReadOptions = BLOCKS, **more: Any) -> ParserBeton:
    options: dict[str, Any] = {"is_training": True, "batch_size": 5, "preprocess": TrainPreprocess(size=SIDE)}
    remote = RemoteOptions(cache_dir=cache, connections=4, max_bytes=more.pop("max_bytes", None))
    return ParserBeton(url, read=read, remote=remote, **options | more)


def fetched(server: FaultyFolder, name: str = "a.beton") -> int:
    return sum(size for path, size in server.ledger().bytes_by_path.items() if path.endswith(name))


def read_epoch(parser: ParserBeton, epoch: int = 0, start: int = 0, world: World = World()) -> Iterator[Any]:
    for batch in parser.batches(world, epoch, start, fields=("image", "label")):
        pixels = hashlib.sha256(np.asarray(batch.image).tobytes()).hexdigest()
        yield pixels, batch.label.tolist(), batch.index.tolist()


def on_disk(cache: Path) -> int:
    sizes = 0
    for block in cache.glob("objects/*/*-*"):
        try:
            sizes += os.lstat(block).st_size
        except FileNotFoundError:  # It went meanwhile.
            continue
    return sizes


@pytest.mark.parametrize("layout", ["ours", "FFCV's own"])
def test_a_cache_smaller_than_the_file_fetches_each_block_once_an_epoch(
    serve: Serve, faulty_server: FaultyFolder, path: Path, tmp_path: Path, layout: str
) -> None:
    path.unlink()
    write_images(path, NUM_SAMPLES, 112)
    if layout == "FFCV's own":
        without_manifest(path)
    size, max_bytes = path.stat().st_size, 12_000_000
    assert max_bytes < size / 2
    read = ReadOptions(block_records=10, shuffle_buffer=100)
    options: dict[str, Any] = {"preprocess": None, "batch_size": 15, "read": read}
    far = open_far(f"{serve(path.parent)}/a.beton", tmp_path / "cache", max_bytes=max_bytes, **options)
    near = open_far(str(path), **options)
    far.source.check()
    assert fetched(faulty_server) < OPENING, "no page is fetched to open it"
    for epoch in range(2):
        before, seen = fetched(faulty_server), list[int]()
        for batch, expected in zip(read_epoch(far, epoch), read_epoch(near, epoch), strict=True):
            assert batch == expected
            assert on_disk(tmp_path / "cache") <= max_bytes
            seen += batch[2]
        assert sorted(seen) == list(range(NUM_SAMPLES))
        assert fetched(faulty_server) - before <= size


def test_blocks_are_runs_of_samples_and_are_fetched_before_they_are_read(
    serve: Serve, faulty_server: FaultyFolder, path: Path
) -> None:
    far = open_far(f"{serve(path.parent)}/a.beton")
    batches = read_epoch(far)
    next(batches)
    source: Any = far.source
    cuts, starts = source.reader._blocks.cuts(), source.reader.rows_of("image")["pointer"]
    assert set(starts[::10].tolist()) <= set(cuts.tolist())
    assert len(cuts) < NUM_SAMPLES // 10 + 8
    while source.files.store.stats()["blocks_cached"] < len(cuts) - 2:  # All but those of the head and of the end.
        pass
    faulty_server.fault("*.beton", Fault(status=403))
    for _ in batches:
        pass


@pytest.mark.parametrize("start", [0, 7])
def test_the_first_batch_and_a_resume_come_by_range(tmp_path: Path, own_cache: Path, start: int) -> None:
    write_images(tmp_path / "a.beton", 60, 256)
    sample_bytes = 3 * 256**2
    options: dict[str, Any] = {"preprocess": None, "read": ReadOptions(block_records=10, shuffle_buffer=60)}
    near = open_far(str(tmp_path / "a.beton"), **options)
    with object_server() as server:
        url = server.put("a.beton", (tmp_path / "a.beton").read_bytes())
        far = open_far(url, own_cache, **options)
        batches = read_epoch(far, 0, start)
        assert next(batches) == next(read_epoch(near, 0, start))
        pages_at, pages_stop = far.dataset.source.head.layout.pages_at, far.dataset.source.head.pages_stop
        asked = [stop - begin for begin, stop in server.asked["a.beton"] if pages_at <= begin < pages_stop]
        assert asked[0] % sample_bytes == 0
        assert asked[0] < 10 * sample_bytes, "some samples come before the rest of their block"
        batches.close()


def test_labels_alone_fetch_no_images(serve: Serve, faulty_server: FaultyFolder, path: Path) -> None:
    far = open_far(f"{serve(path.parent)}/a.beton", preprocess=None)
    labels = [label for batch in far.batches(fields=("label",)) for label in batch.label.tolist()]
    assert sorted(labels) == sorted(number % 10 for number in range(NUM_SAMPLES))
    assert fetched(faulty_server) < OPENING


def test_a_cache_below_two_windows_is_refused(serve: Serve, path: Path, tmp_path: Path) -> None:
    far = open_far(f"{serve(path.parent)}/a.beton", tmp_path / "cache", max_bytes=6 * BLOCK_BYTES)
    with pytest.raises(ConfigError, match=r"max_bytes=.* two windows of"):
        list(read_epoch(far))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_and_a_bucket_deliver_the_same(s3_server: S3Server, own_cache: Path, path: Path, start: str) -> None:
    url = f"{s3_server.fill(path.parent, f'beton-{start}')}/a.beton"
    expected = [batch[2] for batch in read_epoch(open_far(str(path)))]
    far = open_far(url, own_cache, max_bytes=2_500_000)
    with create_loader(
        ImageDataset(far, fields=("image", "index")), num_workers=2, multiprocessing_context=start
    ) as loader:
        assert [batch[1].tolist() for batch in loader] == expected


def write_in_turns(path: Path, chunk: int, writers: int = 3) -> None:
    """Writes samples as FFCV's processes do: each takes chunks of them in turn, and fills pages of its own."""
    fields = {"image": BetonImage("raw"), "label": BetonInt()}
    pixels = np.random.default_rng(1).integers(0, 256, (NUM_SAMPLES, SIDE, SIDE, 3), dtype=np.uint8)
    with BetonWriter(path, fields, NUM_SAMPLES, page_size=PAGE, take_page=count().__next__) as writer:
        pages = [writer.page_writer() for _ in range(writers)]
        for number in range(NUM_SAMPLES):
            pages[number // chunk % writers].add([pixels[number], number % 10], number, str(number))
        for one in pages:
            writer.include(one.close())


@pytest.mark.parametrize("chunk", [20, 1], ids=["runs", "grid"])
def test_what_processes_wrote_side_by_side_is_fetched_in_runs_or_in_a_grid(
    serve: Serve, faulty_server: FaultyFolder, tmp_path: Path, chunk: int
) -> None:
    (tmp_path / "beton").mkdir()
    path = tmp_path / "beton" / "a.beton"
    write_in_turns(path, chunk)
    far = open_far(f"{serve(path.parent)}/a.beton", tmp_path / "cache")
    assert list(read_epoch(far)) == list(read_epoch(open_far(str(path))))
    assert fetched(faulty_server) <= path.stat().st_size + OPENING
    source: Any = far.source
    blocks = source.reader._blocks
    assert np.array_equal(blocks.cuts(), source.head.grid) == (chunk == 1)
    for start in range(0, NUM_SAMPLES, 10):
        held = list(blocks.holding(("image",), source.reader._sizes, start, start + 10))
        assert 1 <= len(held) <= 2


@pytest.mark.parametrize(
    "kind", ["regenerated_ffcv_1.0.2.beton.gz", "golden_tfds_torch_0.2.0.beton.gz", "empty", "no pages"]
)
def test_files_of_other_writers_come_as_from_a_local_copy(serve: Serve, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "beton"
    folder.mkdir()
    if kind == "empty":
        path = folder / "a.beton"
        write_beton(path, 0)
    elif kind == "no pages":
        path = folder / "a.beton"
        with BetonWriter(path, {"label": BetonInt()}, 30, page_size=PAGE) as writer:
            for number in range(30):
                writer.add((number,))
    else:
        path = unpack(kind, folder)
    keys: dict[str, Any] = {"image_key": None, "target_key": None, "read": ReadOptions(block_records=2)}
    far = ParserBeton(f"{serve(folder)}/{path.name}", batch_size=4, **keys)
    near = ParserBeton(path, batch_size=4, **keys)
    source: BetonSource = far.dataset.source
    names = [name for name in source.head.fields if kind != "empty"]
    assert (far.fingerprint, len(far.dataset.source)) == (near.fingerprint, len(near.dataset.source))
    index = np.arange(len(source))
    source.follow([(index[::2], np.minimum(index[::2] + 2, len(source)))])
    found, expected = source.read(index, names), near.source.read(index, names)
    for name in names:
        assert str(np.asarray(found[name], object)) == str(np.asarray(expected[name], object))
    source.follow(())
