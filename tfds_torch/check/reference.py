"""What a dataset must yield, by another way than the one that is checked: one `Reference` for each kind of dataset."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from tfds_torch.check import beton_reader, tar_reader
from tfds_torch.check.expected_ids import ExpectedIds, IdRun, expected_ids, is_image_folder
from tfds_torch.check.tfds_reader import ReferenceExample
from tfds_torch.check.tfds_sample import (
    TFDS_PROMISE,
    ComparedExample,
    judge_sample,
    read_own_sample,
    read_sample,
    tfds_can_read,
)
from tfds_torch.check.verdict import NotJudged, Promise
from tfds_torch.errors import ShardError
from tfds_torch.parsers.parser_beton import ParserBeton
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.storage.source import is_local
from tfds_torch.storage.stored_pixels import StoredPixels

BETON_PROMISE = "the index is the file's"

TAR_PROMISE = "the index is the tars'"

CheckedParser = ParserTfds | ParserBeton | ParserWebDataset
"""What can be checked."""


class Reference(Protocol):
    """The examples of a split, found by another way than the one that is checked."""

    @property
    def place(self) -> Path:
        """The folder or file in which they lie."""

    @property
    def promised_by(self) -> str:
        """What tells how many examples there are, as the subject of a sentence."""

    def ids(self) -> ExpectedIds:
        """Returns the ids of the split.

        Raises:
            ShardError: what tells them does not fit the split.
        """

    def sample(self, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool) -> list[ComparedExample]:
        """Returns some examples as the other way finds them; none where there is no other way.

        Args:
            ids: of the split.
            indices: which ones.
            by_index: whether they are also read by index, to be compared.

        Raises:
            ShardError: a file cannot be read.
            CorruptRecordError: a record is damaged.
            WorkerError: the process that read them died.
        """

    def judge_index(self, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
        """Returns whether the examples that are read by index are those that the other way finds."""


def reference_of(parser: CheckedParser) -> Reference:
    """Returns the reference of what a parser reads."""
    if isinstance(parser, ParserBeton):
        return _BetonReference(parser)
    if isinstance(parser, ParserWebDataset):
        return _TarReference(parser)
    return _FolderReference(parser) if is_image_folder(parser.data_dir) else _TfdsReference(parser)


def num_skipped_files(parser: CheckedParser) -> int | None:
    """Returns how many files of tars belong to no sample; None: the dataset does not lie in tars."""
    return parser.num_skipped if isinstance(parser, ParserWebDataset) else None


class _TfdsReference:
    promised_by = "dataset_info.json"

    def __init__(self, parser: ParserTfds) -> None:
        self._parser = parser
        self._tfds_can_read = tfds_can_read(parser)

    @property
    def place(self) -> Path:
        return self._parser.data_dir

    def ids(self) -> ExpectedIds:
        return expected_ids(self._parser.data_dir, self._parser.split, self._parser.files)

    def sample(self, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool) -> list[ComparedExample]:
        if not all(is_local(run.path) for run in self._parser.files):
            return []
        if not self._tfds_can_read:
            return read_own_sample(self._parser, indices) if by_index else []
        return read_sample(self._parser, indices, by_index=by_index)

    def judge_index(self, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
        if not self._tfds_can_read:
            return NotJudged(TFDS_PROMISE, "TFDS's own reader needs tensorflow, which is not installed")
        return judge_sample(ids, sample)


class _FolderReference(_TfdsReference):
    promised_by = "the image folder"

    def sample(self, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool) -> list[ComparedExample]:
        found = [(index, (self.place / ids[index]).read_bytes()) for index in indices]
        return [ComparedExample(index, None, ReferenceExample(None, "", image)) for index, image in found]

    def judge_index(self, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
        return NotJudged(TFDS_PROMISE, "an image folder has no records, and so no index of them")


class _BetonReference:
    def __init__(self, parser: ParserBeton) -> None:
        self._parser = parser
        self.place = parser.path
        self.promised_by = f"the head of {parser.path.name}"

    def ids(self) -> ExpectedIds:
        names = self._parser.ids(np.arange(self._parser.num_examples))
        return ExpectedIds([IdRun(self.place.name, 0, len(names), list(names))])

    def sample(self, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool) -> list[ComparedExample]:
        if not self._parser.has_field("image"):
            return []
        key = str(self._parser.image_key)
        theirs = beton_reader.read_images(self.place, key, indices)
        ours = self._parser.source.read(np.array(indices), [key])[key]
        if isinstance(ours, StoredPixels):
            ours = ours.copy()
        stored = [image if isinstance(image, bytes) else image.tobytes() for image in ours]
        digests = [beton_reader.digest(image) for image in stored]
        return [ComparedExample(*row) for row in zip(indices, digests, theirs, strict=True)]

    def judge_index(self, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
        if not self._parser.has_field("image"):
            return NotJudged(BETON_PROMISE, "the file has no image")
        return judge_sample(ids, sample, BETON_PROMISE, "a plain reader of the file")


class _TarReference:
    promised_by = "Python's tarfile"

    def __init__(self, parser: ParserWebDataset) -> None:
        self._parser = parser
        self.place = parser.paths[0] if len(parser.paths) == 1 else parser.paths[0].parent

    @cached_property
    def _samples(self) -> list[tar_reader.TarSample]:
        return tar_reader.list_samples(self._parser.paths)

    def ids(self) -> ExpectedIds:
        names = tar_reader.ids_of(self._samples, self._parser.paths)
        if len(names) != self._parser.num_examples:
            raise ShardError(
                f"{self.place}: {self.promised_by} finds {len(names)} samples, and the index has "
                f"{self._parser.num_examples}."
            )
        return ExpectedIds([IdRun(self._parser.dataset_name, 0, len(names), names)])

    def sample(self, ids: ExpectedIds, indices: Sequence[int], *, by_index: bool) -> list[ComparedExample]:
        extensions = self._parser.extensions
        theirs = [tar_reader.read_sample(self._samples, index, extensions, ids[index]) for index in indices]
        ours = self._parser.source.read(np.array(indices, np.int64), list(extensions))
        digests = [tar_reader.digest([ours[name][at] for name in extensions]) for at in range(len(indices))]
        return [ComparedExample(*row) for row in zip(indices, digests, theirs, strict=True)]

    def judge_index(self, ids: ExpectedIds, sample: Sequence[ComparedExample]) -> Promise | NotJudged:
        return judge_sample(ids, sample, TAR_PROMISE, self.promised_by)
