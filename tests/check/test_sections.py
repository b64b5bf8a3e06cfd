"""The sections of a report: what is said of labels, sizes, speed, memory, delivery and the catalogue, case by case.

What they look like, each once, is golden: test_render.py.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_datasets.core.proto import dataset_info_pb2

from tfds_torch import ParserMapStyle, ParserTfds
from tfds_torch.check import sections
from tfds_torch.check.delivery import Delivery, ImageSizes
from tfds_torch.check.expected import expect
from tfds_torch.check.ledger import CappedList, EpochCounts, LabelCount
from tfds_torch.check.reading import STAGES, RankReading
from tfds_torch.check.report import Cell, Report, Section, show_bytes, show_seconds
from tfds_torch.parsers.tfds.folder import Folder
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.source import FieldSpec


def speed(rank: int, rate: float, memory: Mapping[int, int] = {}) -> RankReading:
    """Returns the reading of one epoch of 10 s."""
    return RankReading(rank, [EpochTimes(1.0, 0.0, 10.0, 9)], [round(10 * rate)], memory)


def counts(*numbers: int) -> list[LabelCount]:
    return [LabelCount(label, f"class{label}", number) for label, number in enumerate(numbers)]


def shown(section: Section) -> list[dict[str, Any]]:
    """Returns the rows that people are shown, as text."""
    rows = section.rows if section.shown is None else section.shown
    return [{key: one.text if isinstance(one, Cell) else one for key, one in row.items()} for row in rows]


# Labels.


def test_up_to_24_labels_are_all_shown_in_their_order_and_have_bars_in_proportion() -> None:
    section = sections.describe_labels(counts(4000, 2000, 1, *[0] * 21))
    assert [row["name"] for row in shown(section)] == [f"class{label}" for label in range(24)]
    assert [row["share"].share for row in section.rows[:4]] == [1, 0.5, 0.00025, 0]
    text = Report(sections=[section]).text.splitlines()
    assert [line.count("█") for line in text if "class" in line][:4] == [40, 20, 0, 0]
    assert ["▏" in line for line in text if "class" in line][:4] == [False, False, True, False]
    assert (section.note, section.pictures) == ("6,001 examples of epoch 0, each counted once.", [])


def test_of_more_labels_the_extremes_are_shown_with_their_number_and_each_has_a_column() -> None:
    section = sections.describe_labels(counts(*([0, 7] * 500), 9, 1))
    assert {row["name"]: row["num_examples"] for row in shown(section)} == {
        "class1000": 9,
        **dict.fromkeys(("class1", "class3", "class5", "class7"), 7),
        **{f"class{label}": 0 for label in (990, 992, 994, 996, 998)},
    }
    assert section.note.endswith(": the 5 most frequent and the 5 rarest of 1,002 labels; 500 do not occur.")
    assert len(section.rows) == 1002
    assert sections.describe_labels(counts(*range(1, 26))).note.endswith("the 5 rarest of 25 labels.")
    (picture,) = sections.describe_labels(counts(*range(100))).pictures
    columns = "".join(f"V{1000 - max(3, round(1000 * n / 99)) if n else 1000}h1" for n in range(100))
    assert f'd="M0 1000{columns}V1000z"' in str(picture.drawing)


def test_labels_of_which_none_occurs_are_no_division_by_zero() -> None:
    assert [row["share"].share for row in sections.describe_labels(counts(0, 0)).rows] == [0, 0]


# How it was read, and how fast.


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (None, ""),
        (ImageSizes(1, (8, 8), (8, 8), (8, 8), 64.0), "all 8x8 (1 image looked at)"),
        (ImageSizes(9, (1, 2), (30, 4), (50, 60), 99.0), "1x2 to 50x60, median 30x4 (9 images looked at)"),
        (ImageSizes(2, (2, 4), (4, 2), (4, 2), 8.0), "2x4 to 4x2, median 4x2 (2 images looked at)"),
    ],
)
def test_sizes_of_images_are_width_by_height(sizes: ImageSizes | None, said: str) -> None:
    assert sections.describe_sizes(sizes) == said
    note = sections.describe_delivery(Delivery("DataLoader", True, "P(size=8)", True, None), sizes).note
    assert note == "By DataLoader, whole batches, preprocess=P(size=8) (its own)." + (
        f" Images: {said}." if said else ""
    )


@pytest.mark.parametrize(
    ("delivery", "said"),
    [
        (Delivery("create_loader", True, "P(3)", False, None), "whole batches, preprocess=P(3) (the usual one; a"),
        (Delivery("DataLoader", False, None, False, "a reason"), "single examples without a preprocess: a reason."),
    ],
)
def test_how_the_examples_were_read_is_said(delivery: Delivery, said: str) -> None:
    section = sections.describe_delivery(delivery, None)
    assert section.note.startswith(f"By {delivery.loader}, {said}")
    assert section.facts["reason"] == delivery.reason


@pytest.mark.parametrize(
    ("ranks", "is_together", "said", "memory"),
    [
        ([speed(0, 7, {11: 3, 12: 1, 13: 2})], False, "each rank alone on this machine", "6 bytes in"),
        ([speed(0, 7), speed(1, 8, {11: 4})], False, "each rank alone on this machine", "4 bytes in"),
        ([speed(0, 7)], True, "1 rank of torch.distributed alone on this machine", None),
        (
            [speed(0, 7, {11: 3}), speed(1, 8, {21: 2, 22: 2})],
            True,
            "2 ranks of torch.distributed at the same time on this machine",
            "(PSS). All ranks: 7 bytes.",
        ),
    ],
)
def test_ranks_read_alone_or_at_the_same_time(
    ranks: list[RankReading], is_together: bool, said: str, memory: str | None
) -> None:
    note = sections.describe_speed(ranks, is_together=is_together).note
    assert f"Measured with {said}. " in note
    assert "there was only one." in note
    is_summed = is_together and len(ranks) > 1
    assert ("All ranks together: 15 examples/s." in note) is is_summed
    of_memory = sections.describe_memory(ranks, is_together=is_together)
    assert (None if of_memory is None else memory in of_memory.note) is (None if memory is None else True)
    assert of_memory is None or ("All ranks" in of_memory.note) is is_summed
    if of_memory is not None and len(ranks) == 1:
        names = [row["process"] for row in of_memory.rows]
        assert names == ["rank 0, process 11", "its child 13", "its child 12"]


def test_the_stages_of_rank_0_are_shown_where_its_loader_tells_them() -> None:
    stages = {stage: number / 4 for number, stage in enumerate(STAGES) if stage != "download"}
    section = sections.describe_stages(replace(speed(0, 7), stages=stages))
    assert section is not None
    assert section.note.startswith("9 batches of rank 0 in 10 s. ")
    assert [(row["stage"], row["whole_s"]) for row in section.rows] == [
        (stage.replace("_", "-"), seconds) for stage, seconds in stages.items()
    ]
    assert sections.describe_stages(speed(0, 7)) is None


# The dataset.


@pytest.mark.parametrize("content", [None, "{}", "{bad", '{"location": {}, "citation": ""}', '{"location": null}'])
def test_of_a_dataset_that_says_nothing_of_itself_nothing_is_said(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "dataset_info.json").write_text(content)
    parser = mock.Mock(provenance=lambda: mock.Mock(folder=Folder(str(tmp_path))))
    assert sections.describe_catalogue(parser) is None
    parser = mock.Mock(provenance=lambda: mock.Mock(folder=None))
    assert sections.describe_catalogue(parser) is None


def test_what_the_catalogue_says_are_keys_that_tfds_writes(tmp_path: Path) -> None:
    info = {
        "description": " What it is.\n",
        "configDescription": "This part of it.",
        "citation": "@misc{x}\n",
        "redistributionInfo": {"license": "CC BY 4.0"},
        "location": {"urls": ["https://a", "https://b", "https://c", "https://d"]},
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    section = sections.describe_catalogue(mock.Mock(provenance=lambda: mock.Mock(folder=Folder(str(tmp_path)))))
    assert section is not None
    assert section.facts["description"] == "What it is.\n\n\nThis part of it."
    assert (section.facts["credits"], section.facts["license"]) == ("@misc{x}", "CC BY 4.0")
    assert section.facts["home_page"].text == "https://a https://b https://c"
    messages = {field.json_name: field.message_type for field in dataset_info_pb2.DatasetInfo.DESCRIPTOR.fields}
    assert info.keys() <= messages.keys()
    assert "license" in messages["redistributionInfo"].fields_by_name
    assert "urls" in messages["location"].fields_by_name


def test_the_dataset_says_what_it_consists_of(numbered_root: str, tmp_path: Path) -> None:
    parser = ParserTfds(numbered_root, "numbered", "train[:9]")
    facts = sections.describe_dataset(parser).facts
    assert facts["split"].text == "train[:9]: 9 examples in 3 shards"
    assert facts["features"].value["image"] == {"dtype": "uint8", "shape": [None, None, 3]}
    assert facts["features"].text.splitlines()[1] == "image uint8[?, ?, 3]"
    assert (facts["is_fake"].value, facts["is_fake"].text, facts["num_skipped_files"].value) == (False, "", None)
    assert facts["data_dir"] == str(parser.data_dir)
    nested = {"a": FieldSpec((2, None), np.dtype(np.float32)), "b": {"c": FieldSpec((), np.dtype(object))}}
    assert sections._describe(nested) == "{a float32[2, ?], b {c str}}"
    assert sections._feature(nested) == {
        "a": {"dtype": "float32", "shape": [2, None]},
        "b": {"c": {"dtype": "string", "shape": []}},
    }
    own = sections.describe_dataset(ParserMapStyle([{"x": 1.0}] * 3, batch_size=1)).facts
    assert (own["split"].text, own["data_dir"], own["members"].value) == ("all: 3 examples", None, [])


def test_the_ledger_has_the_first_hundred_ids_and_says_what_was_planned() -> None:
    parser = ParserMapStyle([{"x": 1.0}] * 30, batch_size=10, is_training=True, repeats=3)
    expected = replace(expect(parser, 1, 0, 1), mode="files", num_unread=1234, num_repeated=2)
    ids = [f"x__{number}" for number in range(101)]
    counts = EpochCounts((9,), CappedList(ids), CappedList(ids[:100]), CappedList(), 90, 2)
    section = sections.describe_ledger(parser, expected, {0: counts})
    planned, came = shown(section)
    assert (planned["num_missing"], planned["num_twice"], planned["num_delivered"]) == ("up to 1,234", "up to 2", 90)
    assert {key: came[key] for key in ("num_delivered", "num_valid", "num_missing", "num_twice", "num_unknown")} == {
        "num_delivered": 92, "num_valid": 90, "num_missing": "101", "num_twice": "100", "num_unknown": "0"}  # fmt: skip
    marks = [section.rows[0][f"num_{name}"].mark for name in ("padded", "missing", "twice", "unknown")]
    assert marks == ["bad", "", "bad", ""]
    assert (section.rows[0]["missing"], section.rows[0]["twice"]) == (ids[:100], ids[:100])
    assert [summary for summary, _ in section.folded] == ["Epoch 0: 101 missing, the first 100", "Epoch 0: 100 twice"]
    promised = "The length of the dataset promises 30 examples per pass, and an epoch has 3 passes. Counted by the"
    assert section.note.startswith(promised)


# Numbers.


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.0 ms"), (0.0004, "0.4 ms"), (0.3399, "340 ms"), (0.9996, "1 s"), (1.234, "1.23 s"), (12.34, "12.3 s"),
     (2500, "2,500 s")],
)  # fmt: skip
def test_a_duration_has_three_digits_at_most(seconds: float, said: str) -> None:
    assert show_seconds(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 kB"), (1234, "1.23 kB"), (12_345, "12.3 kB"),
     (999_400, "999 kB"), (999_600, "1 MB"), (999_999_999, "1 GB"), (5 * 10**12, "5 TB"), (5 * 10**15, "5,000 TB")],
)  # fmt: skip
def test_sizes_are_shown_in_three_digits_of_their_unit(size: int, said: str) -> None:
    assert show_bytes(size) == said


@given(st.integers(1, 10**15))
def test_sizes_are_shown_without_powers_and_within_a_hundredth(size: int) -> None:
    number, unit = show_bytes(size).replace(",", "").split()
    power = ("byte", "kB", "MB", "GB", "TB").index(unit.removesuffix("s"))
    assert float(number) * 1000**power == pytest.approx(size, rel=0.01)
    assert float(number) < 1000 or power == 4
