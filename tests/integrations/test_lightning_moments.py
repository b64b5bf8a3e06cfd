"""Lightning: whenever a Trainer saves, stops or combines, what it reads next is what it would have read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUM_BATCHES = 9
LIVES = "integrations.lightning_moments"

RunRanks = Callable[..., list[Any]]
Run = Callable[..., Any]


@pytest.fixture
def run(run_forked_ranks: RunRanks) -> Run:
    """`run(function, *args)`: runs a function of lightning_moments.py in a process of its own."""
    return lambda function, *args: run_forked_ranks(f"{LIVES}:{function}", 1, *args)[0]


def assert_tails(tails: list[Any]) -> None:
    wrong = [(name, came[:1], expected[:1]) for name, came, expected in tails if came != expected]
    assert tails
    assert wrong == []


# The positions of a checkpoint


@pytest.mark.parametrize(
    ("asks_in", "steps"),
    [
        ("configure_optimizers", [4]),
        pytest.param("setup", [1, 4, 9, 13, 18, 26], marks=pytest.mark.slow),
        pytest.param("configure_optimizers", [1, 9, 13, 18, 26], marks=pytest.mark.slow),
        pytest.param("on_fit_start", [1, 4, 9, 13, 18, 26], marks=pytest.mark.slow),
    ],
)
def test_a_trainer_that_was_asked_for_its_number_of_steps_restores_the_loader(
    run: Run, tmp_path: Path, asks_in: str, steps: list[int]
) -> None:
    assert_tails(run("asked_early", str(tmp_path), asks_in, steps))


@pytest.mark.slow
@pytest.mark.parametrize("resume_with", [{}, {"max_steps": 1000}], ids=["epochs", "max_steps"])
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "Recorder"),
        ({"validates": True}, "Recorder"),
        ({"validates": True, "val_check_interval": 3}, "Recorder"),
        pytest.param({"validates": True, "val_check_interval": 4}, "Recorder", marks=pytest.mark.campaign),
        ({"validates": True, "val_check_interval": 0.5, "num_sanity_val_steps": 2}, "Recorder"),
        pytest.param(
            {"validates": True, "val_check_interval": 5, "check_val_every_n_epoch": None},
            "Recorder",
            marks=pytest.mark.campaign,
        ),
        ({"accumulate_grad_batches": 2}, "Recorder"),
        ({"limit_train_batches": 5}, "Recorder"),
        ({"limit_train_batches": 0.5, "asks_in": "setup"}, "Recorder"),
        ({"asks_in": "configure_optimizers"}, "Recorder"),
        ({"reload_dataloaders_every_n_epochs": 1}, "OwnLoaders"),
        ({"reload_dataloaders_every_n_epochs": 1, "asks_in": "setup"}, "OwnLoaders"),
        ({}, "Manual"),
    ],
    ids=str,
)
def test_a_checkpoint_of_every_moment_goes_on_exactly(
    run: Run, tmp_path: Path, options: dict[str, Any], kind: str, resume_with: dict[str, Any]
) -> None:
    assert_tails(run("at_every_moment", str(tmp_path), options, kind, resume_with))


@pytest.mark.parametrize("hook", ["training_step", pytest.param("on_train_batch_start", marks=pytest.mark.slow)])
def test_a_batch_whose_training_failed_is_still_to_come(run: Run, tmp_path: Path, hook: str) -> None:
    assert_tails(run("failed", str(tmp_path), hook, [1, 8, 13] if hook == "training_step" else [1, 4, 8, 9, 13, 18]))


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_start"])
def test_a_failure_between_batches_loses_none(run: Run, tmp_path: Path, hook: str) -> None:
    assert_tails(run("failed", str(tmp_path), hook, [1, 4, 9, 13] if hook == "on_train_batch_end" else [9, 18]))


@pytest.mark.slow
@pytest.mark.parametrize("function", ["by_time", "skipped_rest", "stopped_again_and_again"])
def test_other_checkpoints_go_on_exactly(run: Run, tmp_path: Path, function: str) -> None:
    assert_tails(run(function, str(tmp_path)))


# A stop within an epoch


@pytest.mark.parametrize(
    ("how", "at", "asks_in"),
    [
        ("max_steps", 4, ""),
        ("should_stop", 13, "configure_optimizers"),
        *(
            pytest.param(how, at, asks_in, marks=pytest.mark.slow)
            for how in ("max_steps", "max_time", "should_stop", "sigterm")
            for at in (4, 9, 13)
            for asks_in in ("", "setup")
        ),
    ],
)
def test_a_trainer_that_was_stopped_within_an_epoch_goes_on_exactly(
    run: Run, tmp_path: Path, how: str, at: int, asks_in: str
) -> None:
    """Also with max_steps, by which Lightning takes every checkpoint for one within an epoch."""
    assert_tails(run("stopped_within", str(tmp_path), how, at, asks_in))


@pytest.mark.slow
def test_workers_go_on_after_a_stop_within_an_epoch(run: Run, tmp_path: Path) -> None:
    assert_tails(run("stopped_within", str(tmp_path), "max_steps", 4, "", 1))


@pytest.mark.slow
@pytest.mark.parametrize("asks_in", ["", "setup"])
def test_a_checkpoint_of_an_earlier_release_loses_no_example(run: Run, tmp_path: Path, asks_in: str) -> None:
    """Its Trainer counts the rest of the epoch as one more epoch, or would leave one out."""
    (_, came, whole), (_, refused, _) = run("stopped_within", str(tmp_path), "max_steps", 4, asks_in, 0, True)
    batches = [batch for *_, batch in came]
    assert batches[:NUM_BATCHES] == [batch for *_, batch in whole][:NUM_BATCHES]
    assert len(batches) == 2 * NUM_BATCHES
    assert "Go on without max_steps until the next checkpoint" in refused[-1][2]


# Several loaders, and other options


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        ("max_size_cycle", [3, 2]),
        *(
            pytest.param(mode, sizes, marks=pytest.mark.slow if sizes == [9, 2, 3] else pytest.mark.campaign)
            for mode in ("max_size_cycle", "min_size", "max_size")
            for sizes in ([9, 3], [3, 9], [9, 5], [9, 2, 3])
        ),
    ],
)
def test_a_shorter_loader_has_another_order_in_every_pass(
    run: Run, tmp_path: Path, mode: str, sizes: list[int]
) -> None:
    columns, tails = run("combined", str(tmp_path), mode, sizes)
    for size, column in zip(sizes, columns, strict=True):
        batches = [tuple(batch) for batch in column if batch is not None]
        assert len(set(batches)) == len(batches), "no batch comes twice"
        if mode == "max_size_cycle":
            num_in_epoch = max(sizes)
            for first in range(0, len(column), num_in_epoch):
                of_epoch = column[first : first + num_in_epoch]
                passes = [of_epoch[start : start + size] for start in range(0, num_in_epoch, size)]
                for one in passes[: num_in_epoch // size]:
                    assert sorted(number for batch in one for number in batch) == list(range(4 * size))
    assert_tails(tails)


def test_overfitting_reads_the_same_batches_in_every_epoch(run: Run) -> None:
    for batches, number in zip(run("overfitted"), (2, 4), strict=True):
        assert batches == batches[:number] * 3
        assert len({number for batch in batches for number in batch}) == 4 * number


@pytest.mark.slow
def test_a_search_for_a_learning_rate_leaves_training_as_it_was(run: Run, tmp_path: Path) -> None:
    assert run("found_a_rate", str(tmp_path))[-3 * NUM_BATCHES :] == run("limited", {})


@pytest.mark.slow
def test_a_fast_dev_run_reads_the_first_batches(run: Run) -> None:
    assert run("limited", {"fast_dev_run": 2}) == run("limited", {})[:2]


@pytest.mark.slow
def test_a_step_that_takes_its_batches_itself_goes_on_exactly_after_every_step(run: Run, tmp_path: Path) -> None:
    """Lightning numbers its batches anew."""
    for name, came, expected in run("at_every_moment", str(tmp_path), {}, "FromTheIterator"):
        assert [batch for *_, batch in came] == [batch for *_, batch in expected], name


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("twice", "Two of the Trainer's loaders read one Loader"),
        pytest.param("one Loader", "Two of the Trainer's loaders read one Loader", marks=pytest.mark.slow),
        pytest.param("validation", "Two of the Trainer's loaders read one Loader", marks=pytest.mark.slow),
        pytest.param("unsized", "A loader beside resumable", marks=pytest.mark.slow),
    ],
)
def test_loaders_that_would_break_each_other_off_are_refused_before_the_first_step(
    run: Run, which: str, says: str
) -> None:
    assert run("refused", which).startswith(f"0: {says}")


@pytest.mark.slow
def test_a_training_loader_may_validate_at_the_end_of_an_epoch(run: Run) -> None:
    came, whole = run("validated_with_the_training_loader")
    assert came == whole
