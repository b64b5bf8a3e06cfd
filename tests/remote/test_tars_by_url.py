"""Tars by URL: one pass indexes them; then each block is fetched once an epoch, also where the cache is small."""

import os
import sys
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import check_resumes
from parsers.resuming import ParserLoader
from parsers.tar_samples import sample_of
from servers.faulty_server import FaultyFolder
from storage.webdataset.made_tars import write_samples

from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.runtime import progress
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
NUM_SAMPLES, NUM_TARS, CONTENT_BYTES = 240, 8, 75_000
BLOCKS = ReadOptions(block_records=5, shuffle_buffer=50)
FIELDS = {"label": "cls", "raw": "bin"}


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 MB in 8 tars, whose borders are within blocks."""
    folder = tmp_path_factory.mktemp("large") / "tars"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for tar, share in enumerate(np.array_split(np.arange(NUM_SAMPLES), NUM_TARS - 1)):
        samples = [sample_of(number) | {"bin": draw.bytes(CONTENT_BYTES)} for number in share.tolist()]
        write_samples(folder / f"a-{tar}.tar", samples)
    write_samples(folder / f"a-{NUM_TARS - 1}.tar", [])
    return folder


def size_of(tars: Path) -> int:
    return sum(path.stat().st_size for path in tars.glob("*.tar"))


def open_tars(where: str | Path, cache: Path | None = None, max_bytes: int | None = None) -> ParserWebDataset:
    remote = None if cache is None else RemoteOptions(cache_dir=cache, max_bytes=max_bytes, connections=4)
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 8, "read": BLOCKS, "remote": remote}
    return ParserWebDataset(f"{where}/a-{{0..{NUM_TARS - 1}}}.tar", FIELDS, **arguments)


def fetched(server: FaultyFolder) -> int:
    return sum(size for path, size in server.ledger().bytes_by_path.items() if path.endswith(".tar"))


def read_epoch(parser: ParserWebDataset, epoch: int, max_bytes: int | None = None) -> list[Any]:
    found = []
    for batch in parser.batches(epoch=epoch, fields=("label", "raw", "index")):
        found.append((batch.index.tolist(), batch.label.tolist(), list(batch.features["raw"])))
        if max_bytes is not None:
            assert on_disk(parser) <= max_bytes
    return found


def on_disk(parser: ParserWebDataset) -> int:
    sizes = 0
    for block in Path(parser.source.files.store.cache).glob("objects/*/*-*"):
        try:
            sizes += os.lstat(block).st_size
        except FileNotFoundError:  # It went meanwhile.
            continue
    return sizes


def test_the_pass_that_indexes_tars_fetches_each_once_and_epochs_nothing(
    serve: Serve, faulty_server: FaultyFolder, tars: Path, tmp_path: Path
) -> None:
    url, near = serve(tars), open_tars(tars)
    far = open_tars(url, tmp_path / "cache")
    for epoch in range(2):
        assert read_epoch(far, epoch) == read_epoch(near, epoch)
    assert fetched(faulty_server) == size_of(tars)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_what_indexing_fetched(
    serve: Serve, faulty_server: FaultyFolder, tars: Path, tmp_path: Path, start: str
) -> None:
    far = open_tars(serve(tars), tmp_path / "cache")
    dataset = ImageDataset(far, fields=("label", "index"))
    with create_loader(dataset, num_workers=2, multiprocessing_context=start) as loader:
        found = [batch[1].tolist() for batch in loader]
    assert found == [batch.index.tolist() for batch in open_tars(tars).batches(fields=("index",))]
    assert fetched(faulty_server) == size_of(tars)


def test_a_cache_smaller_than_the_tars_fetches_each_block_once_an_epoch(
    serve: Serve, faulty_server: FaultyFolder, tars: Path, tmp_path: Path
) -> None:
    url, near, max_bytes = serve(tars), open_tars(tars), 13_000_000
    open_tars(url, tmp_path / "other")  # The tars are indexed.
    far = open_tars(url, tmp_path / "cache", max_bytes)
    for epoch in range(2):
        before = fetched(faulty_server)
        found = read_epoch(far, epoch, max_bytes)
        assert found == read_epoch(near, epoch)
        assert sorted(number for index, *_ in found for number in index) == list(range(NUM_SAMPLES))
        assert fetched(faulty_server) - before <= size_of(tars)


def test_the_pass_that_indexes_tars_keeps_to_a_small_cache(
    serve: Serve, faulty_server: FaultyFolder, tars: Path, tmp_path: Path
) -> None:
    max_bytes = 13_000_000
    far = open_tars(serve(tars), tmp_path / "cache", max_bytes)
    assert on_disk(far) <= max_bytes
    indexed = fetched(faulty_server)
    assert indexed == size_of(tars)
    assert read_epoch(far, 0, max_bytes) == read_epoch(open_tars(tars), 0)
    assert fetched(faulty_server) - indexed <= size_of(tars)


@pytest.mark.parametrize("missing", ["skip", "none"])
def test_what_samples_lack_is_the_same_by_url(serve: Serve, missing: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for tar, share in enumerate(np.array_split(np.arange(60), 3)):
        samples = [sample_of(number) for number in share.tolist()]
        for number, sample in zip(share.tolist(), samples, strict=True):
            for name, every in (("txt", 3), ("cls", 5)):
                if not number % every:
                    del sample[name]
        write_samples(folder / f"a-{tar}.tar", samples)

    def read(where: str | Path) -> list[Any]:
        text, fields = f"{where}/a-{{0..1}}.tar::{where}/a-2.tar", {"label": "cls", "text": "txt"}
        given: dict[str, Any] = {"is_training": True, "batch_size": 8, "read": BLOCKS, "missing": missing}
        parser = ParserWebDataset(text, fields, remote=RemoteOptions(cache_dir=tmp_path / "cache"), **given)
        batches = parser.batches(epoch=1, fields=("label", "text"))
        return [(batch.index.tolist(), batch.label.tolist(), batch.features["text"]) for batch in batches]

    assert read(serve(folder)) == read(folder)


def test_indexing_shows_its_progress(serve: Serve, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    open_tars(serve(tars), tmp_path / "cache")
    assert "indexing a-0.tar..a-7.tar" in terminal.getvalue()


def test_a_resume_anywhere_gives_the_uninterrupted_tail(serve: Serve, tars: Path) -> None:
    make_far, make_near = (
        partial(
            ParserWebDataset,
            f"{where}/a-{{0..{NUM_TARS - 1}}}.tar",
            {"image": "png", "label": "cls"},
            is_training=True,
            read=BLOCKS,
        )
        for where in (serve(tars), tars)
    )
    _kept = make_far(batch_size=24)  # Its fetcher ends with the last parser.
    far, near = partial(ParserLoader, make_far, (1, 2), 24), partial(ParserLoader, make_near, (2, 1), 24)
    assert check_resumes(far, near, num_epochs=1) > 8
