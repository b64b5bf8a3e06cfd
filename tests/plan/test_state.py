"""LoaderState: small, plain, the same again after saving; and what it says when something does not match."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import plans
from plan.saved_states import message_of

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import BlockShuffle
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World

FIELDS = [
    *("version", "dataset", "split", "fingerprint", "num_examples", "read_mode", "is_training", "shuffle", "seed"),
    *("repeats", "remainder", "block_records", "window_blocks", "block_groups", "global_batch_size", "batch_size"),
    *("num_replicas", "num_workers", "epoch", "first_example", "batches_delivered", "checksum"),
]
MODES = ("index", "files", "examples")
DEAL_ANEW = " Or call load_state_dict(state, allow_batch_change=True), which deals the rest of the epoch anew."
PLANS = plans(max_examples=10**6, max_replicas=64, max_workers=16, max_batch_size=4096)


def training_plan(num_replicas: int = 2, batch_size: int = 32, num_workers: int = 2, **more: Any) -> EpochPlan:
    more = {"remainder": Remainder.WRAP, "shuffle": True, "is_training": True, **more}
    return EpochPlan(1000, World(0, num_replicas, 0, num_workers), batch_size, **more)


def evaluation_plan(num_replicas: int = 2, batch_size: int = 32, num_workers: int = 2, **more: Any) -> EpochPlan:
    world = World(0, num_replicas, 0, num_workers)
    return EpochPlan(1000, world, batch_size, **{"remainder": EpochPlan.default_remainder(False, world), **more})


def state_of(plan: EpochPlan, read_mode: str = "index", **more: Any) -> LoaderState:
    more = {"epoch": 3, "batches_delivered": 7, "num_workers": plan.world.num_workers, **more}
    more = {"dataset": "digits/full:1.0.0", "split": "train", "fingerprint": "0123456789abcdef", **more}
    return LoaderState.of(plan, read_mode=read_mode, **more)


def sealed(state: LoaderState, **changes: Any) -> LoaderState:
    """A state whose checksum fits the changes: what another dataset would have saved."""
    return replace(state, **changes)._sealed()


def check_fits(state: LoaderState, here: LoaderState) -> None:
    LoaderState.load(state.to_dict(), here)


STATE = state_of(training_plan(blocks=BlockShuffle(64, 4)))


# Saving and reading again.


@settings(max_examples=60, deadline=None)
@given(PLANS, st.sampled_from(MODES), st.none() | st.integers(1, 64), st.integers(0, 10**6), st.data())
def test_a_state_is_the_same_after_saving(
    plan: EpochPlan, read_mode: str, num_workers: int | None, epoch: int, data: st.DataObject
) -> None:
    delivered = data.draw(st.integers(0, plan.num_batches))
    state = state_of(plan, read_mode, num_workers=num_workers, epoch=epoch, batches_delivered=delivered)
    assert LoaderState.from_json(state.to_json()) == LoaderState.from_json(state.to_json().encode()) == state
    assert LoaderState.from_dict(state.to_dict()) == LoaderState.load(state.to_dict(), state) == state
    assert state.num_batches == plan.num_batches
    assert len(state.to_json()) < 700


def test_a_state_holds_plain_values_under_known_names() -> None:
    saved = STATE.to_dict()
    assert list(saved) == FIELDS
    assert saved == json.loads(STATE.to_json())
    assert {name: saved[name] for name in FIELDS[:-1]} == {
        "version": 3,
        "dataset": "digits/full:1.0.0",
        "split": "train",
        "fingerprint": "0123456789abcdef",
        "num_examples": 1000,
        "read_mode": "index",
        "is_training": True,
        "shuffle": True,
        "seed": 42,
        "repeats": 1,
        "remainder": "wrap",
        "block_records": 64,
        "window_blocks": 4,
        "block_groups": None,
        "global_batch_size": 64,
        "batch_size": 32,
        "num_replicas": 2,
        "num_workers": 2,
        "epoch": 3,
        "first_example": 0,
        "batches_delivered": 7,
    }


def test_the_layout_never_changes_within_a_version() -> None:
    assert STATE.checksum == "c385953a"


def test_a_state_is_the_same_on_every_rank_and_worker() -> None:
    plan = training_plan()
    assert len({state_of(replace(plan, world=world)).to_json() for world in World.grid(2, 2)}) == 1


def test_a_rank_that_reads_by_itself_counts_as_one_worker() -> None:
    assert state_of(training_plan(), num_workers=0) == state_of(training_plan(), num_workers=1)


def test_block_sizes_are_left_out_where_nothing_is_shuffled() -> None:
    state = state_of(training_plan(shuffle=False, blocks=BlockShuffle(64, 4)))
    assert (state.block_records, state.window_blocks) == (None, None)


def test_at_moves_within_the_epoch() -> None:
    assert STATE.at(16) == state_of(training_plan(blocks=BlockShuffle(64, 4)), batches_delivered=16)
    with pytest.raises(ConfigError) as caught:
        STATE.at(17)
    assert str(caught.value) == "batches_delivered=17 must be in 0..16: each rank has 16 batches in an epoch."


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"epoch": -1}, "epoch=-1 must be an integer >= 0."),
        ({"batches_delivered": 1.0}, "batches_delivered=1.0 must be an integer >= 0."),
        ({"num_workers": -1}, "num_workers=-1 must be an integer >= 0."),
        ({"read_mode": "auto"}, "read_mode='auto' must be one of 'index', 'files', 'examples'."),
    ],
)
def test_a_state_of_nothing_is_a_config_error(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        state_of(training_plan(), **more)
    assert str(caught.value) == message


def test_a_number_of_workers_below_one_is_a_config_error() -> None:
    with pytest.raises(ConfigError) as caught:
        STATE.with_workers(0)
    assert str(caught.value) == "num_workers=0 must be an integer >= 1."


# Damaged, tampered, foreign.

PLAUSIBLE: dict[str, list[Any]] = {
    "version": [0, 1, 2, 99],
    "dataset": ["digits/full:1.0.1", ""],
    "split": ["test", "train[:50%]"],
    "fingerprint": ["0123456789abcdee", "", "x" * 10**4],
    "num_examples": [999, 1001, 0, 10**30, 10**5000],
    "read_mode": ["files", "examples"],
    "is_training": [False],
    "shuffle": [False],
    "seed": [41, 43, 0, 2**64, 10**4000],
    "repeats": [2, 3],
    "remainder": ["drop", "pad", "keep"],
    "block_records": [None, 63, 1, 10**40],
    "window_blocks": [None, 5, 10**40],
    "block_groups": [2, 10**40],
    "global_batch_size": [63, 65, 32, 128, 1, 10**30],
    "batch_size": [31, 64, 1, 10**30],
    "num_replicas": [1, 3, 4, 10**30],
    "num_workers": [None, 1, 3, 10**9],
    "epoch": [2, 4, 0, 10**30],
    "first_example": [1, 64, 1000, 1001, 10**30],
    "batches_delivered": [6, 8, 0, 16, 17, 10**30],
    "checksum": ["00000000", "", "x" * 10**4],
}
WRONG: list[Any] = [-1, 0.5, 7.0, float("nan"), "7", "", None, True, [], {}, [1], {"a": 1}, b"x"]


def changed(state: LoaderState, name: str, value: object) -> dict[str, Any] | None:
    saved = state.to_dict()
    if type(saved[name]) is type(value) and saved[name] == value:
        return None
    return {**saved, name: value}


def said(load: Callable[..., object], *arguments: object) -> str:
    """Returns what the mismatch is that a call raises; "nothing" where it raises none."""
    try:
        load(*arguments)
    except StateMismatchError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("read_mode", MODES)
def test_every_changed_field_is_named(read_mode: str) -> None:
    plans = (training_plan(), training_plan(blocks=BlockShuffle(64, 4)), evaluation_plan(), evaluation_plan(1, 64))
    wrong = []
    for name, state in itertools.product(FIELDS, [state_of(plan, read_mode) for plan in plans]):
        for value in PLAUSIBLE[name] + WRONG:
            if (tampered := changed(state, name, value)) is not None:
                message, alone = said(LoaderState.load, tampered, state), said(LoaderState.from_dict, tampered)
                if name not in message or len(message) >= 2500 or alone == "nothing":
                    wrong.append((name, value, message, alone))
    assert not wrong, str(wrong)


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=1)
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FIELDS), ANYTHING, st.sampled_from(MODES))
def test_any_other_value_of_any_field_is_named(name: str, value: object, read_mode: str) -> None:
    state = state_of(training_plan(blocks=BlockShuffle(64, 4)), read_mode)
    if (tampered := changed(state, name, value)) is not None:
        assert name in message_of(LoaderState.load, tampered, state)
        message_of(LoaderState.from_dict, tampered)


def test_every_missing_field_is_named() -> None:
    found, expected = {}, {}
    for name in FIELDS:
        saved = STATE.to_dict()
        del saved[name]
        found[name] = (said(LoaderState.from_dict, saved), said(LoaderState.load, saved, STATE))
        expected[name] = (f"This is not a valid LoaderState. It lacks {name!r}. Load the state as it was saved.",) * 2
    assert found == expected


def test_an_unknown_field_is_named() -> None:
    assert message_of(LoaderState.from_dict, {**STATE.to_dict(), "colour": 1}) == (
        "This is not a valid LoaderState. It has 'colour', which no LoaderState has. Load the state as it was saved."
    )
    renamed = STATE.to_dict()
    renamed["sead"] = renamed.pop("seed")
    assert message_of(LoaderState.from_dict, renamed) == (
        "This is not a valid LoaderState. It lacks 'seed'. It has 'sead', which no LoaderState has. Did you mean "
        "'seed'? Load the state as it was saved."
    )
    many = {**STATE.to_dict(), **{f"x{n}": n for n in range(9)}, 5: 5}  # type: ignore[misc]
    assert "'x0', 'x1', 'x2', 'x3', 'x4' and others" in message_of(LoaderState.from_dict, many)


@pytest.mark.parametrize("state", [None, 3, "state", [1], STATE], ids=lambda state: type(state).__name__)
def test_what_is_no_dict_is_no_state(state: object) -> None:
    assert message_of(LoaderState.from_dict, state).startswith("LoaderState: a saved state is a dict, and this is ")


def test_states_of_other_kinds_are_recognised() -> None:
    assert message_of(LoaderState.from_dict, {"_snapshot": {}, "_steps_since_snapshot": 0}) == (
        "This is the state of a StatefulDataLoader, not of its dataset: give it to the loader's load_state_dict, or "
        "make a state free of its workers with LoaderState.from_stateful(state)."
    )
    assert message_of(LoaderState.from_dict, {"worker": 0, "began_at": {}}) == (
        "This is the position of one worker, not the state of a loader: LoaderState.from_stateful takes the positions "
        "of all workers out of a StatefulDataLoader's state."
    )


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (4, "LoaderState: version=4 was saved by a later release, and this one reads version 3: install the release "
            "that saved it."),
        (1, "LoaderState: version=1 was saved by an earlier release, and this one reads version 3: begin the epoch "
            "anew, or end it with the release that saved it."),
    ],
)  # fmt: skip
def test_another_version_is_said_before_anything_else(version: int, message: str) -> None:
    other = {"version": version, "what": "another layout"}
    assert message_of(LoaderState.from_dict, other) == message_of(LoaderState.load, other, STATE) == message


def test_a_text_cut_anywhere_is_refused() -> None:
    text = STATE.to_json()
    for end in range(len(text)):
        assert message_of(LoaderState.from_json, text[:end]).startswith("LoaderState: this text is not JSON (")
    assert message_of(LoaderState.from_json, b"\xff\xfe\x00").startswith("LoaderState: this text is not JSON (")
    assert message_of(LoaderState.from_json, "[1]").startswith("LoaderState: a saved state is a dict, and this is [1].")


def test_a_text_with_any_character_changed_is_refused() -> None:
    text = STATE.to_json()
    for place, old in enumerate(text):
        for new in "0 x":
            damaged = text[:place] + new + text[place + 1 :]
            if old not in " 0" + new or (old == "0" and new != "0"):
                message_of(LoaderState.from_json, damaged)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", "42", "LoaderState: seed='42' must be an integer >= 0. Load the state as it was saved."),
        ("seed", 2**5000, "LoaderState: seed=<an integer of 5001 bits> must be an integer >= 0. Load the state as it "
                          "was saved."),
        ("shuffle", 1, "LoaderState: shuffle=1 must be True or False. Load the state as it was saved."),
        ("dataset", None, "LoaderState: dataset=None must be a text. Load the state as it was saved."),
        ("num_workers", 0, "LoaderState: num_workers=0 must be an integer >= 1 or None. Load the state as it was "
                           "saved."),
        ("read_mode", "stream", "LoaderState: read_mode='stream' must be one of 'index', 'files', 'examples'. Load the "
                                "state as it was saved."),
        ("batch_size", 16, "LoaderState: global_batch_size=64 must be num_replicas=2 x batch_size=16. Load the state "
                           "as it was saved."),
        ("window_blocks", None, "LoaderState: block_records=64 and window_blocks=None must both be numbers or both "
                                "None. Load the state as it was saved."),
        ("batches_delivered", 17, "LoaderState: batches_delivered=17 must be in 0..16, the batches of an epoch. Load "
                                  "the state as it was saved."),
        ("is_training", False, "LoaderState: its fields describe no epoch. remainder='wrap' in evaluation would count "
                               "examples twice. Use 'pad', 'keep' or 'drop'."),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_are_said(name: str, value: object, message: str) -> None:
    assert message_of(LoaderState.from_dict, {**STATE.to_dict(), name: value}) == message


def test_a_changed_epoch_is_named_among_what_cannot_be_compared() -> None:
    here = state_of(training_plan())
    tampered = {**here.to_dict(), "epoch": 4}
    expected = replace(here, epoch=4)._sealed().checksum
    assert message_of(LoaderState.load, tampered, here) == (
        f"LoaderState: checksum='{here.checksum}' does not fit its fields, which give '{expected}'. One of epoch=4, "
        f"first_example=0, batches_delivered=7, num_workers=2 or the checksum was changed after saving. Load the state "
        f"as it was saved."
    )


# Whether it fits.


def test_a_state_fits_where_it_was_saved_whatever_epoch_that_is_in() -> None:
    check_fits(STATE, STATE.at(0))
    check_fits(STATE, sealed(STATE, epoch=9))


@pytest.mark.parametrize(("num_replicas", "batch_size"), [(1, 64), (2, 32), (4, 16), (64, 1)])
@pytest.mark.parametrize("num_workers", [None, 1, 5])
def test_index_mode_continues_in_any_world_with_the_same_global_batch(
    num_replicas: int, batch_size: int, num_workers: int | None
) -> None:
    here = state_of(training_plan(num_replicas, batch_size), num_workers=num_workers)
    assert LoaderState.load(state_of(training_plan()).to_dict(), here) == state_of(training_plan())


@pytest.mark.parametrize("read_mode", ["index", "examples"])
def test_keep_and_pad_continue_each_other(read_mode: str) -> None:
    keep = state_of(evaluation_plan(1, 64), read_mode)
    pad = state_of(evaluation_plan(1, 64, remainder=Remainder.PAD), read_mode)
    check_fits(keep, pad)
    check_fits(pad, keep)


@pytest.mark.parametrize("remainder", [Remainder.KEEP, Remainder.PAD])
def test_evaluation_that_drops_the_last_batch_does_not_continue_one_that_reads_it(remainder: Remainder) -> None:
    whole = state_of(evaluation_plan(1, 64, remainder=remainder))
    cut = state_of(evaluation_plan(1, 64, remainder=Remainder.DROP))
    found = f"The state does not fit this dataset. remainder: '{remainder.value}' in the state, 'drop' here."
    assert message_of(check_fits, whole, cut).startswith(found)
    assert message_of(check_fits, cut, whole).startswith("The state does not fit this dataset. remainder: 'drop' in ")


def test_evaluation_on_several_ranks_continues_on_one() -> None:
    check_fits(state_of(evaluation_plan(2, 32)), state_of(evaluation_plan(1, 64)))
    check_fits(state_of(evaluation_plan(1, 64)), state_of(evaluation_plan(4, 16)))


@pytest.mark.parametrize(
    ("num_replicas", "batch_size", "message"),
    [
        (4, 32, "global_batch_size: 64 in the state (2 ranks x batch_size 32), 128 here (4 ranks x batch_size 32). "
                "With 4 ranks, batch_size=16 continues it."),
        (3, 32, "global_batch_size: 64 in the state (2 ranks x batch_size 32), 96 here (3 ranks x batch_size 32). "
                "64 does not divide among 3 ranks; these numbers of ranks continue it: 1, 2, 4, 8."),
        (12, 7, "global_batch_size: 64 in the state (2 ranks x batch_size 32), 84 here (12 ranks x batch_size 7). "
                "64 does not divide among 12 ranks; these numbers of ranks continue it: 1, 2, 4, 8, 16, 32."),
    ],
)  # fmt: skip
def test_another_global_batch_names_both_and_what_would_do(num_replicas: int, batch_size: int, message: str) -> None:
    here = state_of(training_plan(num_replicas, batch_size), batches_delivered=0)
    found = message_of(check_fits, state_of(training_plan()), here)
    assert found == f"The state does not fit this dataset. {message}{DEAL_ANEW}"


def test_numbers_of_ranks_up_to_four_times_ours_are_named() -> None:
    stored, here = (state_of(plan, batches_delivered=0) for plan in (training_plan(1, 14), training_plan(3, 32)))
    assert "these numbers of ranks continue it: 1, 2, 7." in message_of(check_fits, stored, here)


def test_of_many_numbers_of_ranks_the_eight_nearest_are_named() -> None:
    stored, here = (state_of(plan, batches_delivered=0) for plan in (training_plan(1, 5040), training_plan(11, 3)))
    found = message_of(check_fits, stored, here)
    assert found.endswith(f"these numbers of ranks continue it: 6, 7, 8, 9, 10, 12, 14, 15.{DEAL_ANEW}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "digits/full:2.0.0"}, "dataset: 'digits/full:1.0.0' in the state, 'digits/full:2.0.0' here. Open "
                                           "the dataset and version of the state."),
        ({"split": "test"}, "split: 'train' in the state, 'test' here. Pass split='train'."),
        ({"fingerprint": "f"}, "fingerprint: '0123456789abcdef' in the state, 'f' here. The files, or a mixture's "
                               "weights, or a subset's numbers, are not those that the state was saved with: open the "
                               "same ones (a dataset of your own with the same version=, a decoded cache with the "
                               "same max_resolution)."),
        ({"num_examples": 999}, "num_examples: 1000 in the state, 999 here. Open the dataset with the examples, "
                                "and the epoch_size, that it had."),
        ({"read_mode": "files"}, "read_mode: 'index' in the state, 'files' here. Pass ReadOptions(mode='index')."),
        ({"is_training": False}, "is_training: True in the state, False here. Pass is_training=True."),
        ({"shuffle": False}, "shuffle: True in the state, False here. Pass shuffle=True."),
        ({"seed": 7}, "seed: 42 in the state, 7 here. Pass seed=42."),
        ({"repeats": 2}, "repeats: 1 in the state, 2 here. Pass repeats=1."),
        ({"remainder": "drop"}, "remainder: 'wrap' in the state, 'drop' here. Pass remainder='wrap'."),
        ({"block_records": 8}, "block_records: 64 in the state, 8 here. Pass ReadOptions(block_records=64)."),
        ({"window_blocks": 3}, "window_blocks: 4 in the state, 3 here. A window is shuffle_buffer // block_records "
                               "blocks: the state had 256 examples."),
    ],
)  # fmt: skip
def test_every_difference_names_both_values_and_the_remedy(changes: dict[str, Any], message: str) -> None:
    assert message_of(check_fits, STATE, replace(STATE, **changes)) == f"The state does not fit this dataset. {message}"


def test_all_differences_are_named_at_once() -> None:
    found = message_of(check_fits, STATE, replace(STATE, seed=7, split="test"))
    assert found == (
        "The state does not fit this dataset. split: 'train' in the state, 'test' here. Pass split='train'. "
        "seed: 42 in the state, 7 here. Pass seed=42."
    )


@pytest.mark.parametrize("read_mode", ["files", "examples"])
@pytest.mark.parametrize(
    ("world", "named"),
    [
        ((4, 16, 2), ["num_replicas: 2", "batch_size: 32"]),
        ((2, 32, 3), ["num_workers: 2"]),
        ((2, 16, 2), ["batch_size: 32"]),
    ],
)
def test_a_stream_continues_in_the_same_world_only(
    read_mode: str, world: tuple[int, int, int], named: list[str]
) -> None:
    found = message_of(check_fits, state_of(training_plan(), read_mode), state_of(training_plan(*world), read_mode))
    remedy = f"Read mode '{read_mode}' goes on in the same world only; 'index' in others too."
    assert found.count(remedy) == len(named)
    for words in named:
        assert f"{words} in the state, " in found


@pytest.mark.parametrize("read_mode", ["files", "examples"])
@pytest.mark.parametrize("batches_delivered", [1, 2, training_plan().num_batches])
def test_a_stream_needs_as_many_workers_from_its_first_batch_on(read_mode: str, batches_delivered: int) -> None:
    stored = state_of(training_plan(), read_mode, batches_delivered=batches_delivered)
    assert message_of(check_fits, stored, state_of(training_plan(num_workers=3), read_mode)) == (
        f"The state does not fit this dataset. num_workers: 2 in the state, 3 here. Read mode '{read_mode}' goes on in "
        f"the same world only; 'index' in others too."
    )


@pytest.mark.parametrize("read_mode", ["files", "examples"])
def test_a_streams_workers_do_not_matter_before_its_first_batch_or_when_unknown(read_mode: str) -> None:
    here = state_of(training_plan(num_workers=3), read_mode)
    check_fits(state_of(training_plan(), read_mode, batches_delivered=0), here)
    check_fits(state_of(training_plan(), read_mode, num_workers=None), here)
    check_fits(state_of(training_plan(), read_mode), state_of(training_plan(), read_mode, num_workers=None))
