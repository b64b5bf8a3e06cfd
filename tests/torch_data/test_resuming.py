"""Every loader over an ImageDataset, restored at every step, in other worlds too, gives the uninterrupted tail."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from grids.fleet import TORCHRUN, Fleet
from server_fixtures import SOURCES, store_variables
from tfds_fixtures import with_read

from torch_data.batched import BatchedMapStyleSetup, BatchedMixtureSetup, BatchedSetup, Shade
from torch_data.resuming import ChosenSetup, ClassesSetup, MapStyleSetup, MixtureSetup, make_setup, run_conformance
from torch_data.windowed import MixedWindowsSetup, WindowsSetup

slow, campaign = pytest.mark.slow, pytest.mark.campaign


def case(name: str, kind: str, arguments: dict[str, Any], changes: dict[str, Any], *marks: Any, epochs: int = 1) -> Any:
    """A loader of a kind, by the arguments of `make_setup`; `changes` make the setup of the loaders that resume."""
    return pytest.param(kind, arguments, changes, epochs, id=f"{kind}, {name}", marks=marks)


TWO, PERSISTENT = {"num_workers": 2}, {"num_workers": 2, "persistent": True}
AHEAD = {"loader_arguments": {"device": "cpu"}}
SNAPSHOTS = {"loader_arguments": {"snapshot_every_n_steps": 3}}
EVALUATION = {"is_training": False, "remainder": "pad"}
WHOLE = {"kind": BatchedSetup, "preprocess": Shade(size=(8, 6), scale=(0.3, 1.0))}

LOADER = [
    case("no workers, ahead on the device", "loader", AHEAD, {}, slow),
    case("persistent workers -> more", "loader", PERSISTENT, {"num_workers": 3}, slow, epochs=2),
    case("ahead", "loader", PERSISTENT | AHEAD, {"persistent": False}, slow, epochs=2),
    case("2x2 -> 1x3", "loader", TWO | {"num_replicas": 2}, {"num_replicas": 1, "num_workers": 3}, slow, epochs=2),
    case("examples, persistent", "loader", PERSISTENT | {"mode": "examples"}, {}, slow, epochs=2),
    case("fork server", "loader", PERSISTENT, {"method": "forkserver", "num_workers": 1}, slow, epochs=2),
    case("a short last batch", "loader", TWO | {"is_training": False}, {}, slow, epochs=2),
    case("no workers, other ranks", "loader", {}, {"num_replicas": 3}, campaign, epochs=2),
    case("no time limit", "loader", {"loader_arguments": {"timeout_s": None}}, {}, campaign, epochs=2),
    case("workers -> one", "loader", {"num_workers": 3}, {"num_workers": 1}, campaign, epochs=2),
    case("files", "loader", TWO | {"mode": "files"}, {}, campaign, epochs=2),
    case("spawn", "loader", {"num_workers": 1}, {"method": "spawn", "persistent": True}, campaign, epochs=2),
    case("evaluation", "loader", EVALUATION, {"num_replicas": 2}, campaign, epochs=2),
    case("dropping", "loader", {"remainder": "drop"}, {"num_replicas": 2}, campaign, epochs=2),
]
DATASET = [
    case("other ranks", "uncounted", {}, {"num_replicas": 3}, slow),
    case("workers -> more workers", "plain", TWO, {"num_workers": 3}, slow, epochs=2),
    case("stream", "uncounted", {"mode": "examples"}, {}, slow),
    case("2x2 -> 1x3", "plain", TWO | {"num_replicas": 2}, {"num_replicas": 1, "num_workers": 3}, campaign, epochs=2),
    case("workers, files", "plain", TWO | {"mode": "files"}, {}, campaign, epochs=2),
    case("fork server", "plain", PERSISTENT, {"method": "forkserver", "num_workers": 1}, campaign, epochs=2),
    case("evaluation", "uncounted", EVALUATION, {"num_replicas": 2}, slow, epochs=2),
    case("repeats", "uncounted", {"repeats": 2}, {"num_replicas": 2}, slow, epochs=2),
    case("dropping", "uncounted", {"remainder": "drop"}, {"num_replicas": 2}, slow, epochs=2),
    case("persistent -> fewer", "plain", PERSISTENT | {"num_workers": 3}, {"num_workers": 1}, campaign, epochs=2),
    case("examples, persistent", "plain", PERSISTENT | {"mode": "examples"}, {}, campaign, epochs=2),
    case("a short last batch", "uncounted", {"is_training": False}, {}, campaign, epochs=2),
]
STATEFUL = [
    case("no workers", "stateful", {}, {}, epochs=2),
    case("one worker", "stateful", {"num_workers": 1, "persistent": True}, {}, slow),
    case("snapshots", "stateful", {"global_batch": 6} | SNAPSHOTS, {}, slow, epochs=2),
    case("two workers", "stateful", TWO, {}, campaign),
    case("two persistent workers", "stateful", PERSISTENT, {}, slow),
    case("two workers, snapshots", "stateful", TWO | {"global_batch": 12} | SNAPSHOTS, {}, slow),
    case("files", "stateful", TWO | {"mode": "files"}, {}, slow),
    case("examples", "stateful", PERSISTENT | {"mode": "examples"}, {}, campaign),
    case("within a batch", "samples", {"global_batch": 4, "split": "train[:10]"}, {}),
    case("within a batch, workers", "samples", PERSISTENT | {"global_batch": 4, "split": "train[:6]"}, {}, slow),
    case("free of workers, more", "freed", TWO, {"num_workers": 3}, slow),
    case("free of workers, fewer", "freed", {"num_workers": 3}, {"num_workers": 1}, slow),
    case("free of one worker", "freed", {"num_workers": 1}, TWO, campaign),
]
WHOLE_BATCHES = [
    case("whole, other ranks", "uncounted", WHOLE, {"num_replicas": 3}, slow),
    case("whole, no workers", "stateful", WHOLE, {}, slow),
    case("whole, workers -> more workers", "plain", WHOLE | {"num_workers": 1}, {"num_workers": 3}, slow),
    case("whole, two workers", "stateful", WHOLE | TWO, {}, slow),
    case("whole, free of workers", "freed", WHOLE | TWO, {"num_workers": 3}, slow),
    case("whole, files", "plain", WHOLE | TWO | {"mode": "files"}, {}, slow),
    case("whole, evaluation", "uncounted", WHOLE | EVALUATION, {"num_replicas": 2}, slow, epochs=2),
    case("whole, without preprocess", "uncounted", WHOLE | {"preprocess": None}, {}, slow, epochs=2),
    case("whole, one worker", "stateful", WHOLE | {"num_workers": 1, "persistent": True}, {}, campaign),
    case(
        "whole, 2x2 -> 1x3", "plain", WHOLE | TWO | {"num_replicas": 2}, {"num_replicas": 1, "num_workers": 3}, campaign
    ),
    case("whole, stream", "uncounted", WHOLE | {"mode": "examples"}, {}, campaign, epochs=2),
    case("whole, a short last batch", "uncounted", WHOLE | {"is_training": False}, {}, campaign, epochs=2),
]


MIX = {"kind": MixtureSetup}
MIX_WHOLE = {"kind": BatchedMixtureSetup, "preprocess": WHOLE["preprocess"]}
MIXTURES = [
    case("mixture, no workers, ahead on the device", "loader", MIX | AHEAD, {"num_replicas": 3}),
    case("mixture, other ranks", "uncounted", MIX, {"num_replicas": 2}, slow),
    case("mixture, workers -> more workers", "plain", MIX | TWO, {"num_workers": 3}, slow),
    case("mixture, no workers", "stateful", MIX, {}, slow, epochs=2),
    case("mixture, whole", "uncounted", MIX_WHOLE, {"num_replicas": 2}, slow),
    case("mixture, concatenation", "uncounted", MIX | EVALUATION, {"num_replicas": 2}, slow),
    case("mixture, 2x2 -> 1x3", "loader", MIX | TWO | {"num_replicas": 2}, {"num_replicas": 1}, slow, epochs=2),
    case("mixture, persistent", "loader", MIX | PERSISTENT | AHEAD, {"num_workers": 3}, slow, epochs=2),
    case("mixture, spawn", "loader", MIX | {"num_workers": 1, "method": "spawn"}, {}, campaign),
    case("mixture, repeats", "uncounted", MIX | {"repeats": 2}, {"num_replicas": 2}, slow, epochs=2),
    case("mixture, dropping", "uncounted", MIX | {"remainder": "drop"}, {"num_replicas": 2}, slow, epochs=2),
    case("mixture, two workers", "stateful", MIX_WHOLE | TWO, {}, slow),
    case("mixture, free of workers", "freed", MIX | TWO, {"num_workers": 3}, slow),
    case("mixture, within a batch", "samples", MIX | {"global_batch": 4, "epoch_size": 9}, {}, slow),
]


def chosen(how: str, **more: Any) -> dict[str, Any]:
    return {"kind": ChosenSetup, "chosen": how, **more}


CHOSEN = [
    case("subset, no workers", "loader", chosen("subset", global_batch=12), {"num_replicas": 3}, slow),
    case("subset, evaluation", "uncounted", chosen("subset") | EVALUATION, {"num_replicas": 2}, slow),
    case("subset of a subset, two workers", "plain", chosen("subset of a subset", global_batch=12) | TWO, {}, slow),
    case("balanced, other ranks", "uncounted", chosen("balanced"), {"num_replicas": 2}, slow),
    case("balanced, two workers", "stateful", chosen("balanced") | TWO, {}, slow),
    case("weighted, other ranks", "uncounted", chosen("weighted"), {"num_replicas": 2}, slow),
    case("weighted, workers -> more workers", "loader", chosen("weighted") | TWO, {"num_workers": 3}, slow),
    case("epoch size, other ranks", "uncounted", chosen("all", epoch_size=30), {"num_replicas": 2}, slow, epochs=3),
    case("epoch size, dropping", "plain", chosen("all", epoch_size=30, remainder="drop") | TWO, {}, campaign, epochs=3),
]

CLASSES = {"kind": ClassesSetup, "chosen": "classes"}
CHOSEN += [
    case("own classes, other ranks", "loader", CLASSES, {"num_replicas": 3}, slow),
    case("own classes, 2x2 -> 1x3", "plain", CLASSES | TWO | {"num_replicas": 2}, {"num_replicas": 1}, slow),
    case("own subset, more workers", "loader", CLASSES | TWO | {"chosen": "subset"}, {"num_workers": 3}, campaign),
    case("own classes of a subset", "stateful", CLASSES | {"chosen": "classes of a subset"}, {}, slow),
    case("own weighted, fewer workers", "loader", CLASSES | TWO | {"chosen": "weighted"}, {"num_workers": 1}, campaign),
]

OWN = {"kind": MapStyleSetup}
OWN_WHOLE = {"kind": BatchedMapStyleSetup, "preprocess": WHOLE["preprocess"]}
OWN_DATASETS = [
    case("own, no workers", "loader", OWN, {"num_replicas": 3}, slow),
    case("own, no workers -> one", "plain", OWN, {"num_workers": 1}),
    case("own, workers -> more workers", "plain", OWN | TWO, {"num_workers": 3}, slow),
    case("own, no workers", "stateful", OWN, {}, slow, epochs=2),
    case("own, whole", "uncounted", OWN_WHOLE, {"num_replicas": 2}, slow),
    case("own, evaluation", "uncounted", OWN | EVALUATION, {"num_replicas": 2}, slow),
    case("no workers", "rows", {}, {"num_replicas": 3}, epochs=2),
    case("workers -> more workers", "rows", PERSISTENT, {"num_workers": 3}, slow),
    case("2x2 -> 1x3", "rows", TWO | {"num_replicas": 2}, {"num_replicas": 1, "num_workers": 3}, slow, epochs=2),
    case("spawn", "rows", {"num_workers": 1, "method": "spawn"}, {}, campaign),
    case("own, 2x2 -> 1x3", "loader", OWN | TWO | {"num_replicas": 2}, {"num_replicas": 1}, campaign, epochs=2),
    case("own, persistent", "loader", OWN | PERSISTENT | AHEAD, {"num_workers": 3}, slow, epochs=2),
    case("own, repeats", "uncounted", OWN | {"repeats": 2}, {"num_replicas": 2}, slow, epochs=2),
    case("own, two workers", "stateful", OWN_WHOLE | TWO, {}, slow),
    case("own, free of workers", "freed", OWN | TWO, {"num_workers": 3}, slow),
    case("own, within a batch", "samples", OWN | {"global_batch": 4}, {}, campaign),
]

WINDOWS, MIX_WINDOWS = {"kind": WindowsSetup, "global_batch": 12}, {"kind": MixedWindowsSetup, "global_batch": 12}
WINDOWS_OF_EPISODES = [
    case("windows, no workers", "loader", WINDOWS, {"num_replicas": 3}, slow),
    case("windows, other ranks", "uncounted", WINDOWS, {"num_replicas": 2}, slow),
    case("windows, workers -> more workers", "plain", WINDOWS | TWO, {"num_workers": 3}, campaign),
    case("windows, evaluation", "uncounted", WINDOWS | EVALUATION, {"num_replicas": 2}, slow),
    case("windows, subset", "uncounted", WINDOWS | {"chosen": "subset"}, {"num_replicas": 2}, slow),
    case("windows, short epochs", "uncounted", WINDOWS | {"epoch_size": 30}, {"num_replicas": 2}, slow),
    case("windows, no workers", "stateful", WINDOWS, {}, slow),
    case("mixed windows, no workers", "loader", MIX_WINDOWS, {"num_replicas": 3}, slow),
    case("mixed windows, other ranks", "uncounted", MIX_WINDOWS, {"num_replicas": 2}),
    case("mixed windows, workers -> more workers", "plain", MIX_WINDOWS | TWO, {"num_workers": 3}, campaign),
    case("windows, 2x2 -> 1x3", "loader", WINDOWS | TWO | {"num_replicas": 2}, {"num_replicas": 1}, slow),
    case("windows, persistent", "loader", WINDOWS | PERSISTENT | AHEAD, {"num_workers": 3}, campaign),
    case("windows, weighted", "uncounted", WINDOWS | {"chosen": "weighted"}, {"num_replicas": 2}, slow),
    case("windows, repeats", "uncounted", WINDOWS | {"repeats": 2}, {"num_replicas": 2}, slow),
    case("windows, dropping", "uncounted", WINDOWS | {"remainder": "drop"}, {"num_replicas": 2}, slow),
    case("mixed windows, persistent", "loader", MIX_WINDOWS | PERSISTENT, {"num_workers": 3}, slow),
    case("mixed windows, free of workers", "freed", MIX_WINDOWS | TWO, {"num_workers": 3}, campaign),
    case("windows, spawn", "loader", WINDOWS | {"num_workers": 1, "method": "spawn"}, {}, campaign),
    case("mixed windows, two workers", "stateful", MIX_WINDOWS | TWO, {}, campaign),
]

GROUPS = {"read": with_read("index", block_records=5, shuffle_buffer=20, block_groups=4), "global_batch": 12}
GROUPS_OF_BLOCKS = [
    case("groups, no workers", "loader", GROUPS, {"num_replicas": 3}, slow),
    case("groups, other ranks", "uncounted", GROUPS, {"num_replicas": 2}, slow, epochs=2),
    case("groups, workers -> more workers", "plain", GROUPS | TWO, {"num_workers": 3}, slow),
    case("groups, repeats", "uncounted", GROUPS | {"repeats": 2}, {"num_replicas": 3}, slow),
    case("groups, dropping", "uncounted", GROUPS | {"remainder": "drop"}, {"num_replicas": 2}, slow),
    case("groups, padding", "uncounted", GROUPS | EVALUATION | {"shuffle": True}, {"num_replicas": 2}, slow),
    case("groups, subset", "uncounted", chosen("subset") | GROUPS, {"num_replicas": 2}, slow),
    case("groups, 2x2 -> 1x3", "loader", GROUPS | TWO | {"num_replicas": 2}, {"num_replicas": 1}, slow, epochs=2),
    case("groups, two workers", "stateful", GROUPS | TWO, {}, slow),
]

BLOCKS = with_read("index", block_records=4, shuffle_buffer=12)
OF_FILES = [*LOADER, *DATASET, *STATEFUL, *WHOLE_BATCHES, *MIXTURES, *CHOSEN, *WINDOWS_OF_EPISODES, *GROUPS_OF_BLOCKS]
SOME_BY_URL: list[tuple[str, Any, Any]] = [
    ("s3", case("groups, no workers", "loader", GROUPS, {"num_replicas": 3}), slow),
    ("http", case("other ranks", "uncounted", {}, {"num_replicas": 3}), ()),
]


def by_url() -> list[Any]:
    """Returns some cases of stores, and for campaigns all that read files by number, from one store or another.

    But those of spawned workers, which take minutes: every tail starts a new process for each.
    """
    of_own = (ClassesSetup, MapStyleSetup, BatchedMapStyleSetup)
    by_number = [
        one
        for one in OF_FILES
        if "mode" not in one.values[1] and one.values[1].get("kind") not in of_own and "spawn" not in str(one.id)
    ]
    some = [
        pytest.param(source, *one.values, id=f"{source}, {one.id}", marks=marks) for source, one, marks in SOME_BY_URL
    ]
    return some + [
        pytest.param(source, *one.values, id=f"{source}, {one.id}, campaign", marks=campaign)
        for source, one in zip(cycle(SOURCES), by_number, strict=False)
    ]


@pytest.mark.parametrize(("source", "kind", "arguments", "changes", "num_epochs"), by_url())
def test_states_go_on_from_a_store_to_a_local_copy_and_back(
    source: str,
    kind: str,
    arguments: dict[str, Any],
    changes: dict[str, Any],
    num_epochs: int,
    publish: Callable[[str, Path | str], str],
    fleet: Fleet,
    numbered_root: str,
    tmp_path: Path,
) -> None:
    roots = publish(source, numbered_root), numbered_root
    far, near = (make_setup(root, **{"read": BLOCKS, "name": "numbered:1.0.0", **arguments}) for root in roots)
    assert far.make_parser().fingerprint == near.make_parser().fingerprint
    environment = {**TORCHRUN, **store_variables(), "XDG_CACHE_HOME": str(tmp_path)}
    for setup, other in ((far, near), (near, far)):
        task = (kind, setup, {**changes, "arguments": other.arguments}, num_epochs)
        (num_tails,) = fleet.call(run_conformance, *task, environment=environment, deadline_s=280)
        assert num_tails > 2 * num_epochs


@pytest.mark.parametrize(("kind", "arguments", "changes", "num_epochs"), [*OF_FILES, *OWN_DATASETS])
def test_a_loader_restored_at_every_step_gives_the_uninterrupted_tail(
    kind: str, arguments: dict[str, Any], changes: dict[str, Any], num_epochs: int, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, **arguments)
    (num_tails,) = fleet.call(run_conformance, kind, setup, changes, num_epochs, reads=setup.reads, deadline_s=280)
    num_steps = setup.dataset().plan().num_batches * (setup.batch_size if kind == "samples" else 1)
    assert num_tails == 2 * (1 + num_epochs * (num_steps + 1))
