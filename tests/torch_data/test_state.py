"""ImageDataset's own state: what it refuses, and what an iteration does after it was loaded."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conformance import Step
from grids.fleet import Fleet
from numbered_fixtures import NUMBERED_SHARDS
from tfds_fixtures import write_numbered
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, ParserTfds, World
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.state import LoaderState, WorkerPosition
from torch_data import resume_scenarios
from torch_data.resume_scenarios import Reads, state_at
from torch_data.resuming import Setup, make_setup

slow, campaign = pytest.mark.slow, pytest.mark.campaign
NUM_EXAMPLES, GLOBAL_BATCH = sum(NUMBERED_SHARDS), 12
NUM_BATCHES = -(-NUM_EXAMPLES // GLOBAL_BATCH)


@pytest.fixture
def setup(numbered_root: str) -> Setup:
    """A training by one rank without workers: 4 batches of 12 examples."""
    return make_setup(numbered_root, global_batch=GLOBAL_BATCH)


def in_fleet(fleet: Fleet, function: Callable[..., Any], setup: Setup, *args: Any) -> Any:
    """Returns what a function of resume_scenarios.py returns in a process where it may read."""
    (result,) = fleet.call(function, setup, *args, reads=setup.reads, deadline_s=120)
    return result


# States that do not fit

Change = Callable[[dict[str, Any]], Any]
BAD: dict[str, tuple[Change, str]] = {
    "another seed": (
        lambda state: agreeing(state, order={**state["agrees"]["order"], "seed": 7}),
        "seed: 7 in the state, 42 here. Pass seed=7.",
    ),
    "another dataset": (lambda state: agreeing(state, dataset="x:1.0.0"), "dataset: 'x:1.0.0' in the state, 'numbered"),
    "other files": (lambda state: agreeing(state, fingerprint="00"), "fingerprint: '00' in the state"),
    "another global batch": (
        lambda state: sealed(state, global_batch=8),
        "global_batch: 8 in the state, 12 here. With 1 ranks, batch_size=8 continues it.",
    ),
    "a field is missing": (lambda state: without(state, "epoch"), "epoch"),
    "a field too many": (lambda state: {**state, "extra": 1}, "extra"),
    "a wrong type": (lambda state: {**state, "epoch": "1"}, "checksum"),
    "changed by hand": (lambda state: {**state, "batches": 1}, "checksum"),
    "newer": (lambda state: {**state, "version": 99}, "version=99 was saved by a later release"),
    "empty": (lambda state: {}, "not a valid LoaderState. It lacks"),
    "no dict": (lambda state: [1, 2], "LoaderState"),
    "None": (lambda state: None, "LoaderState"),
    "a loader's": (lambda state: {"_snapshot": {}}, "state of a StatefulDataLoader"),
    "half a worker's": (lambda state: {"began_at": state}, "WorkerPosition"),
}


def sealed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns another state as its own dataset would have saved it."""
    return replace(LoaderState.from_dict(state), **changes)._sealed().to_dict()


def agreeing(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns the state of a dataset of which other values hold."""
    return sealed(state, agrees={**state["agrees"], **changes})


def without(state: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != name}


def bad_states(dataset: ImageDataset) -> dict[str, Any]:
    return {name: change(state_at(dataset, 1, 2)) for name, (change, _) in BAD.items()}


@pytest.mark.parametrize("name", BAD)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name: str, setup: Setup) -> None:
    dataset = setup.dataset()
    for good in (None, state_at(dataset, 3, 1)):
        if good is not None:
            dataset.load_state_dict(good)
        before = dataset.state_dict()
        with pytest.raises(StateMismatchError) as caught:
            dataset.load_state_dict(bad_states(dataset)[name])
        assert BAD[name][1] in str(caught.value)
        assert dataset.state_dict() == before


def test_the_next_iteration_after_refused_states_is_as_if_none_had_been_loaded(fleet: Fleet, setup: Setup) -> None:
    dataset = setup.dataset()
    bad = list(bad_states(dataset).values())
    messages, fresh = in_fleet(fleet, resume_scenarios.read_after, setup, None, bad)
    assert [message.partition(":")[0] for message in messages] == ["StateMismatchError"] * len(bad)
    assert places(fresh) == [(0, batch) for batch in range(NUM_BATCHES)]
    messages, resumed = in_fleet(fleet, resume_scenarios.read_after, setup, state_at(dataset, 0, 1), bad)
    assert all(messages)
    assert resumed == fresh[1:]


def places(steps: list[Step]) -> list[tuple[int, int]]:
    return [(step.epoch, step.batch) for step in steps]


@pytest.mark.parametrize(
    ("num_replicas", "global_batch", "remedy"),
    [
        (2, 8, "With 2 ranks, batch_size=6 continues it."),
        (5, 15, "12 does not divide among 5 ranks: choose ranks x batch_size = 12."),
    ],
)
def test_another_global_batch_is_refused_with_what_would_do(
    num_replicas: int, global_batch: int, remedy: str, setup: Setup
) -> None:
    other = replace(setup, global_batch=global_batch, num_replicas=num_replicas).dataset()
    with pytest.raises(StateMismatchError) as caught:
        other.load_state_dict(state_at(setup.dataset(), 1, 2))
    assert remedy in str(caught.value)
    assert (
        other.state_dict()
        == replace(setup, global_batch=global_batch, num_replicas=num_replicas).dataset().state_dict()
    )


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_a_stream_goes_on_with_as_many_ranks_only(mode: str, numbered_root: str) -> None:
    setup = make_setup(numbered_root, mode, global_batch=GLOBAL_BATCH)
    other = replace(setup, num_replicas=2).dataset()
    with pytest.raises(StateMismatchError, match=f"num_replicas: 1 in the state, 2 here. Read mode '{mode}' goes on"):
        other.load_state_dict(state_at(setup.dataset(), 1, 2))
    replace(setup, num_replicas=1).dataset().load_state_dict(state_at(setup.dataset(), 1, 2))
    with pytest.raises(StateMismatchError, match="read_mode: "):
        make_setup(numbered_root, global_batch=GLOBAL_BATCH).dataset().load_state_dict(state_at(setup.dataset(), 1, 2))


@pytest.mark.parametrize(
    ("mode", "num_workers", "num_delivered"),
    [("examples", 0, 2), ("examples", 0, 1), pytest.param("files", 1, 2, marks=slow)],
)
def test_a_stream_goes_on_with_as_many_workers_only(
    mode: str, num_workers: int, num_delivered: int, fleet: Fleet, numbered_root: str
) -> None:
    saved_with = make_setup(numbered_root, mode, global_batch=GLOBAL_BATCH, num_workers=2)
    state = LoaderState.from_dict(state_at(saved_with.dataset(), 1, num_delivered)).with_workers(2).to_dict()
    other = replace(saved_with, num_workers=num_workers)
    said = in_fleet(fleet, resume_scenarios.try_to_read_after, other, state)
    assert said.startswith("StateMismatchError: ")
    assert f"num_workers: 2 in the state, {num_workers or 'none, which counts as 1,'} here." in said
    assert "A stream goes on in the same world only: use num_workers=2." in said


# Counts that cannot be


def test_counts_that_cannot_be_are_refused(fleet: Fleet, numbered_root: str) -> None:
    setup = make_setup(numbered_root, global_batch=3, num_workers=2)  # 14 batches; workers read some 6 ahead.
    said = in_fleet(fleet, resume_scenarios.misuse_counts, setup)
    ahead = "ConfigError: 2 workers read ahead of the training loop, so that only you know how many batches came: "
    expected = {
        "none before the first": "",
        "one before the first": "",
        "none": ahead + "state_dict(batches_delivered=n), with n counted since iter(loader)",
        "one": "",
        "more than there are": "ConfigError: batches_delivered=15: the iteration of epoch 0 began at batch 0 of 14",
        "more than were read": "ConfigError: batches_delivered=14: only ",
        "0 after all": "ConfigError: batches_delivered=0: all of epoch 0 has been read, and the dataset cannot know",
        "all": "",
        "two, before the resumed epoch goes on": "",
        "two of the resumed epoch": "",
        "counted from the epoch's beginning": "ConfigError: batches_delivered=14: the iteration of epoch 0 began at ",
    }
    assert said.keys() == expected.keys()
    for name, message in said.items():
        assert message.startswith(expected[name]) if expected[name] else not message, (name, message)


@pytest.mark.parametrize("count", [-1, 1.5, "1", True])
def test_other_values_than_counts_are_refused(count: Any, setup: Setup) -> None:
    with pytest.raises(ConfigError, match=r"batches_delivered=.* must be an integer >= 0"):
        setup.dataset().state_dict(batches_delivered=count)


def test_a_state_is_small_plain_and_the_same_on_every_rank(setup: Setup) -> None:
    states = [replace(setup, num_replicas=3).dataset(rank).state_dict() for rank in range(3)]
    assert states[0] == states[1] == states[2]
    text = json.dumps(states[0])
    assert len(text) < 700
    assert json.loads(text) == states[0]
    assert "/" not in text.replace("numbered:1.0.0", "")  # No path.


# After loading


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, True), pytest.param(2, False, marks=slow)])
def test_a_loader_that_runs_already_goes_on_where_its_dataset_is_sent(
    num_workers: int, persistent: bool, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, global_batch=GLOBAL_BATCH, num_workers=num_workers, persistent=persistent)
    zero, one, resumed, next_one, three = in_fleet(fleet, resume_scenarios.resume_running_workers, setup)
    assert [places(steps)[0] for steps in (zero, one, three)] == [(0, 0), (1, 0), (3, 0)]
    assert resumed == zero[2:]
    assert next_one == one
    assert len(zero) == len(three) == NUM_BATCHES


def test_another_epoch_set_by_hand_begins_at_its_first_batch(fleet: Fleet, setup: Setup) -> None:
    resumed, two, zero = in_fleet(fleet, resume_scenarios.fix_epochs_after_load, setup)
    assert places(resumed) == [(1, batch) for batch in range(2, NUM_BATCHES)]
    assert places(two) == [(2, batch) for batch in range(NUM_BATCHES)]
    assert places(zero) == [(0, batch) for batch in range(NUM_BATCHES)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_copies_of_a_dataset_with_a_loaded_state_go_on_there(
    num_workers: int, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, global_batch=GLOBAL_BATCH, num_workers=num_workers)
    deep, pickled, original = in_fleet(fleet, resume_scenarios.read_copies, setup)
    assert deep == pickled == original
    assert places(original) == [(1, batch) for batch in range(2, NUM_BATCHES)]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))], ids=["deepcopy", "pickle"]
)
def test_a_copy_may_be_sent_elsewhere(duplicate: Callable[[ImageDataset], ImageDataset], setup: Setup) -> None:
    dataset = setup.dataset()
    first, second = state_at(dataset, 1, 2), state_at(dataset, 5, 3)
    dataset.load_state_dict(first)
    copied = duplicate(dataset)
    assert copied.state_dict() == first
    copied.load_state_dict(second)
    assert (dataset.state_dict(), copied.state_dict()) == (first, second)


def test_the_length_stays_that_of_a_whole_epoch(setup: Setup) -> None:
    dataset = setup.dataset()
    dataset.load_state_dict(state_at(dataset, 1, 2))
    assert len(dataset) == NUM_BATCHES * GLOBAL_BATCH


# What is read

BATCH, NUM_READ_AHEAD = 20, 2  # Batches of at least 16 examples are decoded by themselves.


@pytest.fixture(scope="module")
def long_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Holds 600 examples: 30 batches of 20."""
    root = tmp_path_factory.mktemp("long")
    write_numbered(root, {"train": (200, 150, 250)})
    return str(root)


def read_at(
    fleet: Fleet, root: str, start: int, num_batches: int | None, global_batch: int = BATCH, **arguments: Any
) -> tuple[Reads, list[int]]:
    """Returns what was read, and what the plan says comes from batch `start` of epoch 1 on."""
    setup = make_setup(root, global_batch=global_batch, **arguments)
    dataset = setup.dataset()
    state = state_at(dataset, 1, start)
    (reads,) = fleet.call(resume_scenarios.count_reads, setup, state, num_batches, 1 if setup.num_workers else 0)
    world = World(0, 1, 1, setup.num_workers) if setup.num_workers else World()
    plan = dataset.parser.plan(world)
    return reads, [int(i) for number in plan.worker_batches(start) for i in plan.batch(1, number).index]


@pytest.mark.parametrize(
    ("start", "arguments"),
    [
        (0, {}),
        (17, {}),
        (29, {}),
        (30, {}),
        (7, {"num_workers": 3}),
        (13, {"global_batch": 7}),  # Several batches are decoded together.
        (25, {"repeats": 2}),
    ],
)
def test_a_resumed_epoch_reads_exactly_the_records_that_it_delivers(
    start: int, arguments: dict[str, Any], fleet: Fleet, long_root: str
) -> None:
    reads, planned = read_at(fleet, long_root, start, None, **arguments)
    assert reads.came == reads.read == planned


@pytest.mark.parametrize("num_batches", [1, 5])
@pytest.mark.parametrize("start", [0, 17])
def test_a_resumed_epoch_that_is_left_has_read_what_it_delivered_and_prefetched(
    start: int, num_batches: int, fleet: Fleet, long_root: str
) -> None:
    reads, planned = read_at(fleet, long_root, start, num_batches)
    assert reads.came == planned[: num_batches * BATCH]
    assert reads.read == planned[: len(reads.read)]  # One after the other, none twice.
    # Decoded batches held ready, one that waits to be decoded, and one that is being fetched.
    assert num_batches * BATCH <= len(reads.read) <= (num_batches + NUM_READ_AHEAD + 2) * BATCH


# A position within a batch, of a process that reads by itself


def position_of(setup: Setup) -> dict[str, Any]:
    """Returns the state after 5 examples of batch 1 of epoch 0."""
    return WorkerPosition(0, 1, 1, 5, LoaderState.from_dict(setup.dataset().state_dict())).to_dict()


def test_a_position_within_a_batch_may_be_saved_again_at_once_also_from_a_copy(setup: Setup) -> None:
    dataset, position = setup.dataset(), position_of(setup)
    dataset.load_state_dict(position)
    for copied in (dataset, copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert copied.state_dict() == position


def test_another_epoch_set_by_hand_drops_a_position_within_a_batch(setup: Setup) -> None:
    dataset = setup.dataset()
    dataset.load_state_dict(position_of(setup))
    dataset.set_epoch(0)
    assert dataset.state_dict() == position_of(setup)
    dataset.set_epoch(5)
    state = dataset.state_dict()
    assert (state["epoch"], state["batches"]) == (5, 0)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=slow)])
def test_a_position_within_a_batch_is_refused_by_workers(numbered_root: str, method: str) -> None:
    setup = make_setup(numbered_root, global_batch=GLOBAL_BATCH)
    dataset = setup.dataset()
    dataset.load_state_dict(position_of(setup))
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH, num_workers=1, multiprocessing_context=method)
    with pytest.raises(StateMismatchError, match=r"after 5 examples of a batch.* use num_workers=0"):
        next(iter(loader))


# What a dataset cannot know


def test_a_count_of_batches_of_an_unknown_size_is_refused(numbered_root: str) -> None:
    dataset = ImageDataset(ParserTfds(numbered_root, "numbered"))
    assert dataset.state_dict(batches_delivered=0)["batches"] == 0
    with pytest.raises(ConfigError, match="batches_delivered=3: the parser has no batch_size"):
        dataset.state_dict(batches_delivered=3)


def test_a_dataset_behind_a_loader_that_fetches_ahead_needs_a_count(setup: Setup) -> None:
    dataset = setup.dataset()
    dataset.is_read_ahead = True  # As Accelerate's prepared loaders do.
    assert dataset.state_dict()["batches"] == 0
    iter(dataset)
    with pytest.raises(ConfigError, match=r"Another loader reads ahead.* state_dict\(batches_delivered=n\)"):
        dataset.state_dict()


def test_a_dataset_whose_loader_went_on_by_a_state_of_its_own_refuses_a_count(setup: Setup) -> None:
    dataset = setup.dataset()
    dataset._iterations.epochs.begin_at(11, 2, Start(0, 1))  # As a worker of a StatefulDataLoader does.
    with pytest.raises(ConfigError, match=r"went on from a state of its own.* Ask the loader"):
        dataset.state_dict(batches_delivered=1)
