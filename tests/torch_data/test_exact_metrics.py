"""MaskedMean: a distributed evaluation gives the figures of a single process."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tfds_torch import MaskedMean
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data import exact_metrics
from torch_data import scenarios


def test_padding_counts_nowhere_whatever_it_holds() -> None:
    mean = MaskedMean()
    mean.update(torch.tensor([1.0, 2.0, math.nan, math.inf]), torch.tensor([True, True, False, False]))
    mean.update(torch.tensor([6.0]))
    assert mean.sums() == (9.0, 3)
    assert mean.compute() == 3.0


def test_arrays_and_lists_are_taken_too() -> None:
    mean = MaskedMean()
    mean.update(np.array([1.0, 2.0]), np.array([True, False]))  # type: ignore[arg-type]
    mean.update([3.0, 4.0], [False, True])  # type: ignore[arg-type]
    assert mean.sums() == (5.0, 2)


def test_nan_among_the_valid_is_not_hidden() -> None:
    mean = MaskedMean()
    mean.update(torch.tensor([1.0, math.nan]))
    assert math.isnan(mean.compute())


def test_hits_are_counted_exactly_beyond_the_precision_of_float32() -> None:
    mean = MaskedMean()
    mean.update_sum(float(2**40), 2**41)
    for _ in range(3):
        mean.update(torch.tensor([True, False]))
    assert mean.sums() == (2**40 + 3, 2**41 + 6)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_any_type_of_numbers_is_taken(dtype: torch.dtype) -> None:
    mean = MaskedMean()
    mean.update(torch.tensor([1, 0, 1]).to(dtype), torch.tensor([True, True, False]))
    assert mean.sums() == (1.0, 2)


def test_values_of_a_model_in_training_leave_no_graph_behind() -> None:
    mean = MaskedMean()
    mean.update(torch.ones(2, requires_grad=True) * 2)
    mean.update_sum(torch.ones((), requires_grad=True) * 2, 1)
    assert mean.compute() == 2.0
    assert not mean._sums.requires_grad


def test_nothing_has_no_mean_and_reset_forgets() -> None:
    mean = MaskedMean()
    assert math.isnan(mean.compute())
    mean.update(torch.ones(3))
    mean.reset()
    assert mean.sums() == (0.0, 0)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (
            lambda mean: mean.update(torch.tensor(1.5)),
            r"values of shape \[\] are not one number per example.*reduction",
        ),
        (lambda mean: mean.update(torch.ones(2, 3)), r"values of shape \[2, 3\] are not one number per example"),
        (lambda mean: mean.update(torch.ones(2), torch.ones(3) > 0), r"valid has shape \[3\], and values \[2\]"),
        (lambda mean: mean.update(torch.ones(2), torch.tensor([-100, 3])), r"valid is torch.int64, and must be bool"),
        (lambda mean: mean.update("ab"), r"update: values must be a tensor of real numbers, not str"),
        (lambda mean: mean.update(torch.ones(2) * 1j), r"update: values must be a tensor of real numbers"),
        (lambda mean: mean.update_sum(None, 1), r"update_sum: total must be a tensor of real numbers, not NoneType"),
        (lambda mean: mean.update_sum(1.0, -1), r"num_valid=-1 must be an integer >= 0"),
        (lambda mean: mean.update_sum(1.0, torch.tensor(1.5)), r"num_valid=1.5 must be an integer >= 0"),
        (lambda mean: mean.update_sum(1.0, True), r"num_valid=True must be an integer >= 0"),
        (lambda mean: mean.update_sum(torch.ones(2), 2), r"total of shape \[2\] is not a single number"),
        (lambda mean: mean.update_sum(1.0, torch.ones(2)), r"num_valid of shape \[2\] is not a single number"),
    ],
)
def test_what_is_not_one_number_per_example_is_refused(update: Callable[[MaskedMean], None], message: str) -> None:
    mean = MaskedMean()
    with pytest.raises(ConfigError, match=message):
        update(mean)
    assert mean.sums() == (0.0, 0)


def test_the_mean_loss_of_padding_is_nan_and_its_sum_is_not() -> None:
    logits, labels = torch.zeros(2, 3), torch.full((2,), -100)
    assert math.isnan(F.cross_entropy(logits, labels).item())
    assert F.cross_entropy(logits, labels, reduction="sum").item() == 0


def test_ranks_are_reduced_to_one_mean(run_ranks: Callable[..., list[Any]]) -> None:
    results = run_ranks(scenarios.average_numbers, 3)
    numbers = [number for rank in range(3) for number in range(rank + 2)]
    assert len(results) == 3
    for result in results:
        assert result["sums"] == [sum(numbers), len(numbers)]
        assert result["mean"] == sum(numbers) / len(numbers)
        assert result["empty"] == "nan"
        assert result["loss"] == pytest.approx(result["loss alone"], abs=1e-6)


@pytest.mark.slow
def test_three_ranks_with_two_workers_evaluate_as_one_process(
    data_root: Path, run_ranks: Callable[..., list[Any]], run_scenario: Callable[..., Any]
) -> None:
    ranks = run_ranks(scenarios.evaluate_digits_as_rank, 3, data_root, 2)
    alone = run_scenario(scenarios.evaluate_digits_alone, data_root, 0)
    ids = [id for rank in ranks for id in rank["ids"]]
    assert len(ids) == len(set(ids)) == 360
    assert set(ids) == set(alone["ids"])
    assert alone["hits"][1] == 360
    for rank in ranks:
        assert rank["hits"] == alone["hits"]  # Counts: exactly.
        assert rank["loss"] == pytest.approx(alone["loss"], abs=1e-6)
        assert rank["summed"] == pytest.approx(alone["loss"], abs=1e-6)


def test_many_small_numbers_are_summed_exactly() -> None:
    mean = MaskedMean()
    mean.update(torch.ones(4097, dtype=torch.float16))  # float16 knows 4096 and 4100.
    assert mean.sums() == (4097.0, 4097)


def test_asking_twice_reduces_what_each_rank_has_and_not_what_was_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_metrics, "is_distributed", lambda: True)
    monkeypatch.setattr(exact_metrics, "_device_of_group", lambda group: torch.device("cpu"))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sums, group: sums.mul_(2))  # Two equal ranks.
    mean = MaskedMean()
    mean.update(torch.tensor([1.0, 2.0]))
    assert [mean.sums() for _ in range(3)] == [(6.0, 4)] * 3
