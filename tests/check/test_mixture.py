"""`python -m tfds_torch.check` of a mixture: the ledger by member, and the promises of its weights."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded_images import photograph, save
from mixed_numbers import mix_numbered
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples
from zygote import forked_instead_of_fresh, tensorflow_zygote

from check import report_file
from check.page_file import load
from tfds_torch.check import command
from tfds_torch.check.expectation import Expectation, expect
from tfds_torch.check.ledger import EpochEnd, Ledger, Received
from tfds_torch.check.member_counts import draw_independently, expected_counts
from tfds_torch.check.promises import judge
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.weights import Segment

ONCE, SHARE = "every example once in each pass of its member", "every member has its share"

Edit = Callable[[Received], Received]


def play(expected: Expectation, edit: Edit | None = None, at: Sequence[int] = (0, 0, 0)) -> Ledger:
    """Returns the ledger of a good reading, in which one batch (rank, epoch, number) is edited."""
    ledger = Ledger(expected)
    names, members = list(expected.members), np.cumsum([0, *expected.members.values()])
    for rank in range(expected.num_replicas):
        for epoch in range(expected.num_epochs):
            share = expected.share(rank, epoch)
            for number in range(expected.plan.num_batches):
                index = share.index[expected.batch_slice(number)]
                member = np.searchsorted(members, index, side="right") - 1
                ids = [expected.ids[one] for one in index.tolist()]
                assert [id.partition("/")[0] for id in ids] == [names[one] for one in member.tolist()]
                batch = Received(ids, index, np.ones(len(index), np.bool_), index, member=member)
                is_edited = edit is not None and (rank, epoch, number) == tuple(at)
                ledger.add(rank, epoch, edit(batch) if edit is not None and is_edited else batch)
            ledger.end(rank, epoch, EpochEnd(expected.plan.num_batches))
    return ledger


def broken(ledger: Ledger) -> dict[str, str]:
    return {promise.name: promise.detail for promise in judge(ledger) if not promise.kept}


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize(
    ("batch_size", "arguments"),
    [
        (4, {}),
        (5, {"remainder": "drop"}),
        (3, {"repeats": 3}),
        (7, {"weights": {"a": 1, "b": 1, "c": 1}, "epoch_size": 5}),
        (4, {"weights": "sizes", "stop": "all_exhausted", "epoch_size": None, "shuffle": False}),
        (4, {"weights": None, "epoch_size": None}),
    ],
)
def test_a_good_reading_keeps_every_promise(
    numbered_root: str, num_replicas: int, batch_size: int, arguments: dict[str, Any]
) -> None:
    """Over eight epochs, whose ends are not those of the members' passes."""
    parser = mix_numbered(numbered_root, batch_size=batch_size, **arguments)
    expected = expect(parser, num_replicas, 2, 8)
    ledger = play(expected)
    assert broken(ledger) == {}
    has_weights = parser.weights is not None
    assert (SHARE in [promise.name for promise in judge(ledger)]) is has_weights
    for epoch, count in ledger.counts.items():
        before, after = (parser.counts(at * expected.plan.num_own_slots) for at in (epoch, epoch + 1))
        if expected.plan.remainder != "drop":
            assert {one.name: one.num_valid for one in count.members} == {
                name: after[name] - before[name] for name in before
            }
        assert all((one.most_off is not None) is has_weights for one in count.members)


def one_more_of_a(batch: Received) -> Received:
    """Puts an example of the first member in the place of the first one of another."""
    place = int(np.flatnonzero(batch.member)[0])
    index, ids = batch.index.copy(), list(batch.id)
    index[place], ids[place] = 0, "a/numbered-train.tfrecord-00000-of-00009__0"
    return replace(batch, index=index, id=ids, member=np.where(np.arange(len(index)) == place, 0, batch.member))


def same_again(batch: Received) -> Received:
    """Puts an example in the place of another one of its member."""
    first, second = np.flatnonzero(batch.member == batch.member[0])[:2]
    index, ids = batch.index.copy(), list(batch.id)
    index[second], ids[second] = index[first], ids[first]
    return replace(batch, index=index, id=ids)


def of_another_member(batch: Received) -> Received:
    """Says of the first example that it is of another member."""
    return replace(batch, member=np.where(np.arange(len(batch)) == 0, batch.member[0] ^ 1, batch.member))


@pytest.mark.parametrize(
    ("edit", "name", "detail"),
    [
        (one_more_of_a, SHARE, "epoch 1, a: "),
        (same_again, ONCE, "twice: "),
        (of_another_member, "ids as promised", "numbered-train.tfrecord"),
    ],
)
def test_a_fault_breaks_its_promise(numbered_root: str, edit: Edit, name: str, detail: str) -> None:
    expected = expect(mix_numbered(numbered_root, batch_size=8), 2, 2, 4)
    found = broken(play(expected, edit, (1, 1, 0)))
    assert detail in next(said for promise, said in found.items() if promise.startswith(name))


def test_an_example_that_never_comes_is_missing_once_its_pass_has_ended(numbered_root: str) -> None:
    expected = expect(mix_numbered(numbered_root, batch_size=8, weights="sizes", epoch_size=41), 1, 1, 2)

    def lose(batch: Received) -> Received:
        return Received(batch.id[1:], batch.index[1:], batch.valid[1:], batch.label[1:], member=batch.member[1:])

    ledger = play(expected, lose)
    assert [count.missing.number for count in ledger.counts.values()] == [1, 1]
    assert ledger.counts[0].missing.first == [expected.ids[int(expected.share(0, 0).index[0])]]


def test_shares_are_compared_within_an_epoch(numbered_root: str) -> None:
    """Members in the right numbers, but one after the other: only the windows tell."""
    expected = expect(mix_numbered(numbered_root, batch_size=6, weights={"a": 1, "b": 1, "c": 1}), 1, 1, 1)
    share = expected.share(0, 0)
    order = np.argsort(share.index, kind="stable")
    moved = replace(expected, share=lambda rank, epoch: replace(share, index=share.index[order]))
    found = broken(play(moved))
    assert list(found) == [SHARE]
    assert "examples from n x weight" in found[SHARE]


def test_expected_counts_are_n_times_weight_in_each_part() -> None:
    members = (Member("a", 10), Member("b", 10))
    order = Mixed(members, (Segment(0, (3, 1)), Segment(100, (0, 1)), Segment(120, (1, 1))), 10)
    expected, num_parts = expected_counts(order, np.array([0, 40, 100, 110, 140]))
    assert expected.tolist() == [[0, 0], [30, 10], [75, 25], [75, 35], [85, 55]]
    assert num_parts.tolist() == [1, 1, 1, 2, 3]
    drawn = draw_independently(order, [40, 100, 110, 140], 0)
    assert drawn.sum(axis=1).tolist() == [40, 60, 10, 30]
    assert drawn[2].tolist() == [0, 10]


def test_of_an_interrupted_reading_the_whole_epochs_are_judged(numbered_root: str) -> None:
    expected = expect(mix_numbered(numbered_root, batch_size=8), 2, 1, 3)
    whole = play(expected)
    ledger = Ledger(expected)
    ledger.ended = {key: summary for key, summary in whole.ended.items() if key < (1, 1)}
    assert ledger.members is not None
    for epoch in range(3):
        ledger.members.windows(epoch)[:] = whole.members.windows(epoch) if whole.members is not None else 0
    ledger.count(0)
    promises = judge(ledger, is_whole=False)
    assert all(promise.kept for promise in promises)
    assert {f"{ONCE}, and the wrapped few", SHARE} <= {promise.name for promise in promises}


# The command.


@pytest.fixture
def forked() -> Iterator[None]:
    """Forks the processes that build datasets and ask TFDS: a check's own are those of test_command.py's first one."""
    with forked_instead_of_fresh(tensorflow_zygote):
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of the digits, a `.beton` file and tars, whose labels mean nothing together."""
    folder = tmp_path_factory.mktemp("recipe")
    write_images(folder / "images.beton", 40, class_names={"label": [f"class {number}" for number in range(10)]})
    samples = [{"__key__": f"{n:03d}", "jpg": save(photograph((40, 30 + n)), "JPEG"), "cls": b"1"} for n in range(18)]
    write_samples(folder / "tars.tar", samples)
    entries = [("digits", "digits", 'split = "test"'), ("beton", folder / "images.beton", ""),
               ("tars", folder / "tars.tar", "")]  # fmt: skip
    tables = [
        f'[[mixture]]\nmember = "{member}"\nname = "{name}"\ntarget_key = false\nweight = {weight}\n{more}\n'
        for weight, (member, name, more) in enumerate(entries, 1)
    ]
    path = folder / "recipe.toml"
    path.write_text(
        "is_training = true\nbatch_size = 8\nepoch_size = 400\n"
        + "".join(tables)
        + "[[schedule]]\nstart = 200\nweights = { digits = 1, beton = 1, tars = 0 }\n"
    )
    return path


@pytest.mark.usefixtures("forked")
def test_a_mixture_of_three_formats_is_checked_and_reported(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path, html_path, sheet = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.png"
    flags = ["--json", str(json_path), "--html", str(html_path), "--images", str(sheet), "--replicas", "2"]
    assert command.main(["--config", str(recipe), "--workers", "0", *flags]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "All 12 promises kept." in printed
    assert "the same ids and bytes; not compared: beton (TFDS does not read .beton files), tars" in printed
    report = report_file.load(json_path)
    assert [one["name"] for one in report["dataset"]["members"]] == ["digits", "beton", "tars"]
    assert report["dataset"]["data_dir"] is None
    shares = [{"digits": 1 / 6, "beton": 2 / 6, "tars": 3 / 6}, {"digits": 0.5, "beton": 0.5, "tars": 0}]
    assert [(part["start"], part["weights"]) for part in report["plan"]["schedule"]] == list(
        zip([0, 200], shares, strict=True)
    )
    first, second = ({one["name"]: one for one in epoch["members"]} for epoch in report["epochs"])
    assert [first[name]["num_valid"] for name in first] == [133, 167, 100]
    assert [second[name]["num_valid"] for name in second] == [200, 200, 0]
    both = [*first.values(), *second.values()]
    assert all(one["num_valid"] == one["num_planned"] and one["is_within"] for one in both)
    page = load(html_path)
    assert [row["member"].strip() for row in page.table("mixture")] == ["digits", "beton", "tars"] * 2
    assert len(page.paths["mixture"]) == 6  # Three members, this run and random draws.
    assert "Farthest from n x weight: 0." in page.texts["mixture"]
    assert "Simulated: each example's member is drawn by the weights" in page.texts["mixture"]
    assert "shuffle" not in page.texts["order"]
    assert sheet.stat().st_size > 0


@pytest.mark.usefixtures("forked")
def test_evaluation_reads_every_example_of_every_member_once(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights are those of training."""
    assert command.main(["--config", str(recipe), "--workers", "0", "--eval", "--replicas", "3", "--epochs", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "every example exactly once" in printed
    assert SHARE not in printed
    rows = [row for row in ("0 digits 360 360", "0 beton 40 40", "0 tars 18 18") if row in printed]
    assert len(rows) == 3


@pytest.mark.usefixtures("forked")
def test_many_members_are_drawn_together(
    numbered_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = "".join(
        f'[[mixture]]\nmember = "m{number}"\nname = "numbered"\nsplit = "train[{number}:{number + 1}]"\n'
        for number in range(30)
    )
    path = tmp_path / "many.toml"
    path.write_text(f'is_training = true\nbatch_size = 16\nweights = "sizes"\nepoch_size = 60\n{entries}')
    html_path = tmp_path / "r.html"
    flags = ["--root", numbered_root, "--workers", "0", "--html", str(html_path), "--epochs", "1"]
    assert command.main(["--config", str(path), *flags]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "and 6 more" in printed
    page = load(html_path)
    assert len(page.paths["mixture"]) == 16  # Seven of them, and the others together.


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--name", "digits"], "--name digits: "),
        (["--split", "train"], "is the recipe of a mixture, whose entries [[mixture]] name its datasets and splits"),
        (["--read-mode", "files"], "a mixture needs every example by its number"),
        (["--shards", "0"], "--shards 0: must be at least 1."),
    ],
)
def test_flags_of_one_dataset_are_wrong_usage(
    recipe: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--config", str(recipe), *flags]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_member_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[[mixture]]\nname = "digits"\n[[mixture]]\nmember = "b"\nname = "nowhere.beton"\n')
    assert command.main(["--config", str(path), "--workers", "0"]) == 2
    assert "error: Member 'b' of the mixture: There is no file 'nowhere.beton'" in capsys.readouterr().err


@pytest.mark.usefixtures("forked")
def test_made_up_members_stand_beside_embedded_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'is_training = true\nbatch_size = 8\n[[mixture]]\nname = "digits"\nweight = 1\n'
        '[[mixture]]\nname = "mnist"\nweight = 1\n'
    )
    json_path = tmp_path / "r.json"
    flags = ["--fake", "20", "--workers", "0", "--epochs", "1", "--json", str(json_path)]
    assert command.main(["--config", str(path), *flags]) == 0
    assert "made up" in capsys.readouterr().out
    members = json.loads(json_path.read_text())["dataset"]["members"]
    assert [one["num_examples"] for one in members] == [1437, 20]
