"""What a room's quick tests catch: small changes to its code, one at a time, each of which a test should notice.

`python tests/mutants.py ROOM`: SEED draws the mutants, mutants/ROOM.tsv keeps them and what became of each. A later run
tries the test that caught one, then the whole room, and draws anew what does not fit the code. A survivor gets a test,
or its line says why it needs none. More arguments are pytest's.
"""

import ast
import os
import random
import re
import shutil
import sys
import tempfile
from collections import defaultdict, namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, pairwise, repeat
from pathlib import Path
from subprocess import DEVNULL, call
from typing import Any

import psutil

SEED, LIMIT_S, MARK = 1, 900, "TFDS_TORCH_MUTANT"
CRITICAL = re.compile(r"/plan/|/storage/.*(index|framing)|/receiver|/crops|/ledger")  # A survivor is a lost example.
NUMBERS = {"plan": (24, 0), "storage": (12, 10), "loaders": (8, 6), "images": (8, 6), "check": (8, 3)}
NUMBERS |= {"runtime": (0, 6), "engines": (0, 8), "parsers": (0, 10), "torch_data": (0, 8), "export": (0, 3)}
PAIRS = [pair.split(" ", 1) for pair in ("< <=", "> >=", "== !=", "+ -", "* //", "is is not", "in not in", "and or")]
SWAPS = {old: new for pair in [*PAIRS, ["min", "max"]] for old, new in (pair, pair[::-1])} | {"not": ""}
OPERATOR = re.compile("|".join(sorted(map(re.escape, SWAPS), key=len, reverse=True)))
TEXT = re.compile(r"\bf['\"]|'[^'(){}=,[\]]* [^'(){}=,[\]]*'|(Error|Warning|warn\w*|debug|exception|print|add_note)\(")
UNREAD = re.compile(r"_?[A-Z\d_]+(:.*)? = |str( \| None)?$")  # Constants, and functions that return a text.
SYMMETRIC = re.compile(r"\b(isinstance|issubclass|cast|minimum|maximum|TypeVar|zip)$")
ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.Slice)
Mutant = namedtuple("Mutant", "path kind change line text")  # A module with one change, shown as a whole line.


def walk(node: ast.AST) -> Iterator[tuple[Any, Any]]:
    """Yields the nodes that may be changed, and their parents: no types, and nothing that people read."""
    skipped = [getattr(node, key, 0) for key in ("annotation", "returns", "exc")] + getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        is_simple = isinstance(child, ast.stmt) and hasattr(child, "value")
        code = ast.unparse(child if is_simple else getattr(child, "returns", None) or ast.Pass())
        if child not in skipped and not TEXT.search(code) and not UNREAD.match(code):
            yield child, node
            yield from walk(child)


def mutants_of(path: str, data: bytes) -> Iterator[Mutant]:
    text, lines = data.decode("latin-1"), [0, *(end.end() for end in re.finditer(b"\n", data))]  # A character a byte.

    def span(node: Any) -> tuple[int, int]:
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    edits: list[tuple[str, int, int, str]] = []
    for node, parent in walk(ast.parse(data)):
        match node:
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.AugAssign():
                edits += [("dropped statement", *span(node), "pass")]
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if getattr(parent, "name", "") != "__init__":
                edits += [("dropped statement", *span(node), "pass")]
            case ast.Compare() | ast.BoolOp() | ast.BinOp():
                for left, right in pairwise(child for child in ast.iter_child_nodes(node) if hasattr(child, "lineno")):
                    if found := OPERATOR.search(text, span(left)[1], span(right)[0]):
                        edits += [("comparison" if hasattr(node, "ops") else "sign", *found.span(), SWAPS[found[0]])]
            case ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="min" | "max")):
                edits += [("sign", span(node)[0], span(node)[0] + 3, SWAPS[text[span(node)[0] :][:3]])]
            case ast.Constant(value) if type(value) is int and isinstance(parent, ARITHMETIC):
                edits += [("bound", *span(node), str(value + 1))]
            case ast.Call() if not SYMMETRIC.search(ast.unparse(node.func)):
                for (a, b), (c, d) in pairwise(span(arg) for arg in node.args if not isinstance(arg, ast.Constant)):
                    edits += [("swapped arguments", a, d, text[c:d] + text[b:c] + text[a:b])]
    for kind, start, end, new in edits:
        version, line = (text[:start] + new + text[end:]).encode("latin-1"), text.count("\n", 0, start)
        change = " -> ".join(code.split(b"\n")[line].decode().strip() for code in (data, version))
        yield Mutant(path, kind, change, line + 1, version)


def draw(root: Path, room: str, listed: dict[Any, str]) -> Iterator[Mutant]:
    """Yields a room's mutants: those that are listed, and the rest of their number by chance, of all kinds alike."""
    paths = sorted(str(path.relative_to(root)) for path in root.glob(f"tfds_torch/{room}/**/*.py"))
    found = {mutant[:3]: mutant for path in paths for mutant in mutants_of(path, (root / path).read_bytes())}
    for number, is_critical in zip(NUMBERS[room], (True, False), strict=True):
        here = [mutant for mutant in found.values() if bool(CRITICAL.search(mutant.path)) == is_critical]
        random.Random(f"{SEED}:{room}").shuffle(here)
        ranks: dict[str, Iterator[int]] = defaultdict(count)
        for mutant in sorted(here, key=lambda mutant: (mutant[:3] not in listed, next(ranks[mutant.kind]))):
            with suppress(SyntaxError):
                original = (root / mutant.path).read_bytes()
                if number and ast.dump(ast.parse(mutant.text)) != ast.dump(ast.parse(original)):
                    number -= 1
                    yield mutant


def run(base: str, tests: list[str], *mutants: Mutant) -> str:
    """Returns which of the tests fails in a copy of the checkout, with the mutant; none: an empty text."""
    # A path of two short names: sockets are made below it.
    with tempfile.TemporaryDirectory(prefix="", dir=base, ignore_cleanup_errors=True) as folder:
        root = shutil.copytree(f"{base}/main", Path(folder, "main"), symlinks=True)
        for mutant in mutants:
            (root / mutant.path).write_bytes(mutant.text)
        more = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder, MARK: folder}
        command = f"timeout --foreground -s KILL {LIMIT_S} .venv/bin/python -m pytest -x -q -p no:randomly -m".split()
        command += ["not slow and not campaign", *sys.argv[2:], *tests]
        code = call(command, cwd=root, env=os.environ | more, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
        for process in psutil.process_iter():  # What the tests have left behind.
            with suppress(psutil.Error):
                if process.environ().get(MARK) == folder:
                    process.kill()
        failed = root / ".pytest_cache/v/cache/lastfailed"
        name = re.findall(r'"([^"[]+)', failed.read_text() if failed.exists() else f'"exit code {code}')[0]
        return "" if code == 0 else "the time limit" if code == 137 else name


def judge(base: str, mutant: Mutant, before: str) -> str:
    _, room, *words = Path(mutant.path).with_suffix("").parts
    tests = [str(test.relative_to(f"{base}/main")) for test in Path(base).glob(f"main/tests/{room}/**/test_*.py")]
    tests.sort(key=lambda test: (-sum(len(word) for word in words if word in test) / len(test), test))
    killer = before.removeprefix("killed by ")
    found = (killer.startswith("tests/") and run(base, [killer], mutant)) or run(base, tests, mutant)
    if "code -" in found or (found.startswith("tests/") and found != killer and run(base, [found])):
        return f"unclear: {found}, perhaps without the mutant, too"
    return f"killed by {found}" if found else before if before.startswith("survived") else "survived: not explained yet"


if __name__ == "__main__":
    room, root, file = sys.argv[1], Path(__file__).parents[1], Path(__file__).with_suffix("") / f"{sys.argv[1]}.tsv"
    listed = [line.split("\t") for line in file.read_text().splitlines()] if file.exists() else []
    results = {(place.partition(":")[0], kind, change): result for place, kind, change, result in listed}
    with tempfile.TemporaryDirectory(prefix="m") as base, ThreadPoolExecutor(2) as pool:
        ignored = shutil.ignore_patterns(".git", ".venv", ".mypy_cache", "__pycache__", "lastfailed")
        shutil.copytree(root, f"{base}/main", ignore=ignored)
        Path(base, "main/.venv").symlink_to(root / ".venv")
        call([sys.executable, "-m", "compileall", "-q", f"{base}/main/tfds_torch"])
        mutants = list(draw(Path(base, "main"), room, results))
        before = [results.get(mutant[:3], "") for mutant in mutants]
        killers = sorted({result[10:] for result in before if result.startswith("killed by tests/")})
        assert not (failed := run(base, killers or [f"tests/{room}"])), f"{failed} fails without any mutant"
        rows = [[f"{m.path}:{m.line}", m.kind, m.change, old] for m, old in zip(mutants, before, strict=True)]
        for row, result in zip(rows, pool.map(judge, repeat(base), mutants, before), strict=True):
            row[3] = result
            print(*row, sep="  ", flush=True)
            file.write_text("".join("\t".join(row) + "\n" for row in sorted(rows)))
    for kind in sorted({row[1] for row in rows}):
        then, now = ([row[3][:6] == "killed" for row in some if row[1] == kind] for some in (listed, rows))
        print(f"{kind}: {sum(now)} of {len(now)} killed; before: {sum(then)} of {len(then)}")
    print(*("  ".join(row) for row in rows if row[3][:6] != "killed"), sep="\n")
    sys.exit(any(old[:6] == "killed" != row[3][:6] for row, old in zip(rows, before, strict=True)))
