"""Who runs when, what counts, and that nobody is left behind."""

from collections.abc import Callable

import pytest
from bench.made_up import epoch

from benchmarks.comparison import start_in_turns, take_turns
from benchmarks.figures import EpochFigures
from benchmarks.task import Peer
from tfds_torch.errors import StallError, WorkerError


class Pretender:
    """Notes what it is told to do; its epochs take 1, 2, 3 ... seconds."""

    def __init__(self, name: str, journal: list[str], fail: Callable[[int], BaseException | None] = lambda _: None):
        self.peer = Peer(name, name.upper(), "nowhere:nothing")
        self.journal = journal
        self.fail = fail
        self.num_epochs = 0

    def run_epoch(self) -> EpochFigures:
        self.journal.append(f"{self.peer.name}{self.num_epochs}")
        error = self.fail(self.num_epochs)
        if error is not None:
            raise error
        self.num_epochs += 1
        return epoch(float(self.num_epochs), num_examples=60)

    def measure_memory(self) -> list[int]:
        self.run_epoch()
        self.journal[-1] += " memory"
        return [7, 8, 9]

    def end(self) -> None:
        self.journal.append(f"{self.peer.name} ends")


def ignore(text: str) -> None:
    pass


def test_competitors_take_turns_epoch_by_epoch_and_all_end() -> None:
    journal: list[str] = []
    take_turns([Pretender(name, journal) for name in "abc"], 2, ignore)
    assert journal[:9] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]
    assert sorted(journal[9:]) == ["a ends", "b ends", "c ends"]


def test_the_warm_up_is_not_counted() -> None:
    (outcome,) = take_turns([Pretender("a", [])], 3, ignore)
    assert [figures.times.whole_s for figures in outcome.warm_ups] == [1.0]
    assert [figures.times.whole_s for figures in outcome.epochs] == [2.0, 3.0, 4.0]
    assert outcome.samples()["examples_per_s"] == [30.0, 20.0, 15.0]


@pytest.mark.parametrize("when", [0, 1, 2])
def test_one_that_fails_ends_at_once_and_the_others_go_on(when: int) -> None:
    journal: list[str] = []
    failing = Pretender("b", journal, lambda number: WorkerError("it broke") if number == when else None)
    outcomes = take_turns([Pretender("a", journal), failing, Pretender("c", journal)], 2, ignore)
    assert [outcome.missing for outcome in outcomes] == [None, "it broke", None]
    assert [len(outcome.epochs) for outcome in outcomes] == [2, max(0, when - 1), 2]
    assert journal[journal.index(f"b{when}") + 1] == "b ends"
    assert [line for line in journal if line.startswith("b")][: when + 2] == [
        *(f"b{number}" for number in range(when + 1)),
        "b ends",
    ]


def test_an_interrupt_ends_everyone() -> None:
    journal: list[str] = []
    interrupted = Pretender("b", journal, lambda number: KeyboardInterrupt() if number == 1 else None)
    with pytest.raises(KeyboardInterrupt):
        take_turns([Pretender("a", journal), interrupted, Pretender("c", journal)], 2, ignore)
    assert journal[:5] == ["a0", "b0", "c0", "a1", "b1"]
    assert sorted(journal[5:]) == ["a ends", "b ends", "c ends"]


def test_what_is_being_done_is_said() -> None:
    said: list[str] = []
    take_turns([Pretender("a", [])], 2, said.append)
    assert said == ["warm-up: A", "epoch 1 of 2: A", "epoch 2 of 2: A"]


def test_fresh_lives_come_in_turns_one_at_a_time_and_the_last_shows_its_memory() -> None:
    journal: list[str] = []
    peers = [Peer(name, name, "nowhere:nothing") for name in "ab"]
    outcomes = start_in_turns(peers, lambda peer: Pretender(peer.name, journal), lambda _: 2, ignore)
    first_round = ["a0", "a1", "a ends", "b0", "b1", "b ends"]
    assert journal == [*first_round, "a0", "a1", "a2 memory", "a ends", "b0", "b1", "b2 memory", "b ends"]
    for outcome in outcomes:
        assert [figures.times.whole_s for figures in outcome.warm_ups] == [1.0, 1.0]
        assert [figures.times.whole_s for figures in outcome.epochs] == [2.0, 2.0]
        assert outcome.memory_bytes == [7, 8, 9]


def test_one_that_fails_is_not_started_again() -> None:
    journal: list[str] = []
    peers = [Peer(name, name, "nowhere:nothing") for name in "ab"]
    fail = {"a": lambda number: StallError("too slow") if number == 1 else None, "b": lambda _: None}
    outcomes = start_in_turns(peers, lambda peer: Pretender(peer.name, journal, fail[peer.name]), lambda _: 2, ignore)
    assert [outcome.missing for outcome in outcomes] == ["too slow", None]
    assert [line for line in journal if line.startswith("a")] == ["a0", "a1", "a ends"]


def test_some_live_more_often_than_others() -> None:
    journal: list[str] = []
    peers = [Peer(name, name, "nowhere:nothing") for name in "ab"]
    num_lives = {"a": 2, "b": 1}
    outcomes = start_in_turns(
        peers, lambda peer: Pretender(peer.name, journal), lambda peer: num_lives[peer.name], ignore
    )
    assert [len(outcome.warm_ups) for outcome in outcomes] == [2, 1]
    assert journal[:7] == ["a0", "a1", "a ends", "b0", "b1", "b2 memory", "b ends"]
    assert all(outcome.memory_bytes == [7, 8, 9] for outcome in outcomes)
    assert start_in_turns([], lambda peer: Pretender(peer.name, journal), lambda _: 2, ignore) == []
