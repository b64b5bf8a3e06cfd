"""How many files of the package a batch crosses once a loader runs: in all threads of this process and its workers.

A thread of each worker looks every second whether the parent still runs; its file counts, too.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called_files import CalledFiles
from picture_fixtures import photograph, save, write_pictures

from tfds_torch import (
    ImageDataset,
    MultiLoader,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ReadOptions,
    TrainPreprocess,
    create_loader,
    export_dataset,
)

BATCH_SIZE, NUM_BATCHES = 32, 40
"""So many that workers, which read ahead, still make batches when the fifteenth is taken."""
FIRST, LAST = 5, 15
NUM_WORKERS = 2
PREPROCESS = TrainPreprocess(size=32)


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `pictures`: small photographs, as JPEG files of two sizes."""
    files = [
        save(photograph(name, size), "JPEG", quality=90)
        for name in ("china", "flower")
        for size in ((160, 120), (120, 160))
    ]
    num_images = BATCH_SIZE * NUM_BATCHES
    images = [files[number % len(files)] for number in range(num_images)]
    return write_pictures(tmp_path_factory.mktemp("short_path"), images, shards=[num_images // 8] * 8)


def open_parser(root: Path, mode: str) -> ParserTfds:
    return ParserTfds(
        root, "pictures", is_training=True, batch_size=BATCH_SIZE, preprocess=PREPROCESS, read=ReadOptions(mode=mode)
    )


def load(parser: Any, num_workers: int) -> Iterable[Any]:
    method = "fork" if num_workers else None
    return create_loader(ImageDataset(parser), num_workers=num_workers, multiprocessing_context=method)


WATCH = "runtime/processes.py"
"""On a busy machine, the wait for a batch is long enough for a look at whether workers live."""


def load_index(root: Path, _: Path) -> Iterable[Any]:
    return load(open_parser(root, "index"), NUM_WORKERS)


def load_multi(root: Path, _: Path) -> Iterable[Any]:
    return MultiLoader(open_parser(root, "index"), NUM_WORKERS, start_method="fork")


def load_here(root: Path, _: Path) -> Iterable[Any]:
    return load(open_parser(root, "index"), 0)


def load_mixture(root: Path, _: Path) -> Iterable[Any]:
    members = {split: ParserTfds(root, "pictures", split) for split in ("train[:50%]", "train[50%:]")}
    weights = dict.fromkeys(members, 1)
    parser = ParserMixture(members, weights, is_training=True, batch_size=BATCH_SIZE, preprocess=PREPROCESS)
    return load(parser, NUM_WORKERS)


def load_own(root: Path, _: Path) -> Iterable[Any]:
    stored = open_parser(root, "index").dataset.encoded_examples(
        np.arange(BATCH_SIZE * NUM_BATCHES), ("image", "label")
    )
    rows = [(one.image if one.image is not None else one.features["image"], one.label) for one in stored]
    return load(ParserMapStyle(rows, is_training=True, batch_size=BATCH_SIZE, preprocess=PREPROCESS), NUM_WORKERS)


def load_beton(root: Path, folder: Path) -> Iterable[Any]:
    path = folder / "pictures.beton"
    export_dataset(open_parser(root, "index"), path, format="beton")
    parser = ParserBeton(path, is_training=True, batch_size=BATCH_SIZE, preprocess=PREPROCESS)
    return load(parser, NUM_WORKERS)


def load_stream(root: Path, _: Path) -> Iterable[Any]:
    return load(open_parser(root, "files"), NUM_WORKERS)


@pytest.mark.parametrize(
    ("make_loader", "num_workers", "ceiling"),
    [
        pytest.param(load_index, NUM_WORKERS, 28, id="Loader"),
        pytest.param(load_multi, NUM_WORKERS, 28, id="MultiLoader"),
        pytest.param(load_here, 0, 25, id="no workers"),
        pytest.param(load_mixture, NUM_WORKERS, 29, id="mixture"),
        pytest.param(load_own, NUM_WORKERS, 28, id="own dataset"),
        pytest.param(load_beton, NUM_WORKERS, 27, id="beton"),
        pytest.param(load_stream, NUM_WORKERS, 25, id="stream", marks=pytest.mark.slow),  # Workers import tensorflow.
    ],
)
def test_a_batch_crosses_few_files(
    data_root: Path, tmp_path: Path, make_loader: Callable[[Path, Path], Any], num_workers: int, ceiling: int
) -> None:
    counts = count_files(make_loader(data_root, tmp_path), tmp_path / "log")
    assert len(counts) == 1 + num_workers  # All processes report.
    here = counts.pop(os.getpid())
    workers = sum(counts.values(), Counter())
    files = sorted({*here, *workers} - {WATCH})
    assert any(name.startswith("images/decoders/") for name in files)  # So do threads that start later.
    lines = [f"{name}: {here[name]} calls here, {workers[name]} in workers" for name in files]
    assert len(files) <= ceiling, f"a batch crosses {len(files)} files, {ceiling} allowed:\n" + "\n".join(lines)


def count_files(loader: Any, log: Path) -> dict[int, Counter[str]]:
    """Returns which files are called, and how often, between two batches of an epoch: pid -> file -> calls."""
    called = CalledFiles(log)
    with called.installed(), loader:
        for number, _ in enumerate(loader, 1):
            called.is_counting = FIRST <= number < LAST
            if number == LAST:
                break
    return called.counts()
