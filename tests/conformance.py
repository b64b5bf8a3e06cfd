"""What every loader must keep that can be resumed: restored at any step, it gives the uninterrupted tail.

A loader's test describes it by `ResumableLoader` and calls `check_resumes`; nothing here knows any loader. It runs in
whatever process may read: it asserts with messages of its own, and imports neither torch nor tensorflow.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Step:
    """One batch as it was delivered, of one rank or of all of them together: its examples, and False for padding."""

    epoch: int
    batch: int
    index: tuple[int, ...]
    valid: tuple[bool, ...]


class ResumableLoader(Protocol):
    """A loader as training uses it. Between two calls of `iter` it may have been abandoned in mid-epoch."""

    def __iter__(self) -> Iterator[Step]:
        """Begins the next epoch, or what is left of the one that a loaded state is of; nothing where that had ended."""
        ...

    def state(self, num_steps: int) -> Any:
        """Returns the position, as plain values for JSON, after `num_steps` since the latest `iter`, 0 before one."""
        ...

    def load(self, state: Any) -> None:
        """Lets the next iteration go on where a state was taken."""
        ...

    def close(self) -> None:
        """Ends what it has running."""
        ...


class OwnStateLoader:
    """What a test's loaders have in common that hold their position by themselves: `loader` is such a one."""

    loader: Any

    def step(self, index: Sequence[int], valid: Sequence[bool] | None = None) -> Step:
        """Returns the batch that was delivered last as a step; valid None: all of its examples are."""
        state = self.loader.state_dict()
        valid = [True] * len(index) if valid is None else valid
        return Step(state["epoch"], state["batches"] - 1, tuple(index), tuple(valid))

    def state(self, num_steps: int) -> Any:
        """Returns the loader's own position; see `ResumableLoader`."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Lets the next iteration go on where a state was taken."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Ends what the loader has running."""
        self.loader.close()


Make = Callable[[], ResumableLoader]
Epochs = list[list[Step]]


@dataclass(frozen=True)
class SavedPoint:
    """A state, and where it was taken: after `step` steps of iteration `epoch`; 0 of epoch 0 is before the first."""

    epoch: int
    step: int
    state: Any

    def tail(self, reference: Sequence[Sequence[Step]]) -> Epochs:
        """Returns what must come of the uninterrupted run: the rest of the epoch, and the next one."""
        return [list(reference[self.epoch][self.step :]), list(reference[self.epoch + 1])]

    def __str__(self) -> str:
        return f"step {self.step} of epoch {self.epoch}"


def check_resumes(
    make: Make, make_other: Make | None = None, *, num_epochs: int = 2, ended_epochs_come_empty: bool = True
) -> int:
    """Saves at every step, before the first and after each epoch's end, restores there, and compares the whole tail.

    Every state is loaded by a fresh loader, which is read to the end of its epoch and through the next one. It is also
    loaded and saved again at once; loaded, read for a step and saved; and what came of that is read in the same way.

    Args:
        make: makes a fresh loader, which begins with epoch 0.
        make_other: makes the loaders that resume what the first kind saved (another world); None: `make`.
        num_epochs: in which states are saved; the uninterrupted run has two more.
        ended_epochs_come_empty: whether the first iteration after a state of an epoch's end must yield nothing. False:
            it may also be the following epoch at once.

    Returns:
        How many tails were compared.
    """
    check = _Check(make, make_other or make, read_epochs(make(), num_epochs + 2), ended_epochs_come_empty)
    _expect(all(check.reference), f"an uninterrupted epoch is empty: {[len(epoch) for epoch in check.reference]} steps")
    points = check.save_everywhere(num_epochs)
    for point in points:
        check.compare_tail(make_other or make, point, f"saved at {point}")
        again = check.resume_twice(point)
        check.compare_tail(make, again, f"saved at {point}, resumed, saved at once, resumed, saved at {again}")
    return 2 * len(points)


def read_epochs(loader: ResumableLoader, num_epochs: int) -> Epochs:
    """Returns the next iterations of a loader, and closes it."""
    epochs = [list(loader) for _ in range(num_epochs)]
    loader.close()
    return epochs


@dataclass(frozen=True)
class _Check:
    make: Make
    make_other: Make
    reference: Epochs
    ended_epochs_come_empty: bool

    def save_everywhere(self, num_epochs: int) -> list[SavedPoint]:
        """Returns a state of every step of the first epochs; saving must change nothing."""
        loader = self.make()
        points, epochs = [SavedPoint(0, 0, _to_json(loader.state(0)))], []
        for epoch in range(num_epochs):
            steps: list[Step] = []
            for step in loader:
                steps.append(step)
                points.append(SavedPoint(epoch, len(steps), _to_json(loader.state(len(steps)))))
            # Once more: when the last of these was taken, the iterator did not know yet that it had ended.
            points.append(SavedPoint(epoch, len(steps), _to_json(loader.state(len(steps)))))
            epochs.append(steps)
        loader.close()
        _compare(epochs, self.reference[:num_epochs], "while states were taken")
        return points

    def compare_tail(self, make: Make, point: SavedPoint, where: str) -> None:
        """Compares what a fresh loader yields after a state with the rest of the reference."""
        loader, tail = make(), point.tail(self.reference)
        loader.load(point.state)
        came = [list(loader)]
        if self._is_skipped(tail, came[0]):
            came.insert(0, [])
        came += [list(loader) for _ in range(len(tail) - len(came))]
        loader.close()
        _compare(came[: len(tail)], tail, where)

    def resume_twice(self, point: SavedPoint) -> SavedPoint:
        """Returns the point that follows one at which a loader was restored, saved at once, and restored again."""
        first = self.make_other()
        first.load(point.state)
        saved_at_once = _to_json(first.state(0))
        first.close()
        second = self.make_other()
        second.load(saved_at_once)
        came = [step for _, step in zip(range(1), second, strict=False)]
        tail, epoch, num_steps = point.tail(self.reference), point.epoch, point.step
        if self._is_skipped(tail, came):
            tail, epoch, num_steps = tail[1:], epoch + 1, 0
        _compare([came], [tail[0][:1]], f"saved at {point}, resumed, saved at once")
        state = _to_json(second.state(len(came)))
        second.close()
        return SavedPoint(epoch, num_steps + len(came), state)

    def _is_skipped(self, tail: Epochs, first_came: list[Step]) -> bool:
        return not self.ended_epochs_come_empty and not tail[0] and bool(first_came)


def _compare(came: Sequence[Sequence[Step]], wanted: Sequence[Sequence[Step]], where: str) -> None:
    for number, (ours, theirs) in enumerate(zip(came, wanted, strict=True)):
        for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            _expect(one == other, f"{where}: step {at} of iteration {number} is {one}, not {other}")
        extra = ours[len(theirs) :] or theirs[len(ours) :]
        _expect(
            not extra,
            f"{where}: iteration {number} has {len(ours)} steps, not {len(theirs)}; the difference begins at "
            f"{extra[0] if extra else None}",
        )


def _to_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def _expect(holds: bool, sentence: str) -> None:
    if not holds:  # No assert statement: pytest does not rewrite those of child processes, and -O drops them.
        raise AssertionError(sentence)
