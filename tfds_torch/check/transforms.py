"""Judges whether a parser's transforms return the same when called again: their own random numbers would differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfds_torch.check.reference import parts_of
from tfds_torch.check.report import NotJudged, Promise
from tfds_torch.images.views import Views
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.runtime.printable import quoted

TRANSFORMS_PROMISE = "transforms repeat themselves"
_MOST_EXAMPLES = 8


def judge_transforms(parser: DatasetParser, indices: Sequence[int]) -> Promise | NotJudged | None:
    """Return whether transforms return the same for the same example and seed; None where there are none.

    Args:
        parser: its dataset, and the members of a mixture, are asked for the same examples twice.
        indices: some examples of the split, ascending.

    Raises:
        ConfigError: a transform fails, or returns an unusable value.
    """
    if not parser.dataset.transformed.identities:
        return None
    places = np.linspace(0, len(indices) - 1, min(len(indices), _MOST_EXAMPLES)).round().astype(int)
    sample = sorted({indices[place] for place in places.tolist()})
    if parser.source.obstacle is not None or not sample:
        return NotJudged(TRANSFORMS_PROMISE, parser.source.obstacle or "there are no examples")
    changing = next(_find_changing(parser, sample), None)
    if changing is None:
        every = [
            one for dataset in (*parser.provenance().members.values(), parser.dataset) for one in dataset.transforms
        ]
        names = ", ".join(dict.fromkeys(one.name for one in every))
        return Promise(TRANSFORMS_PROMISE, True, f"{names}: {len(sample)} examples twice, the same each time")
    return Promise(TRANSFORMS_PROMISE, False, changing)


def _find_changing(parser: DatasetParser, sample: Sequence[int]) -> Iterator[str]:
    """Yield the differences, those of a mixture's members first: their functions are called first."""
    for name, _, own in parts_of(parser, sample):
        dataset = parser.dataset
        if name:  # The preprocess is the mixture's.
            dataset = parser.provenance().members[name].with_preprocess(parser.preprocess)
        yield from _differences(dataset, own, parser.seed)
    if parser.provenance().members:
        yield from _differences(parser.dataset, sample, parser.seed)


def _differences(dataset: Dataset, indices: Sequence[int], seed: int) -> Iterator[str]:
    """Yield the transform that returned another value when it was called again, the first one of a chain."""
    if not dataset.transforms or _find_difference(dataset, indices, seed) is None:
        return
    for stop in range(1, len(dataset.transforms) + 1):
        found = _find_difference(dataset.with_transform(dataset.transforms[:stop]), indices, seed)
        if found is not None:
            id, field = found
            yield (
                f"{dataset.dataset_name}: the transform {dataset.transforms[stop - 1].name} gave another "
                f"{quoted(field)} of {id} when it was called again. Random numbers of its own are other ones in every "
                f"world and after a resume: draw from `rng`, random, numpy or torch, or set its generator from `rng` "
                f"in every call"
            )
            return


def _find_difference(dataset: Dataset, indices: Sequence[int], seed: int) -> tuple[str, str] | None:
    """Return the id and the field of the first value that differs; None where none does."""
    has_views = isinstance(dataset.preprocess, Views)  # Which come in whole batches alone.
    fields = list(dataset.all_fields().values())
    content = dataset.content(fields, is_preprocessed=not has_views, in_batches=False)
    first, again = (dataset.decode(np.array(indices, np.int64), content, seed) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        values, others = one.as_dict(), other.as_dict()
        for field in {**values, **others}:
            if not _is_equal(values.get(field), others.get(field)):
                return one.id, field
    return None


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        is_float = one.dtype.kind in "fc" and other.dtype.kind in "fc"
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=is_float)
    return type(one) is type(other) and bool(one == other)
