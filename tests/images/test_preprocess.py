"""TrainPreprocess and EvalPreprocess: what they take, what they refuse and how, and what they place where."""

import hashlib
import math
import pickle
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refused import said_of

from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.errors import ConfigError
from tfds_torch.images.crops import CropParameters
from tfds_torch.images.headers import MOST_PIXELS
from tfds_torch.images.preprocess import height_and_width

BOTH = (TrainPreprocess, EvalPreprocess)
MANY = 4000


def place(preprocess: Any, size: tuple[int, int], count: int = 1, seed: int = 42, first: int = 0) -> CropParameters:
    """Returns what is done to `count` images of one size, none of which can be shrunk."""
    sizes = np.tile(np.array(size, np.int64), (count, 1))
    return preprocess.crop_parameters(sizes, np.arange(first, first + count), seed, np.zeros(count, np.bool_))


# What is refused


REFUSED_BY_BOTH: list[tuple[dict[str, Any], str]] = [
    ({"size": 0}, "size=0 must be an integer >= 1."),
    ({"size": -224}, "size=-224 must be an integer >= 1."),
    ({"size": True}, "size=True must be an integer >= 1."),
    ({"size": 224.0}, "size=224.0 must be an integer >= 1."),
    ({"size": "224"}, "size='224' must be an integer >= 1."),
    ({"size": None}, "size=None must be an integer >= 1."),
    ({"size": (224, 0)}, "size=0 must be an integer >= 1."),
    ({"size": (3, 224, 224)}, "size=(3, 224, 224) must be the pixels of a side, or (height, width)."),
    ({"size": ()}, "size=() must be the pixels of a side, or (height, width)."),
    (
        {"interpolation": "bilinaer"},
        "unknown interpolation 'bilinaer': choose one of 'bilinear', 'bicubic', 'random'. Did you mean 'bilinear'?",
    ),
    ({"interpolation": None}, "unknown interpolation None: choose one of 'bilinear', 'bicubic', 'random'."),
    ({"fill": -1}, "fill=-1 must be an integer >= 0."),
    ({"fill": 256}, "fill=256 must be a grey level, 0 to 255, or one for each channel."),
    ({"fill": 0.5}, "fill=0.5 must be an integer >= 0."),
    ({"fill": (1, 2, 300)}, "fill=(1, 2, 300) must be a grey level, 0 to 255, or one for each channel."),
    ({"fill": ()}, "fill=() must be a grey level, 0 to 255, or one for each channel."),
    ({"also": "mask"}, "also='mask' must be names of image features, such as ('mask',)."),
    ({"also": (1,)}, "also=(1,) must be names of image features, such as ('mask',)."),
    ({"also": None}, "also=None must be names of image features, such as ('mask',)."),
    ({"max_pixels": 0}, "max_pixels=0 must be an integer >= 1."),
    *(
        ({"boxes": boxes}, f"boxes={boxes!r} names 'a' twice: a row goes with the boxes of one field.")
        for boxes in (("a", "a"), {"a": ("a",)}, {"b": ("a",), "c": ("a",)})
    ),
    ({"shrink": 0}, "shrink=0 must be True or False."),
    *(({"resize": value}, f"resize={found} must be an integer >= 1.") for value, found in ((0, 0), ((8, 0.5), 0.5))),
    *(
        (
            {"resize": resize},
            f"resize={resize!r} must be the pixels of the shorter side; (height, width); ('cover', height, width) or "
            f"('inside', height, width), which keep the ratio; or 'keep': nothing is resized.",
        )
        for resize in (256.0, "256", (256,), ("covers", 8, 8), ("cover", 8, 8, 8))
    ),
    ({"min_visible": 1.5}, "min_visible=1.5 must be a share of a box's area, 0 to 1."),
    ({"min_visible": float("nan")}, "min_visible=nan must be a share of a box's area, 0 to 1."),
    *(
        (
            {"boxes": boxes},
            f"boxes={boxes!r} must be names of fields, such as ('objects/bbox',), or map these to the fields that "
            f"have a row for each box, such as {{'bboxes': ('classes',)}}; () where no boxes move; or None: those "
            f"that the dataset declares.",
        )
        for boxes in ("objects/bbox", 3, (3,), {"bboxes": "classes"}, {"bboxes": (1,)}, ("bboxes", ("classes",)))
    ),
]
NO_RANGES = [0.5, (0.5,), (0.1, 0.5, 1.0), (0.0, 1.0), (-0.1, 1.0), (0.9, 0.1), ("a", "b"), (0.1, math.nan), None]
REFUSED_BY_ONE: list[tuple[type, dict[str, Any], str]] = [
    *(
        (TrainPreprocess, {name: value}, f"{name}={value!r} must be two numbers with 0 < least <= greatest{limit}.")
        for name, limit, values in (("scale", " <= 1", [*NO_RANGES, (0.08, 1.5)]), ("ratio", "", NO_RANGES))
        for value in values
    ),
    *(
        (TrainPreprocess, {name: value}, f"{name}={value!r} must be a probability, 0 to 1.")
        for name in ("hflip", "vflip")
        for value in (-0.1, 1.1, None, "0.5", True, math.nan, math.inf)
    ),
    (TrainPreprocess, {"place": "centre"}, "place='centre' must be 'random' or 'center'. Did you mean 'center'?"),
    *(
        (TrainPreprocess, {"crop_padding": value}, f"crop_padding={value} must be an integer >= 0.")
        for value in (-1, 1.5, True)
    ),
    *(
        (
            TrainPreprocess,
            {"size": size, "crop_padding": padding},
            f"crop_padding={padding} must be less than size={size}: there would be results of nothing but padding.",
        )
        for size, padding in ((32, 32), (32, 40), ((64, 16), 16))
    ),
    *(
        (EvalPreprocess, {"crop_pct": value}, f"crop_pct={value!r} must be a fraction, above 0 and at most 1.")
        for value in (0, -0.5, 1.01, None, True, math.nan)
    ),
    (
        EvalPreprocess,
        {"crop_mode": "centre"},
        "unknown crop_mode 'centre': choose one of 'center', 'squash', 'border'. Did you mean 'center'?",
    ),
    (
        EvalPreprocess,
        {"interpolation": "random"},
        "interpolation='random' is for training: choose 'bilinear' or 'bicubic'.",
    ),
]


@pytest.mark.parametrize("kind", BOTH)
def test_values_that_cannot_be_are_refused(kind: type) -> None:
    found = [
        (message, said_of(ConfigError, kind, **{"size": 224} | arguments)) for arguments, message in REFUSED_BY_BOTH
    ]
    wrong = [(message, said) for message, said in found if said != f"{kind.__name__}: {message}"]
    assert not wrong, str(wrong)


def test_values_of_one_kind_that_cannot_be_are_refused() -> None:
    found = [
        (f"{kind.__name__}: {message}", said_of(ConfigError, kind, **{"size": 224} | arguments))
        for kind, arguments, message in REFUSED_BY_ONE
    ]
    wrong = [(message, said) for message, said in found if said != message]
    assert not wrong, str(wrong)


# What is taken


@pytest.mark.parametrize("kind", BOTH)
def test_lists_and_numpys_numbers_become_plain_values(kind: type) -> None:
    value = kind(size=[np.int64(160), 224], fill=[1, 2, 3], also=["mask"], max_pixels=np.int64(7))
    assert (value.size, value.fill, value.also, value.max_pixels) == ((160, 224), (1, 2, 3), ("mask",), 7)
    assert all(type(side) is int for side in value.size)
    assert height_and_width(value.size) == (160, 224)
    assert height_and_width(kind(size=np.int32(96)).size) == (96, 96)
    assert kind(size=(96,)) == kind(size=96)
    assert kind(size=96).max_pixels == MOST_PIXELS


@pytest.mark.parametrize("kind", BOTH)
def test_fields_of_boxes_are_kept_in_a_form_that_can_be_hashed_and_given_again(kind: type) -> None:
    for given, kept, fields in (
        (None, None, None),
        ((), (), {}),
        (["a", "b"], ("a", "b"), {"a": None, "b": None}),
        ({"a": ["c", "d"], "b": ()}, (("a", ("c", "d")), ("b", ())), {"a": ("c", "d"), "b": ()}),
    ):
        value = kind(size=96, boxes=given)
        assert (value.boxes, value.box_fields) == (kept, fields)
        assert hash(value) == hash(replace(value, boxes=value.boxes))
        assert value.moved_fields == tuple(fields or ())


@pytest.mark.parametrize(
    "value",
    [
        EvalPreprocess(size=32, also=("mask",), boxes={"bboxes": ("classes",)}),
    ],
)
def test_they_are_plain_values(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert len({value, pickle.loads(pickle.dumps(value))}) == 1
    with pytest.raises(AttributeError):
        value.size = 7


# Training


def test_positions_are_kept_where_the_whole_image_is_squashed() -> None:
    assert EvalPreprocess(8, crop_mode="squash", crop_pct=1).keeps_positions
    assert EvalPreprocess(8, resize=(8, 8)).keeps_positions
    assert not EvalPreprocess(8, crop_mode="squash", crop_pct=1, resize=8).keeps_positions
    others = [TrainPreprocess(8), EvalPreprocess(8, crop_pct=1), EvalPreprocess(8, crop_mode="squash", crop_pct=0.9)]
    assert not any(one.keeps_positions for one in others)


def test_flips_have_their_probability() -> None:
    for probability in (0.0, 0.25, 0.5, 1.0):
        share = place(TrainPreprocess(size=8, hflip=probability), (20, 30), MANY).flips.mean()
        assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / MANY)


def test_random_interpolation_mixes_both_filters_and_the_others_do_not() -> None:
    shares = {
        name: place(TrainPreprocess(size=8, interpolation=name), (20, 30), MANY).bicubic.mean()
        for name in ("bilinear", "bicubic", "random")
    }
    assert shares["bilinear"] == 0
    assert shares["bicubic"] == 1
    assert abs(shares["random"] - 0.5) < 4 * 0.5 / math.sqrt(MANY)


def test_flip_filter_and_box_are_independent() -> None:
    placed = place(TrainPreprocess(size=8, interpolation="random"), (400, 300), MANY)
    areas = placed.windows[:, 2] * placed.windows[:, 3]
    columns = [placed.flips, placed.bicubic, areas, placed.windows[:, 0], placed.windows[:, 1] * (placed.flips - 0.5)]
    correlations = np.corrcoef(columns[:2] + columns[2:4])
    # A large box lies near the corner, so area and place depend on each other.
    assert np.abs(correlations[:2] - np.eye(2, 4)).max() < 4 / math.sqrt(MANY)


def test_what_is_placed_depends_on_seed_and_key_alone() -> None:
    preprocess = TrainPreprocess(size=8, interpolation="random")

    def rows(**arguments: Any) -> list[Any]:
        placed = place(preprocess, (400, 300), **arguments)
        return list(zip(placed.windows.tolist(), placed.rows(), strict=True))

    together = rows(count=100)
    assert rows(count=60) + rows(count=40, first=60) == together
    for others in (rows(count=100, seed=43), rows(count=100, first=100)):
        assert sum(one == other for one, other in zip(together, others, strict=True)) == 0


# Pad and crop


@pytest.mark.parametrize(("padding", "starts"), [(4, range(-4, 5)), (0, range(1)), (2, range(-2, 3))])
def test_padded_crops_lie_anywhere_with_the_same_probability(padding: int, starts: range) -> None:
    placed = place(TrainPreprocess(size=32, crop_padding=padding), (32, 32), MANY)
    for axis in (0, 1):
        begins = placed.windows[:, axis] + placed.offsets[:, axis]
        values, counts = np.unique(begins, return_counts=True)
        assert values.tolist() == list(starts)
        share = 1 / len(starts)
        assert np.abs(counts / MANY - share).max() <= 4 * math.sqrt(share * (1 - share) / MANY)
    assert (placed.steps == 1).all()


def test_larger_images_are_cut_and_smaller_ones_padded_on_both_sides() -> None:
    preprocess = TrainPreprocess(size=32, crop_padding=4)
    large = place(preprocess, (100, 34), MANY)
    assert set(large.windows[:, 0] + large.offsets[:, 0]) == set(range(-4, 73))
    assert set(large.windows[:, 1] + large.offsets[:, 1]) == set(range(-4, 7))
    small = place(preprocess, (11, 24), MANY)
    # 11 and 8 are less than 32: 10 rows above the 11, 11 below. 24 and 8 fit exactly.
    assert set(map(tuple, small.windows)) == {(0, 0, 11, 24)}
    assert set(small.offsets[:, 0]) == {-10}
    assert set(small.offsets[:, 1]) == {-4}


# Windows of resized images


@pytest.mark.parametrize(
    ("resize", "resized"),
    [
        (64, (64, 96)),
        ((80, 50), (80, 50)),
        (("cover", 60, 60), (60, 90)),
        (("inside", 60, 60), (40, 60)),
        ("keep", (200, 300)),
    ],
)
def test_a_window_lies_anywhere_in_the_resized_and_padded_image_or_in_its_centre(resize: Any, resized: Any) -> None:
    preprocess = TrainPreprocess(size=40, resize=resize, crop_padding=3)
    placed = place(preprocess, (200, 300), MANY * 4)
    starts = placed.offsets + (placed.windows[:, :2] if resize == "keep" else 0)
    for axis in (0, 1):
        assert set(starts[:, axis]) == set(range(-3, resized[axis] + 3 - 40 + 1))
    centres = [replace(preprocess, place="center"), EvalPreprocess(40, resize=resize)]
    of_train, of_eval = (place(one, (200, 300)) for one in centres)
    np.testing.assert_array_equal(of_train.windows, of_eval.windows)
    assert [row[:3] for row in of_train.rows()] == [row[:3] for row in of_eval.rows()]


def test_what_is_drawn_for_an_example_does_not_depend_on_what_else_is() -> None:
    ones = [TrainPreprocess(8, **more) for more in ({}, {"vflip": 0.5}, {"crop_padding": 0}, {"resize": 9})]
    flips = [place(one, (20, 30), MANY).flips for one in ones]
    for other in flips[1:]:
        np.testing.assert_array_equal(flips[0], other)
    both = place(ones[1], (20, 30), MANY)
    assert abs(both.vflips.mean() - 0.5) < 4 * 0.5 / math.sqrt(MANY)
    assert abs((both.vflips == both.flips).mean() - 0.5) < 4 * 0.5 / math.sqrt(MANY)
    assert not place(ones[0], (20, 30), MANY).vflips.any()


# timm's configs


CONFIG = {
    "input_size": (3, 160, 192),
    "interpolation": "bicubic",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "crop_pct": 0.95,
    "crop_mode": "border",
}


@pytest.mark.parametrize("as_config", [dict, lambda config: SimpleNamespace(**config)])
def test_a_timm_config_gives_its_values(as_config: Any) -> None:
    assert EvalPreprocess.from_timm_config(as_config(CONFIG)) == EvalPreprocess(
        size=(160, 192), crop_pct=0.95, interpolation="bicubic", crop_mode="border", fill=(124, 116, 104)
    )
    assert TrainPreprocess.from_timm_config(as_config(CONFIG)) == TrainPreprocess(
        size=(160, 192), interpolation="bicubic"
    )
    of_training = {"scale": (0.5, 1.0), "ratio": [1.0, 1.0], "hflip": 0.0, "interpolation": "random"}
    assert TrainPreprocess.from_timm_config(as_config(CONFIG | of_training)) == TrainPreprocess(
        size=(160, 192), scale=(0.5, 1.0), ratio=(1.0, 1.0), hflip=0.0, interpolation="random"
    )


def test_what_a_config_does_not_say_is_as_by_default_and_arguments_go_before_it() -> None:
    config = {"input_size": [3, 224, 224], "crop_pct": None, "interpolation": None}
    assert EvalPreprocess.from_timm_config(config) == EvalPreprocess(size=(224, 224))
    assert TrainPreprocess.from_timm_config(config, hflip=0.0, size=96) == TrainPreprocess(size=96, hflip=0.0)
    assert EvalPreprocess.from_timm_config(CONFIG, crop_mode="center", fill=0).fill == 0


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("config", "found"), [({}, None), ({"input_size": 224}, 224), ({"input_size": (224, 224)}, (224, 224)), (7, None)]
)
def test_a_config_without_a_whole_input_size_is_refused(kind: Any, config: Any, found: Any) -> None:
    message = f"from_timm_config: input_size={found!r} must be (channels, height, width). Pass a model's pretrained_cfg"
    with pytest.raises(ConfigError, match=re.escape(message)):
        kind.from_timm_config(config)


def test_a_value_of_a_config_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="EvalPreprocess: unknown interpolation 'lanczos'"):
        EvalPreprocess.from_timm_config(CONFIG | {"interpolation": "lanczos"})


# What must never change: runs are repeated with later versions


def digest(crop: CropParameters) -> str:
    integers = [crop.windows, crop.shrinks, crop.resized, crop.offsets, crop.flips, crop.bicubic]
    found = hashlib.sha256(b"".join(np.ascontiguousarray(values, "<i8").tobytes() for values in integers))
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("preprocess", "expected"),
    [
        (TrainPreprocess(64), "42684e520d0f60be"),
        (TrainPreprocess((96, 80), scale=(0.5, 1.0), interpolation="random"), "c9a95d8d46960317"),
        (TrainPreprocess(32, crop_padding=4), "4e9f51fa7be00fd9"),
        (TrainPreprocess((400, 300), crop_padding=40), "c9e560f3c127aa11"),
        (TrainPreprocess(64, resize=80, vflip=0.5, interpolation="random"), "f9bd97472803380b"),
        (EvalPreprocess(64), "0d42ca7056e00f74"),
        (EvalPreprocess((64, 96), crop_mode="border", interpolation="bicubic"), "9a79129c0c9b54c0"),
        (EvalPreprocess((64, 96), crop_mode="squash", crop_pct=1.0), "94da32c307a82d63"),
    ],
    ids=str,
)
def test_an_example_has_the_crop_that_it_always_had(preprocess: Any, expected: str) -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.integers(1, 1000, (500, 2)), np.full((20, 2), 32)])
    assert digest(preprocess.crop_parameters(sizes, np.arange(520), 42, rng.random(520) < 0.5)) == expected
