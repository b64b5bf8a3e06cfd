"""The loader's stages by name in torch.profiler."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, create_loader


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_profiler_shows_the_stages_by_name(data_root: Path, num_workers: int) -> None:
    parser = ParserTfds(data_root, "photos", is_training=True, batch_size=8, preprocess=TrainPreprocess(size=32))
    arguments: dict[str, Any] = {
        "multiprocessing_context": "fork" if num_workers else None,
        "collate_fn": tuple,
        "mean": (0.5, 0.5, 0.5),
    }
    with create_loader(ImageDataset(parser), num_workers, **arguments) as loader:
        iteration = iter(loader)
        next(iteration)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(3):
                next(iteration)
    counts = {event.key: event.count for event in profiler.key_averages() if event.key.startswith("tfds_torch.")}
    read = {"tfds_torch.hand_over": 3} if num_workers else {"tfds_torch.fetch": 3, "tfds_torch.collate": 3}
    assert counts == {"tfds_torch.waiting": 3, "tfds_torch.device_copy": 3, **read}
