"""MultiLoader over functions and iterables: what comes, in which order, and what is left behind."""

import gc
import logging
import os
import pickle
import random
from collections.abc import Callable
from functools import partial
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_folders import OTHER_USER, give_away

from loaders import sources
from loaders.sources import NUM_ITEMS, Open, Whole, equal, every_kind
from tfds_torch import MultiLoader, World
from tfds_torch.errors import ConfigError

slow = pytest.mark.slow
TRANSPORTS = ["shared", "zmq"]
METHODS = ["fork", pytest.param("spawn", marks=slow), pytest.param("forkserver", marks=slow)]
OTHER_STARTS = (
    (False, "spawn", "shared"),
    (True, "spawn", "zmq"),
    (True, "forkserver", "shared"),
    (False, "forkserver", "zmq"),
)
load = partial(MultiLoader, timeout_s=60.0)
AreGone = Callable[[list[int]], bool]
NewChildren = Callable[[], set[BaseProcess]]


@pytest.mark.parametrize(
    ("persistent", "method", "transport"),
    [
        *product((False, True), ("fork",), TRANSPORTS),
        *(
            pytest.param(*case, marks=slow if case in OTHER_STARTS else pytest.mark.campaign)
            for case in product((False, True), ("spawn", "forkserver"), TRANSPORTS)
        ),
    ],
)
def test_workers_take_turns_in_every_epoch(method: str, transport: str, persistent: bool) -> None:
    with load(sources.numbers, 3, start_method=method, transport=transport, persistent_workers=persistent) as loader:
        pids = []
        for _ in range(2):
            iteration = iter(loader)
            pids.append(loader.worker_pids)
            assert list(iteration) == list(range(NUM_ITEMS))
    assert (pids[0] == pids[1]) == persistent


@pytest.mark.parametrize("num_workers", [1, 2, 5, 13])
def test_the_order_does_not_depend_on_the_number_of_workers(num_workers: int) -> None:
    assert list(load(sources.numbers, num_workers)) == list(range(NUM_ITEMS))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_kind_of_item_arrives_with_its_types(transport: str) -> None:
    came = list(load(sources.all_kinds, 1, transport=transport))
    assert len(came) == len(every_kind())
    assert all(map(equal, came, every_kind()))


def test_arrays_can_be_changed_and_are_of_the_consumer_alone() -> None:
    kept = [item["array"] for item, _ in zip(load(sources.endless, 2), range(40), strict=False)]
    for number, array in enumerate(kept):  # More than there are slots.
        assert (array == number).all()
        array += 1
    assert all((array == number + 1).all() for number, array in enumerate(kept))


def test_out_of_order_everything_comes_once_and_nobody_waits_for_the_slow(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    iteration = iter(load(partial(sources.numbers_after, gate), 2, in_order=False, prefetch_batches=8))
    came = [next(iteration) for _ in range(NUM_ITEMS // 2 + 1)]
    assert sorted(came) == sorted([*range(0, NUM_ITEMS, 2), 1]), "worker 1 still waits"
    gate.touch()
    assert list(iteration) == list(range(3, NUM_ITEMS, 2))


def test_workers_learn_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(load(sources.places, 2)) == [((2, 3, 0, 2), "0", "2"), ((2, 3, 1, 2), "1", "2")]
    assert list(load(sources.places, 1, world=World(0, 5))) == [((0, 5, 0, 1), "0", "1")]
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="sets RANK=2 but not WORLD_SIZE"):
        load(sources.places)


def test_an_iterable_is_read_whole_by_every_worker_with_a_warning() -> None:
    loader = load(Whole(), 2)
    with pytest.warns(UserWarning, match="Workers 0 and 1 began with the same 3 items of Whole: .*takes a World"):
        assert list(loader) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(loader) == [0, 0, 1, 1, 2, 2, 3, 3]  # Without a second warning, which would be an error here.
    assert list(load(Whole(), 1)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "source",
    [
        lambda world: range(world.worker, 20, world.num_workers),
        lambda world: [np.zeros(3)] * 10,
        lambda world: [0, 1, 2 + world.worker, 4],
        lambda world: [0, 1],
    ],
    ids=["dealt out", "all alike", "two headers", "two items"],
)
def test_items_that_are_dealt_out_or_all_alike_are_not_warned_of(source: Any) -> None:
    assert len(list(load(source, 2))) > 3  # A warning would be an error here.


def test_a_function_that_ignores_its_world_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="Workers 0 and 1 began with the same 3 items of .*: where each of them"):
        assert len(list(load(lambda world: [{"x": np.full(5000, number)} for number in range(4)], 2))) == 8


def test_workers_draw_numbers_of_their_own_which_come_again() -> None:
    random.seed(0)
    state = random.getstate()
    loader = load(sources.draws, 3)
    first, second = list(loader), list(loader)
    loader.set_epoch(0)
    assert list(loader) == first
    assert len({number for pair in first + second for number in pair}) == 12
    assert random.getstate() == state


def test_iterations_live_side_by_side_where_that_is_asked_for(are_gone: AreGone) -> None:
    with load(sources.numbers, 2, concurrent=True) as loader:
        pairs = zip(loader, loader, strict=True)
        assert next(pairs) == (0, 0)
        pids = loader.worker_pids
        assert len(set(pids)) == 4
        assert list(pairs) == [(number, number) for number in range(1, NUM_ITEMS)]
    assert are_gone(pids)


def test_a_new_iteration_ends_the_one_before(are_gone: AreGone) -> None:
    with load(sources.numbers, 2) as loader:
        first = iter(loader)
        assert next(first) == 0
        pids = loader.worker_pids
        assert list(loader) == list(range(NUM_ITEMS))
        with pytest.raises(ConfigError, match="This iteration ended when another one of the same loader began"):
            next(first)
    assert are_gone(pids)


@pytest.mark.parametrize(
    ("how", "transport"),
    [
        pytest.param(how, transport, marks=slow if transport == "zmq" and how != "drop the loader" else ())
        for how, transport in product(("break", "drop the loader", "close", "kill", "an error"), TRANSPORTS)
    ],
)
def test_an_iteration_that_is_given_up_leaves_no_process_and_no_socket(
    how: str, transport: str, sockets: Path, are_gone: AreGone, new_children: NewChildren
) -> None:
    where: dict[str, Any] = {"socket_dir": sockets} if transport == "zmq" else {}
    loader = load(sources.endless, 2, transport=transport, **where)
    iteration = iter(loader)
    assert next(iteration)["number"] == 0
    pids = loader.worker_pids
    assert len(pids) == 2
    if how == "drop the loader":
        del loader
    elif how == "close":
        loader.close()
    elif how == "kill":
        loader.kill()
        assert next(iter(loader))["number"] == 0, "it can begin anew"
        loader.close()
    elif how == "an error":
        with pytest.raises(ZeroDivisionError):
            [1 / 0 for _ in iteration]
    del iteration
    gc.collect()
    assert are_gone(pids)
    assert new_children() == set()


def test_persistent_workers_go_on_after_a_break_and_end_with_the_loader(are_gone: AreGone) -> None:
    loader = load(sources.endless, 2, persistent_workers=True)
    for _ in range(3):
        assert [item["number"] for item, _ in zip(loader, range(3), strict=False)] == [0, 1, 2]
    pids = loader.worker_pids
    assert len(pids) == 2
    del loader
    gc.collect()
    assert are_gone(pids)


def test_a_closed_loader_cannot_be_iterated() -> None:
    loader = load(sources.numbers)
    with loader:
        pass
    with pytest.raises(ConfigError, match="closed: make a new one"):
        iter(loader)


def test_workers_read_no_further_ahead_than_they_may(tmp_path: Path) -> None:
    loader = load(partial(_noting, str(tmp_path)), 2, prefetch_batches=3)
    iteration = iter(loader)
    assert [next(iteration), next(iteration)] == [0, 1]
    # Both were handed over before the third is allowed; what is made meanwhile cannot exceed these.
    made = len(list(tmp_path.iterdir()))
    assert 2 <= made <= 2 + 2 * 3
    rest = list(iteration)
    assert rest == list(range(2, NUM_ITEMS))


def _noting(folder: str, world: World) -> Any:
    for number in sources.numbers(world):
        (Path(folder) / str(number)).touch()
        yield number


def test_stats_count_by_stage_and_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loader = load(sources.numbers, 2, verbose=True)
    list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.examples) == (NUM_ITEMS, NUM_ITEMS)
    assert [worker.batches for worker in stats.workers] == [6, 6]
    assert stats.fetch_s > 0
    assert stats.waiting_s > 0
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("tfds_torch")]
    assert messages[0].startswith("numbers: 2 workers, pids [")
    assert messages[-1].startswith(f"numbers: {NUM_ITEMS} batches")


@pytest.mark.parametrize("name", ["source", "num_workers", "world", "in_order", "transport", "fields"])
def test_an_assignment_that_would_have_no_effect_is_an_error(name: str) -> None:
    loader = load(Whole(), 1)
    with pytest.raises(ConfigError, match=rf"^MultiLoader\.{name} cannot be set.* with {name}=7\.$"):
        setattr(loader, name, 7)


def test_a_loader_travels_as_its_arguments() -> None:
    copy = pickle.loads(pickle.dumps(load(sources.numbers, 3, world=World(0, 1))))
    assert list(copy) == list(range(NUM_ITEMS))
    assert repr(copy) == "MultiLoader(numbers, num_workers=3)"


def test_what_only_a_parser_has_is_refused_elsewhere() -> None:
    loader = load(sources.numbers)
    with pytest.raises(TypeError, match="has no length: only a Parser plans one"):
        len(loader)
    for call in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(ConfigError, match="has a state over a Parser only"):
            call()
    with pytest.raises(ConfigError, match=r"fields=.* are for a Parser"):
        load(sources.numbers, fields=("image",))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_source_that_cannot_be_pickled_is_named(method: str, new_children: NewChildren) -> None:
    message = rf"^MultiLoader: function\.lock = a lock cannot be pickled .* started by '{method}' .* by fork\.$"
    with pytest.raises(ConfigError, match=message):
        iter(load(Open(), 2, start_method=method))
    with pytest.raises(ConfigError, match=r"^MultiLoader: function = .*<lambda> cannot be pickled"):
        iter(load(lambda world: [1], 1, start_method=method))
    assert new_children() == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_workers": 0}, "num_workers=0 must be an integer in 1..1024"),
        ({"num_workers": -1}, "num_workers=-1 must be"),
        ({"num_workers": "2"}, "num_workers='2' must be"),
        ({"prefetch_batches": 0}, "prefetch_batches=0 must be"),
        ({"timeout_s": 0}, "timeout_s=0 must be a number of seconds > 0"),
        ({"timeout_s": True}, "timeout_s=True must be"),
        ({"in_order": 1}, "in_order=1 must be True or False"),
        ({"verbose": "yes"}, "verbose='yes' must be True or False"),
        ({"world": (0, 2)}, r"world=\(0, 2\) must be a World"),
        ({"start_method": "frok"}, r"start_method='frok' must be one of .* Did you mean 'fork'\?"),
        ({"transport": "share"}, r"transport='share' must be one of .* Did you mean 'shared'\?"),
        ({"socket_dir": 3, "transport": "zmq"}, "socket_dir=3 must be the path of a folder"),
        ({"socket_dir": "/nowhere/at/all"}, "cannot be used: No such file"),
        ({"socket_dir": os.devnull}, "cannot be used: Not a directory"),
        ({"socket_dir": "/tmp", "transport": "shared"}, "socket_dir has no effect with transport='shared'"),
        ({"concurrent": True, "persistent_workers": True}, "exclude each other"),
        ({"source": "photos"}, r"source is 'photos' \(str\), which is not a source of items"),
        ({"source": iter([1])}, "can be read once only"),
        ({"source": 7}, r"source is 7 \(int\)\. It must be a Parser"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MultiLoader(**{"source": sources.numbers, **arguments})


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    for mode in (0o770, 0o777, 0o1777):
        tmp_path.chmod(mode)
        with pytest.raises(
            ConfigError, match=rf"not this user's own: others can write to it \(mode {mode:o}\)\. .*chmod go-w"
        ):
            load(sources.numbers, socket_dir=tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=rf"it belongs to user {OTHER_USER}, and this process runs as user"):
        load(sources.numbers, socket_dir=tmp_path)


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="a path that is too long for sockets"):
        iter(load(sources.numbers, transport="zmq", socket_dir=folder))
    assert list(folder.iterdir()) == []


def test_without_pyzmq_its_transport_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"needs pyzmq, .* pip install 'tfds-torch\[zmq\]'"):
        load(sources.numbers, transport="zmq")
    assert list(load(sources.numbers, 2)) == list(range(NUM_ITEMS)), "the other needs nothing"


def test_without_shared_memory_sockets_carry_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert list(load(sources.numbers, 2)) == list(range(NUM_ITEMS))
    with pytest.raises(ConfigError, match=r"transport='shared' needs shared memory, and this system has none"):
        iter(load(sources.numbers, 2, transport="shared"))


@slow
def test_what_broken_off_iterations_left_is_taken_from_workers_whose_turn_never_came() -> None:
    # As who looks at one batch in every step does: a worker that is not listened to reads no orders in the end.
    with load(sources.numbers, 2, transport="shared", persistent_workers=True) as loader:
        assert [next(iter(loader)) for _ in range(4000)] == [0] * 4000


def test_where_jax_was_imported_workers_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfds_torch.loaders.pool import find_start_method

    assert find_start_method(None)[0] == "fork"
    monkeypatch.setitem(__import__("sys").modules, "jax", np)
    assert find_start_method(None)[0] == "forkserver"
    assert find_start_method("fork")[0] == "fork"
