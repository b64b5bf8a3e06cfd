"""The promises of PlainEpochs, with threads and processes but without data."""

import copy
import multiprocessing
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pytest

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.cursor import Start
from tfds_torch.torch_data import plain_epochs
from tfds_torch.torch_data.plain_epochs import _NUM_OWNERS, PlainEpochs

NUM_REMEMBERED = 16
SPAWN = pytest.param("spawn", marks=pytest.mark.slow)
METHODS = ("fork", SPAWN, pytest.param("forkserver", marks=pytest.mark.slow))

StartWorker = Callable[..., "Worker"]


class Progress(NamedTuple):
    """What a counter reports of the latest iteration, or where none has begun of the next one."""

    start: Start
    num_workers: int | None
    num_produced: int
    knows_delivered: bool = False
    loaded_workers: int | None = None


def progress_of(counter: PlainEpochs) -> Progress:
    count = counter.current()
    latest = count.position()
    if count.has_begun:
        return Progress(latest.start, latest.num_workers, count.num_produced, count.knows_delivered)
    return Progress(latest.start, None, latest.start.start_batch, loaded_workers=latest.num_workers)


class Worker:
    """A process with a counter, as a loader's worker has it; `begin` begins iterations there, one at a time."""

    def __init__(self, method: str, counter: PlainEpochs, seed: int | None, worker: int) -> None:
        context: Any = multiprocessing.get_context(method)
        self._ours, theirs = context.Pipe()
        self.process = context.Process(target=_count, args=(theirs, counter, seed, worker), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, times: int = 1) -> list[int]:
        self._ours.send(times)
        return self._ours.recv()

    def close(self) -> None:
        self._ours.send(0)
        self.process.join()
        self._ours.close()


def _count(requests: Connection, counter: PlainEpochs, seed: int | None, worker: int) -> None:
    while times := requests.recv():
        requests.send([begin_epoch(counter, seed, worker) for _ in range(times)])


def begin_epoch(counter: PlainEpochs, seed: int | None, worker: int = 0) -> int:
    """Begins an iteration, of a worker where there is a loader's seed, and returns its epoch."""
    start = counter.begin(seed, 0 if seed is None else 2, worker)
    assert start == Start(start.epoch)
    return start.epoch


@pytest.fixture
def start():
    """`start(method, counter, seed)` starts a worker that ends with the test, the next one of its seed."""
    workers: list[Worker] = []
    started: Counter[int | None] = Counter()

    def start_one(method: str, counter: PlainEpochs, seed: int | None) -> Worker:
        workers.append(Worker(method, counter, seed, started[seed]))
        started[seed] += 1
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.close()


def test_iterations_outside_of_workers_count_up_from_0() -> None:
    counter = PlainEpochs()
    assert [begin_epoch(counter, None) for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_an_unseen_loader_seed_advances_once_for_any_number_of_workers(num_workers: int, start: StartWorker) -> None:
    counter = PlainEpochs()
    for epoch, seed in enumerate((1000, 7, 2**63 - 1)):
        workers = [start("fork", counter, seed) for _ in range(num_workers)]
        assert [worker.begin() for worker in workers] == [[epoch]] * num_workers


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_every_start_method_share_the_count(method: str, start: StartWorker) -> None:
    counter = PlainEpochs()
    assert begin_epoch(counter, None) == 0
    assert [start(method, counter, 11).begin() for _ in range(2)] == [[1], [1]]
    assert start(method, counter, 22).begin() == [2]
    assert begin_epoch(counter, None) == 3


@pytest.mark.parametrize("method", ["fork", SPAWN])
def test_persistent_workers_count_their_own_iterations_from_their_first_epoch(method: str, start: StartWorker) -> None:
    counter = PlainEpochs()
    assert [begin_epoch(counter, None) for _ in range(2)] == [0, 1]
    first, second = start(method, counter, 11), start(method, counter, 11)
    assert first.begin(3) == [2, 3, 4]
    assert second.begin(3) == [2, 3, 4]  # However far the other one is ahead.
    assert [first.begin(), second.begin()] == [[5], [5]]


def test_workers_that_begin_in_any_order_agree(start: StartWorker) -> None:
    counter = PlainEpochs()
    workers = [start("fork", counter, 11) for _ in range(3)]
    begun: list[list[int]] = [[], [], []]
    for turn in (0, 0, 2, 1, 2, 0, 1, 1, 2):
        begun[turn] += workers[turn].begin()
    assert begun == [[0, 1, 2]] * 3


def test_a_worker_that_begins_late_still_belongs_to_its_own_iteration(start: StartWorker) -> None:
    counter = PlainEpochs()
    late = start("fork", counter, 11)
    assert start("fork", counter, 11).begin() == [0]
    assert start("fork", counter, 22).begin() == [1]
    assert late.begin() == [0]


def test_two_loaders_that_take_turns_share_the_count(start: StartWorker) -> None:
    counter = PlainEpochs()
    # Without persistent workers every iteration has new workers and a new seed, whichever loader it belongs to.
    begun = [start("fork", counter, seed).begin() for seed in (100, 200, 101, 201) for _ in range(2)]
    assert begun == [[0], [0], [1], [1], [2], [2], [3], [3]]


@pytest.mark.parametrize("seed", [None, 22])
def test_a_loader_after_persistent_workers_begins_a_new_epoch(seed: int | None, start: StartWorker) -> None:
    counter = PlainEpochs()
    workers = [start("fork", counter, 11) for _ in range(2)]
    assert [worker.begin(3) for worker in workers] == [[0, 1, 2]] * 2
    assert start("fork", counter, seed).begin() == [3]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 70, 600])
def test_workers_that_begin_again_under_the_same_seed_begin_the_next_epoch(num_workers: int) -> None:
    counter = PlainEpochs()
    for epoch in range(4):  # As where torch.manual_seed is called with the same value before every epoch.
        begun = []
        for worker in range(num_workers)[:: -1 if epoch % 2 and num_workers < 600 else 1]:
            counter._forget_process()  # A new process each.
            begun.append(counter.begin(11, num_workers, worker))
        assert begun == [Start(epoch)] * num_workers


def begin_in_new_process(counter: PlainEpochs, seed: int, worker: int = 0) -> int:
    """As `begin_epoch` of a worker that has just started."""
    counter._forget_process()
    return begin_epoch(counter, seed, worker)


def test_workers_under_a_seed_that_was_drawn_before_begin_the_next_epoch() -> None:
    counter = PlainEpochs()
    seeds = [11, 22, 33, 11, 22, 22, 33]
    begun = [[begin_in_new_process(counter, seed, worker) for worker in range(2)] for seed in seeds]
    assert begun == [[epoch, epoch] for epoch in range(len(seeds))]


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_loaded_state_is_not_gone_on_from_again_under_the_same_seed(is_fixed: bool) -> None:
    counter = PlainEpochs()
    counter.load(Start(4, 3))
    if is_fixed:
        counter.set_epoch(4)
    begun = []
    for worker in (0, 1, 1, 0, 0, 1):
        counter._forget_process()  # A new process each.
        begun.append(counter.begin(11, 2, worker))
    later = [Start(4), Start(4)] if is_fixed else [Start(5), Start(6)]
    assert begun == [Start(4, 3)] * 2 + [later[0]] * 2 + [later[1]] * 2


def test_the_largest_count_fits_into_the_memory_that_is_shared() -> None:
    counter, most = PlainEpochs(), 2**62
    with counter._count(os.getpid()) as count:
        count.begin(512)
        count.load(Start(most, most - 1, most - 2), 512)
        count.num_loaded = most
        for number in range(NUM_REMEMBERED):
            for worker in range(512):
                count.remember(2**64 - 1 - number, Start(most - number, most - 3, most - 4), worker)
    assert vars(counter.current()) == vars(count)


def test_the_ring_remembers_the_latest_seeds_and_forgets_the_oldest() -> None:
    counter = PlainEpochs()
    seeds = range(100, 100 + NUM_REMEMBERED)
    assert [begin_in_new_process(counter, seed) for seed in seeds] == list(range(NUM_REMEMBERED))
    assert begin_in_new_process(counter, 100, worker=1) == 0  # The oldest is still there,
    assert begin_in_new_process(counter, 500) == NUM_REMEMBERED  # and now it is not:
    assert begin_in_new_process(counter, 101, worker=1) == 1
    assert begin_in_new_process(counter, 100, worker=1) == NUM_REMEMBERED + 1


def test_the_ring_wraps_many_times_in_one_process() -> None:
    counter = PlainEpochs()
    seeds = range(1000, 1000 + 5 * NUM_REMEMBERED)
    assert [begin_epoch(counter, seed) for seed in seeds] == list(range(len(seeds)))


def test_processes_that_are_gone_leave_their_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_epochs, "_NUM_OWNERS", 4)  # Each takes a fork.
    counter = PlainEpochs()
    for _ in range(4 + 2):
        pid = os.fork()
        if pid == 0:
            os._exit(begin_epoch(counter, None) + begin_epoch(counter, None))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 + 1
    assert begin_epoch(counter, None) == 0


def test_more_processes_than_there_are_places_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = PlainEpochs()
    monkeypatch.setattr(plain_epochs, "_is_alive", lambda pid: pid != 0)
    for owner in range(2, _NUM_OWNERS + 1):
        with counter._row(-owner):
            pass
    error = pytest.raises(ConfigError, match=r"More than \d+ training processes .* share one ImageDataset")
    with error, counter._row(-owner - 1):
        pass


@pytest.mark.parametrize("method", ["fork", SPAWN])
def test_set_fixes_the_epoch_of_running_workers_and_of_new_ones(method: str, start: StartWorker) -> None:
    counter = PlainEpochs()
    running = start(method, counter, 11)
    assert running.begin(2) == [0, 1]
    counter.set_epoch(7)
    assert running.begin(2) == [7, 7]
    assert start(method, counter, 22).begin() == [7]
    assert begin_epoch(counter, None) == 7
    counter.set_epoch(0)
    assert running.begin() == [0]
    assert begin_epoch(counter, None) == 0


def test_every_epoch_that_set_allows_can_be_set() -> None:
    counter = PlainEpochs()
    for epoch in (0, 2**62):
        counter.set_epoch(epoch)
        assert begin_epoch(counter, None) == epoch
    with pytest.raises(ConfigError, match=rf"must be in 0\.\.{2**62}\.$"):
        counter.set_epoch(2**62 + 1)


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None, True])
def test_set_refuses_other_values_than_epochs(epoch: Any) -> None:
    counter = PlainEpochs()
    with pytest.raises(ConfigError, match=r"^set_epoch: epoch=.* must be an integer >= 0\.$") as caught:
        counter.set_epoch(epoch)
    assert repr(epoch) in str(caught.value)
    assert begin_epoch(counter, None) == 0  # Nothing was fixed.


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda counter: pickle.loads(pickle.dumps(counter))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_has_a_counter_of_its_own_with_the_same_state(duplicate: Callable[[Any], PlainEpochs]) -> None:
    counter = PlainEpochs()
    assert [begin_epoch(counter, None), begin_epoch(counter, 11)] == [0, 1]
    copied = duplicate(counter)
    assert begin_epoch(copied, 11, worker=1) == 1  # The remembered seed is part of the state.
    assert [begin_epoch(copied, None), begin_epoch(copied, None)] == [2, 3]
    assert begin_epoch(counter, None) == 2
    copied.set_epoch(9)
    assert begin_epoch(counter, None) == 3
    assert begin_epoch(duplicate(copied), None) == 9


def test_a_copy_can_be_handed_to_workers(start: StartWorker) -> None:
    counter = copy.deepcopy(PlainEpochs())
    assert start("spawn", counter, 11).begin() == [0]
    assert begin_epoch(counter, None) == 1


def test_threads_never_get_the_same_epoch() -> None:
    counter = PlainEpochs()
    begun: list[list[int]] = [[] for _ in range(8)]

    def count(own: list[int]) -> None:
        own.extend(begin_epoch(counter, None) for _ in range(50))

    threads = [threading.Thread(target=count, args=(own,)) for own in begun]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epoch for own in begun for epoch in own) == list(range(400))


# Where a loaded state goes on


@pytest.mark.parametrize("num_before", [0, 3])
def test_the_iteration_after_a_resume_is_that_epoch_from_there_and_later_ones_follow_whole(num_before: int) -> None:
    counter = PlainEpochs()
    for _ in range(num_before):
        counter.begin(None, 0)
    counter.load(Start(5, 17))
    assert [counter.begin(None, 0) for _ in range(3)] == [Start(5, 17), Start(6, 0), Start(7, 0)]
    counter.load(Start(2, 0))
    assert [counter.begin(None, 0) for _ in range(2)] == [Start(2, 0), Start(3, 0)]


@pytest.mark.parametrize("first_epoch_by_hand", [None, 9])
def test_workers_that_run_go_on_where_a_state_is_loaded(first_epoch_by_hand: int | None) -> None:
    counter = PlainEpochs()
    if first_epoch_by_hand is not None:
        counter.set_epoch(first_epoch_by_hand)
    counter.begin(11, 2)
    counter.begin(11, 2)
    counter.load(Start(0, 3))  # Persistent workers keep their seed.
    assert [counter.begin(11, 2) for _ in range(2)] == [Start(0, 3), Start(1, 0)]
    assert counter.begin(22, 2) == Start(2, 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_state_reaches_workers_of_every_start_method(method: str, start: StartWorker) -> None:
    counter = PlainEpochs()
    running = start(method, counter, 11)
    assert running.begin(2) == [0, 1]
    counter.load(Start(4, 0))
    assert running.begin(2) == [4, 5]
    assert start(method, counter, 22).begin() == [6]


def test_another_epoch_set_by_hand_after_a_resume_begins_at_its_first_batch() -> None:
    counter = PlainEpochs()
    counter.load(Start(5, 17))
    counter.set_epoch(6)
    assert progress_of(counter) == Progress(Start(6, 0), None, 0)
    assert counter.begin(None, 0) == Start(6, 0)
    counter.load(Start(5, 17))
    counter.set_epoch(5)
    assert counter.begin(None, 0) == Start(5, 17)


@pytest.mark.parametrize(("seed", "num_workers"), [(None, 0), (11, 3)])
def test_a_state_that_asks_for_its_number_of_workers_is_refused_by_another_one(
    seed: int | None, num_workers: int
) -> None:
    counter = PlainEpochs()
    counter.load(Start(5, 17), 2, must_keep_workers=True)
    here = num_workers or "none, which counts as 1,"
    for _ in range(2):
        with pytest.raises(StateMismatchError, match=rf"^num_workers: 2 in the state, {here} here\. .*num_workers=2\."):
            counter.begin(seed, num_workers)
    counter.load(Start(5, 17), 2, must_keep_workers=True)
    counter.set_epoch(5)  # It is gone on from also where its epoch is set by hand.
    with pytest.raises(StateMismatchError, match="num_workers: 2 in the state"):
        counter.begin(seed, num_workers)
    counter.set_epoch(6)
    assert counter.begin(seed, num_workers) == Start(6, 0)
    counter.load(Start(5, 17), 2, must_keep_workers=True)
    assert counter.begin(22, 2) == Start(5, 17)
    counter.load(Start(5, 17), 1, must_keep_workers=True)
    assert counter.begin(None, 0) == Start(5, 17)  # One that reads by itself counts as one worker.


def test_the_progress_is_that_of_the_next_iteration_until_it_begins() -> None:
    counter = PlainEpochs()
    assert progress_of(counter) == Progress(Start(0, 0), None, 0)
    counter.begin(None, 0)
    assert progress_of(counter) == Progress(Start(0, 0), 0, 0)
    counter.set_epoch(3)
    assert progress_of(counter) == Progress(Start(3, 0), None, 0)
    counter.load(Start(5, 17))
    assert progress_of(counter) == Progress(Start(5, 17), None, 17)
    counter.load(Start(5, 17), 3)
    assert progress_of(counter) == Progress(Start(5, 17), None, 17, loaded_workers=3)
    counter.begin(11, 2)
    assert progress_of(counter) == Progress(Start(5, 17), 2, 17)


def test_what_was_produced_is_the_most_of_any_worker_and_begins_anew_with_every_iteration() -> None:
    counter = PlainEpochs()
    counter.begin(11, 2)
    counter.note_produced(2)
    counter.note_produced(1)
    assert progress_of(counter).num_produced == 2
    counter.begin(11, 2)
    assert progress_of(counter) == Progress(Start(1, 0), 2, 0)
    counter.load(Start(1, 4))
    counter.begin(11, 2)
    assert progress_of(counter).num_produced == 4


def test_the_second_worker_of_an_iteration_does_not_undo_what_the_first_one_noted() -> None:
    counter = PlainEpochs()
    counter.begin(11, 2)
    counter.note_produced(1)
    copied = copy.copy(counter)  # As in another worker: the epoch of a seed that is known.
    assert copied.begin(11, 2, worker=1) == Start(0, 0)
    assert progress_of(copied).num_workers == 2
    other = PlainEpochs.__new__(PlainEpochs)
    other.__setstate__({"shared": counter._shared})
    assert other.begin(11, 3, worker=2) == Start(0, 0)
    assert progress_of(counter).num_produced == 1


@pytest.mark.parametrize("seed", [None, 11])
def test_an_iteration_of_a_loaders_own_state_is_noted_and_the_count_goes_on(seed: int | None) -> None:
    counter = PlainEpochs()
    counter.begin_at(seed, 0 if seed is None else 2, Start(4, 7))
    assert progress_of(counter) == Progress(Start(4, 7), 0 if seed is None else 2, 7, knows_delivered=True)
    assert counter.begin(seed, 0 if seed is None else 2) == Start(5, 0)
    assert counter.begin(22, 2) == Start(6, 0)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda counter: pickle.loads(pickle.dumps(counter))], ids=["deepcopy", "pickle"]
)
def test_a_copy_goes_on_where_the_state_was_loaded(duplicate: Callable[[Any], PlainEpochs]) -> None:
    counter = PlainEpochs()
    counter.load(Start(5, 17))
    copied = duplicate(counter)
    assert progress_of(copied) == progress_of(counter)
    assert copied.begin(None, 0) == Start(5, 17)
    assert counter.begin(None, 0) == Start(5, 17)


def test_ranks_that_are_forked_after_a_load_all_go_on_there() -> None:
    counter = PlainEpochs()
    counter.load(Start(5, 17))
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            os._exit(counter.begin(None, 0).epoch + 17)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5 + 17
    assert counter.begin(None, 0) == Start(5, 17)


def test_a_loaded_state_is_gone_on_from_once() -> None:
    counter = PlainEpochs()
    counter.load(Start(0, 3))
    counter.set_epoch(0)  # As before every evaluation.
    assert counter.begin(None, 0) == Start(0, 3)
    assert counter.begin(None, 0) == Start(0, 0)
    counter.set_epoch(0)
    assert counter.begin(None, 0) == Start(0, 0)


def test_all_workers_of_one_loader_go_on_from_a_loaded_state_and_no_other_loader(start: StartWorker) -> None:
    counter = PlainEpochs()
    counter.load(Start(0, 3))
    counter.set_epoch(0)
    copies = [counter, copy.copy(counter)]
    for copied in copies:  # As in two workers.
        copied._forget_process()
    assert [copied.begin(11, 2, worker) for worker, copied in enumerate(copies)] == [Start(0, 3), Start(0, 3)]
    assert [copied.begin(11, 2, worker) for worker, copied in enumerate(copies)] == [Start(0, 0), Start(0, 0)], (
        "persistent workers, in their next iteration"
    )
    assert counter.begin(22, 2) == Start(0, 0)


def test_a_loader_sent_back_by_its_own_state_counts_on_from_there() -> None:
    counter = PlainEpochs()
    for _ in range(4):
        counter.begin(None, 0)
    counter.begin_at(11, 2, Start(0, 5))
    assert counter.begin(22, 2) == Start(1, 0)


def test_a_copy_has_no_iteration_yet() -> None:
    counter = PlainEpochs()
    counter.begin(None, 0)
    assert progress_of(copy.deepcopy(counter)) == Progress(Start(1, 0), None, 0)


def test_an_epoch_that_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"epoch=9223372036854775808 must be in 0\.\."):
        PlainEpochs().set_epoch(2**63)
