"""Lightning: a Trainer and Fabric take the loaders as they are, and every example is read exactly once."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from integrations.exact import (
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_PHOTOS,
    NUM_RANKS,
    assert_exact_evaluation,
    assert_exact_training,
)
from tfds_torch import ImageDataset, ParserTfds, create_loader
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.lightning import resumable

SCRIPT = Path(__file__).with_name("lightning_scenarios.py")

EACH_EPOCH = 0

RunLightning = Callable[..., list[Any]]
RunRanks = Callable[..., list[Any]]


@pytest.fixture
def run_lightning(root: Path, data_root: Path, tmp_path: Path) -> RunLightning:
    """`run_lightning(function, *args)`: runs a function of lightning_scenarios.py, which becomes two ranks by itself.

    Returns what each rank wrote.
    """

    def run(function: str, *args: str) -> list[Any]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(SCRIPT), function, str(tmp_path), str(data_root), *args]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "num_workers", "kind"),
    [
        ("ddp", "0", "DataLoader"),
        ("ddp", "1", "DataLoader"),
        ("ddp", "1", "Loader"),
        ("ddp_fork", "0", "DataLoader"),  # These ranks inherit the loader.
        *(
            pytest.param(strategy, "0", kind, marks=pytest.mark.campaign)
            for strategy in ("ddp_spawn", "ddp_fork")
            for kind in ("DataLoader", "Loader")
            if (strategy, kind) != ("ddp_fork", "DataLoader")
        ),
    ],
)
def test_a_trainer_gives_every_example_exactly_once_on_two_ranks(
    run_lightning: RunLightning, strategy: str, num_workers: str, kind: str
) -> None:
    """Two epochs are exact, and of different orders."""
    ranks = run_lightning("fit", strategy, num_workers, kind)
    seen = [rank["seen"] for rank in ranks]
    for epoch in range(2):
        assert_exact_training([stages["train"][epoch] for stages in seen])
        assert_exact_evaluation([stages["validate"][epoch] for stages in seen])
    for stages in seen:
        assert len(stages["sanity"][0]) == 2, "the sanity check broke the loader off"
        assert stages["train"][0] != stages["train"][1]
        assert len(stages["train"]) == 2
    assert [rank["lengths"] for rank in ranks] == [[NUM_BATCHES, NUM_BATCHES]] * NUM_RANKS
    if num_workers == "1":
        assert [rank["in_fit"] for rank in ranks] == [False] * NUM_RANKS, "no process of training loads tensorflow"
    if (strategy, num_workers) == ("ddp", "0"):
        assert_exact_evaluation([stages["validate"][2] for stages in seen])
        assert_exact_evaluation([stages["test"][0] for stages in seen])
        words = ("Data", "Sampler", "len")
        about_loaders = [text for text in ranks[0]["warnings"] if any(word in text for word in words)]
        assert [text.split(" has ")[0] for text in about_loaders] == ["Your `IterableDataset`"], "it has `__len__`"


@pytest.mark.slow
def test_fabric_gives_every_example_exactly_once_on_two_ranks(run_lightning: RunLightning) -> None:
    ranks = run_lightning("use_fabric")
    for epoch in range(2):
        assert_exact_training([rank["epochs"][epoch] for rank in ranks])
        assert_exact_evaluation([rank["evaluated"][epoch] for rank in ranks])
    for rank in ranks:
        assert rank["epochs"][0] != rank["epochs"][1]
        assert rank["lengths"] == [[NUM_BATCHES, NUM_BATCHES]] * 2


@pytest.mark.slow
def test_a_length_that_is_asked_for_before_the_ranks_are_known_is_an_error_on_the_rank_lightning_starts(
    run_lightning: RunLightning,
) -> None:
    """The first process cannot know: its environment names no rank."""
    first, second = run_lightning("ask_for_len_too_early")
    assert first["said"] == str(-(-NUM_PHOTOS // BATCH_SIZE))
    assert "sets WORLD_SIZE=2 but not RANK" in second["said"]
    assert first["len"] == second["len"] == NUM_BATCHES


# Loaders, on two processes that torchrun would start


@pytest.mark.parametrize(
    ("save_at", "step", "num_workers"),
    [
        (2, 2, 0),
        pytest.param(NUM_BATCHES, NUM_BATCHES, 0, marks=pytest.mark.slow),
        pytest.param(EACH_EPOCH, NUM_BATCHES, 1, marks=pytest.mark.slow),
        pytest.param(3, 3, 1, marks=pytest.mark.campaign),
        pytest.param(3, 6, 1, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_two_ranks_goes_on_exactly_on_two_ranks_and_on_one(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path, save_at: int, step: int, num_workers: int
) -> None:
    """Also one of an epoch's end, whether it was saved with the last batch or after it."""
    fit, root, folder = "integrations.lightning_moments:fit_on_ranks", str(data_root), str(tmp_path)
    whole = run_forked_ranks(fit, NUM_RANKS, root, folder, NUM_RANKS, BATCH_SIZE, num_workers, None, save_at)
    assert [rank["world"] for rank in whole] == [NUM_RANKS] * NUM_RANKS
    for epoch in range(2):
        assert_exact_training([rank["trained"][epoch] for rank in whole])
        assert_exact_evaluation([rank["validated"][epoch] for rank in whole])
    checkpoint = str(tmp_path / f"step={step}.ckpt")
    resumed = run_forked_ranks(fit, NUM_RANKS, root, folder, NUM_RANKS, BATCH_SIZE, num_workers, checkpoint, 100)
    (alone,) = run_forked_ranks(fit, 1, root, folder, 1, NUM_RANKS * BATCH_SIZE, num_workers, checkpoint, 100)
    expected = [in_order(rank["trained"])[step:] for rank in whole]
    assert [in_order(rank["trained"]) for rank in resumed] == expected
    assert in_order(alone["trained"]) == [[*first, *second] for first, second in zip(*expected, strict=True)]
    assert len(expected[0]) == 2 * NUM_BATCHES - step


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 6])
def test_two_ranks_that_were_stopped_within_an_epoch_go_on_exactly_on_two_ranks_and_on_one(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path, step: int
) -> None:
    fit, root, folder = "integrations.lightning_moments:fit_on_ranks", str(data_root), str(tmp_path)
    own = (fit, NUM_RANKS, root, folder, NUM_RANKS, BATCH_SIZE, 0)
    whole = run_forked_ranks(*own, None, 100)
    run_forked_ranks(*own, None, step, step)
    checkpoint = str(tmp_path / f"step={step}.ckpt")
    after_stop = run_forked_ranks(*own, checkpoint, EACH_EPOCH, step + 1)  # Stopped once more, a batch later.
    assert [len(in_order(rank["trained"])) for rank in after_stop] == [1] * NUM_RANKS
    checkpoint = str(tmp_path / f"step={step + 1}.ckpt")
    resumed = run_forked_ranks(*own, checkpoint, 100)
    (alone,) = run_forked_ranks(fit, 1, root, folder, 1, NUM_RANKS * BATCH_SIZE, 0, checkpoint, 100)
    expected = [in_order(rank["trained"])[step + 1 :] for rank in whole]
    assert [in_order(rank["trained"]) for rank in resumed] == expected
    assert in_order(alone["trained"]) == [[*first, *second] for first, second in zip(*expected, strict=True)]


def test_only_a_loader_over_an_image_dataset_is_resumable(data_root: Path) -> None:
    parser = ParserTfds(str(data_root), "photos", is_training=True, batch_size=BATCH_SIZE)
    dataset = ImageDataset(parser, fields=("label",))
    loader = resumable(create_loader(dataset))
    assert len(loader) == len(list(loader)) == -(-NUM_PHOTOS // BATCH_SIZE)
    assert pickle.loads(pickle.dumps(loader)).num_workers == 0
    for other in (DataLoader(dataset), create_loader([1, 2, 3])):
        with pytest.raises(ConfigError, match="resumable takes Loaders of create_loader over an ImageDataset, or"):
            resumable(other)  # type: ignore[arg-type]


def in_order(epochs: dict[int, list[Any]]) -> list[Any]:
    return [batch for epoch in sorted(epochs) for batch in epochs[epoch]]
