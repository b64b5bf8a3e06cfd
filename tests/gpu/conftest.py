"""Tests that need a CUDA device are deselected, not skipped, unless they are asked for: `-m gpu`."""

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "gpu" in config.getoption("markexpr"):
        return
    deselected = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]


@pytest.fixture(scope="session", autouse=True)
def cuda() -> torch.device:
    """The device; a machine without one fails these tests."""
    assert torch.cuda.is_available(), f"These tests need a CUDA device, and torch {torch.__version__} finds none here."
    return torch.device("cuda", torch.cuda.current_device())
