"""The sample of examples that the promises of the index and of pixels are judged by."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfds_torch.check.expectation import Expectation
from tfds_torch.check.findings import Findings
from tfds_torch.check.ledger import Ledger
from tfds_torch.check.pixels import PIXELS_PROMISE, judge_pixels
from tfds_torch.check.reference import (
    CheckedParser,
    ComparedExample,
    datasets_of,
    holds_numbers,
    judge_tfds,
    read_sample,
    stored_image_key,
)
from tfds_torch.check.verdict import NotJudged, Promise
from tfds_torch.images.views import Views
from tfds_torch.parsers.own import ParserMapStyle
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.user_random import borrowed_generators, seed_generators


def read_compared(parser: CheckedParser, expected: Expectation, indices: Sequence[int]) -> list[ComparedExample]:
    """Returns the sample; empty where there is nothing to judge."""
    is_index = expected.mode == "index"
    if not (is_index or parser.dataset.has_field("image")):
        return []
    return read_sample(parser, expected.ids, indices, by_index=is_index)


def judge_compared(
    findings: Findings,
    ledger: Ledger,
    parser: CheckedParser,
    sample: Sequence[ComparedExample],
    *,
    why_no_pixels: str | None = None,
) -> None:
    """Adds the promises that a sample of examples proves: of the index, and of pixels.

    Args:
        findings: what they are added to.
        ledger: what came.
        parser: that was read.
        sample: of `read_compared`.
        why_no_pixels: why pixels cannot be judged; None: they can, as far as the parser has an image.
    """
    expected, judged = ledger.expected, list[Promise | NotJudged]()
    if expected.mode == "index":
        judged.append(judge_tfds(parser, expected.ids, sample))
    why_not = why_no_pixels or (None if parser.dataset.has_field("image") else _describe_no_image(parser))
    if why_not is not None:
        judged.append(NotJudged(PIXELS_PROMISE, why_not))
    else:
        encoded = {one.index: one.theirs.image for one in sample if one.theirs.image is not None}
        names = {index: expected.ids[index] for index in encoded}
        judged.append(judge_pixels(ledger.pixels, encoded, names, parser.preprocess, expected.plan, ledger.passes))
    findings.promises = [*findings.promises, *(one for one in judged if isinstance(one, Promise))]
    findings.not_judged = [one for one in judged if isinstance(one, NotJudged)]


def find_why_no_pixels(parser: CheckedParser, indices: Sequence[int]) -> str | None:
    """Returns why the pixels of images cannot be compared; None: they can, where there are images."""
    if not parser.dataset.has_field("image"):
        return None
    if parser.dataset.is_undecoded("image"):
        return "images come as bytes (decode=)"
    if isinstance(parser.preprocess, Views):
        return "the preprocess makes several views of an image"
    if any(map(holds_numbers, datasets_of(parser).values())):
        return "images are numbers, and no pictures"
    own = [one for one in datasets_of(parser).values() if isinstance(one, ParserMapStyle)]
    changing = next((one for one in own if not _is_repeatable(one, indices)), None)
    if changing is not None:
        return f"{changing.dataset_name} gives another image each time it is asked: it draws random numbers itself"
    return None


def _describe_no_image(parser: CheckedParser) -> str:
    datasets = [one for one in datasets_of(parser).values() if isinstance(one, ParserTfds)]
    gifs = dict.fromkeys(quoted(key) for one in datasets for key in one.gif_features)
    if not gifs:
        return "the dataset has no image"
    return (
        f"the dataset has no single image. The frames of {', '.join(gifs)} are those of Pillow, which clears and "
        f"undoes frames as browsers do, and TFDS does not: docs/preprocess.md"
    )


def _is_repeatable(parser: ParserMapStyle, indices: Sequence[int]) -> bool:
    """Whether a dataset gives the same images when it is asked again."""
    key, index = stored_image_key(parser), np.array([one for one in indices if one < len(parser.source)], np.int64)
    if key is None or not len(index):
        return True
    first, again = (_read_as_of(seed, parser, index, key) for seed in range(2))
    return all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def _read_as_of(seed: int, parser: ParserMapStyle, index: Int64Array, key: str) -> Sequence[Any]:
    """Returns the images, read with random numbers of this seed."""
    with borrowed_generators():
        seed_generators(seed)
        images: Sequence[Any] = parser.source.read(index, [key])[key]
    return images
