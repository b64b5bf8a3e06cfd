"""timm's three metric functions: padding weighs nothing, and nothing else changes."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tfds_torch import EpochPlan, Remainder, World
from tfds_torch.integrations.timm.metrics import (
    CurrentBatch,
    EvaluationLoader,
    PaddedBatch,
    find_padding,
    make_accuracy,
    make_average_meter,
    make_reduce_tensor,
)
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.plan.passes import Passes

NUM_CLASSES = 7


def timm_accuracy(output: torch.Tensor, target: torch.Tensor, topk: tuple[int, ...] = (1,)) -> list[torch.Tensor]:
    """As in timm 1.0.31; test_timm_training.py runs the real one."""
    pred = output.topk(max(topk), 1)[1].t()
    correct = pred.eq(target.reshape(1, -1).expand_as(pred))
    return [correct[:k].reshape(-1).float().sum(0) * 100.0 / target.size(0) for k in topk]


class TimmMeter:
    """As in timm 1.0.31."""

    def __init__(self) -> None:
        self.val, self.avg, self.sum, self.count = 0.0, 0.0, 0.0, 0.0

    def update(self, val: float, n: float = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count if self.count else 0


class Ranks:
    """Several ranks in one process, in step: what they reduce is summed when all have come."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self.waiting: list[torch.Tensor] = []
        self.reduced: list[torch.Tensor] = []

    def reduce_tensor(self, tensor: torch.Tensor, n: int) -> torch.Tensor:
        """As in timm 1.0.31, but the result is filled in when the last rank comes."""
        result = tensor.clone()
        self.waiting.append(result)
        if len(self.waiting) == self.num_replicas:
            total = torch.stack(self.waiting).sum(0) / n
            for waiting in self.waiting:
                waiting.copy_(total)
            self.waiting = []
        return result


def planned(num_examples: int, num_replicas: int, batch_size: int, rank: int = 0) -> EpochPlan:
    return EpochPlan(Passes(num_examples, shuffle=False), World(rank, num_replicas), batch_size, Remainder.PAD)


def batches_of(plan: EpochPlan, logits: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[Any, Any]]:
    for number in range(plan.num_batches):
        batch = plan.batch(0, number)
        index = torch.from_numpy(batch.index)
        yield logits[index], torch.where(torch.from_numpy(batch.valid), labels[index], PAD_LABEL)


def evaluate_in_step(num_examples: int, num_replicas: int, batch_size: int) -> tuple[list[list[float]], list[float]]:
    """Returns loss, top1 and top5 of every rank by timm's train.py, and those of all examples at once."""
    generator = torch.Generator().manual_seed(num_examples)
    logits = torch.randn(num_examples, NUM_CLASSES, generator=generator)
    labels = torch.randint(NUM_CLASSES, (num_examples,), generator=generator)
    ranks = Ranks(num_replicas)
    accuracy = make_accuracy(timm_accuracy)
    runs, meters = [], []
    for rank in range(num_replicas):
        plan, current = planned(num_examples, num_replicas, batch_size, rank), CurrentBatch()
        loader = EvaluationLoader(list(batches_of(plan, logits, labels)), plan, current)
        meter = make_average_meter(TimmMeter, current)
        runs.append((iter(loader), make_reduce_tensor(ranks.reduce_tensor, current)))
        meters.append([meter() for _ in range(3)])
    for _ in range(planned(num_examples, num_replicas, batch_size).num_batches):
        values = []
        for batches, reduce_tensor in runs:
            output, target = next(batches)
            figures = [F.cross_entropy(output, target), *accuracy(output, target, topk=(1, 5))]
            values.append((figures, reduce_tensor))
        for position in range(3):
            reduced = [reduce_tensor(figures[position], num_replicas) for figures, reduce_tensor in values]
            for rank, value in enumerate(reduced):
                meters[rank][position].update(value.item(), batch_size)
    alone = [F.cross_entropy(logits, labels), *timm_accuracy(logits, labels, (1, 5))]
    return [[meter.avg for meter in of_rank] for of_rank in meters], [value.item() for value in alone]


@settings(deadline=None)
@given(num_examples=st.integers(1, 60), num_replicas=st.integers(1, 5), batch_size=st.integers(1, 12))
def test_every_evaluation_on_several_ranks_equals_that_of_one(
    num_examples: int, num_replicas: int, batch_size: int
) -> None:
    ranks, alone = evaluate_in_step(num_examples, num_replicas, batch_size)
    for rank in ranks:
        assert rank[0] == pytest.approx(alone[0], rel=1e-6, abs=1e-6)
        for found, expected in zip(rank[1:], alone[1:], strict=True):
            assert round(found * num_examples / 100, 3) == round(expected * num_examples / 100, 3)


@given(num_examples=st.integers(0, 60), num_replicas=st.integers(1, 5), batch_size=st.integers(1, 12))
def test_the_padding_found_is_the_plans(num_examples: int, num_replicas: int, batch_size: int) -> None:
    plans = [planned(num_examples, num_replicas, batch_size, rank) for rank in range(num_replicas)]
    for number in range(plans[0].num_batches):
        valid = [int(plan.batch(0, number).valid.sum()) for plan in plans]
        for plan, num_valid in zip(plans, valid, strict=True):
            found = find_padding(plan, number)
            if sum(valid) == plan.global_batch_size:
                assert found is None
            else:
                assert found is not None
                assert (found.num_valid, found.num_valid_of_world) == (num_valid, sum(valid))


def test_accuracy_leaves_padding_out_of_both_counts() -> None:
    logits, labels = torch.randn(33, NUM_CLASSES), torch.randint(NUM_CLASSES, (33,))
    both = (accuracy(logits, labels, (1, 3)) for accuracy in (make_accuracy(timm_accuracy), timm_accuracy))
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours, theirs), "without padding it is timm's to the last bit"
    logits = torch.eye(4)
    assert make_accuracy(timm_accuracy)(logits, torch.tensor([0, 1, 3, PAD_LABEL]))[0].item() == pytest.approx(200 / 3)
    assert make_accuracy(timm_accuracy)(logits, torch.full((4,), PAD_LABEL))[0].item() == 0


PADDED = PaddedBatch(num_valid=3, num_valid_of_world=4, batch_size=8, num_replicas=2)


@pytest.mark.parametrize(
    ("padded", "n", "value", "reduced"),
    [
        (None, 2, 5.0, 5.0),
        (PADDED, 2, 4.0, 4.0 * 3 * 2 / 4),
        (PADDED, 1, 4.0, 4.0),  # A sum.
        (PaddedBatch(0, 4, 8, 2), 2, math.nan, 0.0),  # A rank of padding contributes nothing, and no NaN.
    ],
)
def test_only_means_over_the_ranks_are_weighted(
    padded: PaddedBatch | None, n: int, value: float, reduced: float
) -> None:
    current, tensor = CurrentBatch(), torch.tensor([value])
    current.padded = padded
    reduce_tensor = make_reduce_tensor(lambda tensor, n: tensor.clone(), current)
    assert reduce_tensor(tensor, n).tolist() == [reduced]
    assert tensor.tolist() == [pytest.approx(value, nan_ok=True)], "the caller's tensor stays as it is"


def test_only_what_counts_examples_is_weighted() -> None:
    current = CurrentBatch()
    meter = make_average_meter(TimmMeter, current)()
    meter.update(2.0, 8)
    assert (meter.sum, meter.count) == (16, 8)
    current.padded = PADDED
    meter.update(1.5)  # A duration.
    assert (meter.sum, meter.count) == (17.5, 9)
    meter.update(1.0, 8)
    assert (meter.sum, meter.count) == (19.5, 11)


# How long a batch is the current one


@pytest.mark.parametrize("leave", ["at the end", "by break", "by an error"])
def test_only_the_padded_batch_is_known_and_only_in_the_loop(leave: str) -> None:
    current = CurrentBatch()
    loader = EvaluationLoader(["first", "second", "last"], planned(10, 2, 2), current)  # The last one has padding.
    for _ in range(2):  # Every iteration counts from 0.
        seen = []
        with suppress(ValueError):
            for batch in loader:
                seen.append(current.padded is not None)
                if batch == "last" and leave == "by break":
                    break
                if batch == "last" and leave == "by an error":
                    raise ValueError
        assert seen == [False, False, True]
        assert current.padded is None


def test_an_iterator_that_is_given_up_late_does_not_disturb_another() -> None:
    current = CurrentBatch()
    loader = EvaluationLoader(["first", "second", "last"], planned(10, 2, 2), current)
    stale, running = iter(loader), iter(loader)
    for _ in range(3):
        next(stale)
        next(running)
    ours = current.padded
    del stale
    assert current.padded is ours is not None


def test_all_else_is_the_loaders_own() -> None:
    class Inner(list[str]):
        dataset = "the dataset"

    loader = EvaluationLoader(Inner(["a", "b"]), planned(3, 2, 1), CurrentBatch())
    assert (len(loader), loader.dataset, list(loader)) == (2, "the dataset", ["a", "b"])
    assert not hasattr(loader, "mixup")
    with pytest.raises(AttributeError, match="_inner"):
        EvaluationLoader.__new__(EvaluationLoader).dataset  # noqa: B018
