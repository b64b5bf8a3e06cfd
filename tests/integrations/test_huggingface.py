"""Hugging Face's Trainer: it reads Loaders, and a checkpoint goes on where it was saved, without skipping batches."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integrations.exact import BATCH_SIZE, NUM_BATCHES, NUM_PHOTOS, NUM_RANKS
from tfds_torch import ImageDataset, ParserMapStyle, World
from tfds_torch.integrations.huggingface import warn_of_loss

LIVES = "integrations.huggingface_lives"

RunRanks = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("step", "num_workers", "restores_callbacks"),
    [
        pytest.param(1, 0, False, marks=pytest.mark.slow),
        pytest.param(2, 1, True, marks=pytest.mark.slow),
        pytest.param(3, 1, False, marks=pytest.mark.campaign),
    ],
)
def test_a_checkpoint_of_two_ranks_goes_on_exactly_on_two_ranks_and_on_one(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path, step: int, num_workers: int, restores_callbacks: bool
) -> None:
    """A step is two batches, an epoch two steps."""
    root, folder, life = str(data_root), str(tmp_path / "run"), f"{LIVES}:train"
    rest = num_workers, restores_callbacks
    whole = run_forked_ranks(life, NUM_RANKS, root, folder, None, BATCH_SIZE, *rest)
    checkpoint = str(tmp_path / "run" / f"checkpoint-{step}")
    resumed = run_forked_ranks(life, NUM_RANKS, root, str(tmp_path / "on"), checkpoint, BATCH_SIZE, *rest)
    (alone,) = run_forked_ranks(life, 1, root, str(tmp_path / "alone"), checkpoint, NUM_RANKS * BATCH_SIZE, *rest)
    assert [rank["ranks"] for rank in whole] == [NUM_RANKS] * NUM_RANKS
    for epoch in range(2):
        batches = [batch for rank in whole for batch in rank["seen"][epoch * NUM_BATCHES : (epoch + 1) * NUM_BATCHES]]
        times = Counter(Counter(index for batch in batches for index in batch).values())
        assert times == {1: NUM_PHOTOS - 3, 2: 3}
    assert whole[0]["seen"][:NUM_BATCHES] != whole[0]["seen"][NUM_BATCHES:]
    expected = [rank["seen"][2 * step :] for rank in whole]
    assert [rank["seen"] for rank in resumed] == expected
    assert alone["seen"] == [[*first, *second] for first, second in zip(*expected, strict=True)]
    for rank in (*whole, *resumed, alone):
        assert rank["evaluated"] == list(range(NUM_PHOTOS))
        assert rank["step"] == 4
        assert rank["epoch"] == 2
    assert {rank["weight"] for rank in resumed} == {rank["weight"] for rank in whole}


def test_a_checkpoint_of_a_dataset_of_ones_own_goes_on_exactly(run_forked_ranks: RunRanks, tmp_path: Path) -> None:
    life, checkpoint = f"{LIVES}:train_on_own", str(tmp_path / "run" / "checkpoint-1")
    whole = run_forked_ranks(life, NUM_RANKS, str(tmp_path / "run"), None, BATCH_SIZE)
    (alone,) = run_forked_ranks(life, 1, str(tmp_path / "alone"), checkpoint, NUM_RANKS * BATCH_SIZE)
    assert sorted(index for rank in whole for batch in rank for index in batch) == list(range(64))
    assert alone == [[*first, *second] for first, second in zip(*(rank[1:] for rank in whole), strict=True)]


def test_what_would_lose_examples_is_refused(run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path) -> None:
    (said,) = run_forked_ranks(f"{LIVES}:be_refused", 1, str(data_root), str(tmp_path))
    for name, message in said.items():
        assert message.startswith(("ConfigError: ", "StateMismatchError: ")), name
    assert said["skips"].startswith("ConfigError: The Trainer would read and throw away")
    assert "TrainingArguments(ignore_data_skip=True)" in said["skips"]
    assert "per_device_train_batch_size=5" in said["batch size"]
    assert "not a multiple of gradient_accumulation_steps=3" in said["steps"]
    assert said["other"].startswith("ConfigError: use_loaders takes Loaders of create_loader over an ImageDataset")
    assert said["no position"].startswith("StateMismatchError: The checkpoint of step 1 holds no position of a Loader")
    for name in ("auto_find_batch_size", "auto_find_batch_size changed"):
        assert "auto_find_batch_size=True makes smaller batches when memory runs out" in said[name]
    assert "per_device_train_batch_size=5" in said["per_device_train_batch_size changed"]
    assert "not a multiple of gradient_accumulation_steps=3" in said["gradient_accumulation_steps changed"]
    for name in ("training loader", "predict"):
        assert "reads the dataset that the training loader reads" in said[name]
    assert "The loader to evaluate with is one for training" in said["another for training"]
    for name in ("eval batch size", "one of several", "evaluate"):
        assert "per_device_eval_batch_size=8" in said[name]
    for name in ("group_by_length", "sequential"):
        assert f"train_sampling_strategy='{name}'" in said[name]
    assert (
        "data_seed=7 is the seed of the Trainer's own sampler, and the Loader's order has seed=42" in said["data_seed"]
    )
    for name in ("split_batches", "dispatch_batches"):
        assert f"Accelerate was asked for {name}=True" in said[name]
    of_dataloaders = [name for name in said if name.startswith("dataloader_")]
    assert len(of_dataloaders) == 5
    for name in of_dataloaders:
        assert "is for DataLoaders that the Trainer makes" in said[name]
        asked = "dataloader_num_workers" if name == "dataloader_prefetch_factor" else name
        assert said[name].startswith(f"ConfigError: {asked}=")
    assert len(said) == 25


@pytest.mark.parametrize("num_ranks", [1, NUM_RANKS])
def test_every_evaluation_weighs_each_example_once(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path, num_ranks: int
) -> None:
    """The last batch of 61 examples is short, or padded, and so is that of 11."""
    found = run_forked_ranks(f"{LIVES}:evaluate_everywhere", num_ranks, str(data_root), str(tmp_path))
    assert len(found) == num_ranks
    for rank in found:
        assert len(rank["losses"]) >= 12
        for name, (loss, expected) in rank["losses"].items():
            assert loss == pytest.approx(expected, rel=1e-5), name
        assert len(rank["metrics"]) == 7
        for name, indices in rank["metrics"].items():
            assert indices == list(range(11 if "few" in name else NUM_PHOTOS)), name
        best, expected = rank["best"]
        assert best == pytest.approx(expected)
        assert rank["counted"] == [11, NUM_PHOTOS]
    trained = [index for rank in found for batch in rank["trained"][:NUM_BATCHES] for index in batch]
    assert len(set(trained)) == (NUM_PHOTOS if num_ranks == NUM_RANKS else NUM_BATCHES * BATCH_SIZE)


@pytest.mark.parametrize("step", [1, 4])
def test_a_checkpoint_that_is_asked_for_within_an_update_reads_its_batches_again(
    run_forked_ranks: RunRanks, tmp_path: Path, step: int
) -> None:
    """Step 4 ends an epoch of 8 batches."""
    (lives,) = run_forked_ranks(f"{LIVES}:save_within_an_update", 1, str(tmp_path), step)
    (whole, weight), (saved, _), (resumed, resumed_weight) = lives["whole"], lives["saved"], lives["resumed"]
    assert len(whole) == 16
    assert saved[: 2 * step] == whole[: 2 * step]
    assert resumed == whole[2 * step :]
    assert resumed_weight == weight


def test_a_second_training_begins_anew(run_forked_ranks: RunRanks) -> None:
    ((first, second),) = run_forked_ranks(f"{LIVES}:train_twice", 1)
    assert (len(first), len(second)) == (11, 16)
    assert first == second[:11]


def test_a_loss_that_would_have_padding_in_it_is_told() -> None:
    for label, num_ranks, is_told in ((0.5, 2, True), (np.zeros(3, bool), 2, True), (7, 2, False), (0.5, 1, False)):
        parser = ParserMapStyle([{"x": 1, "label": label}] * 5, batch_size=2)
        dataset = ImageDataset(parser, fields=("x", "label", "valid"), world=World(0, num_ranks))
        with pytest.warns(UserWarning, match="eval_loss is not exact") if is_told else nullcontext():
            warn_of_loss(dataset)
