"""The README is short, begins where a user begins, and its map and its mental model are true."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from doc_blocks import ROOT, THE_FIRST_CODE, Reader, blocks_of
from zygote import forked_instead_of_fresh

from benchmarks import picture
from benchmarks.report import read_reports
from tfds_torch import ParserTfds, World, demo

README = (ROOT / "README.md").read_text()


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.splitlines()) < 140  # Two screens.


def of_language(language: str) -> list[str]:
    return [block.text for block in blocks_of(ROOT / "README.md") if block.language == language]


def accuracies_in(text: str) -> list[float]:
    epochs = re.findall(r"^epoch (\d): accuracy (\d+\.\d)%$", text, re.MULTILINE)
    assert [int(epoch) for epoch, _ in epochs] == list(range(3)) == list(range(len(text.splitlines())))
    return [float(accuracy) for _, accuracy in epochs]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with closing(Reader(tmp_path_factory.mktemp("home"))) as found:
        yield found


def test_its_first_python_block_runs_as_it_stands_and_shows_that_it_learns(reader: Reader, tmp_path: Path) -> None:
    assert THE_FIRST_CODE.page == ROOT / "README.md"
    done = reader.run_python(THE_FIRST_CODE.text, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for first, *_, last in (accuracies_in(done.stdout), accuracies_in(of_language("text")[0])):
        assert 40 < first < last
        assert last > 65


def test_one_line_changes_for_the_readers_own_dataset(reader: Reader, tmp_path: Path) -> None:
    line = of_language("python")[1].strip()
    text, num_changed = re.subn(r"(?m)^    root, name = .*$", f"    {line}", THE_FIRST_CODE.text)
    done = reader.run_python(f"{text}    print(parser.dataset_name, loader.stats().batches)\n", tmp_path)
    assert (num_changed, done.returncode, done.stderr) == (1, 0, "")
    *epochs, read = done.stdout.splitlines()
    assert len(accuracies_in("\n".join(epochs))) == 3
    assert read == "food101:2.0.0 3"


def test_the_site_begins_with_the_same_lines() -> None:
    first = next(block for block in blocks_of(ROOT / "docs" / "index.md") if block.language == "python")
    assert first.text == THE_FIRST_CODE.text


def test_every_link_of_the_readme_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", README) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", README)
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_figures_of_speed_in_the_text_are_those_of_the_reports() -> None:
    reports = "".join(report.markdown() for report in read_reports().values())
    quoted = README.partition("## How fast it is")[2].partition("\n## ")[0] + (ROOT / "docs" / "cache.md").read_text()
    speeds = re.findall(r"\d{1,3}(?:,\d{3})+", quoted)
    others = (ROOT / "docs" / "comparison.md").read_text().partition("\n## Where the others are better")[2]
    seconds = re.findall(r"(\d\.\d\d) s\b", others)
    assert len(speeds) > 5
    assert len(seconds) > 4
    assert [
        figure
        for figure in (*speeds, *seconds)
        if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,]\d)", reports)
    ] == []


def test_the_picture_of_the_speed_shows_the_report() -> None:
    shown = picture.PICTURE.read_text()
    assert shown == picture.draw(read_reports()["jpeg"])
    assert shown.count('class="peer" x=') >= 6


def test_figures_of_digits_are_those_of_the_demo() -> None:
    with forked_instead_of_fresh():
        root = demo.prepare("digits", progress=False)
    train = ParserTfds(root, "digits", is_training=True, batch_size=32)
    plan = train.plan(World())
    in_last = plan.batch(0, plan.num_batches - 1)
    num_own = int((in_last.pass_number == 0).sum())
    told = " ".join(README.partition("## Try it in two commands")[2].split())
    for words in (
        f"reads {train.num_examples:,} handwritten digits",
        f"{32 - num_own} twice (allowed {32 - num_own})",
    ):
        assert words in told
    following = plan.batch(1, 0).index[: 32 - num_own]
    assert in_last.index[num_own:].tolist() == following.tolist()


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in (ROOT / "tfds_torch").glob("*/__init__.py")}
    shown = (ROOT / "docs" / "contributing.md").read_text()
    assert rooms == set(re.findall(r"^  (\w+)/ ", shown, re.MULTILINE))


def test_the_mental_model_is_one_page_and_names_files_that_are_there() -> None:
    text = (ROOT / "tfds_torch" / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    named = set(re.findall(r"\b((?:\w+/)+\w+\.py)\b", text))
    assert len(named) > 30
    assert {name for name in named if not ((ROOT / name).exists() or (ROOT / "tfds_torch" / name).exists())} == set()


def test_the_tests_that_keep_the_promises_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) >= 8, "a test for every promise of mode index"
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_every_decision_has_its_four_parts_and_names_tests_and_files_that_are_there() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert 12 <= len(pages) <= 15
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    for page in pages:
        text = page.read_text()
        assert re.findall("^## (.+)$", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "What it costs",
            "Tests that hold it",
        ], page.name
        assert f"({page.name})" in index
        for path, name in re.findall(r"^- `(tests/[\w/]+\.py)(?:::(\w+))?`$", text, re.MULTILINE):
            assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{page.name}: {path}::{name}"
        for path in re.findall(r"`((?:\w+/)+\w+\.py)(?:::\w+)?`", text):
            assert (ROOT / path).exists() or (ROOT / "tfds_torch" / path).exists(), f"{page.name}: {path}"
