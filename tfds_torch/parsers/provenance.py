"""Provenance: where the examples of a dataset lie, and which other records of them exist, for checks of a reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tfds_torch.parsers.tfds.folder import Folder
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.source import FileInstruction

if TYPE_CHECKING:
    from tfds_torch.parsers.dataset import Dataset


@dataclass(frozen=True)
class Episodes:
    """The episodes that windows are cut from.

    Attributes:
        files: the records of the split, one for each episode.
        num_steps: int64 [episodes], the steps of each.
        windows: how they are cut.
    """

    files: Sequence[FileInstruction]
    num_steps: NDArray[np.int64]
    windows: Windows


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the examples of a dataset come from.

    Attributes:
        promised_by: the record of the number of examples, as the subject of a sentence.
        place: the file, folder or URL in which they lie; None for a mixture, and where only the user's code knows it.
        has_files: whether they lie in files that are known.
        is_own: whether the user's own code makes them, and may draw random numbers.
        folder: the version directory, whose `dataset_info.json` names shards and their lengths; None if there is none.
        holds_images: whether `folder` is an image folder, whose files are the images, without a `dataset_info.json`.
        episodes: what the examples are windows of; None if they are whole records.
        records: int64 [n] -> the n records as they are stored; None if the dataset has none.
        why_no_second_reader: why TFDS's own reader does not read the same examples; None if it does.
        num_skipped_files: files in tars that belong to no sample; None of other formats.
        can_be_cached: whether decoded images can be kept in a DecodedCache.
        frames: features whose values are all frames of a GIF.
        members: of a mixture, name -> dataset; else empty.
    """

    promised_by: str
    place: Path | str | None = None
    has_files: bool = True
    is_own: bool = False
    folder: Folder | None = None
    holds_images: bool = False
    episodes: Episodes | None = None
    records: Callable[[NDArray[np.int64]], Sequence[bytes]] | None = None
    why_no_second_reader: str | None = None
    num_skipped_files: int | None = None
    can_be_cached: bool = False
    frames: Sequence[str] = ()
    members: Mapping[str, "Dataset"] = field(default_factory=dict)
