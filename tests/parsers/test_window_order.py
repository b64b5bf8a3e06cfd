"""Windows in order: worlds, resumes, subsets and mixtures are those of all parsers."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from conformance import check_resumes

from parsers.resuming import ParserLoader
from parsers.robot_episodes import Robots
from parsers.window_values import assert_equal, expected_value
from tfds_torch import ParserMixture
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.plan.world import World


def training(robots: Robots, **arguments: Any) -> ParserTfds:
    windows = Windows(offsets={"action": range(4), "observation/image_0": [-1, 0]})
    return ParserTfds(
        robots.root, "bridge_like", windows=windows, is_training=True, **{"batch_size": 3, "seed": 7, **arguments}
    )


def seen(batches: Sequence[Batch]) -> list[int]:
    return [number for batch in batches for number in batch.index[batch.valid].tolist()]


def test_every_window_comes_once_in_a_pass_in_an_order_of_its_own(robots: Robots) -> None:
    parser = training(robots, batch_size=8)
    orders = [seen(list(parser.batches(epoch=epoch, fields=["action"]))) for epoch in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(56))
    assert orders[0] != orders[1]
    block = training(robots, batch_size=8, read=parser.read)
    assert seen(list(block.batches(fields=["action"]))) == orders[0]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_global_batches_do_not_depend_on_ranks_and_workers(robots: Robots, num_ranks: int) -> None:
    whole = list(training(robots, batch_size=8).batches(fields=["action"]))
    parser = training(robots, batch_size=8 // num_ranks)
    for workers in (1, 3):
        parts = [
            [
                list(parser.batches(World(rank, num_ranks, worker, workers), fields=["action", "step"]))
                for worker in range(workers)
            ]
            for rank in range(num_ranks)
        ]
        for number, expected in enumerate(whole):
            found = [part[number % workers][number // workers] for part in parts]
            actions = np.concatenate([batch.features["action"] for batch in found])
            np.testing.assert_array_equal(actions, expected.features["action"])


def test_a_subset_an_epoch_size_and_weights_of_windows(robots: Robots) -> None:
    parser = training(robots)
    steps = np.concatenate([batch.features["step"] for batch in evaluation(robots).batches(fields=["step"])])
    first_halves = parser.subset(steps < 3)
    assert sorted(set(seen(list(first_halves.batches(fields=["step"]))))) == np.flatnonzero(steps < 3).tolist()
    assert len(list(training(robots, epoch_size=9).batches(fields=["step"]))) == 3
    drawn = seen(list(parser.weighted(np.arange(56) % 2).batches(fields=["step"])))
    assert {number % 2 for number in drawn} == {1}


def evaluation(robots: Robots) -> ParserTfds:
    return ParserTfds(robots.root, "bridge_like", windows=Windows(), batch_size=56)


def mixed(robots: Robots, **arguments: Any) -> ParserMixture:
    """Returns a mixture of three datasets, whose cameras and actions have equal names."""
    windows = Windows(offsets={"action": range(4), "image_primary": [-1, 0]})
    cameras = {"bridge_like": "observation/image_0", "libero_like": "observation/image"}
    members = {
        name: ParserTfds(robots.root, name, windows=windows, fields={"image_primary": camera})
        for name, camera in cameras.items()
    }
    members["again"] = ParserTfds(
        robots.root, "libero_like", "train[:2]", windows=windows, fields={"image_primary": "observation/wrist_image"}
    )
    weights = {"bridge_like": 0.5, "libero_like": 0.3, "again": 0.2}
    return ParserMixture(members, weights, is_training=True, epoch_size=30, **arguments)


def test_a_mixture_of_windows_has_their_values(robots: Robots) -> None:
    parser = mixed(robots, batch_size=6)
    names = ["bridge_like", "libero_like", "again"]
    fields = ["image_primary", "action", "action_pad", "episode", "step", "language_instruction", "member"]
    (batch, *_) = parser.batches(fields=fields)
    assert batch.features["image_primary"].shape == (6, 2, 3, 16, 16)
    assert batch.features["action"].shape == (6, 4, 7)
    assert {"image_primary", "action", "action_pad", "episode", "step"} <= set(parser.element_spec.fields)
    for row, member in enumerate(batch.features["member"].tolist()):
        name = "libero_like" if member else "bridge_like"
        episode = robots.episodes[name][batch.features["episode"][row]]
        step = int(batch.features["step"][row])
        expected = expected_value(episode, "action", step, range(4))
        assert_equal(batch.features["action"][row], expected, batch.id[row])
        assert batch.features["language_instruction"][row] == episode["steps"][step]["language_instruction"]
        assert batch.id[row] == f"{names[member]}/{episode['tfds_id'].decode()}/{step}"


def test_images_of_one_step_are_one_array_in_a_mixture_too(robots: Robots) -> None:
    cameras = {"bridge_like": "observation/image_0", "libero_like": "observation/image"}
    members = {
        name: ParserTfds(robots.root, name, windows=Windows(), fields={"camera": camera})
        for name, camera in cameras.items()
    }
    parser = ParserMixture(members, "sizes", is_training=True, batch_size=8)
    assert parser.element_spec.fields["camera"].shape == (3, 16, 16)
    (batch, *_) = parser.batches(fields=["camera", "episode", "step", "member"])
    images = batch.features["camera"]
    assert (images.shape, images.dtype) == ((8, 3, 16, 16), np.uint8)
    for row, member in enumerate(batch.features["member"].tolist()):
        name = list(cameras)[member]
        alone = ParserTfds(robots.root, name, windows=Windows(), fields={"camera": cameras[name]}, batch_size=1)
        index = int(batch.index[row]) - (len(members["bridge_like"]) if member else 0)
        (expected,) = alone.subset([index]).batches(fields=["camera"])
        np.testing.assert_array_equal(images[row], expected.features["camera"][0])


def test_members_whose_windows_differ_are_refused(robots: Robots) -> None:
    members = {
        str(length): ParserTfds(robots.root, "libero_like", windows=Windows(offsets={"action": range(length)}))
        for length in (2, 3)
    }
    with pytest.raises(
        ConfigError, match=r"'action' is float32 \[2, 7\] in the member '2', and float32 \[3, 7\] in '3'"
    ):
        ParserMixture(members, {"2": 1, "3": 1}, is_training=True, batch_size=4).check_fields(["action"])


@pytest.mark.parametrize(
    ("make", "grid", "other"),
    [
        (training, (1, 1), (3, 2)),
        pytest.param(training, (2, 2), (1, 3), marks=pytest.mark.slow),
        pytest.param(mixed, (1, 1), (3, 2), marks=pytest.mark.slow),
        (mixed, (2, 2), (1, 3)),
    ],
)
def test_every_state_goes_on_in_other_worlds(
    robots: Robots, make: Any, grid: tuple[int, int], other: tuple[int, int]
) -> None:
    make_parser = cache(partial(make, robots))  # A parser has no position: one is opened for each batch size.
    assert check_resumes(partial(ParserLoader, make_parser, grid, 6), partial(ParserLoader, make_parser, other, 6)) > 20
