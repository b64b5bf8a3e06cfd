"""LoaderState and WorkerPosition: small, plain, the same again after saving; and what they say of what does not fit."""

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import collect_round_robin, plans, state_of
from refused import said_of

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.drawn import Drawn, DrawWeights
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.order import Order
from tfds_torch.plan.passes import BlockShuffle, Passes
from tfds_torch.plan.state import READ_MODES, LoaderState, WorkerPosition
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import Segment
from tfds_torch.plan.world import World

STREAMS = ("files", "examples")
refused = partial(said_of, StateMismatchError)


def training(order: Order | None = None, world: World | None = None, batch_size: int = 32, **more: Any) -> EpochPlan:
    order = Passes(1000, blocks=BlockShuffle(64, 4)) if order is None else order
    more = {"remainder": Remainder.WRAP, **more}
    return EpochPlan(order, world or World(0, 2, 0, 2), batch_size, is_training=True, **more)


def mixed(num_members: int = 64, **more: Any) -> Mixed:
    blocks = BlockShuffle(256, 32)
    members = tuple(Member(f"imagenet_v2/{number}:3.0.0", 10**6 + number, blocks) for number in range(num_members))
    return replace(Mixed(members, (Segment(0, (1,) * num_members),), 10**7), **more)


PLAN = EpochPlan(Passes(100, shuffle=False), World(num_workers=3), 8, Remainder.KEEP)  # 13 batches.
STATE = state_of(training(), 7, 3)
POSITION = WorkerPosition(1, 3, 2, 5, state_of(PLAN, 4))


# Saving and reading again


@settings(max_examples=80, deadline=None)
@given(plans(), st.sampled_from(READ_MODES), st.none() | st.integers(0, 64), st.integers(0, 10**6), st.data())
def test_a_state_is_the_same_after_saving_and_small(
    plan: EpochPlan, read_mode: str, num_workers: int | None, epoch: int, data: st.DataObject
) -> None:
    batches = data.draw(st.integers(0, plan.num_batches))
    state = state_of(plan, batches, epoch, read_mode, num_workers=num_workers)
    text = json.dumps(state.to_dict())
    assert LoaderState.from_dict(json.loads(text)) == LoaderState.load(json.loads(text), state) == state
    assert (state.num_batches, state.num_own_slots) == (plan.num_batches, plan.num_own_slots)
    assert (state.start.epoch, state.start.start_batch, state.start.first_example) == (epoch, batches, 0)
    if isinstance(plan.order, Passes):
        assert len(text) < 700


def test_a_state_of_a_mixture_of_64_members_in_blocks_is_below_2_kilobytes() -> None:
    assert len(json.dumps(state_of(training(mixed()), 5).to_dict())) < 2000


def test_the_layout_never_changes_within_a_version() -> None:
    assert json.loads(json.dumps(STATE.to_dict())) == STATE.to_dict() == {
        "version": 3, "epoch": 3, "examples": 448, "batches": 7, "global_batch": 64, "num_workers": None,
        "read_mode": "index",
        "agrees": {
            "dataset": "digits/full:1.0.0", "split": "train", "fingerprint": "0123456789abcdef",
            "order": {
                "kind": "passes", "num_examples": 1000, "num_slots": 1000, "seed": 42, "shuffle": True,
                "block_records": 64, "window_blocks": 4, "block_groups": 1, "subset": None,
            },
            "repeats": 1, "is_training": True, "remainder": "wrap",
        },
        "checksum": STATE.checksum,
    }  # fmt: skip
    assert STATE.checksum == "5ff37fe3"


def test_a_state_is_the_same_on_every_rank_and_in_index_mode_for_any_workers() -> None:
    grids = [World.grid(2, workers) for workers in (1, 2, 5)]
    assert len({repr(state_of(training(world=world), 3)) for grid in grids for world in grid}) == 1
    for read_mode in STREAMS:
        assert len({repr(state_of(training(world=world), 3, 1, read_mode)) for world in grids[2]}) == 1
    assert state_of(PLAN, 1, 1, "files", num_workers=0).num_workers == 1, "a rank that reads by itself"


def test_states_need_no_torch() -> None:
    code = "import sys, tfds_torch.plan.state; assert not {'torch', 'torchdata'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(state_of, PLAN, epoch=-1), "epoch=-1 must be an integer >= 0."),
        (partial(state_of, PLAN, 1.0), "batches_delivered=1.0 must be an integer >= 0."),  # type: ignore[arg-type]
        (partial(state_of, PLAN, 14), "batches_delivered=14 must be in 0..13: each rank has 13 batches in an epoch."),
        (partial(state_of, PLAN, read_mode="auto"), "read_mode='auto' must be one of 'index', 'files', 'examples'."),
    ],
)
def test_a_state_of_nothing_is_a_config_error(make: Callable[[], object], message: str) -> None:
    assert said_of(ConfigError, make) == message


# Damaged, tampered, foreign

JUNK: list[Any] = [
    -1,
    0,
    1,
    7,
    8,
    42.0,
    float("nan"),
    "7",
    "",
    None,
    True,
    False,
    [],
    {},
    [1],
    {"a": 1},
    b"x",
    10**5000,
]


def with_change(saved: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A copy with one change, anywhere: another value or type, a key more, less or renamed."""
    saved = copy.deepcopy(saved)
    inner, name = saved, chance.choice(list(saved))
    while isinstance(inner[name], dict) and inner[name] and chance.random() < 0.8:
        inner = inner[name]
        name = chance.choice(list(inner))
    how = chance.choice(["value", "value", "value", "less", "more", "renamed", "near"])
    if how == "value":
        inner[name] = chance.choice(JUNK)
    elif how == "more":
        inner[chance.choice(["seed", "x", "", 5])] = chance.choice(JUNK)  # type: ignore[index]
    elif how == "near" and type(inner[name]) in (int, str, bool):
        inner[name] = {int: lambda old: old + 1, str: lambda old: old + "0", bool: lambda old: int(old)}[
            type(inner[name])
        ](inner[name])
    else:
        value = inner.pop(name)
        if how == "renamed":
            inner[f"{name}s"] = value
    return saved


def is_same(one: object, other: object) -> bool:
    """Whether values are equal, and of the same types."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    ("load", "saved"),
    [
        *((LoaderState.from_dict, state_of(training(), 7, 3, mode).to_dict()) for mode in READ_MODES),
        (LoaderState.from_dict, state_of(training(mixed()), 7).to_dict()),
        (WorkerPosition.from_dict, POSITION.to_dict()),
    ],
    ids=[*READ_MODES, "mixture", "position"],
)
def test_any_change_of_any_field_is_a_state_mismatch(load: Callable[[object], object], saved: dict[str, Any]) -> None:
    chance, num_tried = random.Random(5), 0
    for _ in range(1000):
        changed = with_change(saved, chance)
        if chance.random() < 0.3:
            changed = with_change(changed, chance) if changed else changed
        if not is_same(changed, saved):
            num_tried += 1
            assert not refused(load, changed).startswith("nothing"), list(changed)
    assert num_tried > 800
    text = json.dumps(saved)
    for end in range(0, len(text), 7):
        assert "a saved state is a dict, and this is " in refused(load, text[:end])


def test_what_is_not_plain_is_refused_even_without_a_checksum() -> None:
    """Such fields have no checksum, and nothing is not the checksum of something."""
    changed = {**STATE.to_dict(), "epoch": {1}, "checksum": ""}
    assert "which are not plain values" in refused(LoaderState.from_dict, changed)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**STATE.to_dict(), "epoch": 4}, f"LoaderState: checksum='{STATE.checksum}' does not fit its other fields, "
         f"which give '{state_of(training(), 7, 4).checksum}': one of them, or the checksum, was changed after saving. "
         f"Load the state as it was saved."),
        ({name: value for name, value in STATE.to_dict().items() if name != "epoch"}, "This is not a valid "
         "LoaderState. It lacks 'epoch'. Load the state as it was saved."),
        ({**STATE.to_dict(), "colour": 1}, "This is not a valid LoaderState. It has 'colour', which no LoaderState "
         "has. Load the state as it was saved."),
        *((other, "LoaderState: a saved state is a dict, and this is " + shown)
          for other, shown in ((None, "None."), (3, "3."), ([1], "[1]."))),
        ({"_snapshot": {}, "_steps_since_snapshot": 0}, "This is the state of a StatefulDataLoader, not of its "
         "dataset: give it to the loader's load_state_dict, or make a state free of its workers with "
         "LoaderState.from_stateful(state)."),
        (POSITION.to_dict(), "This is the position of one worker, not the state of a loader: LoaderState.from_stateful "
         "takes the positions of all workers out of a StatefulDataLoader's state."),
        ({"version": 4, "what": "another layout"}, "LoaderState: version=4 was saved by a later release, and this one "
         "reads version 3: install the release that saved it."),
        *((old, f"LoaderState: version={old['version']} was saved by an earlier release, and this one reads version 3: "
           "begin the epoch anew, or end it with the release that saved it.")
          for old in ({"version": 2, "seed": 1}, {"version": 3, "seed": 42, "epoch": 1, "batches_delivered": 7})),
    ],
)  # fmt: skip
def test_what_is_no_state_of_this_version_is_said_in_a_sentence(state: object, message: str) -> None:
    assert refused(LoaderState.from_dict, state) == refused(LoaderState.load, state, STATE) == message


# Whether it fits


def moved(plan: dict[str, Any] | None = None, **order: Any) -> EpochPlan:
    """The plan with another order, or with other fields of its own."""
    return training(Passes(**{"n": 1000, "blocks": BlockShuffle(64, 4), **order}), **plan or {})


SUBSET = Subset(np.arange(1000)[::-1].copy())
WEIGHTED = Drawn(1000, DrawWeights(np.arange(1000.0)), 1000)
SMALL = mixed(3)
HERE = training()
PADDED = replace(HERE, is_training=False, remainder=Remainder.PAD)
SEED = "seed: 42 in the state, 7 here. Pass seed=42."


@pytest.mark.parametrize(
    ("stored", "here", "named"),
    [
        (HERE, moved(seed=7), [SEED]),
        (HERE, moved(shuffle=False), ["shuffle: True in the state, False here. Pass shuffle=True."]),
        (HERE, training(repeats=2), ["repeats: 1 in the state, 2 here. Pass repeats=1."]),
        (HERE, training(remainder="drop"), ["remainder: 'wrap' in the state, 'drop' here. Pass remainder='wrap'."]),
        (HERE, PADDED, ["is_training: True in the state, False here. Pass "
         "is_training=True.", "remainder: 'wrap' in the state, 'pad' here. Pass remainder='wrap'."]),
        (HERE, moved(n=999), ["num_examples: 1000 in the state, 999 here. Open the dataset with the examples that it "
         "had.", "num_slots: 1000 in the state, 999 here. Open the dataset with the examples, and the epoch_size, "
         "that it had."]),
        (HERE, moved(epoch_size=64), ["num_slots: 1000 in the state, 64 here. "]),
        (HERE, moved(blocks=BlockShuffle(8, 3, 2)), ["block_records: 64 in the state, 8 here. Pass "
         "ReadOptions(block_records=64).", "window_blocks: 4 in the state, 3 here. A window is shuffle_buffer // "
         "block_records blocks: choose them as before.", "block_groups: 1 in the state, 2 here. Pass "
         "ReadOptions(block_groups=1)."]),
        (HERE, moved(subset=SUBSET), [f"subset: None in the state, '{SUBSET.digest}' here. Choose the same examples, "
         "in the same order."]),
        (moved(subset=SUBSET), moved(subset=Subset(np.arange(1000))), ["subset: "]),
        (HERE, training(WEIGHTED), ["kind: 'passes' in the state, 'drawn' here. Choose examples as before: with the "
         "same subset(), balanced(), weighted(), with_order() or mixture."]),
        (training(WEIGHTED), training(replace(WEIGHTED, weights=DrawWeights(np.ones(1000)))), ["weights: "]),
        (training(SMALL), training(replace(SMALL, segments=(Segment(0, (1, 2, 1)),))), ["weights: [[0, 1, 1, 1]] in "
         "the state, [[0, 1, 2, 1]] here. Give the weights that it was saved with."]),
        (training(SMALL), training(replace(SMALL, members=SMALL.members[::-1])), ["members: ", "Give the members that "
         "it was saved with, under the same names and in the same order."]),
        (training(mixed()), training(mixed(members=mixed().members[::-1])), ["members: 'digest "]),
        (HERE, training(batch_size=16), ["global_batch: 64 in the state, 32 here. With 1 ranks, batch_size=64 "
         "continues it. Or call load_state_dict(state, allow_batch_change=True), which deals the rest of the epoch "
         "anew."]),
        (HERE, moved({"repeats": 3}, seed=7), [SEED, "repeats: 1 in the state, 3 here. Pass repeats=1."]),
    ],
)  # fmt: skip
def test_a_state_of_another_order_or_plan_is_refused_by_every_value_both_values_and_the_remedy(
    stored: EpochPlan, here: EpochPlan, named: list[str]
) -> None:
    found = refused(LoaderState.load, state_of(stored, 1).to_dict(), state_of(here))
    assert found.startswith("The state does not fit this dataset. ")
    assert all(words in found for words in named), found


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"dataset": "mnist:1.0.0"}, "dataset: 'digits/full:1.0.0' in the state, 'mnist:1.0.0' here. Open the dataset "
         "and version of the state."),
        ({"split": "test"}, "split: 'train' in the state, 'test' here. Pass split='train'."),
        ({"split": "test", "fingerprint": "f"}, "split: 'train' in the state, 'test' here. Pass split='train'."),
        ({"fingerprint": "f"}, "fingerprint: '0123456789abcdef' in the state, 'f' here. The files are not those that "
         "it was saved with: open the same ones (a dataset of your own with the same version=, a decoded cache with "
         "the same max_resolution)."),
        ({"read_mode": "files"}, "read_mode: 'index' in the state, 'files' here. Pass ReadOptions(mode='index')."),
    ],
)  # fmt: skip
def test_a_state_of_other_data_is_refused(more: dict[str, Any], named: str) -> None:
    found = refused(LoaderState.load, STATE.to_dict(), state_of(training(), **more))
    assert found == f"The state does not fit this dataset. {named}"


@pytest.mark.parametrize("read_mode", STREAMS)
def test_a_stream_goes_on_in_the_same_world_only(read_mode: str) -> None:
    def load(stored: LoaderState, here: LoaderState) -> str:
        return refused(LoaderState.load, stored.to_dict(), here, allow_batch_change=True)

    remedy = f"Read mode '{read_mode}' goes on in the same world only; 'index' in others too."
    here = state_of(training(), 0, 1, read_mode)
    for world, batch_size, names in (
        (World(0, 4, 0, 2), 16, ["num_replicas: 4", "batch_size: 16"]),
        (World(0, 2, 0, 2), 16, ["batch_size: 16"]),
        (World(0, 2, 0, 3), 32, ["num_workers: 3"]),
    ):
        found = load(state_of(training(None, world, batch_size), 1, 1, read_mode), here)
        assert found.count(remedy) == len(names)
        assert all(f"{name} in the state, " in found for name in names)
    # Workers do not matter before the first batch, or where they are unknown.
    other = training(world=World(0, 2, 0, 3))
    assert load(state_of(other, 0, 1, read_mode), here).startswith("nothing")
    assert load(state_of(other, 1, 1, read_mode, num_workers=None), here).startswith("nothing")
    assert load(state_of(other, 1, 1, read_mode), here.with_workers(None)).startswith("nothing")


@pytest.mark.parametrize("batches", [0, 5, 13])
def test_keep_and_pad_go_on_in_each_other(batches: int) -> None:
    padded = replace(PLAN, world=World(0, 2), batch_size=4, remainder=Remainder.PAD)
    for stored, here in ((PLAN, padded), (padded, PLAN)):
        assert LoaderState.load(state_of(stored, batches).to_dict(), state_of(here)) == state_of(here, batches)


# Positions of workers, and torchdata's states of them (0.11), rebuilt here


def test_a_position_is_the_same_after_saving_and_knows_where_to_begin() -> None:
    saved = json.loads(json.dumps(POSITION.to_dict()))
    assert WorkerPosition.from_dict(saved) == POSITION
    assert WorkerPosition.load(saved, state_of(PLAN), worker=1, num_workers=3) == POSITION
    assert (POSITION.start_batch, POSITION.next_batch) == (10, 11)
    beyond = replace(POSITION, worker=2, batches=3, examples=0, began_at=state_of(PLAN, 5))
    assert (beyond.start_batch, beyond.next_batch) == (13, 16)


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_position_is_underway_from_its_first_example_to_its_last_batch(worker: int) -> None:
    for start in (0, 3, 12, 13):
        own = range(start + worker, 13, 3)
        for batches in range(len(own) + 1):
            position = WorkerPosition(worker, 3, batches, 0, state_of(PLAN, start))
            assert position.is_underway is ((start, batches) != (0, 0) and batches < len(own)), position
    assert WorkerPosition(worker, 3, 0, 1, state_of(PLAN)).is_underway


def test_a_position_goes_on_in_its_own_place_only() -> None:
    load, saved, here = WorkerPosition.load, POSITION.to_dict(), state_of(PLAN)
    assert refused(load, saved, here, worker=2, num_workers=3) == (
        "worker: 1 in the state, 2 here. Give every worker its own position."
    )
    assert refused(load, saved, here, worker=1, num_workers=2).startswith(
        "num_workers: 3 in the state, 2 here. The positions of workers go on in as many workers: pass num_workers=3, or"
    )
    other = state_of(replace(PLAN, order=Passes(100, 7, shuffle=False)))
    assert SEED in refused(load, saved, other, worker=1, num_workers=3)


def with_workers(plan: EpochPlan, start: int, at_snapshot: int, since: int) -> dict[str, Any]:
    """What a StatefulDataLoader with workers saves."""
    began_at, num_workers = state_of(plan, start), plan.world.num_workers
    rest = list(range(start, plan.num_batches))
    taken = set(collect_round_robin([rest[worker::num_workers] for worker in range(num_workers)])[:at_snapshot])
    positions = [
        WorkerPosition(worker, num_workers, len(taken.intersection(rest[worker::num_workers])), 0, began_at)
        for worker in range(num_workers)
    ]
    snapshots = {f"worker_{one.worker}": {"dataset_state": one.to_dict(), "fetcher_state": None} for one in positions}
    return {
        "_snapshot": {"_snapshot_step": at_snapshot, "_main_snapshot": {}, "_worker_snapshots": snapshots},
        "_steps_since_snapshot": since,
    }


def alone(dataset_state: object) -> dict[str, Any]:
    """What a StatefulDataLoader without workers saves."""
    return {"_num_yielded": 5, "fetcher_state": None, "dataset_state": dataset_state, "_iterator_finished": False}


@settings(max_examples=100, deadline=None)
@given(plans(), st.data())
def test_a_loaders_state_becomes_the_batches_it_has_delivered(plan: EpochPlan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.num_batches))
    at_snapshot = data.draw(st.integers(0, plan.num_batches - start))
    since = data.draw(st.integers(0, plan.num_batches - start - at_snapshot))
    state = json.loads(json.dumps(with_workers(plan, start, at_snapshot, since)))
    assert LoaderState.from_stateful(state) == state_of(plan, start + at_snapshot + since)


def test_a_loader_without_workers_saves_the_datasets_state_or_its_position() -> None:
    plan = replace(PLAN, world=World())
    assert LoaderState.from_stateful(alone(state_of(plan, 5).to_dict())) == state_of(plan, 5)
    position = WorkerPosition(0, 1, 3, 0, state_of(plan, 2))
    assert LoaderState.from_stateful(alone(position.to_dict())) == state_of(plan, 5)


def test_without_steps_since_its_snapshot_the_positions_alone_say_all() -> None:
    state = with_workers(PLAN, 2, 6, 0)
    state["_snapshot"]["_snapshot_step"] = 3  # The loader's batches are twice as large.
    assert LoaderState.from_stateful(state) == state_of(PLAN, 8)


def edited(state: dict[str, Any], **positions: Any) -> dict[str, Any]:
    """The loader's state with other positions of workers; None: none."""
    state = copy.deepcopy(state)
    for name, position in positions.items():
        state["_snapshot"]["_worker_snapshots"].pop(name, None)
        if position is not None:
            state["_snapshot"]["_worker_snapshots"][name] = {"dataset_state": position.to_dict()}
    return state


GOOD = with_workers(PLAN, 0, 7, 0)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (edited(GOOD, worker_1=WorkerPosition(1, 3, 2, 5, state_of(PLAN))), "worker 1 is in the middle of a batch "
         "(examples=5 of batch 7). Give the loader the batch_size of the dataset."),
        (alone(WorkerPosition(0, 1, 1, 5, state_of(PLAN)).to_dict()), "worker 0 is in the middle of a batch"),
        (edited(GOOD, worker_0=WorkerPosition(0, 3, 1, 0, state_of(PLAN))), "its workers have delivered 1, 2, 2 "
         "batches, which is not a round-robin from worker 0 on. Keep in_order=True"),
        (edited(GOOD, worker_2=WorkerPosition(2, 3, 3, 0, state_of(PLAN))), "its workers have delivered 3, 2, 3 "),
        (edited(GOOD, worker_2=WorkerPosition(2, 3, 2, 0, state_of(PLAN, 1))), "began_at differs between worker 0 and "
         "worker 2: they are not of one iteration."),
        (edited(GOOD, worker_0=WorkerPosition(1, 3, 2, 0, state_of(PLAN))), "the position of worker 0 of 3 says "
         "worker=1, num_workers=3."),
        (edited(GOOD, worker_2=None), "the position of worker 0 of 2 says worker=0, num_workers=3."),
        (edited(GOOD, worker_1=None), "lacks 'worker_1'. Load the state as it was saved"),
        (edited(GOOD, worker_0=None, worker_1=None, worker_2=None), "_worker_snapshots must hold a state of every "
         "worker, and is {}."),
        *(({**GOOD, "_steps_since_snapshot": steps}, f"_steps_since_snapshot={steps} must be an integer >= 0.")
          for steps in (-1, 1.0, None, True)),
        (with_workers(PLAN, 0, 10, 4), "_steps_since_snapshot=4 after batch 10 passes the epoch's end at batch 13."),
        ({**with_workers(PLAN, 2, 6, 2), "_snapshot": {**with_workers(PLAN, 2, 6, 2)["_snapshot"], "_snapshot_step":
          3}}, "at its snapshot the loader had given 3 batches, and the dataset 6"),
        (None, "is a dict with '_snapshot' or 'dataset_state', and this is None."),
        ({"model": 1}, "StatefulDataLoader's state lacks 'dataset_state'."),
        (alone(None), "LoaderState: a saved state is a dict, and this is None."),
    ],
)  # fmt: skip
def test_a_loaders_state_that_is_not_between_two_batches_of_one_iteration_is_refused(state: Any, named: str) -> None:
    assert named in refused(LoaderState.from_stateful, state)


def places(tree: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of everything that is read within nested dicts."""
    found = [path] if path else []
    for name, value in tree.items() if isinstance(tree, Mapping) else ():
        if name not in ("_main_snapshot", "fetcher_state", "_iterator_finished", "_num_yielded"):
            found += places(value, (*path, name))
    return found


@pytest.mark.parametrize("good", [with_workers(PLAN, 2, 5, 1), alone(POSITION.to_dict())], ids=["workers", "alone"])
def test_anything_missing_or_of_another_type_in_a_loaders_state_is_a_state_mismatch(good: dict[str, Any]) -> None:
    for *path, name in places(good):
        for junk in ("missing", None, "7", -1, 0.5, [], {}, {"x": 1}, b"", True):
            state = copy.deepcopy(good)
            inner = state
            for step in path:
                inner = inner[step]
            if inner.pop(name) == junk and junk is not True:
                continue
            if junk != "missing":
                inner[name] = junk
            assert state == good or not refused(LoaderState.from_stateful, state).startswith("nothing"), (name, junk)
