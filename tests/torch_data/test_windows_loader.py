"""Windows of episodes through ImageDataset and its Loader: whole batches of tensors, resumed anywhere."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conformance import OwnStateLoader, Step, check_resumes
from parsers.robot_episodes import Robots

from tfds_torch import (
    DevicePrefetcher,
    ImageDataset,
    Loader,
    MultiLoader,
    ParserTfds,
    TrainPreprocess,
    Windows,
    create_loader,
)
from tfds_torch.errors import ConfigError
from tfds_torch.loaders.pool_setup import make_slots

WINDOWS = Windows(offsets={"wrist": [-1, 0], "action": range(16)})
NAMES = {"wrist": "observation/wrist_image", "state": "observation/state"}
FIELDS = ("wrist", "action", "action_pad", "state", "episode", "step", "language_instruction", "index")


def make_parser(robots: Robots, **arguments: Any) -> ParserTfds:
    values = {"windows": WINDOWS, "fields": NAMES, "batch_size": 4, "is_training": True, **arguments}
    return ParserTfds(robots.root, "libero_like", **values)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_tensors(robots: Robots, num_workers: int) -> None:
    parser = make_parser(robots)
    dataset = ImageDataset(parser, fields=FIELDS)
    assert dataset.is_batched
    planned = list(parser.batches(fields=FIELDS))
    with create_loader(dataset, num_workers=num_workers) as loader:
        assert len(loader) == len(planned) == 14
        for batch, expected in zip(loader, planned, strict=True):
            wrist, action, padding, state, episode, step, texts, index = batch
            assert (wrist.shape, wrist.dtype) == ((4, 2, 3, 16, 16), torch.uint8)
            assert wrist.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
            assert (action.shape, action.dtype) == ((4, 16, 7), torch.float32)
            assert (padding.shape, padding.dtype) == ((4, 16), torch.bool)
            assert (state.shape, state.dtype) == ((4, 8), torch.float32)
            assert episode.dtype == step.dtype == torch.int64
            assert episode.shape == step.shape == (4,)
            assert torch.equal(index, torch.from_numpy(expected.index))
            assert texts == expected.features["language_instruction"]
            for name, values in zip(FIELDS[:4], (wrist, action, padding, state), strict=True):
                np.testing.assert_array_equal(values.numpy(), expected.features[name])


def test_a_preprocess_cuts_the_image_of_the_windows_own_step(robots: Robots) -> None:
    names = {"image": "observation/image", **NAMES}
    parser = make_parser(robots, fields=names, preprocess=TrainPreprocess(size=8))
    dataset = ImageDataset(parser, fields=("image", "wrist", "action"))
    (planned, *_) = parser.batches(fields=("image",))
    with create_loader(dataset, num_workers=1) as loader:
        image, wrist, _ = next(iter(loader))
    assert image.shape == (4, 3, 8, 8)
    assert wrist.shape == (4, 2, 3, 16, 16)
    np.testing.assert_array_equal(image.permute(0, 2, 3, 1).numpy(), planned.image)
    with pytest.raises(ConfigError, match="the preprocess names 'wrist', but only the images of windows are cut"):
        make_parser(robots, fields=names, preprocess=TrainPreprocess(size=8, also=("wrist",)))


def test_single_windows_can_be_asked_for(robots: Robots) -> None:
    parser = make_parser(robots, is_training=False)
    items = list(ImageDataset(parser, fields=("action", "step"), batched=False))
    assert len(items) == 55
    assert items[3][0].shape == (16, 7)
    assert [int(step) for _, step in items[:3]] == [0, 1, 2]


def test_without_fields_the_message_says_how_to_name_some(robots: Robots) -> None:
    parser = make_parser(robots)
    with pytest.raises(ConfigError, match=r"windows have no field 'image' unless .* fields=\('wrist', 'episode'\)"):
        ImageDataset(parser)
    calls: tuple[Any, ...] = create_loader, partial(DevicePrefetcher, device="cpu")
    for call in calls:
        with pytest.raises(ConfigError, match=r"Use create_loader\(ImageDataset\(parser, fields=\('action', \.\.\."):
            call(parser)


def test_a_transform_of_single_examples_is_refused_with_the_one_of_windows(robots: Robots) -> None:
    with pytest.raises(ConfigError, match="Give the parser transform=function, which gets whole windows"):
        ImageDataset(make_parser(robots), transform=len, fields=("action",))


def test_single_windows_and_multi_loader_have_all_fields_where_none_are_named(robots: Robots) -> None:
    parser = make_parser(robots, fields={"image": "observation/image", **NAMES}, shuffle=False)
    every = {*parser.element_spec.fields} - {"index", "id", "valid"}
    assert {"image", "wrist", "wrist_pad", "action", "episode", "language_instruction"} < every
    assert {*parser[0].features, "image"} == every
    assert parser[0].image.shape == (16, 16, 3)
    with MultiLoader(parser, 1, timeout_s=60.0) as loader:
        batch = next(iter(loader))
    assert {*batch.features, "image"} == every
    assert len(batch.image) == len(batch.id) == 4


def test_multi_loader_gives_the_same_batches(robots: Robots) -> None:
    parser = make_parser(robots)
    planned = list(parser.batches(fields=("wrist", "action", "step")))
    with MultiLoader(parser, num_workers=2, fields=("wrist", "action", "step")) as loader:
        for batch, expected in zip(loader, planned, strict=True):
            wrist = batch.features["wrist"]
            assert np.moveaxis(wrist, -3, -1).flags.c_contiguous
            assert not wrist.flags.owndata, "it lies in a shared slot"
            assert batch.index.tolist() == expected.index.tolist()
            for name in ("wrist", "action", "step"):
                np.testing.assert_array_equal(batch.features[name], expected.features[name])


class WindowsLoader(OwnStateLoader):
    """A Loader over windows, as conformance.py drives it."""

    def __init__(self, robots: Robots, num_workers: int) -> None:
        dataset = ImageDataset(make_parser(robots, batch_size=14), fields=FIELDS)
        self.loader: Loader = create_loader(dataset, num_workers=num_workers)

    def __iter__(self) -> Iterator[Step]:
        for batch in self.loader:
            yield self.step(batch[-1].tolist())


def test_every_state_goes_on_with_other_workers(robots: Robots) -> None:
    make, other = (partial(WindowsLoader, robots, workers) for workers in (0, 1))
    assert check_resumes(make, other, num_epochs=1) == 2 * (1 + 4 + 1)


def test_cameras_of_a_batch_come_in_one_shared_slot(robots: Robots) -> None:
    names = {"front": "observation/image", **NAMES}
    parser = make_parser(robots, fields=names)
    planned = list(parser.batches(fields=("front", "wrist")))
    with create_loader(ImageDataset(parser, fields=("front", "wrist")), num_workers=1) as loader:
        for (front, wrist), expected in zip(loader, planned, strict=True):
            front_bytes = 4 * 16 * 16 * 3
            assert wrist.data_ptr() - front.data_ptr() == -(-front_bytes // 64) * 64 + 64
            np.testing.assert_array_equal(front.numpy(), expected.features["front"])
            np.testing.assert_array_equal(wrist.numpy(), expected.features["wrist"])


def test_slots_have_room_for_all_cameras(robots: Robots) -> None:
    offsets = {"wrist": range(40), "action": range(16)}
    parser = make_parser(robots, windows=Windows(offsets=offsets), batch_size=8192)
    slots = make_slots(1, 1, parser)
    assert slots.slot_bytes > 8192 * (40 + 1) * 3 * 16 * 16  # Of both cameras; of the usual size a slot is 128 MiB.
