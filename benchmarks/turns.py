"""Who runs when: competitors take turns, epoch by epoch, so that a drift of the machine hits all alike."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from benchmarks.figures import EpochFigures, Memory, Outcome
from benchmarks.task import Peer
from tfds_torch.errors import TfdsTorchError

Say = Callable[[str], None]
"""Tells the user what is being done."""


class Competitor(Protocol):
    """A peer at work: `CompetitorProcess`, or a pretended one. It is idle outside of its own calls."""

    peer: Peer

    def run_epoch(self) -> EpochFigures:
        """Runs an epoch; begins where there was none yet. Raises TfdsTorchError when it cannot."""

    def measure_memory(self) -> Memory | None:
        """Runs an epoch and returns its memory. Raises TfdsTorchError when it cannot."""

    def end(self) -> None:
        """Ends its processes; may be called again, and before it has begun."""


def take_turns(competitors: Sequence[Competitor], num_repeats: int, say: Say) -> list[Outcome]:
    """Runs A B C A B C ...: a warm-up epoch of each, then `num_repeats` measured ones.

    A competitor that fails is ended and takes no further turns. However this ends, all competitors are ended.
    """
    outcomes = [Outcome(competitor.peer) for competitor in competitors]
    with ExitStack() as stack:
        for competitor in competitors:
            stack.callback(competitor.end)
        for number in range(1 + num_repeats):
            for competitor, outcome in zip(competitors, outcomes, strict=True):
                if outcome.missing is not None:
                    continue
                say(f"{'warm-up' if number == 0 else f'epoch {number} of {num_repeats}'}: {competitor.peer.title}")
                try:
                    (outcome.epochs if number else outcome.warm_ups).append(competitor.run_epoch())
                except TfdsTorchError as error:
                    outcome.missing = str(error)
                    competitor.end()
    return outcomes


def start_again_and_again(
    peers: Sequence[Peer], begin: Callable[[Peer], Competitor], num_lives_of: Callable[[Peer], int], say: Say
) -> list[Outcome]:
    """Gives every competitor as many fresh lives as it shall have, in turn, each with a first and a later epoch.

    One competitor exists at a time, so that no other one shares its pages: memory is looked at here, in one more epoch
    of the last life. A competitor that fails is not started again.
    """
    outcomes = [Outcome(peer) for peer in peers]
    for number in range(1, max(map(num_lives_of, peers), default=0) + 1):
        for outcome in outcomes:
            num_lives = num_lives_of(outcome.peer)
            if outcome.missing is None and number <= num_lives:
                say(f"start {number} of {num_lives}: {outcome.peer.title}")
                _live_once(outcome, begin(outcome.peer), with_memory=number == num_lives)
    return outcomes


def _live_once(outcome: Outcome, competitor: Competitor, *, with_memory: bool) -> None:
    with ExitStack() as stack:
        stack.callback(competitor.end)
        try:
            outcome.warm_ups.append(competitor.run_epoch())
            outcome.epochs.append(competitor.run_epoch())
            if with_memory:
                outcome.memory = competitor.measure_memory()
        except TfdsTorchError as error:
            outcome.missing = str(error)
