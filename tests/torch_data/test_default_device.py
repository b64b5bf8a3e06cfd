"""`torch.set_default_device` before a loader is made or iterated: what reads stays on the CPU, and all is equal."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, TensorDataset

from tfds_torch import EvalPreprocess, ImageDataset, IndexedImageDataset, MaskedMean, ParserTfds, create_loader
from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher

FORK = {"num_workers": 1, "multiprocessing_context": "fork"}


class Numbers(IterableDataset[int]):
    """Seven numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


def to_tensor(image: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(image)[:2, :2].tolist())


def transpose_first(rows: Any) -> torch.Tensor:
    first: torch.Tensor = rows[0][0]
    return first.t()


def make_parser(root: Path, **options: Any) -> ParserTfds:
    return ParserTfds(root, "photos", "train[:9]", is_training=False, batch_size=4, **options)


def make_small(root: Path) -> ParserTfds:
    return make_parser(root, preprocess=EvalPreprocess(size=16, interpolation="bilinear"))


def make_sampled(root: Path, **arguments: Any) -> Any:
    rows = list(range(9))
    sampler = RandomSampler(rows, generator=torch.Generator().manual_seed(0))
    return create_loader(rows, batch_size=4, sampler=sampler, **arguments)


LOADERS: dict[str, Callable[..., Any]] = {
    "whole batches": lambda root, **more: create_loader(ImageDataset(make_small(root)), **more),
    "normalised": lambda root, **more: create_loader(
        ImageDataset(make_small(root)), mean=[0.5] * 3, std=[0.2] * 3, **more
    ),
    "examples": lambda root, **more: create_loader(
        ImageDataset(make_parser(root), to_tensor, fields=("image", "label", "index")), **more
    ),
    "own items": lambda root, **more: create_loader(
        [{"a": number, "b": float(number), "c": np.ones(2)} for number in range(7)], batch_size=3, shuffle=True, **more
    ),
    "columns": lambda root, **more: create_loader({"a": np.arange(7), "b": list("abcdefg")}, batch_size=3, **more),
    "a transposed tensor": lambda root, **more: create_loader(
        TensorDataset(torch.from_numpy(np.ones((6, 2, 3)))), batch_size=2, collate_fn=transpose_first, **more
    ),
    "a sampler": make_sampled,
    "shuffled by torch": lambda root, **more: create_loader(
        range(7), batch_size=2, shuffle=True, seed=1, collate_fn=torch.tensor, **more
    ),
    "an iterable": lambda root, **more: create_loader(Numbers(), batch_size=2, **more),
    "by number": lambda root, **more: create_loader(IndexedImageDataset(make_small(root)), batch_size=3, **more),
}


@pytest.fixture
def set_default() -> Iterator[Callable[[str], None]]:
    yield torch.set_default_device
    torch.set_default_device(None)


def plain(value: Any) -> Any:
    """Returns tensors as where they are and what they hold."""
    if isinstance(value, torch.Tensor):
        assert value.device.type == "cpu"
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("arguments", [{}, FORK], ids=["no workers", "forked"])
def test_batches_are_those_of_the_cpu(
    data_root: Path, set_default: Callable[[str], None], name: str, arguments: dict[str, Any]
) -> None:
    """Torch's device "meta" stands for a GPU: nothing that is made there has content."""
    with LOADERS[name](data_root, **arguments) as loader:
        expected = [plain(batch) for batch in loader]
    set_default("meta")
    with LOADERS[name](data_root, **arguments) as loader:
        assert [plain(batch) for batch in loader] == expected
        assert [len(list(loader))] == [len(expected)], "a second epoch"
    assert torch.get_default_device().type == "meta"
    assert torch.empty(0).device.type == "meta"
    assert expected


def test_a_dataset_by_itself_and_metrics_stay_on_the_cpu(data_root: Path, set_default: Callable[[str], None]) -> None:
    expected = [plain(batch) for batch in ImageDataset(make_small(data_root))]
    set_default("meta")
    assert [plain(batch) for batch in ImageDataset(make_small(data_root))] == expected
    mean = MaskedMean()
    mean.update_sum(3.0, 2)
    mean.update(torch.from_numpy(np.ones(2)), [True, False])  # type: ignore[arg-type]
    assert mean.compute() == pytest.approx(4 / 3)
    batches = [(torch.from_numpy(np.full((1, 3, 2, 2), 255, np.uint8)),)]
    ((images,),) = DevicePrefetcher(batches, "cpu", mean=[0.5] * 3, std=[0.5] * 3)
    assert images.device.type == "cpu"
    assert images.flatten().tolist() == pytest.approx([1.0] * 12)
