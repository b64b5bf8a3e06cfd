"""create_loader over iterables that have nothing to do with torch, such as a Feeder's source."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tfds_torch import Feeder, create_loader
from tfds_torch.errors import ConfigError, StallError, WorkerError


class Rows:
    """Batches that can be read anew."""

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, 12, 4):
            yield {"x": np.arange(start, start + 4), "name": "rows"}


def images(worker: int, batch_size: int) -> list[np.ndarray]:
    """Returns a chunk of ten images, [10, 3, 8, 8]."""
    return [np.full((10, 3, 8, 8), 255, np.uint8), np.arange(10)]


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    with Feeder() as feeder:
        feeder.add_source("train", images, ["image", "label"], 16)
        feeder.add_source("test", [images(0, 0)] * 4, ["image", "label"], 16)
        feeder.start()
        yield feeder


def test_a_feeders_source_goes_through_the_device_stage(feeder: Feeder) -> None:
    loader = create_loader(feeder.batches("train"), device="cpu", mean=[0.5] * 3, std=[0.5] * 3)
    with loader:
        for _, batch in zip(range(5), loader, strict=False):
            assert batch["image"].shape == (16, 3, 8, 8)
            assert batch["image"].dtype == torch.float32
            assert torch.allclose(batch["image"], torch.ones(()))
            assert batch["image"].is_contiguous(memory_format=torch.channels_last)
            assert batch["label"].dtype == torch.int64
        stats = loader.stats()
    assert (stats.batches, stats.examples) == (5, 80)


def test_epochs_are_those_of_the_source(feeder: Feeder) -> None:
    loader = create_loader(feeder.batches("test"))
    for _ in range(3):
        labels = torch.cat([batch["label"] for batch in loader])
        assert labels.tolist() == list(range(10)) * 4
        with pytest.raises(ConfigError, match=r"Source 'test' has ended.*Call start\(\)"):
            iter(loader)
        feeder.start()


def test_a_loop_that_is_broken_off_loses_nothing_but_its_own_batch(feeder: Feeder) -> None:
    loader, labels = create_loader(feeder.batches("test")), []
    for _ in range(2):
        for batch in loader:
            labels += batch["label"].tolist()
            break
    labels += [label for batch in loader for label in batch["label"].tolist()]
    assert labels == list(range(10)) * 4


def test_an_error_of_a_fetcher_comes_through_the_loader(feeder: Feeder) -> None:
    feeder.add_source("bad", lambda worker, batch_size: None, ["x"], 4)
    feeder.start()
    with pytest.raises(WorkerError, match=r"^Source 'bad', worker \d+: fetched None"):
        next(iter(create_loader(feeder.batches("bad"))))


def test_the_loaders_timeout_holds(feeder: Feeder) -> None:
    may_end = threading.Event()
    feeder.add_source("stuck", lambda worker, batch_size: may_end.wait(), ["x"], 4, num_threads=1)
    feeder.start()
    with pytest.raises(StallError):
        next(iter(create_loader(feeder.batches("stuck"), timeout_s=0.2)))
    may_end.set()


def test_any_iterable_that_can_be_read_anew_is_taken() -> None:
    loader = create_loader(Rows(), device="cpu")  # Without a warning.
    for _ in range(2):
        batches = list(loader)
        assert [batch["x"].tolist() for batch in batches] == [list(range(start, start + 4)) for start in (0, 4, 8)]
        assert {batch["name"] for batch in batches} == {"rows"}
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (Rows(), {"num_workers": 2}, "num_workers=2, and Rows is not a dataset of torch but an iterable"),
        (Rows(), {"num_workers": "auto"}, "num_workers='auto', and Rows is not a dataset"),
        (Rows(), {"shuffle": True}, "Rows is an iterable, which has an order of its own"),
        (iter([1]), {}, "list_iterator is not a dataset: .* an iterable that can be read anew in every epoch"),
        ((x for x in [1]), {}, "generator is not a dataset"),
        (Rows, {}, "the class Rows is not a dataset"),
    ],
)
def test_iterables_that_cannot_be_read_so_are_refused(dataset: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^create_loader: {message}"):
        create_loader(dataset, **arguments)


RUN = """
import sys
import numpy as np
from tfds_torch import Feeder
with Feeder() as feeder:
    feeder.add_source("train", [[np.arange(10)]] * 10, ["x"], 8)
    feeder.add_source("test", [[np.arange(10)]] * 10, ["x"], 8)
    feeder.start()
    print(sum(len(batch["x"]) for batch in feeder.mix([1, 1], 0, stop="last")))
    feeder.metrics()
print(sorted({"torch", "tensorflow", "tensorflow_datasets"} & set(sys.modules)))
"""


PLANTED = "import sys; sys.modules['torch'] = sys"


@pytest.mark.parametrize(("more", "loaded"), [("", "[]"), (PLANTED, "['torch']")])  # The check can fail.
def test_a_feeder_needs_neither_torch_nor_tensorflow(
    run_python: Callable[..., "subprocess.CompletedProcess[str]"], root: Any, more: str, loaded: str
) -> None:
    done = run_python("-c", f"{more}\n{RUN}", env={"PYTHONPATH": str(root)})
    assert done.stdout.splitlines() == ["200", loaded], done.stderr
