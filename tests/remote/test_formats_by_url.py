"""Tars, `.beton` files and windows of episodes by URLs give what they give of local copies."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_episodes import NAME, OFFSETS
from parsers.tar_samples import CLASSES, FIELDS, sample_of
from servers.faulty_server import Fault, FaultyFolder
from storage.beton.made_files import FIELDS as BETON_FIELDS
from storage.beton.made_files import without_manifest, write_images
from storage.beton.made_files import write_samples as write_beton
from storage.webdataset.made_tars import write_samples

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.plan.windows import Windows
from tfds_torch.plan.world import World
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
NUM_SAMPLES = 36
BLOCKS = ReadOptions(block_records=5, shuffle_buffer=10)
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4, "read": BLOCKS}


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    folder = tmp_path / "tars"
    folder.mkdir()
    for tar, share in enumerate(np.array_split(np.arange(NUM_SAMPLES), 3)):
        write_samples(folder / f"a-{tar:02d}.tar", map(sample_of, share.tolist()))
    return folder


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


def read_epoch(parser: DatasetParser, fields: tuple[str, ...], world: World = World()) -> list[Any]:
    batches = parser.batches(world, 1, fields=(*fields, "id"))
    return [
        [plain(one) for one in (batch.image, batch.label, batch.features, batch.index, list(batch.id))]
        for batch in batches
    ]


def blocks_of(parser: DatasetParser) -> list[Path]:
    """Returns the blocks in the cache, when all that are on their way have come."""
    objects = parser.source.files.store.options.folder / "objects"
    while list(objects.glob("*/*.part")):
        time.sleep(0.01)
    found: list[Path] = sorted(objects.glob("*/*-*"))
    assert found
    return found


# Tars.


def test_tars_come_as_from_local_copies(serve: Serve, tars: Path) -> None:
    url = serve(tars)
    far = ParserWebDataset(f"{url}/a-{{00..02}}.tar", FIELDS, CLASSES, **TRAINING)
    near = ParserWebDataset(f"{tars}/a-{{00..02}}.tar", FIELDS, CLASSES, **TRAINING)
    assert (far.dataset_name, far.fingerprint) == (near.dataset_name, near.fingerprint)
    assert read_epoch(far, tuple(FIELDS)) == read_epoch(near, tuple(FIELDS))
    assert read_epoch(far, tuple(FIELDS), World(1, 2)) == read_epoch(near, tuple(FIELDS), World(1, 2))
    assert far[7].id == near[7].id == "part/0007"
    assert far.paths == [f"{url}/a-{number:02d}.tar" for number in range(3)]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_tars_come_in_blocks_by_default_and_to_workers(serve: Serve, tars: Path, start: str) -> None:
    url = serve(tars)
    far = ParserWebDataset(f"{url}/a-{{00..02}}.tar", is_training=True, batch_size=4)
    assert far.read.block_records == round(2**23 / far.mean_example_bytes)
    expected = read_epoch(far, ("label",))
    dataset = ImageDataset(far, fields=("label", "index"))
    dataset.set_epoch(1)
    with create_loader(dataset, num_workers=2, multiprocessing_context=start) as loader:
        loader.set_epoch(1)
        assert [batch[1].tolist() for batch in loader] == [batch[3] for batch in expected]


def test_a_url_with_a_secret_is_refused_without_it() -> None:
    for url in ("https://host/a.tar?signature=hidden", "https://me:hidden@host/a.tar"):
        with pytest.raises(ConfigError, match=r"https://host/a\.tar has a query, a user name or a password") as caught:
            ParserWebDataset([url])
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("make", [lambda url: ParserWebDataset(["https://host/b.tar", url]), ParserBeton])
def test_a_url_with_a_wrong_port_is_refused_before_a_fetcher_starts(
    make: Callable[[str], DatasetParser], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ObjectStore] = []
    monkeypatch.setattr(ObjectStore, "begin", begun.append)
    with pytest.raises(ConfigError, match=r"https://host:99999/a.*: the port behind the host must be a number in 1"):
        make("https://host:99999/a")
    assert not begun


def test_local_tars_and_urls_do_not_mix(serve: Serve, tars: Path) -> None:
    with pytest.raises(ConfigError, match=r"a-00\.tar' is a file of this machine, and others are URLs: give one kind"):
        ParserWebDataset([f"{serve(tars)}/a-01.tar", tars / "a-00.tar"])


def test_a_missing_and_a_cut_tar_are_named(serve: Serve, tars: Path, faulty_server: FaultyFolder) -> None:
    url = serve(tars)
    with pytest.raises(ShardError, match=rf"{url}/a-03\.tar"):
        ParserWebDataset(f"{url}/a-{{00..03}}.tar")
    (path,) = faulty_server.folder.rglob("a-01.tar")
    os.truncate(path, path.stat().st_size // 2 // 512 * 512)
    with pytest.raises(CorruptRecordError, match=rf"{url}/a-01\.tar"):
        ParserWebDataset(f"{url}/a-{{00..02}}.tar")


def test_a_header_that_was_damaged_on_the_way_is_fetched_again(
    serve: Serve, tars: Path, faulty_server: FaultyFolder
) -> None:
    url = serve(tars)
    expected = read_epoch(ParserWebDataset(f"{url}/a-{{00..02}}.tar", **TRAINING), ("label",))
    far = ParserWebDataset(f"{url}/a-{{00..02}}.tar", **TRAINING)
    for block in blocks_of(far):
        block.unlink()
    faulty_server.fault(
        "*/a-01.tar", Fault(flipped_byte=int(far.dataset.source.index.offset[80]) - 500), times=1, method="GET"
    )
    assert read_epoch(far, ("label",)) == expected


def test_windows_of_an_order_name_the_blocks_of_their_samples(serve: Serve, tars: Path) -> None:
    source = ParserWebDataset(f"{serve(tars)}/a-{{00..02}}.tar", **TRAINING).dataset.source
    for start in range(0, NUM_SAMPLES, 5):
        numbers = np.arange(start, min(start + 5, NUM_SAMPLES))
        blocks = list(source._blocks_in(start, int(numbers[-1]) + 1))
        assert 1 <= len(blocks) <= 2
        for tar, first, last in zip(
            source._tar_of(numbers), source.index.first[numbers], source.index.first[numbers + 1], strict=True
        ):
            begin, end = source.index.offset[first] - 512, source.index.offset[last - 1] + source.index.size[last - 1]
            spans = [source._cuts(one)[block : block + 2] for one, block in blocks if one == tar]
            assert any(span[0] <= begin and end <= span[1] for span in spans)
    source.follow([(np.array([0, 30]), np.array([5, 35])), (np.array([5]), np.array([10]))])
    assert len(source.read(np.arange(10), ["image"])["image"]) == 10


# `.beton` files.


@pytest.mark.parametrize("kind", ["pixels", "every kind", "FFCV's own"])
def test_a_beton_file_comes_as_from_a_local_copy(serve: Serve, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "beton"
    folder.mkdir()
    path = folder / "a.beton"
    fields: tuple[str, ...] = ("image", "label")
    if kind == "every kind":
        write_beton(path, 23)
        fields = tuple(name for name in BETON_FIELDS)
    else:
        write_images(path, 23, 8)
        if kind == "FFCV's own":
            without_manifest(path)
    keys: dict[str, Any] = {"target_key": None} if "label" not in fields else {}
    preprocess: dict[str, Any] = {"preprocess": TrainPreprocess(size=8)} if kind == "pixels" else {}
    url = f"{serve(folder)}/{path.name}"
    far = ParserBeton(url, **TRAINING, **keys, **preprocess)
    near = ParserBeton(path, **TRAINING, **keys, **preprocess)
    assert (far.dataset_name, far.fingerprint) == (near.dataset_name, near.fingerprint)
    assert read_epoch(far, fields) == read_epoch(near, fields)
    assert far.source.find(near.ids(np.array([3]))[0]) == 3
    assert far.path == url
    near.source.check()
    far.source.check()


def test_a_payload_that_was_damaged_in_the_cache_is_fetched_again(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "beton"
    folder.mkdir()
    write_images(folder / "a.beton", 23, 8)
    far = ParserBeton(f"{serve(folder)}/a.beton", **TRAINING)
    expected = read_epoch(far, ("image", "label"))
    for block in blocks_of(far):
        content = bytearray(block.read_bytes())
        content[len(content) // 2] ^= 1
        block.write_bytes(content)
    again = ParserBeton(far.path, **TRAINING)
    assert read_epoch(again, ("image", "label")) == expected


# Windows of episodes.


@pytest.mark.parametrize("read", [BLOCKS, ReadOptions()], ids=["blocks", "default"])
def test_windows_come_as_from_a_local_copy(serve: Serve, numbered_root: str, read: ReadOptions) -> None:
    windows = Windows("steps", offsets={"number": OFFSETS, "name": OFFSETS})
    arguments: dict[str, Any] = {**TRAINING, "windows": windows, "read": read}
    far = ParserTfds(serve(numbered_root), f"{NAME}:1.0.0", **arguments)
    near = ParserTfds(numbered_root, f"{NAME}:1.0.0", **{**arguments, "read": far.read})
    assert far.fingerprint == near.fingerprint
    assert read_epoch(far, ("number", "name")) == read_epoch(near, ("number", "name"))
    far.source.follow([(np.array([0, 20]), np.array([5, 25])), (np.array([5]), np.array([10]))])
    assert far.source.read(np.arange(10), ["steps/number"])["steps/number"].shape == (10, len(OFFSETS))
    for block in blocks_of(far):
        content = bytearray(block.read_bytes())
        content[len(content) // 2] ^= 1
        block.write_bytes(content)
    again = ParserTfds(str(far.data_dir), NAME, **arguments)
    assert read_epoch(again, ("number", "name")) == read_epoch(near, ("number", "name"))
