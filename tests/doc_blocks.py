"""The code blocks of the README and of the docs, and how they run: as they stand."""

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property  # noqa: TID251
from pathlib import Path

import pytest
import torchvision_build
from servers.s3_server import NEEDS_MOTO, S3Server, find_moto
from zygote import Script, forked_instead_of_fresh, tensorflow_zygote, torch_zygote

from tfds_torch import demo

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "text", "toml", "bash", "diff"}
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NUM_MADE_UP = re.compile(r'(prepare_fake\("[\w/]+", num_examples=)\d+')
_MODULE = """
import os, runpy, sys
sys.stdout = os.fdopen(os.dup(1), "w")  # Of this process, rather than of the one that it was forked from.
runpy.run_module({!r}, run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    number: int
    language: str
    text: str

    @property
    def id(self) -> str:
        """What a test is called by."""
        return f"{self.page.stem}-{self.number}"

    @property
    def commands(self) -> list["Command"]:
        """The commands of a console block, with what is shown of their output."""
        found = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            line, _, output = part.replace("\\\n", " ").partition("\n")
            found.append(Command(self, len(found), tuple(shlex.split(line)), output))
        return found


@dataclass(frozen=True)
class Command:
    """A command of a console block."""

    block: Block
    number: int
    words: tuple[str, ...]
    output: str

    @property
    def id(self) -> str:
        """What a test is called by."""
        return f"{self.block.id}-{self.number}"


class _ThreeEpochs(ast.NodeTransformer):
    """Lets every loop over a loader run three times."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        if "loader" not in ast.unparse(node.iter):
            return node
        return ast.For(ast.Name("_", ast.Store()), ast.parse("range(3)", mode="eval").body, [node], [])


def longer(block: Block) -> str | None:
    """Returns a block that trains on made-up examples, with 400 of them, for three epochs; None: another block."""
    text, num_changed = _NUM_MADE_UP.subn(r"\g<1>400", block.text)
    code = ast.parse(text)
    found = ast.unparse(ast.fix_missing_locations(_ThreeEpochs().visit(code)))
    return found if num_changed and found != ast.unparse(ast.parse(text)) else None


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page."""
    found = []
    for number, (indent, language, text) in enumerate(_FENCE.findall(page.read_text())):
        lines = [line.removeprefix(indent) for line in text.splitlines(keepends=True)]
        found.append(Block(page, number, language, "".join(lines)))
    return found


ALL_BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in ALL_BLOCKS if block.language == "python"]
COMMANDS = [command for block in ALL_BLOCKS if block.language == "console" for command in block.commands]
THE_FIRST_CODE = PYTHON[0]
BUCKET = "s3://bucket/"
"""Where blocks and commands read that need a bucket: it holds what the reader has in `~/tensorflow_datasets`."""


class Reader:
    """Somebody who follows the docs, and has food101 in `~/tensorflow_datasets`: all but its content is real.

    The same lies in `s3://bucket/tensorflow_datasets`, on a server of the tests that starts when it is first needed.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        with forked_instead_of_fresh(tensorflow_zygote):
            demo.prepare_fake("food101", num_examples=64, root=home / "tensorflow_datasets", progress=False)
        site = home / "site"
        torchvision_build.write_startup(site)  # Lightning and transformers import it.
        paths = [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]
        hidden = ("TF_CPP_MIN_LOG_LEVEL", "AWS_")
        told = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.environment = {
            **told,  # With all that tensorflow says.
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "COLUMNS": "120",
            "NO_ALBUMENTATIONS_UPDATE": "1",  # Its import asks a server for a newer version, else.
        }

    def run_python(self, text: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs a script, whose demo datasets are built beforehand."""
        with forked_instead_of_fresh():
            for call in _demo_calls(text):
                eval(call, {"demo": demo})
        script = folder / "train.py"
        script.write_text(text)
        return Script(torch_zygote(), [str(script)], self._environment_of(text), folder).finish()

    def run_module(self, words: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs `python -m module argument...`."""
        script = folder / "module.py"
        script.write_text(_MODULE.format(words[0]))
        arguments = [word.replace("~/", f"{self._home}/", 1) if word.startswith("~/") else word for word in words[1:]]
        environment = self._environment_of(" ".join(words))
        return Script(torch_zygote(), [str(script), *arguments], environment, folder).finish()

    def close(self) -> None:
        """Ends the server, where it was started."""
        if "_bucket" in self.__dict__:
            self._bucket.end()

    def _environment_of(self, text: str) -> dict[str, str]:
        return self.environment | (self._bucket.environ if BUCKET in text else {})

    @cached_property
    def _bucket(self) -> S3Server:
        """The server; it ends by `close`, or with this process."""
        if find_moto() is None:
            pytest.skip(NEEDS_MOTO)
        server = S3Server()
        server.fill(self._home / "tensorflow_datasets", "bucket", "tensorflow_datasets")
        return server


def _demo_calls(text: str) -> list[str]:
    """Returns the calls of `demo.prepare` and `demo.prepare_fake` with nothing but plain values."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("demo.prepare", "demo.prepare_fake"):
            node.keywords.append(ast.keyword("progress", ast.Constant(False)))
            found.append(ast.unparse(node))
    return found
