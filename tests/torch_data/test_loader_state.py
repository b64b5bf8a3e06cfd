"""Loader over ImageDataset: its batches are the planned ones, and its state goes on exactly, wherever it was taken."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from grids.fleet import Fleet
from numbered_fixtures import NUMBERED_SHARDS
from tfds_fixtures import with_read

from tfds_torch import ImageDataset, Loader, ParserTfds, World, create_loader
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.torch_data import loader_advice
from torch_data import loader_resuming
from torch_data.resuming import Setup, make_setup

slow, campaign = pytest.mark.slow, pytest.mark.campaign
NUM_EXAMPLES = sum(NUMBERED_SHARDS)
FORK = {0: None, 2: "fork"}


def in_fleet(fleet: Fleet, function: Callable[..., Any], setup: Setup, *args: Any) -> Any:
    (result,) = fleet.call(function, setup, *args, reads=setup.reads, deadline_s=280)
    return result


@pytest.mark.parametrize("persistent", [True, pytest.param(False, marks=campaign)])
def test_after_a_killed_worker_the_last_state_goes_on_exactly(
    persistent: bool, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, global_batch=4, num_workers=2, persistent=persistent)
    life = in_fleet(fleet, loader_resuming.kill_and_go_on, setup, 3)
    assert life["came"] == life["whole"][: len(life["came"])]
    assert 3 <= len(life["came"]) < len(life["whole"])
    assert life["same"] == life["other"] == life["whole"][len(life["came"]) :]
    assert "was killed by SIGKILL (out of memory?) while it read numbered:1.0.0, split 'train', " in life["message"]
    assert "The Loader's state_dict() counts what was delivered: load it, here or in a new process" in life["message"]


@pytest.mark.parametrize(
    ("num_workers", "persistent"),
    [(0, False), pytest.param(2, True, marks=slow), pytest.param(2, False, marks=campaign)],
)
def test_epochs_advance_and_obey_set_epoch(
    num_workers: int, persistent: bool, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, num_workers=num_workers, persistent=persistent)
    found = in_fleet(fleet, loader_resuming.live_with_epochs, setup)
    epochs = {name: [(epoch, batch) for batch in range(2)] for name, epoch in (("first", 0), ("after a break", 2))}
    assert found == {
        **epochs,
        "broken off": [(1, 0)],
        "set": [(7, 0), (7, 1)],
        "set by the dataset": [(4, 0), (4, 1)],
        "an ended epoch": [],
        "the next one": [(5, 0), (5, 1)],
    }


def test_calls_that_cannot_give_a_state_are_refused(fleet: Fleet, numbered_root: str) -> None:
    said = in_fleet(fleet, loader_resuming.misuse, make_setup(numbered_root, num_workers=1))
    assert said["dataset"].startswith("ConfigError: batches_delivered=1: the loader went on from a state of its own")
    assert said["dataset"].endswith("Ask the loader for its state.")
    assert said["position"].startswith("StateMismatchError: This is the position of one worker")
    assert said["damaged"].startswith("StateMismatchError: ")


# Without reading


def dataset_of(root: str, **arguments: Any) -> ImageDataset:
    parser = ParserTfds(root, "numbered", **{"is_training": True, "batch_size": 6, **arguments})
    return ImageDataset(parser, fields=("index", "valid"))


def test_the_length_is_the_plans_for_any_number_of_workers(numbered_root: str) -> None:
    for num_workers in (0, 3):
        loader = create_loader(dataset_of(numbered_root), num_workers)
        assert (len(loader), loader.batch_size) == (-(-NUM_EXAMPLES // 6), 6)
    parser = ParserTfds(numbered_root, "numbered", is_training=True, batch_size=6)
    dataset = ImageDataset(parser, fields=("label",), world=World(1, 2))
    assert len(create_loader(dataset)) == -(-NUM_EXAMPLES // 12)


def test_a_loader_may_be_made_before_the_rank_is_known(numbered_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # As a rank that Lightning is about to start.
    loader = create_loader(dataset_of(numbered_root), 2)
    with pytest.raises(ConfigError, match="WORLD_SIZE=2 but not RANK"):
        iter(loader)
    monkeypatch.setenv("RANK", "1")
    assert len(loader) == -(-NUM_EXAMPLES // 12)


def test_a_fresh_loader_is_at_the_beginning_and_a_loaded_one_where_it_was_sent(numbered_root: str) -> None:
    loader = create_loader(dataset_of(numbered_root), 2)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 0)
    loader.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3
    loader.load_state_dict(state)
    assert loader.state_dict() == state


def indices(batches: Iterable[Any]) -> list[int]:
    return [index for batch in batches for index in batch[0].tolist()]


def place_of(loader: Loader) -> tuple[int, int]:
    state = loader.state_dict()
    return state["epoch"], state["batches"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iteration_that_is_only_begun_is_not_an_epoch(num_workers: int, numbered_root: str) -> None:
    """Lightning begins one just to try it; Ctrl-C may come before the first batch."""
    with create_loader(dataset_of(numbered_root), num_workers, multiprocessing_context=FORK[num_workers]) as loader:
        epochs = [indices(loader) for _ in range(3)]
        loader.load_state_dict(loader.state_dict())
        assert indices(loader) == []  # What is left of epoch 2.
    with create_loader(dataset_of(numbered_root), num_workers, multiprocessing_context=FORK[num_workers]) as loader:
        for number, epoch in enumerate(epochs[:2]):
            for _ in range(3):
                iter(loader)
            assert place_of(loader) == (number, 0)
            assert indices(loader) == epoch
        begun = iter(loader)
        first = [next(begun) for _ in range(2)]
        loader.load_state_dict(loader.state_dict())
        iter(loader), iter(loader)
        assert place_of(loader) == (2, 2)
        assert indices(first) + indices(loader) == epochs[2]


def test_an_epoch_that_was_broken_off_is_over_and_one_that_is_set_begins(numbered_root: str) -> None:
    loader = create_loader(dataset_of(numbered_root))
    epochs = [indices(loader) for _ in range(3)]
    loader = create_loader(dataset_of(numbered_root))
    next(iter(loader))
    assert indices(loader) == epochs[1]
    iter(loader)
    loader.set_epoch(1)
    assert indices(loader) == epochs[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 7}, "the parser of numbered:1.0.0 plans batch_size=6. Leave it out here"),
        ({"batch_size": 7}, "give the parser the one that is wanted: ParserTfds(..., batch_size=7)."),
        ({"shuffle": True}, "shuffle=True is not for an ImageDataset, whose order and last batch its parser plans"),
        ({"shuffle": True}, "Leave shuffle out here. ParserTfds(..., shuffle=True), the default in training, shuffles"),
        ({"sampler": [1]}, "sampler=[1] is not for an ImageDataset"),
        ({"sampler": [1], "shuffle": True}, "Leave shuffle out here."),
        ({"sampler": [1]}, "needs create_loader(IndexedImageDataset(parser), sampler=...); a part of the examples is"),
        ({"batch_sampler": [[1]]}, "needs create_loader(IndexedImageDataset(parser), batch_sampler=...); a part of"),
        ({"drop_last": True, "batch_size": 6}, "drop_last=True is not for an ImageDataset"),
        ({"drop_last": True}, "Leave drop_last out here. ParserTfds(..., remainder='drop') leaves out the short last"),
    ],
)
def test_what_the_parser_plans_is_refused_with_the_parsers_argument(
    arguments: dict[str, Any], message: str, numbered_root: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        create_loader(dataset_of(numbered_root), **arguments)
    assert message in str(caught.value)


def test_the_remainder_that_the_error_names_drops_the_short_last_batch(numbered_root: str) -> None:
    loader = create_loader(dataset_of(numbered_root, is_training=False, remainder="drop"))
    assert [len(batch[0]) for batch in loader] == [6] * (NUM_EXAMPLES // 6)


def test_the_parsers_batch_size_may_be_given_again(numbered_root: str) -> None:
    assert create_loader(dataset_of(numbered_root), batch_size=6).batch_size == 6
    assert create_loader(dataset_of(numbered_root, is_training=False, batch_size=None)).batch_size == 1


def test_a_position_of_a_dataset_that_read_by_itself_is_refused(numbered_root: str) -> None:
    dataset = dataset_of(numbered_root)
    loader = create_loader(dataset)
    with pytest.raises(StateMismatchError, match="This is the position of one worker"):
        loader.load_state_dict({"began_at": loader.state_dict()})


def test_ranks_that_are_compared_say_their_numbers_of_workers(
    numbered_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfds_torch.torch_data import loader as module

    calls: list[Any] = []

    def check(*arguments: Any) -> None:
        calls.append(arguments[3])
        raise ConfigError("they differ")

    monkeypatch.setattr(module, "is_distributed", lambda: True)
    monkeypatch.setattr(module, "check_ranks", check)
    dataset = ImageDataset(dataset_of(numbered_root).parser, fields=("label",), world=World(0, 2))
    loader = create_loader(dataset, 2)
    for _ in range(2):  # Until it has succeeded.
        with pytest.raises(ConfigError, match="they differ"):
            iter(loader)
    assert calls == [{"epoch": 0, "start_batch": 0, "first_example": 0, "num_workers": 2}] * 2
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("differ", [True, False])
def test_ranks_with_other_numbers_of_workers_raise_before_the_first_batch(
    differ: bool, fleet: Fleet, numbered_root: str
) -> None:
    setup = make_setup(numbered_root, num_replicas=2)
    said = fleet.call(loader_resuming.compare_ranks, setup, differ, num_replicas=2, deadline_s=120)
    reason = "The ranks do not read the same thing: num_workers is 1 on rank 0, 2 on rank 1."
    assert said == [f"ConfigError: {reason}" if differ else "2 batches"] * 2


# In workers


def test_the_generators_of_workers_depend_on_seed_epoch_and_worker(fleet: Fleet, numbered_root: str) -> None:
    setup = make_setup(numbered_root, num_workers=2, persistent=True)
    again, one, two = in_fleet(fleet, loader_resuming.draw, setup, None, [1, 1, 2])
    assert again == one, "whatever was drawn in epochs before"
    assert set(one).isdisjoint(two)
    for column in zip(*one, strict=True):
        assert len(set(column)) == len(column), "two workers, or two examples, draw the same"
    (other,) = in_fleet(fleet, loader_resuming.draw, setup, 5, [1])
    assert set(one).isdisjoint(other)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=slow)])
def test_whole_batches_come_normalised_and_go_on_exactly(num_workers: int, fleet: Fleet, numbered_root: str) -> None:
    setup = make_setup(numbered_root, global_batch=6, num_workers=num_workers, persistent=True)
    found = in_fleet(fleet, loader_resuming.read_whole_batches, setup, 16)
    num_batches = -(-NUM_EXAMPLES // 6)
    assert found["shapes"] == [(6, 3, 16, 16)] * num_batches
    assert found["dtypes"] == {"torch.float32"}
    assert found["channels_last"]
    assert found["len"] == num_batches
    assert found["rest"] == found["indices"][3:]
    assert found["same pixels"]
    assert found["examples"] == 6 * 2 * num_batches
    assert found["was decoded"]


@pytest.mark.parametrize(
    ("mode", "free_mib", "parts"),
    [
        ("index", 128, ["2 workers will take about 0.225 GiB"]),
        (
            "examples",
            1024,
            ["2 workers will take about 1", "0.391 GiB for tensorflow", "for the shuffle buffer and open files"],
        ),
    ],
)
def test_the_memory_of_workers_is_reported_with_all_figures(
    mode: str, free_mib: int, parts: list[str], numbered_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_advice, "available_bytes", lambda: free_mib * 2**20)
    dataset = dataset_of(numbered_root, read=with_read(mode))
    create_loader(dataset, 1, prefetch_batches=1)
    with pytest.warns(UserWarning, match="2 workers will take about") as caught:
        create_loader(dataset, 2, prefetch_batches=1)
    (warning,) = caught
    of_process = "GiB each (0.112 GiB for Python, its libraries and images being decoded, "
    free = f"{free_mib / 1024:.3g} GiB are free of "
    for part in (of_process, "for 3 batches of 0 MiB)", free, *parts):
        assert part in str(warning.message)
    assert ("tensorflow" in str(warning.message)) == (mode != "index")
