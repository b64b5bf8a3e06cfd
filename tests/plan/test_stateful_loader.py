"""What a StatefulDataLoader's state says, rebuilt here as torchdata 0.11 lays it out."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import collect_round_robin, plans
from plan.saved_states import PLAN, message_of, state_of

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.state import LoaderState, WorkerPosition
from tfds_torch.plan.world import World

PLANS = plans(max_examples=120, max_replicas=3, max_workers=5, max_batch_size=5)


def position_of(plan: EpochPlan, began_at: LoaderState, worker: int, num_delivered: int) -> WorkerPosition:
    """Where a worker is when the loader has handed over so many batches of the iteration."""
    rest = range(began_at.batches_delivered, plan.num_batches)
    per_worker = [list(rest[number :: plan.world.num_workers]) for number in range(plan.world.num_workers)]
    taken = set(collect_round_robin(per_worker)[:num_delivered])
    return WorkerPosition(worker, plan.world.num_workers, len(taken.intersection(per_worker[worker])), 0, began_at)


def state_with_workers(plan: EpochPlan, start: int, at_snapshot: int, since_snapshot: int) -> dict[str, Any]:
    """What a StatefulDataLoader with workers saves."""
    began_at, num_workers = state_of(plan, start), plan.world.num_workers
    snapshots = {
        f"worker_{worker}": {
            "worker_id": worker,
            "dataset_state": position_of(plan, began_at, worker, at_snapshot).to_dict(),
            "fetcher_state": {"dataset_iter_state": None, "fetcher_ended": False},
        }
        for worker in range(num_workers)
    }
    return {
        "_snapshot": {
            "_snapshot_step": at_snapshot,
            "_last_yielded_worker_id": (at_snapshot - 1) % num_workers,
            "_main_snapshot": {"_num_workers": num_workers, "_sampler_iter_yielded": at_snapshot + 2 * num_workers},
            "_worker_snapshots": snapshots,
        },
        "_steps_since_snapshot": since_snapshot,
        "_iterator_finished": start + at_snapshot + since_snapshot == plan.num_batches,
    }


def state_without_workers(dataset_state: object) -> dict[str, Any]:
    """What a StatefulDataLoader without workers saves."""
    return {
        "_index_sampler_state": None,
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": 5,
        "_num_yielded": 5,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
        "fetcher_state": {"dataset_iter_state": None, "fetcher_ended": False},
        "dataset_state": dataset_state,
        "_iterator_finished": False,
    }


@settings(max_examples=120, deadline=None)
@given(PLANS, st.data())
def test_a_loaders_state_becomes_the_batches_it_has_delivered(plan: EpochPlan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.num_batches))
    at_snapshot = data.draw(st.integers(0, plan.num_batches - start))
    since = data.draw(st.integers(0, plan.num_batches - start - at_snapshot))
    state = state_with_workers(plan, start, at_snapshot, since)
    expected = state_of(plan, start + at_snapshot + since)
    assert LoaderState.from_stateful(state) == expected
    assert LoaderState.from_stateful(json.loads(json.dumps(state))) == expected


@pytest.mark.parametrize("delivered", [0, 1, 2, 3, 4, 11, 12, 13])
def test_no_batch_a_few_or_all_of_them(delivered: int) -> None:
    state = LoaderState.from_stateful(state_with_workers(PLAN, 0, delivered, 0))
    assert (state.epoch, state.batches_delivered, state.num_workers) == (1, delivered, 3)


def test_a_loader_without_workers_saves_the_datasets_state_or_its_position() -> None:
    plan = replace(PLAN, world=World())
    assert LoaderState.from_stateful(state_without_workers(state_of(plan, 5).to_dict())) == state_of(plan, 5)
    position = WorkerPosition(0, 1, 3, 0, state_of(plan, 2))
    assert LoaderState.from_stateful(state_without_workers(position.to_dict())) == state_of(plan, 5)


def test_a_position_in_the_middle_of_a_batch_is_refused() -> None:
    state = state_with_workers(PLAN, 0, 4, 0)
    position = WorkerPosition(1, 3, 1, 5, state_of(PLAN))
    state["_snapshot"]["_worker_snapshots"]["worker_1"]["dataset_state"] = position.to_dict()
    assert message_of(LoaderState.from_stateful, state) == (
        "StatefulDataLoader's state: worker 1 is in the middle of a batch (examples=5 of batch 4). Give the loader the "
        "batch_size of the dataset, 8."
    )
    alone = WorkerPosition(0, 1, 1, 5, state_of(replace(PLAN, world=World())))
    found = message_of(LoaderState.from_stateful, state_without_workers(alone.to_dict()))
    assert "worker 0 is in the middle of a batch" in found


def test_workers_that_are_no_round_robin_are_refused() -> None:
    state = state_with_workers(PLAN, 0, 7, 0)
    snapshots = state["_snapshot"]["_worker_snapshots"]
    for worker, batches in ((0, 1), (1, 4), (2, 3)):
        changed = copy.deepcopy(state)
        position = WorkerPosition(worker, 3, batches, 0, state_of(PLAN)).to_dict()
        changed["_snapshot"]["_worker_snapshots"][f"worker_{worker}"]["dataset_state"] = position
        all_batches = [snapshots[f"worker_{number}"]["dataset_state"]["batches"] for number in range(3)]
        all_batches[worker] = batches
        assert message_of(LoaderState.from_stateful, changed) == (
            f"StatefulDataLoader's state: its workers have delivered {', '.join(map(str, all_batches))} batches, which "
            f"is not a round-robin from worker 0 on. Keep in_order=True, and load the state as it was saved."
        )


def test_workers_of_different_iterations_are_refused() -> None:
    state = state_with_workers(PLAN, 0, 3, 0)
    other = state_with_workers(PLAN, 1, 3, 0)["_snapshot"]["_worker_snapshots"]["worker_2"]
    state["_snapshot"]["_worker_snapshots"]["worker_2"] = other
    assert message_of(LoaderState.from_stateful, state) == (
        "StatefulDataLoader's state: began_at differs between worker 0 and worker 2: they are not of one iteration."
    )


def test_workers_in_each_others_place_or_missing_are_refused() -> None:
    state = state_with_workers(PLAN, 0, 3, 0)
    snapshots = state["_snapshot"]["_worker_snapshots"]
    swapped = {**snapshots, "worker_0": snapshots["worker_1"], "worker_1": snapshots["worker_0"]}
    assert message_of(LoaderState.from_stateful, {**state, "_snapshot": {"_worker_snapshots": swapped}}) == (
        "StatefulDataLoader's state: the position of worker 0 of 3 says worker=1, num_workers=3."
    )
    fewer = {name: snapshots[name] for name in ("worker_0", "worker_1")}
    assert message_of(LoaderState.from_stateful, {**state, "_snapshot": {"_worker_snapshots": fewer}}) == (
        "StatefulDataLoader's state: the position of worker 0 of 2 says worker=0, num_workers=3."
    )
    gap = {name: snapshots[name] for name in ("worker_0", "worker_2")}
    assert message_of(LoaderState.from_stateful, {**state, "_snapshot": {"_worker_snapshots": gap}}) == (
        "StatefulDataLoader's state lacks 'worker_1'. Load the state as it was saved, by a loader over a dataset of "
        "tfds_torch."
    )
    assert message_of(LoaderState.from_stateful, {**state, "_snapshot": {"_worker_snapshots": {}}}) == (
        "StatefulDataLoader's state: _worker_snapshots must hold a state of every worker, and is {}."
    )


@pytest.mark.parametrize("steps", [-1, 1.0, None, True])
def test_steps_since_the_snapshot_must_be_a_number(steps: object) -> None:
    state = {**state_with_workers(PLAN, 0, 3, 0), "_steps_since_snapshot": steps}
    assert message_of(LoaderState.from_stateful, state) == (
        f"StatefulDataLoader's state: _steps_since_snapshot={steps} must be an integer >= 0."
    )


def test_steps_past_the_end_are_refused() -> None:
    assert message_of(LoaderState.from_stateful, state_with_workers(PLAN, 0, 10, 4)) == (
        "StatefulDataLoader's state: _steps_since_snapshot=4 after batch 10 passes the epoch's end at batch 13."
    )


@pytest.mark.parametrize("state", [None, 5, [], "x"])
def test_what_is_no_dict_is_no_loaders_state(state: object) -> None:
    assert message_of(LoaderState.from_stateful, state) == (
        f"A StatefulDataLoader's state_dict() is a dict with '_snapshot' or 'dataset_state', and this is {state!r}."
    )


def test_a_state_of_something_else_is_said() -> None:
    assert message_of(LoaderState.from_stateful, {"model": 1}) == (
        "StatefulDataLoader's state lacks 'dataset_state'. Load the state as it was saved, by a loader over a dataset "
        "of tfds_torch."
    )
    assert message_of(LoaderState.from_stateful, state_without_workers(None)) == (
        "LoaderState: a saved state is a dict, and this is None."
    )


def places(tree: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of everything within nested dicts."""
    found = [path] if path else []
    if isinstance(tree, dict):
        found += [place for name, value in tree.items() for place in places(value, (*path, name))]
    return found


IGNORED = {"_last_yielded_worker_id", "_main_snapshot", "fetcher_state", "worker_id"}
IGNORED |= {"_iterator_finished"}  # torchdata's own, which say nothing more.
GOOD = [state_with_workers(PLAN, 2, 5, 1), state_without_workers(WorkerPosition(0, 1, 3, 0, state_of(
    replace(PLAN, world=World()), 2)).to_dict())]  # fmt: skip


@pytest.mark.parametrize("good", GOOD, ids=["workers", "alone"])
def test_anything_missing_or_of_another_type_is_a_state_mismatch(good: dict[str, Any]) -> None:
    read = [place for place in places(good) if not IGNORED.intersection(place) and place[0] in ("_snapshot",
            "_steps_since_snapshot", "dataset_state")]  # fmt: skip
    assert len(read) > 25
    for *path, name in read:
        for junk in ("missing", None, "7", -1, 0.5, [], {}, {"x": 1}, b"", True):
            state = copy.deepcopy(good)
            inner = state
            for step in path:
                inner = inner[step]
            if junk == "missing":
                del inner[name]
            elif inner[name] == junk and type(inner[name]) is type(junk):
                continue
            else:
                inner[name] = junk
            message_of(LoaderState.from_stateful, state)


def test_steps_of_another_size_than_the_datasets_batches_are_refused() -> None:
    state = state_with_workers(PLAN, 2, 6, 2)
    state["_snapshot"]["_snapshot_step"] = 3  # The loader's batches are twice as large.
    with pytest.raises(StateMismatchError) as caught:
        LoaderState.from_stateful(state)
    for fact in ("had given 3 batches", "the dataset 6", "batch_size", "snapshot_every_n_steps=1"):
        assert fact in str(caught.value)
    state["_steps_since_snapshot"] = 0  # Then the positions alone say all.
    assert LoaderState.from_stateful(state).batches_delivered == 8
