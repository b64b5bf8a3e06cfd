"""MultiLoader over a Parser: its batches are the planned ones in every world, and its state goes on exactly."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from grids.fleet import Fleet
from numbered_fixtures import NUM_EXAMPLES

from loaders import resuming
from loaders.resuming import Ranks, make_parser, run_conformance
from tfds_torch import Batch, EvalPreprocess, MultiLoader, TrainPreprocess, World
from tfds_torch.errors import ConfigError, StateMismatchError, WorkerError

slow, campaign = pytest.mark.slow, pytest.mark.campaign
QUICK_CASE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two workers -> one": ({}, {"num_workers": 1}),
}
SHORT_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "three workers -> ranks": ({"num_workers": 3}, {"num_workers": 1, "num_replicas": 2}),
    "subset": ({"chosen": "subset"}, {"num_workers": 1, "num_replicas": 2}),
    "balanced": ({"chosen": "balanced"}, {"num_workers": 1, "num_replicas": 2}),
    "weighted": ({"chosen": "weighted"}, {"num_replicas": 2}),
    "epoch size": ({"epoch_size": 30}, {"num_replicas": 2}),
    "own dataset": ({"is_own": True}, {"is_own": True, "num_workers": 1, "num_replicas": 2}),
    "mixture": ({"is_mixture": True}, {"is_mixture": True, "num_workers": 1, "num_replicas": 2}),
    "windows": ({"windows": "windows"}, {"num_workers": 1, "num_replicas": 2}),
    "mixed windows": ({"windows": "mixture"}, {"num_workers": 1, "num_replicas": 2}),
}
SLOW_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "persistent workers -> more": ({"of_loader": {"persistent_workers": True}}, {"num_workers": 3}),
    "2x2 -> 1x3": ({"num_replicas": 2}, {"num_replicas": 1, "num_workers": 3}),
    "mixture, 2x2 -> 1x3": (
        {"is_mixture": True, "num_replicas": 2},
        {"is_mixture": True, "num_replicas": 1, "num_workers": 3},
    ),
    "mixture, evaluation": ({"is_mixture": True, "is_training": False, "remainder": "pad"}, {"num_replicas": 2}),
    "through sockets": ({"of_loader": {"transport": "zmq", "persistent_workers": True}}, {}),
    "evaluation": ({"is_training": False, "remainder": "pad"}, {"num_replicas": 2}),
    "preprocessed": ({"preprocess": TrainPreprocess(size=8), "of_loader": {"fields": ("image", "label")}}, {}),
}
CAMPAIGN_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no time limit": ({"of_loader": {"timeout_s": None}}, {"of_loader": {"prefetch_batches": 5}}),
    "a short last batch": ({"is_training": False}, {}),
    "dropping": ({"remainder": "drop"}, {"num_replicas": 2}),
    "fork server": ({"of_loader": {"persistent_workers": True}}, {"of_loader": {"start_method": "forkserver"}}),
    "spawn": ({"num_workers": 1}, {"of_loader": {"start_method": "spawn", "persistent_workers": True}}),
}


@pytest.mark.parametrize(
    "case",
    [
        *QUICK_CASE,
        *(pytest.param(name, marks=slow) for name in SHORT_CASES | SLOW_CASES),
        *(pytest.param(name, marks=campaign) for name in CAMPAIGN_CASES),
    ],
)
def test_a_loader_restored_at_every_step_gives_the_uninterrupted_tail(case: str, numbered_root: str) -> None:
    arguments, changes = (QUICK_CASE | SHORT_CASES | SLOW_CASES | CAMPAIGN_CASES)[case]
    num_epochs = 1 if case in QUICK_CASE | SHORT_CASES else 2
    num_tails = run_conformance(numbered_root, 24, arguments, changes, num_epochs)
    assert num_tails == 2 * (1 + num_epochs * ({"dropping": 1}.get(case, 2) + 1))


@pytest.mark.parametrize("mode", ["files", "examples"])
@slow
def test_streams_go_on_in_the_same_world(mode: str, fleet: Fleet, numbered_root: str) -> None:
    (num_tails,) = fleet.call(
        resuming.run_in_rank, numbered_root, 24, {"mode": mode}, {}, 1, reads=False, deadline_s=280
    )
    assert num_tails == 2 * (1 + 3)


QUICK_GRIDS = ((True, (1, 1)), (True, (2, 2)), (True, (3, 1)), (False, (1, 4)))
OTHER_GRIDS = ((1, 2), (1, 3), (1, 7), (2, 3), (2, 7), (4, 2), (4, 3), (4, 7))


@pytest.mark.parametrize(
    ("is_training", "grid"),
    [
        *QUICK_GRIDS,
        *(pytest.param(not is_training, grid, marks=slow) for is_training, grid in QUICK_GRIDS),
        *(
            pytest.param(is_training, grid, marks=slow if is_training == (sum(grid) % 2 == 0) else campaign)
            for is_training, grid in product((True, False), OTHER_GRIDS)
        ),
    ],
)
def test_every_grid_of_ranks_and_workers_reads_what_is_planned(
    grid: tuple[int, int], is_training: bool, numbered_root: str
) -> None:
    num_replicas, num_workers = grid
    arguments: dict[str, Any] = {"is_training": is_training} | ({} if is_training else {"remainder": "pad"})
    ranks = Ranks(numbered_root, 12, num_replicas, num_workers, **arguments)
    planned = make_parser(numbered_root, batch_size=12, **arguments).plan(World())
    for epoch in range(2):
        steps = list(ranks)
        assert len(steps) == len(ranks.loaders[0]) == planned.num_batches
        for step in steps:
            whole = planned.batch(epoch, step.batch)
            assert step.epoch == epoch
            assert step.index == tuple(whole.index.tolist())
        read = [index for step in steps for index, valid in zip(step.index, step.valid, strict=True) if valid]
        assert set(read) == set(range(NUM_EXAMPLES))
    ranks.close()


@pytest.mark.parametrize(
    ("num_replicas", "num_workers", "method"),
    [
        (2, 2, "fork"),
        pytest.param(3, 1, "fork", marks=slow),
        pytest.param(2, 2, "spawn", marks=slow),
        pytest.param(2, 2, "forkserver", marks=campaign),
    ],
)
def test_ranks_that_only_the_environment_names_share_the_examples(
    num_replicas: int, num_workers: int, method: str, numbered_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(num_replicas))
    results = []
    for rank in range(num_replicas):
        monkeypatch.setenv("RANK", str(rank))
        results.append(resuming.read_as_rank(World(rank, num_replicas), numbered_root, num_workers, method))
    for epoch in range(2):
        read = [i for rank in results for i, valid in zip(*rank[epoch], strict=True) if valid]
        assert sorted(read) == list(range(NUM_EXAMPLES))
        assert len({len(rank[epoch][0]) for rank in results}) == 1


def test_epochs_advance_and_obey_set_epoch(numbered_root: str) -> None:
    with MultiLoader(make_parser(numbered_root, batch_size=20), 1, timeout_s=60.0) as loader:

        def epochs() -> list[tuple[int, int]]:
            return [(batch.epoch, batch.batch) for batch in loader]

        assert epochs() == [(0, 0), (0, 1), (0, 2)]
        next(iter(loader))  # Broken off: it was epoch 1.
        assert epochs() == [(2, 0), (2, 1), (2, 2)]
        iter(loader)  # Only tried: it is begun again.
        assert epochs() == [(3, 0), (3, 1), (3, 2)]
        loader.set_epoch(7)
        assert epochs() == epochs() == [(7, 0), (7, 1), (7, 2)]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.load_state_dict(state)
        assert epochs() == []
        assert epochs() == [(8, 0), (8, 1), (8, 2)]
        with pytest.raises(ConfigError, match="epoch=-1"):
            loader.set_epoch(-1)


def test_a_state_of_the_other_loader_is_taken_and_the_other_way_round(numbered_root: str) -> None:
    from tfds_torch import ImageDataset, create_loader

    parser = make_parser(numbered_root, batch_size=12)
    ours = MultiLoader(parser, 2, timeout_s=60.0)
    whole = [batch.index.tolist() for batch in ours]
    theirs = create_loader(ImageDataset(parser, fields=("index",)), collate_fn=lambda rows: [row[0] for row in rows])
    iteration = iter(theirs)
    assert next(iteration) == whole[0]
    ours.load_state_dict(theirs.state_dict())
    iteration = iter(ours)
    assert next(iteration).index.tolist() == whole[1]
    theirs.load_state_dict(ours.state_dict())
    assert list(theirs) == whole[2:]
    with pytest.raises(StateMismatchError):
        ours.load_state_dict({})


@pytest.mark.parametrize("transport", ["shared", "zmq"])
@pytest.mark.parametrize("preprocess", [None, EvalPreprocess(size=6)])
def test_batches_are_the_parsers_own(transport: str, preprocess: Any, numbered_root: str) -> None:
    parser = make_parser(numbered_root, batch_size=12, is_training=False, preprocess=preprocess)
    fields = ("image", "label", "file_name")
    direct = list(parser.batches(World(), fields=fields))
    with MultiLoader(parser, 2, transport=transport, fields=fields, timeout_s=60.0) as loader:
        came = list(loader)
    assert len(came) == len(direct)
    for one, other in zip(came, direct, strict=True):
        assert isinstance(one, Batch)
        for name in ("label", "valid", "index"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype
        assert one.id == other.id
        assert (one.epoch, one.batch) == (other.epoch, other.batch)
        assert [str(name) for name in one.features["file_name"]] == [str(name) for name in other.features["file_name"]]
        assert len(one.image) == len(other.image)
        for ours, theirs in zip(one.image, other.image, strict=True):
            assert ours.shape == theirs.shape
            assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_without_a_fixed_order_there_is_no_state(numbered_root: str) -> None:
    parser = make_parser(numbered_root, batch_size=12)
    loader = MultiLoader(parser, 2, in_order=False)
    for call in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(ConfigError, match="has no state: it does not know which batches were delivered"):
            call()
    unordered = [index for batch in MultiLoader(parser, 2, in_order=False, timeout_s=60.0) for index in batch.index]
    assert set(unordered) == set(range(NUM_EXAMPLES))


def test_a_parser_that_workers_cannot_share_is_refused(numbered_root: str) -> None:
    parser = make_parser(numbered_root, is_training=False)
    with pytest.raises(ConfigError, match="has no batch_size, and 2 workers need one"):
        MultiLoader(parser, 2)
    assert len(list(MultiLoader(parser, 1, timeout_s=60.0))) == NUM_EXAMPLES
    with pytest.raises(ConfigError, match="'imgae'"):
        MultiLoader(make_parser(numbered_root, batch_size=4), 2, fields=("imgae",))
    with pytest.raises(ConfigError, match="fields='image' must be a sequence"):
        MultiLoader(make_parser(numbered_root, batch_size=4), 2, fields="image")


def test_a_worker_that_ends_too_early_is_never_a_short_epoch(
    numbered_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfds_torch.loaders.worker_sources import ParserSource

    items = ParserSource.items
    monkeypatch.setattr(ParserSource, "items", lambda self, start, *rest: iter(list(items(self, start, *rest))[:-1]))
    loader = MultiLoader(make_parser(numbered_root, batch_size=4), 2, start_method="fork", timeout_s=60.0)
    with pytest.raises(WorkerError, match=r"Worker \d \(pid \d+\) ended after \d batches, and \d were planned"):
        list(loader)
