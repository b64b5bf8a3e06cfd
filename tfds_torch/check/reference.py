"""What a dataset must yield, by another way than the one that is checked: TFDS's own reader where it reads the format.

A `.beton` file, tars, an image folder and a dataset of the user's own have no second reader here: only their pixels are
compared, with Pillow's.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.random import default_rng  # Now: where numpy imports it at its first use, Ctrl-C is swallowed now and then.
from PIL import Image

from tfds_torch.check.expected_ids import ExpectedIds, IdRun, expected_ids, expected_windows, is_image_folder
from tfds_torch.check.tfds_reader import Question, ReferenceExample, ask_tfds, digest, find_image_key, why_not_opened
from tfds_torch.check.verdict import CappedList, NotJudged, Promise
from tfds_torch.engines.fields import ImageField
from tfds_torch.engines.tensorflow_runtime import is_tensorflow_installed
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.own import ParserMapStyle
from tfds_torch.parsers.tfds.folder import metadata_of
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.array_record.source import ArrayRecordSource
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import FileInstruction, is_local

TFDS_PROMISE = "the index is TFDS's own reader"
_MOST_RUNS, _NUM_RANDOM = 16, 16
_MOST_BYTES = 256 << 20  # TFDS's reader passes over what lies before an example in its shard.

SingleParser = ParserTfds | ParserBeton | ParserWebDataset | ParserMapStyle
CheckedParser = SingleParser | ParserMixture
"""What can be checked."""


@dataclass(frozen=True)
class ComparedExample:
    """One example, read in both ways.

    Attributes:
        index: its position in the split.
        digest: of the bytes that are read at this index; None where they are not compared.
        theirs: what the other reader finds at this position.
    """

    index: int
    digest: str | None
    theirs: ReferenceExample


def datasets_of(parser: CheckedParser) -> Mapping[str, SingleParser]:
    """Returns the members of a mixture by name; of a dataset itself, without a name."""
    if isinstance(parser, ParserMixture):
        return cast(Mapping[str, SingleParser], parser.members)
    return {"": parser}


def windows_of(parser: CheckedParser) -> Windows | None:
    """Returns the windows that examples are, of a mixture those of its first member; None: they are whole records."""
    first = next(iter(datasets_of(parser).values()))
    return first.source.windows if isinstance(first.source, WindowSource) else None


def parts_of(parser: CheckedParser, indices: Sequence[int]) -> list[tuple[str, int, list[int]]]:
    """Returns (name, first index, its own indices) of each dataset that some ascending indices are of."""
    parts, first = [], 0
    for name, dataset in datasets_of(parser).items():
        num_stored = len(dataset.source)
        own = [index - first for index in indices if first <= index < first + num_stored]
        if own:
            parts.append((name, first, own))
        first += num_stored
    return parts


def place_of(parser: SingleParser) -> Path | str | None:
    """Returns the folder, file or URL in which the examples lie; None: only the dataset of the user's own knows."""
    if isinstance(parser, ParserMapStyle):
        return None
    if isinstance(parser, ParserTfds):
        place, is_whole = os.fspath(parser.data_dir), True
    elif isinstance(parser, ParserBeton):
        place, is_whole = os.fspath(parser.path), True
    else:
        place, is_whole = os.fspath(parser.paths[0]), len(parser.paths) == 1
    place = place if is_whole else os.path.dirname(place)
    return Path(place) if is_local(place) else place


def promised_by(parser: CheckedParser) -> str:
    """Returns what records how many examples there are, as the subject of a sentence."""
    if isinstance(parser, ParserMixture):
        return "the record of each member"
    if parser.selected is not None:
        return "the subset"
    if isinstance(parser, ParserBeton):
        return f"the head of {os.path.basename(parser.path)}"
    if isinstance(parser, ParserMapStyle):
        return "the length of the dataset"
    if isinstance(parser, ParserWebDataset):
        return "the index of the tars"
    if isinstance(parser.source, WindowSource):
        return "the index of steps"
    return "the image folder" if is_image_folder(metadata_of(parser)) else "dataset_info.json"


def ids_of(parser: CheckedParser) -> ExpectedIds:
    """Returns the ids of the split.

    Raises:
        ShardError: `dataset_info.json` does not fit the split.
    """
    if isinstance(parser, ParserMixture):
        return ExpectedIds.of_members({name: ids_of(one) for name, one in datasets_of(parser).items()})
    is_joined = isinstance(parser, ParserTfds) and len(parser.data_dirs) > 1
    if not is_joined and isinstance(parser, ParserTfds) and isinstance(parser.source, WindowSource):
        source = parser.source
        episodes = expected_ids(metadata_of(parser), parser.split, source.episodes.instructions)
        return expected_windows(episodes, source.reader.num_steps.tolist(), source.windows)
    if not is_joined and isinstance(parser, ParserTfds):
        return expected_ids(metadata_of(parser), parser.split, parser.files)
    names = list(parser.ids(np.arange(len(parser.source))))
    return ExpectedIds([IdRun(parser.dataset_name, 0, len(names), names)])


def stored_image_key(parser: SingleParser) -> str | None:
    """Returns the stored field that holds the images, encoded or as pixels; None: there is none, or it is numbers."""
    if parser.dataset.image_key is None or not parser.dataset.has_field("image") or holds_numbers(parser):
        return None
    (key,) = parser.dataset.encoded_field("image").decoder.keys
    return key


def holds_numbers(parser: SingleParser) -> bool:
    """Returns whether the images of a dataset are numbers that are no pictures: 13 channels, 16 bits, floats."""
    field = parser.dataset.field("image") if parser.dataset.has_field("image") else None
    return isinstance(field, ImageField) and field.is_deep


def num_skipped_files(parser: CheckedParser) -> int | None:
    """Returns how many files of tars belong to no sample; None: the dataset does not lie in tars."""
    tars = [one.num_skipped for one in datasets_of(parser).values() if isinstance(one, ParserWebDataset)]
    return sum(tars) if tars else None


def choose_examples(runs: Sequence[FileInstruction], mean_example_bytes: int, seed: int) -> list[int]:
    """Returns indices of a split in ascending order: the first and last of its runs, and random ones.

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
    parser: CheckedParser, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool
) -> list[ComparedExample]:
    """Returns examples as TFDS finds them; where it cannot be asked, their images alone.

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
    questions = {name: _question(datasets[name], own) for name, _, own in parts}
    asked = {name: question for name, question in questions.items() if question is not None}
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
    """Returns an example of a member, with the index and the id that it has in the mixture."""
    id = None if example.theirs.id is None else f"{prefix}{example.theirs.id}"
    return replace(example, index=first + example.index, theirs=replace(example.theirs, id=id))


def judge_tfds(parser: CheckedParser, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
    """Returns whether the examples that are read by index are those that TFDS's own reader finds."""
    reasons = {name: _why_not_compared(one) for name, one in datasets_of(parser).items()}
    if all(reasons.values()):
        return NotJudged(TFDS_PROMISE, "; ".join(dict.fromkeys(filter(None, reasons.values()))))
    compared = [one for one in sample if one.digest is not None or one.theirs.digest]
    promise = judge_sample(ids, compared)
    others = ", ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
    return replace(promise, detail=f"{promise.detail}; not compared: {others}") if others else promise


def judge_sample(ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise:
    """Returns whether both ways found the same ids and bytes."""
    wrong = CappedList()
    for example in sample:
        id, theirs = ids[example.index], example.theirs
        if theirs.id not in (None, id):
            wrong.add(f"index {example.index}: {id} is expected, and TFDS has {theirs.id}")
        if theirs.digest != example.digest:
            wrong.add(f"index {example.index}: {id} has other bytes than TFDS reads")
    what = "the same bytes" if any(example.theirs.id is None for example in sample) else "the same ids and bytes"
    return Promise(TFDS_PROMISE, not wrong, str(wrong) or f"{len(sample)} examples: {what}")


def _why_not_compared(parser: SingleParser) -> str | None:
    """Returns why TFDS's own reader is not asked; None: it is."""
    if isinstance(parser, ParserBeton):
        return "TFDS does not read .beton files"
    if isinstance(parser, ParserWebDataset):
        return "TFDS does not read these tars"
    if isinstance(parser, ParserMapStyle):
        return "TFDS does not read a dataset of one's own"
    if isinstance(parser.source, WindowSource):
        return "TFDS reads whole episodes, not windows of them"
    if isinstance(parser, ParserTfds) and len(parser.data_dirs) > 1:
        return "TFDS reads one directory at a time"
    if isinstance(parser, ParserTfds) and not all(is_local(run.path) for run in parser.files):
        return "TFDS does not read files of object stores"
    if is_image_folder(metadata_of(parser)):
        return "an image folder has no records, and so no index of them"
    if not is_tensorflow_installed() and not isinstance(parser.source, ArrayRecordSource):
        return "TFDS's own reader needs tensorflow, which is not installed"
    if (reason := why_not_opened(os.fspath(parser.data_dir))) is not None:
        return f"TFDS's own reader cannot open it ({reason})"
    return None


def _question(parser: SingleParser, indices: Sequence[int]) -> Question | None:
    """Returns what TFDS is asked of a dataset; None: it does not read it, or the files are not here."""
    if not isinstance(parser, ParserTfds) or _why_not_compared(parser) is not None:
        return None
    if not all(is_local(run.path) for run in parser.files):
        return None
    data_dir = os.fspath(parser.data_dir)
    compared_key = find_image_key(data_dir, parser.dataset.image_key)
    return Question(data_dir, parser.split, indices, compared_key, parser.dataset.image_key)


def _digests(parser: SingleParser, question: Question) -> Sequence[str | None]:
    """Returns the digests of the records that are read by index."""
    if not isinstance(parser.source, RecordSource):
        return [None] * len(question.positions)
    records = parser.source.records(np.array(question.positions))
    return [digest(record, question.compared_key) for record in records]


def _own_images(parser: SingleParser, indices: Sequence[int], ids: Sequence[str], by_index: bool) -> dict[int, bytes]:
    """Returns the images of a dataset that TFDS is not asked about, by index."""
    if isinstance(parser, ParserTfds) and is_image_folder(metadata_of(parser)):
        return {index: Path(parser.data_dir, id).read_bytes() for index, id in zip(indices, ids, strict=True)}
    if not by_index or _why_not_compared(parser) is None:
        return {}
    return _read_images(parser, indices)


def _read_images(parser: SingleParser, indices: Sequence[int]) -> dict[int, bytes]:
    """Returns the images of some examples as files: those that are stored as pixels as PNG."""
    key = stored_image_key(parser)
    if key is None:
        return {}
    images = parser.source.read(np.array(indices, np.int64), [key])[key]
    return {index: _as_file(image) for index, image in zip(indices, images, strict=True)}


def _as_file(image: object) -> bytes:
    if isinstance(image, bytes):
        return image
    pixels, file = np.asarray(image), io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()
