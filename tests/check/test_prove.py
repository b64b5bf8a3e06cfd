"""prove: what comes is read and judged, a planted fault breaks its own promises, and what an error ends stays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from image_folder_fixtures import NUM_TEST, NUM_TRAIN, write_image_folder

from check.machine import cut
from check.page_file import load as load_page
from check.planted_check import planted
from check.played_ledger import broken
from tfds_torch import EvalPreprocess, ParserTfds, TrainPreprocess
from tfds_torch.check.command import save_report
from tfds_torch.check.prove import How, prove
from tfds_torch.check.render import Run
from tfds_torch.check.report import Report
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError, WorkerError

pytestmark = pytest.mark.usefixtures("forked")

EQUAL, FULL, IDS, PADDING = (
    "equal numbers of batches",
    "every batch full",
    "ids as promised",
    "padding only where planned",
)
ONCE, SHARE, OTHER_ORDER = (
    "every example exactly once",
    "every rank reads its own share",
    "another order in every epoch",
)
ONE_ORDER, RANKS, RESUME = "the order does not depend on workers", " or ranks", "resume is exact"
TFDS, PIXELS = "the index is TFDS's own reader", "pixels are Pillow's"
PLAIN: dict[str, Any] = {"is_plain": True, "is_single": True}


def how(**changes: Any) -> How:
    """Returns how the command reads, without workers and in one epoch."""
    return How(**({"num_workers": 0, "num_epochs": 1, "as_made": False} | changes))


def section(report: Report, key: str) -> Any:
    return next(one for one in report.sections if one.key == key)


def id_of(record: int) -> str:
    return f"digits-test.tfrecord-00000-of-00001__{record}"


# Fault -> how it is read, and broken promise -> what its detail holds.
FAULTS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("none", {}, {}),
    ("none", {"is_training": True, "num_replicas": 2, "num_epochs": 2}, {}),
    ("duplicate", {}, {
        FULL: "batch 0: 9 examples", ONCE: f"0 missing (allowed 0), 1 twice (allowed 0); twice: {id_of(0)}",
        SHARE: "1 not of its share", ONE_ORDER: "batch 0: not in the planned order", RESUME: "another tail"}),
    ("loss", {}, {
        FULL: "batch 0: 7 examples", ONCE: f"1 missing (allowed 0), 0 twice (allowed 0); missing: {id_of(0)}",
        SHARE: "1 of its share did not come", ONE_ORDER: "", RESUME: ""}),
    ("replacement", {}, {
        ONCE: f"missing: {id_of(1)}; twice: {id_of(0)}", SHARE: id_of(1), ONE_ORDER: "batch 0: not in", RESUME: ""}),
    ("unknown id", {}, {IDS: "[bold]no-such-shard__0", ONCE: f"missing: {id_of(0)}", ONE_ORDER: "", RESUME: ""}),
    ("swapped ranks", {"num_replicas": 2}, {
        SHARE: "rank 1, epoch 0: ", ONE_ORDER + RANKS: "rank 0, epoch 0, batch 0", PADDING: "8 padded, 4 planned"}),
    ("same epoch", {"is_training": True, "num_epochs": 2}, {
        SHARE: "rank 0, epoch 1: 4 not", OTHER_ORDER: "1 of 2 orders differ", ONE_ORDER: "epoch 1, batch 0: another"}),
    ("valid padding", {"num_replicas": 2}, {ONCE: "12 twice (allowed 0)", PADDING: "epoch 0: 0 padded"}),
    ("another batch_size", PLAIN, {
        EQUAL: "34 came, 34 announced, 13 planned", ONE_ORDER: "batch 0: not in the planned order", RESUME: "",
        FULL: "rank 0: its loader's batch_size is 3, the parser's 8, rank 0, epoch 0, batch 0: 3 examples"}),
    ("drop_last", PLAIN, {
        EQUAL: "its loader drops a short last batch (drop_last), and the parser plans one", ONCE: "4 missing",
        SHARE: "4 of its share did not come", RESUME: "batch 13: the reading did not get there"}),
    ("order by workers", {"is_training": True}, {ONE_ORDER: "epoch 0, batch 0: another with 2 workers"}),
    ("skip on resume", {"is_training": True}, {RESUME: "epoch 0, batch 2: another tail than the uninterrupted one"}),
    ("repeat on resume", {"num_replicas": 2}, {RESUME: "rank 0, epoch 0, batch 1: another tail"}),
    ("forgotten state", {}, {RESUME: "epoch 0, batch 2: another tail"}),
    ("refused state", {}, {RESUME: "epoch 0, batch 0: played"}),
    ("another record", {}, {TFDS: "has other bytes than TFDS reads", PIXELS: "where they must be equal"}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "read", "wrong"), FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_a_planted_fault_breaks_exactly_its_own_promises(
    digits: Path, fault: str, read: dict[str, Any], wrong: dict[str, str]
) -> None:
    changes = dict(read)
    parser = ParserTfds(digits, "digits", "test[:100]", batch_size=8, is_training=changes.pop("is_training", False))
    with planted(fault):
        report = prove(parser, how(**changes))
    found = broken(report.promises)
    assert set(found) == set(wrong), found
    assert all(text in found[name] for name, text in wrong.items()), found
    assert len(report.promises) == 10 + (changes.get("num_epochs") == 2)


def test_a_worker_that_is_killed_is_an_error_that_names_it(digits: Path) -> None:
    report = Report()
    parser = ParserTfds(digits, "digits", batch_size=32, is_training=True)
    with planted("killed worker"), pytest.raises(WorkerError) as caught:
        prove(parser, how(num_workers=2), report=report)
    assert str(caught.value).startswith("Worker ")
    assert "was killed by SIGKILL (out of memory?) while it" in str(caught.value)
    assert [one.key for one in report.sections][:3] == ["dataset", "catalogue", "plan"]
    assert report.promises == []


def test_what_was_found_out_before_an_error_is_in_the_report(digits: Path) -> None:
    report = Report()
    parser = ParserTfds(digits, "digits", "test[:100]", batch_size=8)
    with planted("failing reference"), pytest.raises(ShardError, match="played"):
        prove(parser, how(), report=report)
    assert len(report.promises) == 6
    assert {"promises", "epochs", "labels", "throughput", "reading"} <= {one.key for one in report.sections}
    assert section(report, "dataset").facts["image_sizes"].value["num_images"] == 16


# Damage.


def flip(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut on a record boundary": (lambda shard: cut(shard, 300), "holds 300 of 360 examples"),
    "cut inside a record": (lambda shard: cut(shard, 300, 20), "inside record 300"),
    "cut to nothing": (lambda shard: cut(shard, 0), "holds 0 of 360 examples"),
    "missing": (Path.unlink, "missing"),
    "flipped byte": (flip, "checksum"),
    "a folder": (lambda shard: (shard.unlink(), shard.mkdir()), "is a directory, not a regular file"),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_shard_is_named(own_digits: Path, name: str, num_workers: int) -> None:
    damage, reason = DAMAGES[name]
    (shard,) = own_digits.glob("digits-test*")
    damage(shard)
    report = Report()
    with pytest.raises((ShardError, CorruptRecordError)) as caught:
        prove(ParserTfds(own_digits, "digits", "test", batch_size=32), how(num_workers=num_workers), report=report)
    assert str(shard) in str(caught.value)
    assert reason in str(caught.value)
    assert not report.promises
    assert not report.is_kept


# How it is read.


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("is_single", [False, True])
def test_plain_loaders_and_single_examples_are_proven_by_the_same_promises(
    digits: Path, is_plain: bool, is_single: bool
) -> None:
    parser = ParserTfds(digits, "digits", "train[:100]", batch_size=8, is_training=True)
    report = prove(parser, how(is_plain=is_plain, is_single=is_single, num_epochs=2))
    assert report.is_kept, report
    assert len(report.promises) == 11
    reading = section(report, "reading").facts
    assert (reading["loader"], reading["is_batched"]) == ("DataLoader" if is_plain else "create_loader", not is_single)
    assert reading["reason"] == ("they were asked for" if is_single else None)
    assert ("stages" in {one.key for one in report.sections}) is not is_plain
    assert report.promises[-1].detail == "16 of 16 examples equal"


def test_a_recipes_preprocess_is_what_is_proven(digits: Path) -> None:
    parser = ParserTfds(digits, "digits", batch_size=50, is_training=True)
    report = prove(parser, how(preprocess=TrainPreprocess(16, hflip=0)))
    assert report.is_kept, report
    reading = section(report, "reading").facts
    assert (reading["preprocess"], reading["is_own"]) == ("TrainPreprocess(size=16, hflip=0)", True)
    with pytest.raises(ConfigError, match="'nowhere'"):
        prove(parser, how(preprocess=EvalPreprocess(8, also=("nowhere",))))


@pytest.mark.parametrize("block_groups", [1, 4])
def test_by_block_every_promise_is_kept_too(digits: Path, block_groups: int) -> None:
    read = ReadOptions(block_records=16, block_groups=block_groups)
    report = prove(ParserTfds(digits, "digits", "train[:100]", batch_size=8, is_training=True, read=read), how())
    assert (report.is_kept, len(report.promises)) == (True, 10), report


ODD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("train+train", {"is_training": False}, {}),
    ("test[:0]", {"is_training": False}, {}),
    ("test[:1]", {"is_training": False}, {"num_replicas": 3}),
    ("test[:3]", {"batch_size": 2}, {"num_replicas": 2, "num_epochs": 4}),
    ("test[:10]", {"batch_size": 64}, {}),
    ("train[:50%]+train[25%:]", {"is_training": False}, {}),
    ("test[:2]", {"batch_size": 1}, {"num_epochs": 4}),
    ("test[:20]", {"is_training": False, "batch_size": None}, {}),
]


@pytest.mark.parametrize(("split", "parsed", "read"), ODD, ids=[split for split, *_ in ODD])
def test_an_odd_split_keeps_every_promise_and_has_a_page(
    digits: Path, tmp_path: Path, split: str, parsed: dict[str, Any], read: dict[str, Any]
) -> None:
    parser = ParserTfds(digits, "digits", split, **({"is_training": True, "batch_size": 32} | parsed))
    report = prove(parser, how(has_pictures=True, **read))
    assert report.is_kept, report
    save_report("--html", tmp_path / "r.html", report, Run([], 0.0, 0))
    page = load_page(tmp_path / "r.html")
    assert page.texts["verdict"].startswith("All ")
    assert len(page.images) == min(40, parser.num_examples)
    if parser.is_training:
        assert page.texts["order"].startswith("Shuffle ")
        assert [path.count("h0") for path in page.paths["order"]] == [parser.num_examples]
    elif parser.num_examples > 2:
        assert page.texts["order"].startswith("Order ")
        assert "perfect shuffle" not in page.texts["order"]


# Image folders.


@pytest.mark.parametrize("split", ["train+test", None])
def test_an_image_folder_is_proven_by_its_files(tmp_path: Path, split: str | None) -> None:
    root = write_image_folder(tmp_path / "root")
    options: dict[str, Any] = {"batch_size": 8, "is_training": True}
    parser = (
        ParserTfds(root / "train", "image_folder", **options)  # Folders of labels, without splits.
        if split is None
        else ParserTfds(root, "image_folder", split, **options)
    )
    report = prove(parser, how(num_epochs=2))
    assert (report.is_kept, len(report.promises)) == (True, 10), report
    number = NUM_TRAIN if split is None else NUM_TRAIN + NUM_TEST
    assert [(one.name, one.reason[:30]) for one in report.not_judged] == [(TFDS, "an image folder has no records")]
    assert f"The image folder promises {number} examples per pass" in section(report, "epochs").note
    assert f"{number} examples in {number} files" in section(report, "dataset").facts["split"].text
    assert "shard" not in section(report, "dataset").facts["split"].text
