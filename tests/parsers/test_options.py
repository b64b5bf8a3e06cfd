"""EpochOptions and DecodeOptions: every argument has bounds, and a value outside of them is refused by its name."""

from dataclasses import fields
from typing import Any

import pytest
from refused import said_of

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.options import DECODE_BOUNDS, EPOCH_BOUNDS, DecodeOptions, EpochOptions

ALIEN = [object(), -1, 1.5, float("nan"), "", "no such word", b"x", [None], {"a": 1}, True, None, 2**80]
"""Each argument takes some of these at most."""
TAKEN: dict[str, list[Any]] = {
    "is_training": [True],
    "batch_size": [None],
    "epoch_size": [None],
    "shuffle": [True, None],
    "repeats": [2**80],
    "seed": [2**80],
    "remainder": [None],
    "read": [],
    "decode": [None],
    "image_mode": [None],
    "preprocess": [None],
    "transform": [None],
}


@pytest.mark.parametrize(("options", "bounds"), [(EpochOptions, EPOCH_BOUNDS), (DecodeOptions, DECODE_BOUNDS)])
def test_every_argument_is_checked_and_named(options: Any, bounds: Any) -> None:
    assert {one.name for one in fields(options)} - {"class_map"} == set(
        bounds
    )  # Maps are checked beside their classes.
    for name in bounds:
        others = {"batch_size": 4} if name == "is_training" else {}
        said = [(value, said_of(ConfigError, options, **others, **{name: value})) for value in ALIEN]
        assert [value for value, text in said if text.startswith("nothing: ")] == TAKEN[name]
        assert all(name in text for _, text in said if not text.startswith("nothing: "))
