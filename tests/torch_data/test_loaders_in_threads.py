"""Loaders that are begun at the same time, in several threads of one process."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import write_numbered

from tfds_torch import EvalPreprocess, ImageDataset, MultiLoader, ParserTfds, create_loader

NUM_EXAMPLES, BATCH_SIZE = 24, 4
WATCHDOG_S = 60.0


class Numbers:
    """A dataset that is not ours."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": (NUM_EXAMPLES,)})
    return root


def begin_in_threads(root: Path, num_rounds: int) -> None:
    """Reads, round by round, four kinds of loaders at the same time."""

    def parser() -> ParserTfds:
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "preprocess": EvalPreprocess(size=4)}
        return ParserTfds(str(root), "numbered", is_training=False, **options)

    makers: list[Callable[[], Any]] = [
        lambda: create_loader(ImageDataset(parser()), num_workers=2, timeout_s=WATCHDOG_S),
        lambda: create_loader(ImageDataset(parser()), num_workers=0),
        lambda: MultiLoader(parser(), num_workers=2, timeout_s=WATCHDOG_S),
        lambda: create_loader(Numbers(), num_workers=2, batch_size=BATCH_SIZE, timeout_s=WATCHDOG_S),
    ]
    for _ in range(num_rounds):
        came: list[int] = []

        def read(make: Callable[[], Any], came: list[int] = came) -> None:
            np.random.seed(1)
            with make() as loader:
                came.append(sum(1 for _ in loader))

        threads = [threading.Thread(target=read, args=(make,), daemon=True) for make in makers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WATCHDOG_S)
        assert came == [NUM_EXAMPLES // BATCH_SIZE] * len(makers)


def test_loaders_that_are_begun_in_several_threads_read_everything(root: Path) -> None:
    begin_in_threads(root, num_rounds=3)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_loaders_that_are_begun_in_several_threads_200_times_read_everything(root: Path) -> None:
    begin_in_threads(root, num_rounds=200)
