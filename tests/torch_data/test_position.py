"""IterationStarts: what a loader's workers are told."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data

from tfds_torch import World
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.torch_data.loading import position
from tfds_torch.torch_data.loading.position import IterationStarts


def dataset_of_rank(rank: int) -> Any:
    """Stands for an ImageDataset of a rank; reads what it is told."""
    return SimpleNamespace(find_rank=lambda: World(rank, 2), read=lambda *told: iter(told))


def test_a_worker_begins_where_it_is_told_however_late_it_is() -> None:
    starts, metrics = IterationStarts(None, None), StageMetrics(0)
    for number, (epoch, start_batch) in enumerate([(0, 3), (1, 0), (7, 2)]):
        starts.write(number, epoch, start_batch)
    told = [list(starts.read(dataset_of_rank(0), number, metrics)) for number in (2, 0, 1)]
    assert told == [[epoch, start, metrics, None] for epoch, start in [(7, 2), (0, 3), (1, 0)]]


def test_workers_of_different_ranks_draw_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[tuple[int, ...]] = []
    monkeypatch.setattr(position, "seed_generators", lambda *numbers: seeded.append(numbers))
    starts = IterationStarts(5, None)
    starts.write(0, 2, 3)
    for rank in range(2):
        for worker in range(2):
            info = SimpleNamespace(id=worker, num_workers=2)
            monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
            starts.read(dataset_of_rank(rank), 0, StageMetrics(2))
    assert seeded == [(5, 2, 3, rank, worker) for rank in range(2) for worker in range(2)]
