"""README and docs: all code runs as it stands, all commands are as shown, and the site builds."""

import argparse
import dataclasses
import importlib
import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import (
    ALL_BLOCKS,
    COMMANDS,
    LANGUAGES,
    PAGES,
    PYTHON,
    ROOT,
    THE_FIRST_CODE,
    Block,
    Command,
    Reader,
    longer,
)

import tfds_torch
from tfds_torch.check import arguments as check_arguments
from tfds_torch.export import __main__ as export_arguments
from tfds_torch.runtime.metrics import STAGES

NOISE = ("oneDNN", "cuda_", "WARNING:", "I0000", "absl", "tensorflow/core", "TF_CPP", "UserWarning")
# What loads tensorflow, whose C++ code speaks before it can be told not to.
LOADS_TENSORFLOW = re.compile(r"import (tensorflow|grain)|from grain|tfds_torch\.check")
SET_UP = ("pip", "make", "apt")  # Commands that are not run here: see the test of what is installed and made.


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with closing(Reader(tmp_path_factory.mktemp("home"))) as found:
        yield found


PRINTED = re.compile(r"^ *print\(.*\)  # (All \d+ promises kept\.|.*[^.\n])$", re.MULTILINE)  # Else it is explained.
IN_DOCS = [block for block in PYTHON if block.text != THE_FIRST_CODE.text]  # Those: test_readme.py.


@pytest.mark.slow
@pytest.mark.parametrize("block", IN_DOCS, ids=lambda block: block.id)
def test_a_python_block_runs_as_it_stands(block: Block, reader: Reader, tmp_path: Path) -> None:
    done = reader.run_python(block.text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [told for told in PRINTED.findall(block.text) if told not in done.stdout] == [], done.stdout
    if not LOADS_TENSORFLOW.search(block.text):
        assert [word for word in NOISE if word in done.stderr] == [], done.stderr


TRAINING = {block.id: text for block in IN_DOCS if (text := longer(block)) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("block", TRAINING)
def test_a_block_that_trains_goes_on_for_three_epochs_of_400_examples(
    block: str, reader: Reader, tmp_path: Path
) -> None:
    """What only some crops of some examples bring about has a chance to happen."""
    done = reader.run_python(TRAINING[block], tmp_path)
    assert done.returncode == 0, done.stderr


RUN_HERE = [
    command for command in COMMANDS if command.words[0] in ("python", "torchrun") or command.words == ("make", "demo")
]
ONCE = {(command.words, command.output): command for command in RUN_HERE}.values()


@pytest.mark.slow
@pytest.mark.parametrize("command", ONCE, ids=lambda command: command.id)
def test_a_command_does_what_is_shown(command: Command, reader: Reader, tmp_path: Path) -> None:
    done = run_command(command, reader, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [word for word in NOISE if word in done.stderr] == [], done.stderr
    printed = {generalised(line) for line in done.stdout.splitlines()}
    for line in command.output.splitlines():
        if line.strip() and not line.startswith("[...") and "/home/you" not in line:
            assert generalised(line) in printed, f"{line}\nis not in\n{done.stdout}"


def run_command(command: Command, reader: Reader, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs it where the Python block before it was saved as train.py."""
    program, *words = recipe_of("demo") if command.words == ("make", "demo") else command.words
    earlier = [block for block in PYTHON if block.page == command.block.page and block.number < command.block.number]
    if earlier:
        (folder / "train.py").write_text(earlier[-1].text)
    shutil.copytree(ROOT / "configs", folder / "configs")
    if program == "python" and words[0] == "-m":
        return reader.run_module(words[1:], folder)
    started = [sys.executable, *(["-m", "torch.distributed.run"] if program == "torchrun" else []), *words]
    return subprocess.run(started, cwd=folder, env=reader.environment, capture_output=True, text=True)


def recipe_of(target: str) -> list[str]:
    """Returns the words of a Makefile target's only line, as they are where the environment is active."""
    (line,) = re.findall(rf"^{target}:.*\n\t@\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(line).split()


def generalised(line: str) -> str:
    """Returns a line without what differs from run to run: times, speeds, sizes, processes, the widths of columns."""
    return re.sub(r"[\s─━]+", " ", VARYING.sub(lambda found: f"# {found['of']}", line)).strip()


VARYING = re.compile(r"\d[\d.,]* ?(?P<of>bytes|[kMG]?B\b|m?s\b|(\w+ )?[kMG]?\w*/s\b|process)(es\b)?")


def test_figures_that_do_not_vary_are_compared_and_others_are_not() -> None:
    shown = "digits.beton: 1,437 samples, 25,277,375 bytes, in 0.476 s (3,022 samples/s, 2 processes), 1.7 kB, 8 MB/s"
    printed = "digits.beton:  1,437 samples, 1 bytes, in 12 s (97.5 samples/s, 1 process), 23 kB, 1,000.5 MB/s"
    assert generalised(shown) == generalised(printed)
    assert "1,437" in generalised(shown)
    for line, other in (
        ("All 9 promises kept.", "All 10 promises kept."),
        ("0 missing, 3 twice", "0 missing, 4 twice"),
    ):
        assert generalised(line) == line != generalised(other)
    assert generalised(shown) != generalised(printed.replace("1,437", "1,438"))
    assert generalised("in 3 ms") != generalised("in 3 s")


def test_every_block_names_its_language_and_every_command_is_one_that_is_tried() -> None:
    assert {block.id: block.language for block in ALL_BLOCKS if block.language not in LANGUAGES} == {}
    assert [command.words for command in COMMANDS if command not in RUN_HERE and command.words[0] not in SET_UP] == []
    assert len(PYTHON) >= 25


WIDTH = 88
"""Columns of a block that a page shows without scrolling."""


def test_blocks_are_formatted_and_fit_the_page(tmp_path: Path) -> None:
    for block in PYTHON:
        (tmp_path / f"{block.id}.py").write_text(block.text)
    command = [sys.executable, "-m", "ruff", "format", "--diff", "--no-cache", f"--line-length={WIDTH}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert [(block.id, line) for block in PYTHON for line in block.text.splitlines() if len(line) > WIDTH] == []


def test_a_page_is_read_in_minutes() -> None:
    words = {page.name: len(page.read_text().split()) for page in PAGES if page.stem not in ("reference", "index")}
    assert {name: number for name, number in words.items() if number > 1500} == {}


FRONTS = ("check", "demo", "errors", "export", "integrations", "remote", "timm")
"""Rooms, and files, that users name by themselves; a command's front may have no names."""
FOR_USERS = [page for page in PAGES if page.stem != "contributing" and page.parent.name != "decisions"]


def is_public(name: str) -> bool:
    """Returns whether a name, from `tfds_torch.` on, is imported from the package or from the front of a room."""
    first, *rest = name.split(".")
    if first not in FRONTS:
        return first in tfds_torch.__all__
    if first == "integrations" and rest:  # Each of its modules is a front.
        first = f"integrations.{rest.pop(0)}"
    front = importlib.import_module(f"tfds_torch.{first}")
    names = getattr(front, "__all__", [one for one, value in vars(front).items() if not inspect.ismodule(value)])
    return not rest or (rest[0] in names and not rest[0].startswith("_"))


def test_pages_name_public_names_only() -> None:
    pattern = re.compile(r"\btfds_torch\.(\w+(?:\.\w+)*)(?!\.?/)")
    named = {
        (page.name, name)
        for page in FOR_USERS
        for name in pattern.findall(
            re.sub(r"from tfds_torch\.([\w.]+) import (\w+)", r"tfds_torch.\1.\2", page.read_text())
        )
        if name not in (*STAGES, "waiting")  # Of torch.profiler's time line.
    }
    assert len(named) > 20
    assert sorted((page, name) for page, name in named if not is_public(name)) == []


def test_no_block_shows_noise() -> None:
    assert [(block.id, word) for block in ALL_BLOCKS for word in NOISE if word in block.text] == []


def test_what_is_installed_and_made_is_there() -> None:
    metadata = importlib.metadata.metadata("tfds-torch")
    extras = set(metadata.get_all("Provides-Extra") or ()) | set(extras_of_the_checkout())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        for named in re.findall(r"tfds-torch\[([\w,-]+)\]|'\.\[([\w,-]+)\]'", text):
            assert set("".join(named).split(",")) <= extras, page
        assert set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, page


def test_every_extra_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`[a-z`, -]+`) \| ", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", "".join(rows))) >= set(extras_of_the_checkout())


def extras_of_the_checkout() -> Iterator[str]:
    """Yields the extras that pyproject.toml has now, which an older installation may lack."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    yield from re.findall(r"^([a-z-]+) = \[", section, re.MULTILINE)


def test_every_path_of_the_checkout_that_is_named_is_there() -> None:
    pattern = re.compile(r"`((?:configs|examples|tests|tfds_torch)/[\w./-]+)`")
    named = [(page.name, path) for page in PAGES for path in pattern.findall(page.read_text())]
    assert named
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


def parameters_of(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "dataset", "source")]


def fields_of(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


DOCUMENTED = {
    "datasets": lambda: parameters_of(tfds_torch.ParserTfds) + fields_of(tfds_torch.ReadOptions),
    "robot-episodes": lambda: fields_of(tfds_torch.Windows),
    "transforms": lambda: parameters_of(tfds_torch.Transform),
    "remote-files": lambda: fields_of(tfds_torch.RemoteOptions),
    "preprocess": lambda: [*fields_of(tfds_torch.TrainPreprocess), *fields_of(tfds_torch.EvalPreprocess)],
    "loader": lambda: parameters_of(tfds_torch.create_loader) + parameters_of(tfds_torch.DevicePrefetcher),
    "without-torch": lambda: parameters_of(tfds_torch.MultiLoader) + parameters_of(tfds_torch.Feeder.add_source),
    "export": lambda: parameters_of(tfds_torch.export_dataset),
    "cache": lambda: fields_of(tfds_torch.DecodedCache),
    "torchrun": lambda: ["update", "update_sum", "sums", "compute", "reset"],
}


@pytest.mark.parametrize("page", DOCUMENTED)
def test_every_option_has_its_place(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert [name for name in DOCUMENTED[page]() if name not in words] == []


def test_every_name_of_the_front_door_has_its_place() -> None:
    text = " ".join(page.read_text() for page in PAGES)
    assert [name for name in tfds_torch.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(("page", "parse"), [("check", check_arguments), ("export", export_arguments)])
def test_every_flag_has_its_place(page: str, parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[str] = []

    def note(self: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        flags.extend(flag for action in self._actions for flag in action.option_strings if flag.startswith("--"))
        return argparse.Namespace()

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", note)
    parse.parse_arguments([])
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert len(flags) > 10
    assert [flag for flag in flags if flag != "--help" and flag not in text] == []


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert {page.stem for page in pages} == {page.stem for page in PAGES[1:]} | {"404"}
    loaded = re.compile(r"<(?:script|img|source|iframe)[^>]*\bsrc(?:set)?=\"?(?:https?:)?//|<link[^>]*sheet[^>]*//")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"^ +- .*?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = [str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]]
    assert len(named) == len(set(named))
    assert set(there) <= set(named)
