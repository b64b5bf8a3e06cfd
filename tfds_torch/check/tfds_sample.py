"""A bounded sample of a split's examples, as TFDS's own reader has them: what an index and pixels are held against."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfds_torch.check.expected_ids import ExpectedIds
from tfds_torch.check.tfds_reader import ReferenceExample, ask_tfds, digest, find_image_key, image_of
from tfds_torch.check.verdict import CappedList, Promise
from tfds_torch.engines.tensorflow_runtime import is_tensorflow_installed
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.storage.array_record.source import ArrayRecordSource
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import FileInstruction

TFDS_PROMISE = "the index is TFDS's own reader"
_MOST_RUNS, _NUM_RANDOM = 16, 16
_MOST_BYTES = 256 << 20  # TFDS's reader passes over what lies before an example in its shard.


@dataclass(frozen=True)
class ComparedExample:
    """One example, read in both ways.

    Attributes:
        index: its position in the split.
        digest: of the bytes that are read at this index; None where they are not compared.
        theirs: what TFDS finds at this position.
    """

    index: int
    digest: str | None
    theirs: ReferenceExample


def choose_examples(runs: Sequence[FileInstruction], mean_example_bytes: int, seed: int) -> list[int]:
    """Returns indices of a split in ascending order: the first and last of its runs, and random ones.

    Args:
        runs: the split, in the order that the index counts.
        mean_example_bytes: size of an encoded example, which says what reading one of them takes.
        seed: of the random ones.

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
    wanted = firsts + lasts + np.random.default_rng(seed).integers(num_examples, size=_NUM_RANDOM).tolist()
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


def read_sample(parser: ParserTfds, indices: Sequence[int], *, by_index: bool) -> list[ComparedExample]:
    """Returns examples as TFDS finds them.

    Args:
        parser: of the split.
        indices: which ones.
        by_index: whether they are also read by index, to be compared.

    Raises:
        ShardError: a file cannot be read, here or by TFDS.
        CorruptRecordError: a record is damaged.
        WorkerError: the process that asked TFDS died.
    """
    if not indices:
        return []
    data_dir = os.fspath(parser.data_dir)
    compared_key = find_image_key(data_dir, parser.image_key)
    theirs = ask_tfds(data_dir, parser.split, indices, compared_key, parser.image_key)
    ours: list[str | None] = [None] * len(indices)
    if by_index and isinstance(parser.source, RecordSource):
        ours = [digest(record, compared_key) for record in parser.source.records(np.array(indices))]
    return [ComparedExample(*row) for row in zip(indices, ours, theirs, strict=True)]


def tfds_can_read(parser: ParserTfds) -> bool:
    """Whether TFDS's own reader can be asked: for TFRecord files it needs tensorflow."""
    return is_tensorflow_installed() or isinstance(parser.source, ArrayRecordSource)


def read_own_sample(parser: ParserTfds, indices: Sequence[int]) -> list[ComparedExample]:
    """Returns examples as they are read by index, for their pixels, where TFDS's own reader cannot be asked."""
    if not isinstance(parser.source, RecordSource):
        return []
    records = parser.source.records(np.array(indices, np.int64))
    images = [image_of(record, parser.image_key) for record in records]
    return [
        ComparedExample(index, None, ReferenceExample(None, "", image))
        for index, image in zip(indices, images, strict=True)
    ]


def judge_sample(
    ids: ExpectedIds, sample: Sequence[ComparedExample], promise: str = TFDS_PROMISE, reader: str = "TFDS"
) -> Promise:
    """Returns whether the examples that are read by index are those that another reader finds.

    Args:
        ids: of the split.
        sample: some of its examples.
        promise: the name of the promise.
        reader: who else has read them.
    """
    wrong = CappedList()
    for example in sample:
        id, theirs = ids[example.index], example.theirs
        if theirs.id not in (None, id):
            wrong.add(f"index {example.index}: {id} is expected, and {reader} has {theirs.id}")
        if theirs.digest != example.digest:
            wrong.add(f"index {example.index}: {id} has other bytes than {reader} reads")
    what = "the same bytes" if any(example.theirs.id is None for example in sample) else "the same ids and bytes"
    return Promise(promise, not wrong, str(wrong) or f"{len(sample)} examples: {what}")
