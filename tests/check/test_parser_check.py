"""check_parser: the promises of one's own data, of subsets, balanced and weighted examples, and what breaks them."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_images import photograph, save
from PIL import Image
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples, write_tar

from check.played_ledger import broken, play_plan
from tfds_torch import (
    EvalPreprocess,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    TrainPreprocess,
    Views,
)
from tfds_torch.check.expected import expect
from tfds_torch.check.ledger import Received
from tfds_torch.check.parser_check import check_parser
from tfds_torch.check.promises import judge
from tfds_torch.check.report import Report
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.webdataset.source import WebDatasetSource

NUM_EXAMPLES, NUM_CLASSES = 50, 3
ROWS: list[dict[str, Any]] = [
    {"image": save(photograph((24 + number % 5, 20)), "JPEG", quality=80 + number % 10), "label": number % NUM_CLASSES}
    for number in range(NUM_EXAMPLES)
]
EVEN = range(0, NUM_EXAMPLES, 2)
WHOLE = EvalPreprocess(16)
TRAINING: dict[str, Any] = {"batch_size": 4, "is_training": True, "preprocess": TrainPreprocess(16)}

EQUAL, FULL, IDS = "equal numbers of batches", "every batch full", "ids as promised"
SHARE, ORDER, RESUME = "every rank reads its own share", "another order in every epoch", "resume is exact"
ONE_ORDER = "the order does not depend on workers or ranks"
PIXELS = "pixels are Pillow's"


def training(rows: Any = ROWS, **more: Any) -> ParserMapStyle:
    return ParserMapStyle(rows, **(TRAINING | more))


FEW, DRAWN = ", and the wrapped few", "every example as often as the order of the weights draws it"
OF_CLASS, OF_SUBSET = "every example once in each pass of its class", "every example of the subset"


def mix(weights: Any = None, **more: Any) -> ParserMixture:
    return ParserMixture({"a": ParserMapStyle(ROWS).subset(range(30)), "b": ParserMapStyle(ROWS)}, weights, **more)


# Parser -> the promise of its examples.
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "rows": (training, f"every example once{FEW}"),
    "evaluation": (lambda: ParserMapStyle(ROWS, batch_size=4), "every example exactly once"),
    "short epochs": (lambda: training(epoch_size=30), f"every example once in each pass{FEW}"),
    "subset": (lambda: training().subset(range(10, 47)), f"{OF_SUBSET} once{FEW}"),
    "subset in evaluation": (lambda: ParserMapStyle(ROWS, batch_size=4).subset(EVEN), f"{OF_SUBSET} exactly once"),
    "subset, short epochs": (lambda: training(epoch_size=16).subset(EVEN), f"{OF_SUBSET} once in each pass"),
    "balanced": (lambda: training().balanced(), f"{OF_CLASS}{FEW}"),
    "balanced subset": (lambda: training().subset(EVEN).balanced(epoch_size=40), OF_CLASS),
    "weighted": (lambda: training().weighted(np.arange(NUM_EXAMPLES) % 7, epoch_size=48), DRAWN),
    "weighted subset": (lambda: training().subset(EVEN).weighted(np.ones(25), epoch_size=33), f"{DRAWN}{FEW}"),
    "mixture of subsets": (
        lambda: mix({"a": 0.3, "b": 0.7}, **TRAINING),
        f"every example once in each pass of its member{FEW}",
    ),
    "subsets one after the other": (lambda: mix(batch_size=4, preprocess=WHOLE), f"{OF_SUBSET} exactly once"),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Any, str]:
    make, promise = request.param
    return make(), promise


def names(report: Report) -> list[str]:
    return [promise.name for promise in report.promises]


# What is kept


WITH_WORKERS = ("rows", "mixture of subsets")


@pytest.mark.parametrize(
    ("name", "num_replicas", "num_workers"),
    [(name, 2, 0) for name in CASES] + [(name, 1, 1) for name in WITH_WORKERS],
)
def test_a_good_parser_keeps_every_promise_of_its_kind(name: str, num_replicas: int, num_workers: int) -> None:
    make, once = CASES[name]
    report = check_parser(make(), num_replicas=num_replicas, num_workers=num_workers)
    assert report.is_kept, report
    found = names(report)
    once = once if num_replicas == 2 else found[3]  # What wraps depends on the ranks.
    one_order = ONE_ORDER if num_replicas == 2 else "the order does not depend on workers"
    assert {EQUAL, FULL, IDS, once, SHARE, one_order, RESUME, PIXELS} <= set(found)
    assert [one.name for one in report.not_judged] == ["the index is TFDS's own reader"]
    assert set(report.counts) == {0, 1}
    assert str(report).endswith(f"All {len(found)} promises kept.")


def test_the_classes_of_balanced_examples_are_counted() -> None:
    report = check_parser(training().balanced(), num_workers=0)
    assert "every class has its share" in names(report)
    assert [one.name for one in report.counts[0].members] == ["0", "1", "2"]
    assert sum(one.num_valid for one in report.counts[0].members) == NUM_EXAMPLES


def test_items_without_images_and_labels_are_read_with_all_their_fields() -> None:
    columns = {"x": np.arange(40.0), "text": [f"t{number}" for number in range(40)]}
    report = check_parser(ParserMapStyle(columns, batch_size=8, is_training=True), num_workers=0)
    assert report.is_kept, report
    assert [one.reason for one in report.not_judged][-1:] == ["the dataset has no image"]
    rows = [{"x": [number], "y": number} for number in range(40)]
    rows[33] = {"x": [33], "y": "33"}
    with pytest.raises(CorruptRecordError, match="item 33 cannot be used"):
        check_parser(ParserMapStyle(rows, batch_size=8, is_training=True), num_workers=0)


def test_other_parsers_are_checked_as_well_and_pixels_of_another_example_break_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "a.beton", 30, 8)
    samples = [{"__key__": f"{n:02d}", "jpg": row["image"], "cls": b"%d" % row["label"]} for n, row in enumerate(ROWS)]
    write_samples(tmp_path / "a.tar", samples)
    for number, row in enumerate(ROWS):
        path = tmp_path / "folder" / "train" / str(row["label"]) / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row["image"])
    beton, tars = ParserBeton(tmp_path / "a.beton", **TRAINING), ParserWebDataset(str(tmp_path / "a.tar"), **TRAINING)
    for parser, promised in (
        (beton.subset(range(5, 30)), "The subset promises 25 examples"),
        (beton, "The head of a.beton promises 30 examples"),
        (tars.balanced(), ""),
        (tars, "The index of the tars promises 50 examples"),
        (
            ParserTfds(tmp_path / "folder", "image_folder", **TRAINING).weighted(np.ones(NUM_EXAMPLES)),
            "The weights draw",
        ),
    ):
        report = check_parser(parser, num_workers=0, num_replicas=2)
        assert report.is_kept, report
        assert PIXELS in names(report)
        assert promised in " ".join(str(report).split())
    for source, parser in ((BetonSource, beton), (WebDatasetSource, tars)):
        read: Any = source.read
        monkeypatch.setattr(source, "read", lambda self, index, fields, read=read: read(self, index[::-1], fields))
        assert PIXELS in broken(check_parser(parser, num_workers=0, num_epochs=1).promises)


def test_files_of_tar_tools_are_reported_and_break_no_promise(tmp_path: Path) -> None:
    names = ["README", *(f"a/{kind}{n}.{name}" for n in range(5) for kind in ("", "._") for name in ("png", "cls"))]
    content = {"png": save(photograph(), "PNG"), "cls": b"1"}
    path = write_tar(tmp_path / "a.tar", [(name, content.get(name.rpartition(".")[2], b"junk")) for name in names])
    report = check_parser(ParserWebDataset(str(path), batch_size=4), num_workers=0, num_epochs=1)
    assert report.is_kept, report
    (dataset,) = [one for one in report.sections if one.key == "dataset"]
    assert dataset.facts["num_skipped_files"].value == 11
    assert "11, of no sample, such as tar tools leave them" in report.text


class Flipped(torch.utils.data.Dataset[Any]):
    """A dataset that flips its images at random."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> dict[str, Any]:
        pixels = np.asarray(Image.open(io.BytesIO(ROWS[number]["image"])))
        return {"image": np.roll(pixels, int(torch.randint(1, 20, ())), 1), "label": number}


def test_what_has_no_pixels_to_compare_is_said() -> None:
    numbers = [{"image": np.full((8, 8, 13), number, np.uint16), "label": number % 2} for number in range(20)]
    for parser, reason in (
        (ParserMapStyle(ROWS, batch_size=4, is_training=True, decode={"image": False}), "images come as bytes (decode"),
        (training(preprocess=Views((TrainPreprocess(16), 2))), "several views of an image"),
        (ParserMapStyle(numbers, batch_size=4, is_training=True), "images are numbers, and no pictures"),
        (training(Flipped()), "Flipped gives another image each time it is asked: it draws random numbers itself"),
    ):
        report = check_parser(parser, num_workers=0)
        assert report.is_kept, report
        assert RESUME in names(report)
        assert PIXELS not in names(report)
        assert any(reason in one.reason for one in report.not_judged)


# What breaks


def first_is_second(batch: Received) -> Received:
    return replace(batch, id=[batch.id[1], *batch.id[1:]], index=np.array([batch.index[1], *batch.index[1:]]))


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_many_epochs_of_a_good_reading_break_nothing_and_one_wrong_example_does(
    case: tuple[Any, str], num_replicas: int
) -> None:
    """Over six epochs, whose ends are not those of the passes."""
    parser, _ = case
    remainders = ["wrap", "drop"] if parser.is_training else [None]
    for remainder in remainders:
        parser.epoch = replace(parser.epoch, remainder=remainder)
        expected = expect(parser, num_replicas, 2, 6)
        assert broken(judge(play_plan(expected))) == {}
        rank, epoch, number = num_replicas - 1, 4, 0
        first, second = expected.share(rank, epoch).index[:2]
        found = broken(judge(play_plan(expected, first_is_second, (rank, epoch, number))))
        assert (SHARE in found) is bool(first != second)  # With replacement, an example may come twice in a batch.


def test_an_example_that_is_not_the_subsets_comes_too_often() -> None:
    expected = expect(training().subset(EVEN), 1, 1, 1)

    def other(batch: Received) -> Received:
        return replace(batch, id=["1", *batch.id[1:]], index=np.array([1, *batch.index[1:]]))

    found = broken(judge(play_plan(expected, other, (0, 0, 0))))
    detail = found["every example of the subset once, and the wrapped few"]
    assert re.match(r"1 missing \(allowed 0\), 4 twice \(allowed 3\); missing: \d+; twice: 1,", detail)


def test_an_example_of_another_class_breaks_the_shares_of_both() -> None:
    expected = expect(training().balanced(), 1, 1, 1)
    index = int(expected.share(0, 0).index[0])
    instead = (index + 1) % NUM_EXAMPLES  # Its label is the next one.

    def other(batch: Received) -> Received:
        return replace(batch, id=[str(instead), *batch.id[1:]], index=np.array([instead, *batch.index[1:]]))

    detail = broken(judge(play_plan(expected, other, (0, 0, 0))))["every class has its share"]
    assert detail.count(" came, ") == 2
    assert f"epoch 0, {index % NUM_CLASSES}: " in detail


def test_a_drawn_example_that_does_not_come_is_missing() -> None:
    expected = expect(training().weighted(np.arange(NUM_EXAMPLES) % 7, epoch_size=48), 1, 1, 2)
    index = expected.share(0, 0).index[:4]

    def other(batch: Received) -> Received:
        return replace(batch, id=["0", *batch.id[1:]], index=np.array([0, *batch.index[1:]]))

    found = broken(judge(play_plan(expected, other, (0, 0, 0))))
    detail = found["every example as often as the order of the weights draws it"]
    assert f"missing: {index[0]}" in detail  # A weight of 0 is never drawn.
    assert "twice: 0" in detail


# What is refused


@pytest.mark.parametrize(
    ("parser", "arguments", "message"),
    [
        (
            ROWS,
            {},
            r"check_parser: .* is not a parser. Of a dataset of your own make one: check_parser\(",
        ),
        (training(), {"num_replicas": 0}, "check_parser: num_replicas"),
        (training(), {"num_workers": -1}, "check_parser: num_workers"),
        (training(), {"num_epochs": 0}, "check_parser: num_epochs"),
    ],
)
def test_arguments_that_cannot_work_are_refused(parser: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_parser(parser, **arguments)
