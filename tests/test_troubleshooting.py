"""docs/troubleshooting.md quotes the package as it speaks, and explains every warning."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

from doc_blocks import ROOT

from tfds_torch import errors

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
FROM_OTHERS = {"operator torchvision::nms does not exist"}
PACKAGE = [ast.parse(path.read_text()) for path in (ROOT / "tfds_torch").rglob("*.py")]


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yields what a piece of code has in quotes; values within an f-string are `{}`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def quoted_in(section: str) -> list[str]:
    """Returns the words that the first column of a section's tables quotes."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [words for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for words in re.findall("`(.+?)`", row)]


def warnings_of(tree: ast.AST) -> Iterator[list[str]]:
    """Yields the texts of each call that warns, where they are in the call itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_logger.warning", "warnings.warn"):
            found = [text for text in texts_of(node) if len(text) > 10]
            if found:
                yield found


def test_what_it_quotes_is_what_the_package_says() -> None:
    said = "\n".join(text for tree in PACKAGE for text in texts_of(tree))
    quoted = [*quoted_in("The ten commonest errors"), *quoted_in("What warnings mean")]
    assert len(quoted) > 40
    assert [words for words in quoted if words not in said and words not in FROM_OTHERS] == []


def test_every_warning_has_a_row() -> None:
    quoted = quoted_in("What warnings mean")
    given = [texts for tree in PACKAGE for texts in warnings_of(tree)]
    assert len(given) > 25
    assert [texts for texts in given if not any(words in text for text in texts for words in quoted)] == []


def test_it_stays_short() -> None:
    assert len(re.findall(r"[^\s|]+", PAGE)) <= 1500


def test_every_folder_of_the_cache_is_named() -> None:
    package = "".join(map(Path.read_text, (ROOT / "tfds_torch").rglob("*.py")))
    calls = re.findall(r'(?:cache_folder|kept_path)\("(\w+)"', package)
    assert len(calls) > 5
    assert set(calls) <= set(re.findall(r"`(\w+)`", PAGE))


def test_tracebacks_of_errors_with_an_outer_cause_name_the_page() -> None:
    for kind in (errors.DatasetNotFoundError, errors.StateMismatchError, errors.WorkerError, errors.StallError):
        error = pickle.loads(pickle.dumps(kind("all the facts")))  # As from a worker.
        assert str(error) == "all the facts"
        assert error.__notes__ == ["Causes and remedies: docs/troubleshooting.md"]
    assert not hasattr(errors.ConfigError("a typo"), "__notes__")
