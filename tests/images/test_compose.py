"""What is taken over of people's transforms has their places, flips and pixels; what is left has the reason."""

import logging
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import FAR, distance
from people_transforms import (
    JITTER,
    NORMALIZE,
    TO_TENSOR,
    center_crop,
    compose,
    crop,
    hflip,
    random_crop,
    resize,
    theirs,
    vflip,
)
from tfds_fixtures import call_reader

from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.demo.photographs import make_photograph
from tfds_torch.errors import ConfigError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.compose import log_once, take_over
from tfds_torch.images.crops import CropParameters
from tfds_torch.images.transform import BufferRows, ImageTransform

# What is taken over


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([crop()], TrainPreprocess((8, 8), ratio=(0.75, 1.25), hflip=0)),
        ([vflip(0.1), crop(), hflip(0.25)], TrainPreprocess((8, 8), ratio=(0.75, 1.25), hflip=0.25, vflip=0.1)),
        (
            [crop(interpolation=("bilinear", 3))],
            TrainPreprocess(8, ratio=(0.75, 1.25), hflip=0, interpolation="random"),
        ),
        ([random_crop(padding=4)], TrainPreprocess((8, 8), crop_padding=4, hflip=0)),
        ([random_crop(padding=[2, 2], fill=(1, 2, 3))], TrainPreprocess(8, crop_padding=2, hflip=0, fill=(1, 2, 3))),
        ([resize(), hflip(), random_crop()], TrainPreprocess((8, 8), resize=9, crop_padding=0)),
        ([resize(size=(7, 8))], TrainPreprocess((7, 8), resize=(7, 8), hflip=0)),
        ([resize(size=(9, 9)), center_crop()], TrainPreprocess((8, 8), resize=(9, 9), place="center", hflip=0)),
        ([center_crop()], TrainPreprocess((8, 8), resize="keep", place="center", hflip=0)),
    ],
)
def test_a_beginning_becomes_a_preprocess(steps: list[Any], wanted: TrainPreprocess) -> None:
    found = TrainPreprocess.from_transform(compose(*steps, JITTER, center_crop(4)))
    assert replace(found, size=wanted.size) == wanted
    assert found.taken == tuple(type(step).__name__ for step in steps)
    assert found.tail is not None
    assert found.tail.transforms[0] is JITTER
    assert found.left == "ColorJitter: the decoder does not do it"
    assert (found.mean, found.std) == (None, None)
    assert pickle.loads(pickle.dumps(replace(found, shrink=False, of_transform=None))).shrink is False


def test_conversions_run_behind_what_they_stood_before_and_a_pure_end_is_said_by_mean_and_std() -> None:
    found = TrainPreprocess.from_transform(compose(TO_TENSOR, compose(crop()), hflip(), NORMALIZE), size=4)
    assert (found.size, found.tail, found.left) == (4, None, "")
    assert (found.mean, found.std) == ((0.5, 0.25, 0.0), (1.0, 0.5, 0.25))
    assert found.of_transform is not None
    assert found.of_transform.rest.transforms == (TO_TENSOR, NORMALIZE)
    only_scaled = TrainPreprocess.from_transform(compose(crop(), TO_TENSOR))
    assert (only_scaled.mean, only_scaled.std) == ((0.0,) * 3, (1.0,) * 3)
    no_jitter = theirs(
        "torchvision.v1", "ColorJitter", **dict.fromkeys(("brightness", "contrast", "saturation", "hue"))
    )
    plain = TrainPreprocess.from_transform(compose(no_jitter, crop(), theirs("torch.nn", "Identity"), no_jitter))
    assert (plain.mean, plain.tail) == (None, None)
    assert plain.of_transform is not None
    assert plain.of_transform.rest.transforms == ()
    with_more = TrainPreprocess.from_transform(compose(crop(), TO_TENSOR, NORMALIZE, JITTER))
    assert (with_more.mean, with_more.tail) == (None, with_more.of_transform.rest)


# What is left


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            [crop(interpolation="nearest")],
            "RandomResizedCrop: its interpolation is 'nearest', neither bilinear nor bic",
        ),
        ([crop(interpolation=1)], "RandomResizedCrop: its interpolation is 1"),
        ([crop(scale=(0.5, 1.2))], "RandomResizedCrop: TrainPreprocess: scale=(0.5, 1.2) must be two numbers with"),
        ([crop(scale=(0, 1))], "RandomResizedCrop: TrainPreprocess: scale=(0, 1) must be"),
        ([TO_TENSOR, crop(antialias=None)], "RandomResizedCrop: of a tensor, it resizes without antialiasing"),
        ([TO_TENSOR, crop(interpolation=3)], "RandomResizedCrop: of floats, it is not clipped as that of bytes is"),
        ([TO_TENSOR, random_crop(fill=0.5)], "RandomCrop: it pads with fill=0.5"),
        ([TO_TENSOR, random_crop(fill=1)], "RandomCrop: it pads a tensor of floats"),
        ([random_crop(padding_mode="reflect")], "RandomCrop: it pads with padding_mode='reflect'"),
        ([random_crop(padding=(1, 2))], "RandomCrop: its padding, (1, 2), is not equal on all sides"),
        ([random_crop(padding=8)], "RandomCrop: TrainPreprocess: crop_padding=8 must be less than size=(8, 8)"),
        ([random_crop(pad_if_needed=True)], "RandomCrop: pad_if_needed=True"),
        ([resize(max_size=20), center_crop()], "Resize: it has max_size=20"),
        ([NORMALIZE, random_crop()], "Normalize: the decoder does not do it"),
        ([resize(), JITTER, center_crop()], "ColorJitter: the decoder does not do it"),
        ([hflip(), hflip(), crop()], "RandomHorizontalFlip: a second flip"),
        ([type("Mine", (type(crop()),), {"__module__": "mine"})(**vars(crop()))], "there is no crop to one size"),
        ([theirs("mine.transforms", "CenterCrop", size=(8, 8))], "there is no crop to one size"),
        ([theirs("torchvision.v9", "CenterCrop")], "CenterCrop: 'CenterCrop' object has no attribute 'size'"),
    ],
)
def test_what_the_decoder_does_not_do_is_left_with_the_reason(steps: list[Any], reason: str) -> None:
    whole = compose(*steps)
    taken = take_over(whole, is_random=True, check=lambda values: TrainPreprocess(**values))
    assert not taken.values
    assert taken.rest.transforms == (whole,)
    assert taken.left.startswith(reason)
    with pytest.raises(ConfigError, match="nothing of the transform can be done while images are decoded: "):
        TrainPreprocess.from_transform(whole)


def test_a_second_crop_and_all_behind_it_is_the_tail() -> None:
    second = center_crop(4)
    found = TrainPreprocess.from_transform(compose(crop(), second, hflip()))
    assert (found.hflip, found.left) == (0, "CenterCrop: a second crop")
    assert found.tail is not None
    assert found.tail.transforms[0] is second


def test_evaluation_leaves_what_is_random() -> None:
    found = EvalPreprocess.from_transform(compose(resize(), center_crop(), hflip()))
    assert found == EvalPreprocess((8, 8), resize=9, shrink=False)
    assert found.left == "RandomHorizontalFlip: it is random, and EvalPreprocess is not"
    for step in (crop(), random_crop(), resize(interpolation=("bilinear", "bicubic"))):
        with pytest.raises(ConfigError, match="it is random, and EvalPreprocess is not"):
            EvalPreprocess.from_transform(compose(step, center_crop()))
    assert EvalPreprocess.from_transform(compose(center_crop()), shrink=True).resize == "keep"


def test_what_was_taken_over_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            TrainPreprocess.from_transform(compose(crop(), JITTER))
        TrainPreprocess.from_transform(compose(crop()))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "TrainPreprocess.from_transform: taken over by the decoder: RandomResizedCrop; left to you, as its tail: "
            "ColorJitter (ColorJitter: the decoder does not do it). ImageDataset(parser, transform=...) does all of "
            "it, for a parser without a preprocess.",
        ),
        (
            "INFO",
            "TrainPreprocess.from_transform: taken over by the decoder: RandomResizedCrop; left to mean and std of the "
            "loader: nothing",
        ),
    ]


# Held against torchvision and timm


def table_of_transforms() -> list[str]:
    """Loads torch."""
    import public_transforms

    return public_transforms.table()


def test_the_table_of_the_docs_says_what_is_taken_of_thirty_transforms(root: Path) -> None:
    lines = call_reader(table_of_transforms)
    assert len(lines) == 32
    page = (root / "docs" / "pil-transforms.md").read_text()
    assert "\n".join(lines) in page, "docs/pil-transforms.md, From a Compose, is to have:\n" + "\n".join(lines)


def apart_in_evaluation(photographs: list[bytes]) -> dict[str, float]:
    """Returns by how many grey levels evaluations differ when their beginning is taken over. Loads torch."""
    import io

    import public_transforms
    import torch
    from PIL import Image

    from tfds_torch.torch_data.tensor_buffer import TensorBuffer

    found = {}
    for name, transform in public_transforms.evaluation().items():
        if name.startswith("CIFAR"):
            continue
        preprocess = EvalPreprocess.from_transform(transform)
        assert preprocess.of_transform is not None
        rest = preprocess.of_transform.rest
        wanted = torch.stack([transform(Image.open(io.BytesIO(one)).convert("RGB")).double() for one in photographs])
        levels = torch.tensor(preprocess.std or (1 / 255,)).view(-1, 1, 1) * 255
        for buffer in (ArrayBuffer, lambda shape: TensorBuffer(torch.empty(shape, dtype=torch.uint8))):
            made = buffer((len(photographs), *preprocess.size, 3))  # type: ignore[misc]
            rows = [BufferRows(made, 0, len(photographs))]
            ImageTransform("RGB", preprocess).write(photographs, np.arange(len(photographs)), rows)
            came = torch.stack([rest(Image.fromarray(pixels)).double() for pixels in made.pixels])
            found[f"{name}, {type(made).__name__}"] = float(((came - wanted) * levels).abs().mean())
    return found


def test_pixels_of_evaluation_are_those_of_the_whole_transform() -> None:
    apart = call_reader(apart_in_evaluation, [make_photograph(number, 0)[1] for number in range(4)])
    assert len(apart) == 12
    # Pillow has the box of a part of the image in single precision: without torch, more levels are rounded otherwise.
    far = {name: levels for name, levels in apart.items() if levels > (0.01 if "Tensor" in name else 0.02)}
    assert not far


SIZES = [(40, 40), (40, 53), (61, 40), (120, 90), (33, 200), (200, 33), (255, 254)]


def places_of(size: tuple[int, int], padding: int, module: str, count: int) -> np.ndarray:
    """Returns where RandomCrop(24), padded, cut (top, left) and whether it was flipped, [count, 4]. Loads torch."""
    import importlib

    import public_transforms  # noqa: F401 (it lets torchvision be imported)
    import torch
    from PIL import Image

    theirs = importlib.import_module(module)
    torch.manual_seed(3)
    whole = theirs.Compose(
        [theirs.RandomHorizontalFlip(0.3), theirs.RandomCrop(24, padding), theirs.RandomVerticalFlip(0.6)]
    )
    rows, columns = np.mgrid[1 : size[0] + 1, 1 : size[1] + 1]
    image, found = Image.fromarray(np.stack([rows, columns, rows * 0], -1).astype(np.uint8)), []
    for _ in range(count):
        # Pixels in the middle, which are of the image, whatever the padding: (row, column) of two of them.
        cut = whole(image)
        first, other = cut.getpixel((11, 11))[:2], cut.getpixel((12, 12))[:2]
        starts = [min(pair) - 12 for pair in zip(first, other, strict=True)]
        found.append((*starts, int(first[1] > other[1]), int(first[0] > other[0])))
    return np.array(found)


def check_places(size: tuple[int, int], padding: int, module: str, count: int) -> None:
    wanted = call_reader(places_of, size, padding, module, count)
    steps = [hflip(0.3), random_crop(size=(24, 24), padding=padding), vflip(0.6)]
    placed = parameters_of(TrainPreprocess.from_transform(compose(*steps)), size)
    starts = placed.windows[:, :2] + placed.offsets
    ours = np.column_stack([starts, placed.flips, placed.vflips])
    for name, weights in MEASURES.items():
        assert distance(ours @ weights, wanted @ weights) < FAR, (size, name)
    assert (ours.min(axis=0) == wanted.min(axis=0)).all()
    assert (ours.max(axis=0) == wanted.max(axis=0)).all()


MEASURES = {
    "top": (1, 0, 0, 0),
    "left": (0, 1, 0, 0),
    "flip": (0, 0, 1, 0),
    "vertical flip": (0, 0, 0, 1),
    "both flips": (0, 0, 1, 2),
    "top by left": (300, 1, 0, 0),
    "left by flip": (0, 1, 300, 0),
}


def parameters_of(preprocess: TrainPreprocess, size: tuple[int, int], count: int = 100_000) -> CropParameters:
    sizes = np.tile(np.array(size, np.int64), (count, 1))
    return preprocess.crop_parameters(sizes, np.arange(count), 5, np.zeros(count, np.bool_))


@pytest.mark.parametrize("module", ["torchvision.transforms", "torchvision.transforms.v2"])
def test_padded_windows_and_flips_have_the_distribution_of_torchvision(module: str) -> None:
    check_places((40, 53), 4, module, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_many_padded_windows_and_flips_have_the_distribution_of_torchvision(size: tuple[int, int]) -> None:
    check_places(size, 4, "torchvision.transforms", 100_000)


def sizes_and_places_of(sizes: list[tuple[int, int]], resize: Any, count: int) -> list[tuple[Any, np.ndarray]]:
    """Returns to what torchvision resizes images, and where RandomCrop((24, 28)) cuts them. Loads torch."""
    import public_transforms  # noqa: F401 (it lets torchvision be imported)
    import torch
    from torchvision.transforms import RandomCrop, Resize

    torch.manual_seed(3)
    found = []
    for size in sizes:
        image = Resize(resize)(torch.zeros(1, *size))
        places = [RandomCrop.get_params(image, (24, 28))[:2] for _ in range(count)]
        found.append((image.shape[1:], np.array(places)))
    return found


def check_resized_places(sizes: list[tuple[int, int]], count: int) -> None:
    for given in (40, (50, 36)):
        for size, (resized, wanted) in zip(sizes, call_reader(sizes_and_places_of, sizes, given, count), strict=True):
            steps = [resize(size=[given] if isinstance(given, int) else given), random_crop(size=(24, 28))]
            preprocess = TrainPreprocess.from_transform(compose(*steps))
            placed = parameters_of(preprocess, size)
            for weights in ((1, 0), (0, 1), (300, 1)):
                assert distance(placed.offsets @ weights, wanted @ weights) < FAR, (size, given)
            np.testing.assert_allclose(placed.steps[0], np.array(size) / resized)


def test_windows_of_resized_images_have_the_distribution_of_torchvision() -> None:
    check_resized_places([(375, 500), (60, 41)], 3000)


@pytest.mark.slow
def test_many_windows_of_resized_images_have_the_distribution_of_torchvision() -> None:
    check_resized_places(SIZES, 100_000)
