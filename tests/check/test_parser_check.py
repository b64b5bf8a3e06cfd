"""check_parser: the promises of one's own data, of subsets, balanced and weighted examples, and what breaks them."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_images import photograph, save
from PIL import Image
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples

from check import report_file
from tfds_torch import (
    EvalPreprocess,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    TrainPreprocess,
    Views,
    World,
)
from tfds_torch.check import command
from tfds_torch.check.expectation import Expectation, expect
from tfds_torch.check.ledger import EpochEnd, Ledger, Received
from tfds_torch.check.parser_check import ParserReport, check_parser
from tfds_torch.check.promises import judge
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.plan.order import Int64Array, Order, Promise
from tfds_torch.runtime.identity import Identity

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


def test_images_that_are_numbers_are_delivered_and_their_pixels_not_compared() -> None:
    rows = [{"image": np.full((8, 8, 13), number, np.uint16), "label": number % 2} for number in range(20)]
    report = check_parser(ParserMapStyle(rows, batch_size=4, is_training=True), num_workers=0)
    assert "images are numbers, and no pictures" in str(report)


def training(rows: Any = ROWS, **more: Any) -> ParserMapStyle:
    return ParserMapStyle(rows, **(TRAINING | more))


# Parser -> the promise of its examples.
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "rows": (training, "every example once, and the wrapped few"),
    "evaluation": (lambda: ParserMapStyle(ROWS, batch_size=4), "every example exactly once"),
    "short epochs": (lambda: training(epoch_size=30), "every example once in each pass, and the wrapped few"),
    "subset": (lambda: training().subset(range(10, 47)), "every example of the subset once, and the wrapped few"),
    "subset in evaluation": (
        lambda: ParserMapStyle(ROWS, batch_size=4).subset(EVEN),
        "every example of the subset exactly once",
    ),
    "subset, short epochs": (
        lambda: training(epoch_size=16).subset(EVEN),
        "every example of the subset once in each pass",
    ),
    "balanced": (lambda: training().balanced(), "every example once in each pass of its class, and the wrapped few"),
    "balanced subset": (
        lambda: training().subset(EVEN).balanced(epoch_size=40),
        "every example once in each pass of its class",
    ),
    "weighted": (
        lambda: training().weighted(np.arange(NUM_EXAMPLES) % 7, epoch_size=48),
        "every example as often as the order of the weights draws it",
    ),
    "weighted subset": (
        lambda: training().subset(EVEN).weighted(np.ones(len(EVEN)), epoch_size=33),
        "every example as often as the order of the weights draws it, and the wrapped few",
    ),
    "mixture of subsets": (
        lambda: ParserMixture(
            {"a": ParserMapStyle(ROWS).subset(range(30)), "b": ParserMapStyle(ROWS)}, {"a": 0.3, "b": 0.7}, **TRAINING
        ),
        "every example once in each pass of its member, and the wrapped few",
    ),
    "subsets one after the other": (
        lambda: ParserMixture(
            {"a": ParserMapStyle(ROWS).subset(EVEN), "b": ParserMapStyle(ROWS)}, batch_size=4, preprocess=WHOLE
        ),
        "every example of the subset exactly once",
    ),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Any, str]:
    make, promise = request.param
    return make(), promise


def names(report: ParserReport) -> list[str]:
    return [promise.name for promise in report.promises]


def broken(promises: Sequence[Any]) -> dict[str, str]:
    return {promise.name: promise.detail for promise in promises if not promise.kept}


# What is kept


WITH_WORKERS = ("rows", "mixture of subsets")


@pytest.mark.parametrize(
    ("name", "num_replicas", "num_workers"),
    [(name, 2, 0) for name in CASES]
    + [pytest.param(name, 1, 1, marks=() if name in WITH_WORKERS else pytest.mark.slow) for name in CASES],
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
    assert f"All {len(found)} promises kept." in str(report)
    assert once[:40] in str(report)


def test_the_classes_of_balanced_examples_are_counted() -> None:
    report = check_parser(training().balanced(), num_workers=0)
    assert "every class has its share" in names(report)
    assert [one.name for one in report.counts[0].members] == ["0", "1", "2"]
    assert sum(one.num_valid for one in report.counts[0].members) == NUM_EXAMPLES


def test_items_without_images_and_labels_are_read_with_all_their_fields() -> None:
    columns = {"x": np.arange(40.0), "text": [f"t{number}" for number in range(40)]}
    report = check_parser(ParserMapStyle(columns, batch_size=8, is_training=True), num_workers=0)
    assert report.is_kept, report
    assert "Not judged: pixels are Pillow's: the dataset has no image" in str(report)
    rows = [{"x": [number], "y": number} for number in range(40)]
    rows[33] = {"x": [33], "y": "33"}
    with pytest.raises(CorruptRecordError, match="item 33 cannot be used"):
        check_parser(ParserMapStyle(rows, batch_size=8, is_training=True), num_workers=0)


def test_other_parsers_are_checked_as_well(tmp_path: Path) -> None:
    write_images(tmp_path / "a.beton", 30, 8)
    samples = [{"__key__": f"{n:02d}", "jpg": row["image"], "cls": b"%d" % row["label"]} for n, row in enumerate(ROWS)]
    write_samples(tmp_path / "a.tar", samples)
    for number, row in enumerate(ROWS):
        path = tmp_path / "folder" / "train" / str(row["label"]) / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row["image"])
    parsers = [
        ParserBeton(tmp_path / "a.beton", **TRAINING).subset(range(5, 30)),
        ParserWebDataset(str(tmp_path / "a.tar"), **TRAINING).balanced(),
        ParserTfds(tmp_path / "folder", "image_folder", **TRAINING).weighted(np.ones(NUM_EXAMPLES)),
    ]
    for parser in parsers:
        report = check_parser(parser, num_workers=0, num_replicas=2)
        assert report.is_kept, report
        assert PIXELS in names(report)


class Flipped(torch.utils.data.Dataset[Any]):
    """A dataset that flips its images at random."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> dict[str, Any]:
        pixels = np.asarray(Image.open(io.BytesIO(ROWS[number]["image"])))
        return {"image": np.roll(pixels, int(torch.randint(1, 20, ())), 1), "label": number}


def test_images_that_change_from_reading_to_reading_are_not_compared() -> None:
    report = check_parser(training(Flipped()), num_workers=0)
    assert report.is_kept, report
    reason = "Flipped gives another image each time it is asked: it draws random numbers itself"
    assert reason in {one.reason for one in report.not_judged}
    assert RESUME in names(report)


@dataclass(frozen=True)
class Twice(Order):
    """An order of one's own: each example twice in a row, in two passes."""

    n: int
    seed: int = 42
    shuffle = True

    @property
    def num_examples(self) -> int:
        return self.n

    @property
    def num_slots(self) -> int:
        return 2 * self.n

    def at(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        place, copied = np.divmod(slots, 2)
        pass_number, position = np.divmod(place, self.n)
        return 2 * pass_number + copied, (position + 5 * pass_number) % self.n

    def identity(self) -> Identity:
        return {"kind": "twice", "num_slots": self.num_slots, "seed": self.seed, "shuffle": True}

    def promise(self) -> Promise:
        return Promise("every example", "twice", self.n, "Leave out Twice.", self._count)

    def _count(self, num_slots: int) -> tuple[Int64Array, Int64Array]:
        whole, rest = divmod(num_slots, self.num_slots)
        return np.full(self.n, 2 * whole), np.full(self.n, 2 * whole + min(2, rest))


@pytest.mark.parametrize("remainder", ["wrap", "drop"])
def test_an_order_of_ones_own_is_judged_by_its_own_promise(remainder: str) -> None:
    parser = training(batch_size=8, remainder=remainder).with_order(Twice(NUM_EXAMPLES))
    report = check_parser(parser, num_workers=0, num_replicas=2)
    assert report.is_kept, report
    assert {ORDER, RESUME, ONE_ORDER, PIXELS} <= set(names(report))
    few = ", and the wrapped few" if remainder == "wrap" else ", but the dropped few"
    assert f"every example twice{few}" in names(report)


def test_bytes_and_views_have_no_pixels_to_compare() -> None:
    undecoded = ParserMapStyle(ROWS, batch_size=4, is_training=True, decode={"image": False})
    views = training(preprocess=Views((TrainPreprocess(16), 2)))
    for parser, reason in ((undecoded, "images come as bytes (decode=)"), (views, "several views of an image")):
        report = check_parser(parser, num_workers=0)
        assert report.is_kept, report
        assert PIXELS not in names(report)
        assert any(reason in one.reason for one in report.not_judged)


# What breaks


Edit = Callable[[Batch], Iterator[Batch]]


def edited(edit: Callable[[Batch], Batch | None], **more: Any) -> ParserMapStyle:
    """Returns a parser whose batches are edited; those for which None is returned are left out."""

    class Edited(ParserMapStyle):
        def batches(self, *args: Any, **arguments: Any) -> Iterator[Batch]:
            for batch in super().batches(*args, **arguments):
                if (found := edit(batch)) is not None:
                    yield found

    return Edited(ROWS, **(TRAINING | {"preprocess": None} | more))


def second_twice(batch: Batch) -> Batch:
    """An example comes in the place of another, with its own index and id."""
    at = np.array([1, 1, *range(2, len(batch))])
    image = None if batch.image is None else [batch.image[one] for one in at]
    label = None if batch.label is None else batch.label[at]
    return replace(batch, image=image, label=label, index=batch.index[at], id=[batch.id[one] for one in at])


def test_an_example_in_the_place_of_another_breaks_its_promises() -> None:
    is_first = {"epoch": 0, "batch": 2}
    parser = edited(lambda one: second_twice(one) if (one.epoch, one.batch) == tuple(is_first.values()) else one)
    report = check_parser(parser, num_workers=0)
    assert not report.is_kept
    found = broken(report.promises)
    assert {"every example once, and the wrapped few", SHARE} <= found.keys()
    assert re.match(r"1 missing \(allowed 0\), 3 twice \(allowed 2\); missing: \d+", found[names(report)[3]])
    assert re.search(r"\d+ of \d+ promises broken", str(report))


def test_a_wrong_id_is_not_the_examples() -> None:
    parser = edited(lambda one: replace(one, id=["7", *one.id[1:]]) if one.batch == 0 else one)
    assert IDS in broken(check_parser(parser, num_workers=0).promises)


def test_images_of_another_example_are_not_pillows() -> None:
    parser = edited(
        lambda one: one if one.image is None else replace(one, image=[np.array(pixels) ^ 255 for pixels in one.image])
    )
    assert broken(check_parser(parser, num_workers=0).promises).keys() == {PIXELS}


def play(expected: Expectation, edit: Callable[[Received], Received], at: tuple[int, int, int]) -> Ledger:
    """Returns the ledger of a good reading, in which one batch (rank, epoch, number) is edited."""
    ledger = Ledger(expected)
    for rank in range(expected.num_replicas):
        for epoch in range(expected.num_epochs):
            share = expected.share(rank, epoch)
            for number in range(expected.plan.num_batches):
                here = expected.batch_slice(number)
                index, valid = share.index[here], share.valid[here]
                batch = Received([expected.ids[one] for one in index.tolist()], index, valid)
                ledger.add(rank, epoch, edit(batch) if (rank, epoch, number) == at else batch)
            ledger.end(rank, epoch, EpochEnd(expected.plan.num_batches))
    return ledger


def as_is(batch: Received) -> Received:
    return batch


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
        assert broken(judge(play(expected, as_is, (0, 0, 0)))) == {}
        rank, epoch, number = num_replicas - 1, 4, 0
        first, second = expected.share(rank, epoch).index[:2]
        found = broken(judge(play(expected, first_is_second, (rank, epoch, number))))
        assert (SHARE in found) is bool(first != second)  # With replacement, an example may come twice in a batch.


def test_an_example_that_is_not_the_subsets_comes_too_often() -> None:
    expected = expect(training().subset(EVEN), 1, 1, 1)

    def other(batch: Received) -> Received:
        return replace(batch, id=["1", *batch.id[1:]], index=np.array([1, *batch.index[1:]]))

    found = broken(judge(play(expected, other, (0, 0, 0))))
    detail = found["every example of the subset once, and the wrapped few"]
    assert re.match(r"1 missing \(allowed 0\), 4 twice \(allowed 3\); missing: \d+; twice: 1,", detail)


def test_an_example_of_another_class_breaks_the_shares_of_both() -> None:
    expected = expect(training().balanced(), 1, 1, 1)
    index = int(expected.share(0, 0).index[0])
    instead = (index + 1) % NUM_EXAMPLES  # Its label is the next one.

    def other(batch: Received) -> Received:
        return replace(batch, id=[str(instead), *batch.id[1:]], index=np.array([instead, *batch.index[1:]]))

    detail = broken(judge(play(expected, other, (0, 0, 0))))["every class has its share"]
    assert detail.count(" came, ") == 2
    assert f"epoch 0, {index % NUM_CLASSES}: " in detail


def test_a_drawn_example_that_does_not_come_is_missing() -> None:
    expected = expect(training().weighted(np.arange(NUM_EXAMPLES) % 7, epoch_size=48), 1, 1, 2)
    index = expected.share(0, 0).index[:4]

    def other(batch: Received) -> Received:
        return replace(batch, id=["0", *batch.id[1:]], index=np.array([0, *batch.index[1:]]))

    found = broken(judge(play(expected, other, (0, 0, 0))))
    detail = found["every example as often as the order of the weights draws it"]
    assert f"missing: {index[0]}" in detail  # A weight of 0 is never drawn.
    assert "twice: 0" in detail


# What is refused


def test_an_item_that_cannot_be_read_is_an_error_that_names_it() -> None:
    rows = [*ROWS[:20], {"image": b"no image", "label": 1}, *ROWS[20:]]
    with pytest.raises(CorruptRecordError, match="item 20 cannot be used"):
        check_parser(training(rows), num_workers=0)


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


def test_ranks_of_an_evaluation_are_padded_alike() -> None:
    report = check_parser(ParserMapStyle(ROWS, batch_size=4), num_replicas=3, num_workers=0, num_epochs=1)
    assert report.is_kept, report
    assert report.counts[0].num_padded == ParserMapStyle(ROWS, batch_size=4).plan(World(0, 3)).num_batches * 12 - 50


# The command


MODULE = """
from check.test_parser_check import ROWS, Flipped

def make_rows():
    return ROWS

def make_damaged():
    return [*ROWS[:20], {"image": b"no image", "label": 1}, *ROWS[20:]]
"""


def run_command(folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, *flags: str) -> int:
    """Returns the exit code of the command for a recipe that names a function of MODULE."""
    (folder / "rows_of_mine_checked.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    recipe = folder / "own.toml"
    recipe.write_text(f'source = "rows_of_mine_checked:{function}"\nis_training = true\nbatch_size = 8\n')
    return command.main(["--config", str(recipe), "--workers", "0", *flags])


def test_the_command_checks_a_dataset_that_a_recipe_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = ("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"), "--replicas", "2")
    assert run_command(tmp_path, monkeypatch, "make_rows", *reports) == command.OK
    printed = capsys.readouterr().out
    assert "all: 50 examples" in printed
    assert "the length of the dataset promises 50 examples per pass" in printed
    assert "All 10 promises kept." in printed
    found = report_file.load(tmp_path / "r.json")
    assert found["dataset"]["data_dir"] is None
    assert all(one["kept"] for one in found["promises"])
    assert "all: 50 examples" in (tmp_path / "r.html").read_text()


def test_the_command_names_an_item_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(tmp_path, monkeypatch, "make_damaged") == command.BROKEN
    assert "item 20 cannot be used" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--fake", "3"), "names a dataset of your own, which has neither splits nor a folder. Drop --fake."),
        (("--root", "x"), "names a dataset of your own, which has neither splits nor a folder. Drop --root."),
        (("--split", "train"), "a dataset of your own, without names and splits. Leave out --split."),
        (("--name", "digits"), "a dataset of your own, without names and splits. Leave out --name."),
    ],
)
def test_flags_of_other_datasets_are_refused(
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(tmp_path, monkeypatch, "make_rows", *flags) == command.USAGE
    assert message in " ".join(capsys.readouterr().err.split())
