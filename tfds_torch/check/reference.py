"""The examples that a dataset must yield, by an independent way: TFDS's own reader, and Pillow.

A `.beton` file, tars, an image folder and a dataset of the user's own have no second reader here: only their pixels are
compared, with Pillow's. Their `provenance()` says which of them can be compared.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng  # Now: where numpy imports it at its first use, Ctrl-C is swallowed now and then.
from PIL import Image

from tfds_torch.check.expected import ExpectedIds
from tfds_torch.check.ledger import CappedList
from tfds_torch.check.report import NotJudged, Promise
from tfds_torch.check.tfds_reader import Question, ReferenceExample, ask_tfds, digest, find_image_key, why_not_opened
from tfds_torch.images.views import Views
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.user_random import borrowed_generators, seed_generators
from tfds_torch.storage.source import FileInstruction

TFDS_PROMISE = "the index is TFDS's own reader"
_MOST_RUNS, _NUM_RANDOM = 16, 16
_MOST_OF_SUBSET = 32
_MOST_BYTES = 256 << 20  # TFDS's reader passes over what lies before an example in its shard.


@dataclass(frozen=True)
class ComparedExample:
    """One example, read in both ways.

    Attributes:
        index: its position in the split.
        digest: of the bytes that are read at this index; None where they are not compared.
        theirs: the example that the other reader finds at this position.
    """

    index: int
    digest: str | None
    theirs: ReferenceExample


def datasets_of(parser: DatasetParser) -> Mapping[str, Dataset]:
    """Return the members of a mixture by name; of another parser its dataset, without a name."""
    return parser.provenance().members or {"": parser.dataset}


def parts_of(parser: DatasetParser, indices: Sequence[int]) -> list[tuple[str, int, list[int]]]:
    """Return (name, first index, its own indices) of each dataset that some ascending indices are of."""
    parts, first = [], 0
    for name, dataset in datasets_of(parser).items():
        num_stored = len(dataset.source)
        own = [index - first for index in indices if first <= index < first + num_stored]
        if own:
            parts.append((name, first, own))
        first += num_stored
    return parts


def stored_image_key(dataset: Dataset) -> str | None:
    """Return the stored field that holds the images, encoded or as pixels; None without one, and of numbers."""
    if dataset.image_key is None or not dataset.has_field("image") or dataset.has_image_numbers:
        return None
    (key,) = dataset.encoded_field("image").decoder.keys
    return key


# The sample


def choose_compared(parser: DatasetParser) -> list[int]:
    """Return the numbers of examples that are compared with another reader, ascending, 48 at most."""
    subset = parser.selected
    if subset is None:
        return choose_examples(parser.files, parser.mean_example_bytes, parser.seed)
    places = np.linspace(0, len(subset) - 1, min(len(subset), _MOST_OF_SUBSET)).round().astype(np.int64)
    return sorted(set(subset.numbers[places].tolist()))


def choose_examples(runs: Sequence[FileInstruction], mean_example_bytes: int, seed: int) -> list[int]:
    """Return indices of a split in ascending order: the first and last of its runs, and random ones.

    Returns:
        At most 48 indices, and no more than TFDS's reader finds in 256 MiB of its files; of a split that holds any
        examples at least one.
    """
    if not runs:
        return []
    numbers = np.linspace(0, len(runs) - 1, min(len(runs), _MOST_RUNS)).round().astype(int).tolist()
    firsts = [runs[number].first_index for number in numbers]
    lasts = [runs[number].first_index + runs[number].take - 1 for number in numbers]
    num_examples = runs[-1].first_index + runs[-1].take
    wanted = firsts + lasts + default_rng(seed).integers(num_examples, size=_NUM_RANDOM).tolist()
    starts = np.array([run.first_index for run in runs])
    chosen: set[int] = set()
    num_bytes = 0
    for index in wanted:
        run = runs[int(np.searchsorted(starts, index, side="right")) - 1]
        cost = (run.skip + index - run.first_index + 1) * mean_example_bytes
        if index not in chosen and (not chosen or num_bytes + cost <= _MOST_BYTES):
            chosen.add(index)
            num_bytes += cost
    return sorted(chosen)


def read_sample(
    parser: DatasetParser, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool
) -> list[ComparedExample]:
    """Return examples as TFDS finds them; where it cannot be asked, their images alone.

    Args:
        parser: of the split.
        ids: of the split.
        indices: which examples.
        by_index: whether they are also read by index.

    Raises:
        ShardError: a file cannot be read, here or by TFDS.
        CorruptRecordError: a record is damaged.
        WorkerError: the process that asked TFDS died.
    """
    datasets, parts = datasets_of(parser), parts_of(parser, indices)
    reasons = {name: why_not_compared(datasets[name]) for name, _, _ in parts}
    asked = {name: _question(datasets[name], own) for name, _, own in parts if reasons[name] is None}
    answers = dict(zip(asked, ask_tfds(list(asked.values())), strict=True)) if asked else {}
    sample = []
    for name, first, own in parts:
        dataset, prefix = datasets[name], f"{name}/" if name else ""
        if name in answers:
            ours = _digests(dataset, asked[name]) if by_index else [None] * len(own)
            found = [ComparedExample(*row) for row in zip(own, ours, answers[name], strict=True)]
        else:
            names = [ids[first + index].removeprefix(prefix) for index in own]
            images = _own_images(dataset, own, names, by_index)
            found = [ComparedExample(index, None, ReferenceExample(None, "", image)) for index, image in images.items()]
        sample += [_moved(one, first, prefix) for one in found]
    return sample


def _moved(example: ComparedExample, first: int, prefix: str) -> ComparedExample:
    """Return an example of a member, with the index and the id that it has in the mixture."""
    id = None if example.theirs.id is None else f"{prefix}{example.theirs.id}"
    return replace(example, index=first + example.index, theirs=replace(example.theirs, id=id))


def _question(dataset: Dataset, indices: Sequence[int]) -> Question:
    data_dir = os.fspath(dataset.provenance().place or "")
    return Question(
        data_dir, dataset.split, indices, find_image_key(data_dir, dataset.image_key), image_key=dataset.image_key
    )


def _digests(dataset: Dataset, question: Question) -> Sequence[str | None]:
    """Return the digests of the records that are read by index."""
    records = dataset.provenance().records
    if records is None:
        return [None] * len(question.positions)
    return [digest(record, question.compared_key) for record in records(np.array(question.positions))]


def _own_images(dataset: Dataset, indices: Sequence[int], ids: Sequence[str], by_index: bool) -> dict[int, bytes]:
    """Return the images of a dataset that TFDS is not asked about, by index: as files, of stored pixels as PNG."""
    found = dataset.provenance()
    if found.holds_images and found.folder is not None:
        return {index: Path(found.folder.path, id).read_bytes() for index, id in zip(indices, ids, strict=True)}
    key = stored_image_key(dataset) if by_index else None
    if key is None:
        return {}
    images = dataset.source.read(np.array(indices, np.int64), [key])[key]
    return {index: _as_file(image) for index, image in zip(indices, images, strict=True)}


def _as_file(image: object) -> bytes:
    if isinstance(image, bytes):
        return image
    pixels, file = np.asarray(image), io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()


# Judgements


def why_not_compared(dataset: Dataset) -> str | None:
    """Return why TFDS's own reader is not asked; None if it is."""
    found = dataset.provenance()
    if found.why_no_second_reader is not None:
        return found.why_no_second_reader
    return why_not_opened(os.fspath(found.place or ""))


def judge_tfds(parser: DatasetParser, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
    """Return whether the examples that are read by index are those that TFDS's own reader finds."""
    reasons = {name: why_not_compared(one) for name, one in datasets_of(parser).items()}
    if all(reasons.values()):
        return NotJudged(TFDS_PROMISE, "; ".join(dict.fromkeys(filter(None, reasons.values()))))
    compared = [one for one in sample if one.digest is not None or one.theirs.digest]
    promise = judge_sample(ids, compared)
    others = ", ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
    return replace(promise, detail=f"{promise.detail}; not compared: {others}") if others else promise


def judge_sample(ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise:
    """Return whether both ways found the same ids and bytes."""
    wrong = CappedList()
    for example in sample:
        id, theirs = ids[example.index], example.theirs
        if theirs.id not in (None, id):
            wrong.add(f"index {example.index}: {id} is expected, and TFDS has {theirs.id}")
        if theirs.digest != example.digest:
            wrong.add(f"index {example.index}: {id} has other bytes than TFDS reads")
    what = "the same bytes" if any(example.theirs.id is None for example in sample) else "the same ids and bytes"
    return Promise(TFDS_PROMISE, not wrong, str(wrong) or f"{len(sample)} examples: {what}")


def find_why_no_pixels(parser: DatasetParser, indices: Sequence[int]) -> str | None:
    """Return why the pixels of images cannot be compared; None if they can."""
    datasets = datasets_of(parser).values()
    if not parser.dataset.has_field("image"):
        frames = dict.fromkeys(quoted(key) for one in datasets for key in one.provenance().frames)
        if not frames:
            return "the dataset has no image"
        return (
            f"the dataset has no single image. The frames of {', '.join(frames)} are those of Pillow, which clears "
            f"and undoes frames as browsers do, and TFDS does not: docs/image-formats.md"
        )
    if parser.dataset.transformed.may_give("image"):
        return "a transform may change them in any way"
    if parser.dataset.is_undecoded("image"):
        return "images come as bytes (decode=)"
    if isinstance(parser.preprocess, Views):
        return "the preprocess makes several views of an image"
    if any(one.has_image_numbers for one in datasets):
        return "images are numbers, and no pictures"
    own = [one for one in datasets if one.provenance().is_own]
    changing = next((one for one in own if not _is_repeatable(one, indices)), None)
    if changing is not None:
        return f"{changing.dataset_name} gives another image each time it is asked: it draws random numbers itself"
    return None


def _is_repeatable(dataset: Dataset, indices: Sequence[int]) -> bool:
    """Return whether a dataset returns the same images when it is asked again."""
    key, index = stored_image_key(dataset), np.array([one for one in indices if one < len(dataset.source)], np.int64)
    if key is None or not len(index):
        return True
    first, again = (_read_as_of(seed, dataset, index, key) for seed in range(2))
    return all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def _read_as_of(seed: int, dataset: Dataset, index: Int64Array, key: str) -> Sequence[Any]:
    """Return the images, read with random numbers of this seed."""
    with borrowed_generators():
        seed_generators(seed)
        images: Sequence[Any] = dataset.source.read(index, [key])[key]
    return images
