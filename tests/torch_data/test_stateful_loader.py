"""torchdata's StatefulDataLoader over ImageDataset resumes with as many workers, or by a state made free of them."""

from itertools import product
from typing import Any

import pytest
from grids.fleet import Fleet

from torch_data import resume_scenarios
from torch_data.resuming import make_setup

slow, campaign = pytest.mark.slow, pytest.mark.campaign


def _mark_of(kind: str, persistent: bool, seeds_every_epoch: bool, is_new: bool) -> Any:
    if seeds_every_epoch == is_new:
        return () if (kind, persistent, is_new) == ("stateful", False, True) else slow
    return campaign


@pytest.mark.parametrize(
    ("kind", "persistent", "seeds_every_epoch", "is_new"),
    [
        pytest.param(*case, marks=_mark_of(*case))
        for case in product(("stateful", "plain"), (False, True), (False, True), (False, True))
    ],
)
def test_a_script_that_seeds_torch_repeats_no_epoch_after_a_resume(
    kind: str, persistent: bool, seeds_every_epoch: bool, is_new: bool, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, num_workers=2, global_batch=12, persistent=persistent)
    ((expected, came),) = fleet.call(
        resume_scenarios.resume_under_one_seed, kind, setup, seeds_every_epoch, is_new, deadline_s=120
    )
    assert [len(epoch) for epoch in came] == [4] * 4
    assert came == expected


def test_a_state_free_of_its_workers_goes_on_behind_a_plain_loader(fleet: Fleet, numbered_root: str) -> None:
    setup = make_setup(numbered_root, num_workers=2, global_batch=12)
    ((whole, tail),) = fleet.call(resume_scenarios.go_on_with_plain_workers, setup, 1)
    assert len(whole) == 4
    assert tail == whole[2:]


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=slow), 3])
def test_a_state_of_another_number_of_workers_is_refused_with_what_would_do(
    num_workers: int, fleet: Fleet, numbered_root: str
) -> None:
    (message,) = fleet.call(
        resume_scenarios.load_in_other_workers, make_setup(numbered_root, num_workers=2), num_workers
    )
    assert message.startswith("StateMismatchError: ")
    assert f"num_workers: 2 in the state, {num_workers} here." in message
    assert "LoaderState.from_stateful(state)" in message


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=slow), 2])
def test_an_epoch_set_by_hand_begins_after_a_state_of_the_very_end_and_not_after_one_before(
    num_workers: int, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, num_workers=num_workers, global_batch=12)
    ((expected, came, message),) = fleet.call(resume_scenarios.set_epoch_after_state, setup, 4, 5)
    assert len(expected) == 4
    assert (came, message) == (expected, "")
    ((_, came, message),) = fleet.call(resume_scenarios.set_epoch_after_state, setup, 4 - num_workers, 5)
    assert came == []
    assert message.startswith("StateMismatchError: ")
    assert "The loader's state is within epoch 0, and set_epoch(5) was called. Begin with set_epoch(0)" in message


def test_a_state_within_a_batch_cannot_be_made_free_of_its_workers(fleet: Fleet, numbered_root: str) -> None:
    setup = make_setup(numbered_root, global_batch=4)
    messages = [
        fleet.call(resume_scenarios.free_a_state_within_a_batch, setup, num_steps)[0] for num_steps in (4, 5, 8)
    ]
    assert [bool(message) for message in messages] == [False, True, False]
    assert messages[1].startswith(
        "StateMismatchError: StatefulDataLoader's state: worker 0 is in the middle of a batch"
    )
    assert "(examples=1 of batch 1)" in messages[1]
