"""What a loader's worker is told, and how it is seeded."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data
from tfds_torch.torch_data.loading import worker as loader_worker
from tfds_torch.torch_data.loading.worker import TimedIterable, WorkerContext

from tfds_torch import World
from tfds_torch.runtime.iteration_starts import IterationStarts
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_output import WorkerOutput


def dataset_of_rank(rank: int) -> Any:
    """Stands for an ImageDataset of a rank; reads what it is told."""
    return SimpleNamespace(find_rank=lambda: World(rank, 2), read=lambda *told: iter(told))


def context_of(seed: int | None = None) -> WorkerContext:
    return WorkerContext(StageMetrics(2), WorkerOutput(0), None, IterationStarts(), seed)


def test_a_worker_begins_where_it_is_told_however_late_it_is() -> None:
    context = context_of()
    assert context.starts is not None
    for number, (epoch, start_batch) in enumerate([(0, 3), (1, 0), (7, 2)]):
        context.starts.write(number, epoch, start_batch)
    worker = TimedIterable(dataset_of_rank(0), context)
    told = [list(worker) for _ in range(3)]
    assert told == [[epoch, start, context.metrics, None] for epoch, start in [(0, 3), (1, 0), (7, 2)]]


def test_workers_of_different_ranks_draw_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[tuple[int, ...]] = []
    monkeypatch.setattr(loader_worker, "seed_generators", lambda *numbers: seeded.append(numbers))
    context = context_of(seed=5)
    assert context.starts is not None
    context.starts.write(0, 2, 3)
    for rank in range(2):
        for number in range(2):
            info = SimpleNamespace(id=number, num_workers=2)
            monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
            iter(TimedIterable(dataset_of_rank(rank), context))
    assert seeded == [(5, 2, 3, rank, number) for rank in range(2) for number in range(2)]
