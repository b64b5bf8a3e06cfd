"""MultiLoader over a Parser as conformance.py drives it. Runs also in ranks of a fleet."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from chosen import choose
from conformance import Step, check_resumes
from grids.fleet import Place
from mixed_numbers import mix_numbered
from numbered_episodes import FIELDS, WINDOWS, check_windows
from numbered_fixtures import NUM_EXAMPLES
from tfds_fixtures import with_read

from tfds_torch import MultiLoader, ParserMapStyle, ParserTfds, World
from tfds_torch.engines.batch import Batch


def make_parser(root: str, **arguments: Any) -> Any:
    mode = arguments.pop("mode", "index")
    if (windows := arguments.pop("windows", None)) is not None:
        return WINDOWS[windows](root, **{"is_training": True, **arguments})
    if arguments.pop("is_own", False):
        return ParserMapStyle({"label": np.arange(NUM_EXAMPLES)}, **{"is_training": True, **arguments})
    if arguments.pop("is_mixture", False):
        return mix_numbered(root, **arguments)
    how, name = arguments.pop("chosen", "all"), arguments.pop("name", "numbered")
    return choose(ParserTfds(root, name, **{"is_training": True, "read": with_read(mode), **arguments}), how)


class Ranks:
    """The loaders of all ranks of a world, whose batches are put together.

    Args:
        root: of the dataset.
        global_batch: examples of all ranks' batches together.
        num_replicas: how many ranks.
        num_workers: of each.
        of_loader: more arguments of the loaders.
        of_parser: of the parser.
    """

    def __init__(
        self,
        root: str,
        global_batch: int,
        num_replicas: int = 1,
        num_workers: int = 2,
        of_loader: dict[str, Any] | None = None,
        **of_parser: Any,
    ) -> None:
        parser = make_parser(root, batch_size=global_batch // num_replicas, **of_parser)
        worlds = [World(rank, num_replicas) for rank in range(num_replicas)]
        self.windows = of_parser.get("windows")
        fields = FIELDS if self.windows else ("label",)
        of_loader = {"timeout_s": 60.0, "fields": fields, **(of_loader or {})}
        self.loaders = [MultiLoader(parser, num_workers, world=world, **of_loader) for world in worlds]

    def __iter__(self) -> Iterator[Step]:
        for batches in zip(*self.loaders, strict=True):
            numbers = {(batch.epoch, batch.batch) for batch in batches}
            assert len(numbers) == 1, numbers
            ((epoch, number),) = numbers
            index = tuple(int(one) for batch in batches for one in batch.index)
            valid = tuple(bool(one) for batch in batches for one in batch.valid)
            for batch in batches:
                self._check(batch)
            yield Step(epoch, number, index, valid)

    def _check(self, batch: Batch) -> None:
        if self.windows is None:
            assert batch.label is not None
            assert batch.label[batch.valid].tolist() == batch.index[batch.valid].tolist()
        else:
            values = [batch.features[name] for name in FIELDS]
            lists = [value if isinstance(value, list) else value.tolist() for value in values]
            check_windows(self.windows, batch.index.tolist(), dict(zip(FIELDS, lists, strict=True)))

    def state(self, num_steps: int) -> Any:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    def load(self, state: Any) -> None:
        for loader in self.loaders:
            loader.load_state_dict(state)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def run_conformance(
    root: str, global_batch: int, arguments: dict[str, Any], changes: dict[str, Any], epochs: int
) -> int:
    """Returns how many tails were compared; `changes` make the loaders that resume."""
    make = partial(Ranks, root, global_batch, **arguments)
    return check_resumes(make, partial(Ranks, root, global_batch, **{**arguments, **changes}), num_epochs=epochs)


def run_in_rank(_: Place, *arguments: Any) -> int:
    return run_conformance(*arguments)


def read_as_rank(expected: World, root: str, num_workers: int, method: str) -> list[tuple[list[int], list[bool]]]:
    """Returns two epochs of a rank that only the environment names."""
    parser = make_parser(root, batch_size=4, is_training=False)
    with MultiLoader(parser, num_workers, start_method=method, timeout_s=120.0) as loader:
        assert loader.world == expected
        epochs = [list(loader) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [len(loader)] * 2
    return [([int(i) for b in epoch for i in b.index], [bool(v) for b in epoch for v in b.valid]) for epoch in epochs]
