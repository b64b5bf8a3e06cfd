"""provenance(): where the examples of each kind of parser lie, what records their number, and what else reads them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parsers.sources import (
    FILES,
    Made,
    make_array_records,
    make_beton,
    make_cached,
    make_columns,
    make_concatenation,
    make_directories,
    make_draws,
    make_folder,
    make_own,
    make_records,
    make_subset,
    make_tars,
    make_windows,
)
from tfds_torch import ParserTfds
from tfds_torch.parsers.provenance import Provenance

NO_RECORDS = "an image folder has no records, and so no index of them"
RECORDS: dict[str, Any] = {"promised_by": "dataset_info.json", "place": "data_dir", "can_be_cached": True}
CASES: dict[str, tuple[Callable[[Path, Any], Made], dict[str, Any]]] = {
    "records": (make_records, RECORDS | {"place": "pictures/1.0.0"}),
    "ArrayRecord": (make_array_records, RECORDS),
    "a subset": (make_subset, RECORDS | {"promised_by": "the subset"}),
    "balanced": (partial(make_draws, balanced=True), RECORDS),
    "weighted": (partial(make_draws, balanced=False), RECORDS),
    "cached": (make_cached, RECORDS),
    "an image folder": (
        make_folder,
        {"promised_by": "the image folder", "place": "", "holds_images": True, "can_be_cached": True}
        | {"why_no_second_reader": NO_RECORDS},
    ),
    "windows": (
        make_windows,
        {"promised_by": "the index of steps", "place": "arm/1.0.0", "can_be_cached": False}
        | {"why_no_second_reader": "TFDS reads whole episodes, not windows of them"},
    ),
    "several directories": (
        make_directories,
        RECORDS | {"place": "a/halves/1.0.0", "why_no_second_reader": "TFDS reads one directory at a time"},
    ),
    "beton": (
        make_beton,
        {"promised_by": "the head of a.beton", "place": "a.beton"}
        | {"why_no_second_reader": "TFDS does not read .beton files"},
    ),
    "tars": (
        make_tars,
        {"promised_by": "the index of the tars", "place": "", "num_skipped_files": 0}
        | {"why_no_second_reader": "TFDS does not read these tars"},
    ),
    "one's own": (
        make_own,
        {"promised_by": "the length of the dataset", "has_files": False, "is_own": True}
        | {"why_no_second_reader": "TFDS does not read a dataset of one's own"},
    ),
    "columns": (
        make_columns,
        {"promised_by": "the length of the dataset", "has_files": False, "is_own": True}
        | {"why_no_second_reader": "TFDS does not read a dataset of one's own"},
    ),
    "a concatenation": (make_concatenation, {"promised_by": "the record of each member"}),
    "a mixture": (
        partial(make_concatenation, weights={"tars": 0.5, "beton": 0.5}),
        {"promised_by": "the record of each member"},
    ),
}
OF_RECORDS = ("records", "ArrayRecord", "a subset", "balanced", "weighted", "several directories")
PLAIN = ("promised_by", "has_files", "is_own", "holds_images", "why_no_second_reader", "num_skipped_files")


@pytest.mark.parametrize("kind", CASES)
def test_every_kind_of_parser_says_where_its_examples_come_from(kind: str, tmp_path: Path) -> None:
    make, expected = CASES[kind]
    parser = make(tmp_path, FILES).make(is_training=True, batch_size=2)
    found = parser.provenance()
    wanted = {name: getattr(Provenance(promised_by=""), name) for name in (*PLAIN, "can_be_cached")} | expected
    place = wanted.pop("place", None)
    assert {name: getattr(found, name) for name in wanted} == wanted
    if place is None:
        assert found.place is None
    else:
        assert Path(found.place) == (parser.data_dir if place == "data_dir" else tmp_path / place)
    has_folder = kind in ("an image folder", "windows") or (
        wanted["promised_by"] in ("dataset_info.json", "the subset")
    )
    assert (found.folder is not None) is (has_folder and kind != "several directories")
    if found.folder is not None:
        assert (found.folder.read("dataset_info.json") is None) is found.holds_images
    if found.records is not None:
        ours = [bytes(record) for record in found.records(np.array([2, 0]))]
        assert ours == [bytes(record) for number in (2, 0) for record in found.records(np.array([number]))]
        assert ours[0] != ours[1]
    assert (found.records is not None) is (kind in OF_RECORDS)
    assert list(found.members) == (["tars", "beton"] if kind in ("a concatenation", "a mixture") else [])
    whys = [one.provenance().why_no_second_reader for one in found.members.values()]
    assert whys == ["TFDS does not read these tars", "TFDS does not read .beton files"] * bool(found.members)
    assert (found.episodes is not None) is (kind == "windows")
    if found.episodes is not None:
        assert list(found.episodes.num_steps) == [5, 1, 10, 8]
        assert sum(run.take for run in found.episodes.files) == 4
        assert found.episodes.windows == parser.dataset.source.windows
    assert list(found.frames) == []


def test_what_cannot_be_kept_decoded_is_said(tmp_path: Path) -> None:
    make_records(tmp_path, FILES)
    assert not ParserTfds(tmp_path, "pictures", image_mode=None).provenance().can_be_cached
