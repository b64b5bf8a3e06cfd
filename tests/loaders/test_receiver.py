"""LoaderIteration, over batches that need no workers."""

import pytest

from tfds_torch.errors import WorkerError
from tfds_torch.loaders.receiver import LoaderIteration
from tfds_torch.plan.cursor import Position, Start
from tfds_torch.runtime.metrics import LoaderMetrics


def test_fewer_batches_than_planned_are_an_error_at_the_end() -> None:
    ends: list[bool] = []
    batches = iter([("a", 1), ("b", 1)])
    position = Position(Start(0), 1)
    iteration = LoaderIteration(batches, LoaderMetrics(), position, 3, ends.append, None, lambda: None)
    assert [next(iteration), next(iteration)] == ["a", "b"]
    with pytest.raises(WorkerError, match="The workers ended after 2 batches, and 3 were planned"):
        next(iteration)
    assert (ends, position.has_ended) == ([True], True)
