"""Transforms that have a generator of their own are found, and named; others are kept, and nothing else is broken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfds_torch import ParserMixture, ParserTfds, Transform, demo
from tfds_torch.check.parser_check import check_parser
from tfds_torch.check.report import Promise
from tfds_torch.check.transforms import TRANSFORMS_PROMISE, judge_transforms

OWN = np.random.default_rng(0)


def shift(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"image": np.roll(example["image"], rng.integers(1, 8), axis=1), "moved": {"by": [np.float32(np.nan)]}}


def shake(example: dict[str, Any]) -> dict[str, Any]:
    return {"weight": OWN.random()}


@pytest.fixture(scope="module")
def digits() -> Path:
    return demo.prepare("digits")


def open_parser(digits: Path, transform: Any, split: str = "test[:40]") -> ParserTfds:
    return ParserTfds(digits, "digits", split, batch_size=8, transform=transform)


def judged(parser: Any) -> Promise:
    found = judge_transforms(parser, range(0, parser.num_examples, 3))
    assert isinstance(found, Promise)
    return found


def test_the_one_with_a_generator_of_its_own_is_named(digits: Path) -> None:
    assert judge_transforms(open_parser(digits, None), range(40)) is None
    kept = judged(open_parser(digits, shift))
    assert kept.kept
    assert ("shift" in kept.detail, "8 examples twice" in kept.detail) == (True, True)
    shifted = open_parser(digits, shift)
    broken = [
        open_parser(digits, [shift, Transform(shake, ["label"], ["weight"])]),
        ParserMixture({"a": shifted, "b": open_parser(digits, shake)}, batch_size=8),
        ParserMixture(
            {"a": open_parser(digits, shift), "b": open_parser(digits, shift)}, batch_size=8, transform=shake
        ),
    ]
    for parser in broken:
        found = judged(parser)
        assert not found.kept
        assert "the transform shake gave another 'weight' of" in found.detail


def test_what_else_is_promised_holds_beside_transforms(digits: Path) -> None:
    declared = Transform(shift, ["image"], ["image", "moved"])
    assert check_parser(open_parser(digits, declared), num_workers=0, num_epochs=1).is_kept
    report = check_parser(open_parser(digits, shift), num_workers=1, num_epochs=1)
    assert all(one.kept for one in report.promises), report.promises
    assert TRANSFORMS_PROMISE in {one.name for one in report.promises}
    (why,) = (one.reason for one in report.not_judged if one.name == "pixels are Pillow's")
    assert why == "a transform may change them in any way"
