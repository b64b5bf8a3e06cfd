"""A transform whose beginning is done while images are decoded: the same examples everywhere, and what turns it off."""

import logging
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from people_transforms import (
    JITTER,
    NORMALIZE,
    PIL_TO_TENSOR,
    TO_TENSOR,
    center_crop,
    compose,
    crop,
    hflip,
    resize,
)
from PIL import Image
from torch.utils.data import DataLoader

from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds, TrainPreprocess, Transform, World, create_loader
from tfds_torch.errors import ConfigError
from tfds_torch.images.compose import log_once

BATCH_SIZE = 8
TRAINING = compose(crop(size=(24, 20)), hflip(), PIL_TO_TENSOR)
SCALED = compose(crop(size=(24, 20)), hflip(), TO_TENSOR, NORMALIZE)
EVALUATION = compose(resize(size=[30]), center_crop(24), PIL_TO_TENSOR)


def open_parser(root: Path, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, "photos", **{"is_training": True, "batch_size": BATCH_SIZE} | arguments)


def wanted(root: Path, preprocess: Any, **arguments: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the batches that a preprocess makes of an epoch, images [B, C, H, W]."""
    parser = open_parser(root, preprocess=preprocess, **arguments)
    return [(image.contiguous(), label) for image, label in create_loader(ImageDataset(parser))]


def check_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected) > 3
    for (image, label), (wanted_image, wanted_label) in zip(found, expected, strict=True):
        torch.testing.assert_close(image, wanted_image, rtol=0, atol=1e-6)
        torch.testing.assert_close(label, wanted_label, rtol=0, atol=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_examples_are_those_of_the_preprocess_behind_any_loader(data_root: Path, num_workers: int) -> None:
    expected = wanted(data_root, TrainPreprocess.from_transform(TRAINING))
    plain = ImageDataset(open_parser(data_root), transform=TRAINING)
    check_equal(list(DataLoader(plain, batch_size=BATCH_SIZE, num_workers=num_workers)), expected)
    with create_loader(ImageDataset(open_parser(data_root), transform=TRAINING), num_workers) as loader:
        check_equal(list(loader), expected)
    collated = ImageDataset(open_parser(data_root), transform=TRAINING)
    with create_loader(collated, num_workers, collate_fn=torch.utils.data.default_collate) as loader:
        check_equal(list(loader), expected)


def test_an_evaluation_has_the_pixels_of_its_transform(data_root: Path) -> None:
    arguments = {"is_training": False, "split": "train"}
    dataset = ImageDataset(open_parser(data_root, **arguments), transform=EVALUATION)
    assert dataset.find_fused() is not None
    assert isinstance(dataset.find_fused().parser.preprocess, EvalPreprocess)
    expected = wanted(data_root, EvalPreprocess(24, resize=30, shrink=False), **arguments)
    check_equal(list(DataLoader(dataset, batch_size=BATCH_SIZE)), expected)


def test_only_create_loader_normalises_on_the_device_and_only_where_it_is_not_told_otherwise(data_root: Path) -> None:
    expected = [
        (
            (image / 255 - torch.tensor(NORMALIZE.mean).view(-1, 1, 1)) / torch.tensor(NORMALIZE.std).view(-1, 1, 1),
            label,
        )
        for image, label in wanted(data_root, TrainPreprocess.from_transform(SCALED))
    ]
    dataset = ImageDataset(open_parser(data_root), transform=SCALED)
    example, _ = next(iter(dataset))
    assert (example.dtype, example.shape) == (torch.float32, (3, 24, 20))
    for loader in (
        DataLoader(ImageDataset(open_parser(data_root), transform=SCALED), batch_size=BATCH_SIZE),
        create_loader(ImageDataset(open_parser(data_root), transform=SCALED)),
        create_loader(ImageDataset(open_parser(data_root), transform=SCALED, target_transform=lambda label: label)),
        create_loader(ImageDataset(open_parser(data_root), transform=SCALED, as_dict=True), collate_fn=_of_dicts),
    ):
        check_equal(list(loader), expected)
    as_dicts = create_loader(ImageDataset(open_parser(data_root), transform=SCALED, as_dict=True))
    check_equal([tuple(batch.values()) for batch in as_dicts], expected)


def _of_dicts(examples: list[dict[str, Any]]) -> Any:
    return tuple(torch.utils.data.default_collate(examples).values())


def test_a_transform_that_changes_after_its_loader_was_made_is_an_error(data_root: Path) -> None:
    dataset = ImageDataset(open_parser(data_root), transform=SCALED)
    loader = create_loader(dataset)
    dataset.transform = TRAINING
    with pytest.raises(ConfigError, match=r"was changed after create_loader had taken it over\. Make the loader after"):
        next(iter(loader))
    examples = ImageDataset(open_parser(data_root), transform=compose(crop(), JITTER))
    examples.transform = TRAINING  # As timm's create_loader does.
    assert next(iter(examples))[0].shape == (3, 24, 20)


# The rest


class Drawing:
    """Returns random numbers, and what it was called with."""

    def __call__(self, image: Any) -> Any:
        assert isinstance(image, Image.Image)
        assert image.size == (20, 24)
        drawn = random.random(), float(np.random.random()), float(torch.rand(()))
        return torch.tensor([*drawn, float(np.asarray(image).mean())], dtype=torch.float64)


def test_the_rest_gets_a_pil_image_and_random_numbers_of_the_example(data_root: Path) -> None:
    def epochs(num_workers: int, **arguments: Any) -> list[Any]:
        parser = open_parser(data_root, **arguments)
        dataset = ImageDataset(parser, transform=compose(crop(size=(24, 20)), hflip(), Drawing()))
        with create_loader(dataset, num_workers) as loader:
            batches = [batch for _ in range(2) for batch in loader]
        assert len(batches) == 16
        return batches

    own = random.getstate(), torch.get_rng_state()
    alone = epochs(0)
    assert random.getstate() == own[0]
    assert torch.equal(torch.get_rng_state(), own[1])
    check_equal(epochs(2), alone)
    drawn = torch.cat([values for values, _ in alone])
    # Of 2 x 64 rows, three fill the first epoch's last batch: they have the numbers of the second pass.
    assert len(set(drawn[:, 0].tolist())) == len(set(drawn[:, 2].tolist())) == 125


class Invert:
    """Returns another PIL image, perhaps of another size."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.point(lambda level: 255 - level).resize(self.size, Image.Resampling.NEAREST)


@pytest.mark.parametrize("size", [(20, 24), (10, 12)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_bytes_that_the_rest_gives_are_collated_without_a_copy_where_they_fit(
    data_root: Path, num_workers: int, size: tuple[int, int]
) -> None:
    transform = compose(crop(size=(24, 20)), hflip(), Invert(size), PIL_TO_TENSOR)
    step = 20 // size[0]
    expected = [
        (255 - image[:, :, step // 2 :: step, step // 2 :: step], label)
        for image, label in wanted(data_root, TrainPreprocess.from_transform(TRAINING))
    ]
    for as_dict in (False, True):
        dataset = ImageDataset(open_parser(data_root), transform=transform, as_dict=as_dict)
        with create_loader(dataset, num_workers) as loader:
            batches = [tuple(batch.values()) if as_dict else batch for batch in loader]
        check_equal(batches, expected)
        assert all(image.is_contiguous() is (step == 2) for image, _ in batches)
    plain = ImageDataset(open_parser(data_root), transform=transform)
    check_equal(list(DataLoader(plain, batch_size=BATCH_SIZE, num_workers=num_workers)), expected)


def test_a_fused_epoch_goes_on_where_its_state_was_taken(data_root: Path) -> None:
    def make() -> Any:
        return create_loader(ImageDataset(open_parser(data_root), transform=TRAINING))

    whole = list(make())
    first = make()
    taken = [batch for _, batch in zip(range(3), first, strict=False)]
    second = make()
    second.load_state_dict(first.state_dict())
    check_equal([*taken, *second], whole)
    behind_torch = ImageDataset(open_parser(data_root), transform=TRAINING)
    behind_torch.load_state_dict(first.state_dict())
    check_equal([*taken, *DataLoader(behind_torch, batch_size=BATCH_SIZE)], whole)


def test_it_is_found_anew_in_another_process(data_root: Path) -> None:
    dataset = ImageDataset(open_parser(data_root), transform=TRAINING)
    assert dataset.find_fused() is dataset.find_fused()
    again = pickle.loads(pickle.dumps(dataset))
    assert again.find_fused() is not None
    torch.testing.assert_close(next(iter(again))[0], next(iter(dataset))[0])


# What turns it off


def _same(example: dict[str, Any]) -> dict[str, Any]:
    return example


@pytest.mark.parametrize(
    ("of_parser", "of_dataset", "reason"),
    [
        ({}, {"fuse": False}, None),
        ({"transform": _same}, {}, "a Transform of the parser reads or gives the image"),
        ({"transform": Transform(_same, reads=["label"])}, {}, "a Transform of the parser reads or gives the image"),
        ({"is_training": False, "batch_size": None}, {}, "the parser has no batch_size"),
        ({"decode": {"image": False}}, {}, "images are not decoded to bytes of pixels"),
        ({"image_mode": None}, {}, "A preprocess needs image_mode 'RGB', 'L' or 'RGBA'"),
        ({}, {"fields": ("label", "id")}, "there is no field 'image' of single images"),
        ({}, {"transform": compose(JITTER, crop())}, "ColorJitter: the decoder does not do it"),
        ({}, {"transform": np.asarray}, "there is no crop to one size"),
    ],
)
def test_what_is_not_taken_over_runs_as_it_is_and_the_log_says_why(
    data_root: Path, of_parser: Any, of_dataset: Any, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    parser = open_parser(data_root, **of_parser)
    with caplog.at_level(logging.INFO):
        dataset = ImageDataset(parser, **{"transform": TRAINING} | of_dataset)
        assert [dataset.find_fused() for _ in range(2)] == [None, None]
    said = [message for message in caplog.messages if "transform" in message]
    assert len(said) == (reason is not None)
    assert reason is None or f"the transform runs as it is ({reason}" in said[0]


def test_a_transform_of_other_fields_leaves_the_image_to_the_decoder(data_root: Path) -> None:
    transform = Transform(_same, reads=["label"], gives=["label"])
    dataset = ImageDataset(open_parser(data_root, transform=transform), transform=TRAINING)
    assert dataset.find_fused() is not None
    check_equal(
        list(DataLoader(dataset, batch_size=BATCH_SIZE)), wanted(data_root, TrainPreprocess.from_transform(TRAINING))
    )


def test_the_environment_turns_auto_off(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_TORCH_FUSE", "0")
    assert ImageDataset(open_parser(data_root), transform=TRAINING).find_fused() is None
    assert ImageDataset(open_parser(data_root), transform=TRAINING, fuse=True).find_fused() is not None
    with pytest.raises(ConfigError, match="fuse='yes' must be 'auto', True, or False: transforms run as"):
        ImageDataset(open_parser(data_root), fuse="yes")


def test_ranks_have_the_examples_of_one_process(data_root: Path) -> None:
    def rows(world: World | None, batch_size: int) -> list[torch.Tensor]:
        dataset = ImageDataset(open_parser(data_root, batch_size=batch_size), transform=TRAINING, world=world)
        return [image for image, _ in dataset]

    alone = rows(None, 2 * BATCH_SIZE)
    of_ranks = [rows(World(rank=rank, num_replicas=2), BATCH_SIZE) for rank in range(2)]
    for number, image in enumerate(alone):
        batch, place = divmod(number, 2 * BATCH_SIZE)
        rank, row = divmod(place, BATCH_SIZE)
        torch.testing.assert_close(of_ranks[rank][batch * BATCH_SIZE + row], image)
