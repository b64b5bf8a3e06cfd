"""WorkerPosition: plain, the same again after saving; and what it says when it cannot be, or is another worker's."""

import json
from dataclasses import replace
from typing import Any

import pytest
from plan.saved_states import PLAN, message_of, state_of

from tfds_torch.plan.state import WorkerPosition

HERE = state_of(PLAN)
POSITION = WorkerPosition(1, 3, 2, 5, state_of(PLAN, 4))


def test_a_position_is_the_same_after_saving() -> None:
    saved = POSITION.to_dict()
    assert list(saved) == ["worker", "num_workers", "batches", "examples", "began_at", "checksum"]
    assert saved["began_at"] == POSITION.began_at.to_dict()
    assert WorkerPosition.from_dict(json.loads(json.dumps(saved))) == POSITION
    assert WorkerPosition.load(saved, HERE, worker=1, num_workers=3) == POSITION


def test_a_position_knows_where_to_begin() -> None:
    assert (POSITION.start_batch, POSITION.next_batch) == (10, 11)
    ended = replace(POSITION, worker=2, batches=3, examples=0)
    assert (ended.start_batch, ended.next_batch) == (13, 15)
    beyond = replace(ended, began_at=state_of(PLAN, 5))  # Of the rounds of three, the last one is not whole.
    assert (beyond.start_batch, beyond.next_batch) == (13, 16)


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_position_is_underway_from_its_first_example_to_its_last_batch(worker: int) -> None:
    """Of 13 batches, worker 0 of 3 has five, the others four."""
    for start in (0, 3, 12, 13):
        own = range(start + worker, 13, 3)
        for batches in range(len(own) + 1):
            position = WorkerPosition(worker, 3, batches, 0, state_of(PLAN, start))
            assert position.is_underway is ((start, batches) != (0, 0) and batches < len(own)), position
    assert WorkerPosition(worker, 3, 0, 1, state_of(PLAN)).is_underway


@pytest.mark.parametrize("name", ["worker", "num_workers", "batches", "examples", "began_at", "checksum"])
def test_every_changed_field_of_a_position_is_named(name: str) -> None:
    values: list[Any] = [-1, 0, 1, 2, 3, 4, 5, 8, 10**9, 10**5000, "1", None, True, 1.0, [], {}]
    values.append(state_of(PLAN, 5).to_dict())
    saved = POSITION.to_dict()
    for value in values:
        tampered = {**saved, name: value}
        if type(value) is not type(saved[name]) or value != saved[name]:
            found = message_of(WorkerPosition.from_dict, tampered)
            assert name in found or (name == "began_at" and "LoaderState" in found)
            found = message_of(WorkerPosition.load, tampered, HERE, worker=1, num_workers=3)
            assert name in found or (name == "began_at" and "LoaderState" in found)
    missing = {key: value for key, value in saved.items() if key != name}
    assert message_of(WorkerPosition.from_dict, missing) == (
        f"This is not a valid WorkerPosition. It lacks {name!r}. Load the state as it was saved."
    )


def test_a_changed_field_of_where_a_position_began_is_named() -> None:
    saved = POSITION.to_dict()
    saved["began_at"] = {**saved["began_at"], "seed": 43}
    assert message_of(WorkerPosition.load, saved, HERE, worker=1, num_workers=3) == (
        "The state does not fit this dataset. seed: 43 in the state, 42 here. Pass seed=43."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worker": 3}, "WorkerPosition: worker=3 must be below num_workers=3."),
        ({"batches": 4}, "WorkerPosition: batches=4 must be in 0..3, the batches of worker=1 of num_workers=3 from "
                        "batch 4 on."),
        ({"examples": 8}, "WorkerPosition: examples=8 must be in 0..7 after batches=2 of the 3 of worker=1 of "
                         "num_workers=3."),
        ({"batches": 3}, "WorkerPosition: examples=5 must be in 0..0 after batches=3 of the 3 of worker=1 of "
                        "num_workers=3."),
    ],
)  # fmt: skip
def test_a_position_that_cannot_be_is_said(changes: dict[str, Any], message: str) -> None:
    assert message_of(WorkerPosition.from_dict, replace(POSITION, **changes).to_dict()) == message


def test_a_changed_position_is_said() -> None:
    changed = replace(POSITION, batches=1)
    saved = {**changed.to_dict(), "checksum": POSITION.to_dict()["checksum"]}
    assert message_of(WorkerPosition.from_dict, saved) == (
        f"WorkerPosition: checksum={saved['checksum']!r} does not fit its fields, which give "
        f"{changed.to_dict()['checksum']!r}. One of worker=1, num_workers=3, batches=1, examples=5, began_at or the "
        f"checksum was changed after saving. Load the state as it was saved."
    )


def test_the_position_of_another_worker_or_of_another_number_of_workers_is_refused() -> None:
    assert message_of(WorkerPosition.load, POSITION.to_dict(), HERE, worker=2, num_workers=3) == (
        "worker: 1 in the state, 2 here. Give every worker its own position."
    )
    assert message_of(WorkerPosition.load, POSITION.to_dict(), HERE, worker=1, num_workers=2) == (
        "num_workers: 3 in the state, 2 here. The positions of workers go on in as many workers: pass num_workers=3, "
        "or load LoaderState.from_stateful(state) into the dataset, which read mode 'index' continues in any number."
    )
