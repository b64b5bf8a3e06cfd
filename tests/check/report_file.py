"""A report that `--json` wrote, read as a machine would: every key of the golden one is there, alike, and no other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfds_torch.check.render import Run, as_values
from tfds_torch.check.report import Report

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden").joinpath("report.json").read_text())
ALWAYS = set(as_values(Report(), Run([], 0.0, 0)))
WHERE_KNOWN = GOLDEN.keys() - ALWAYS
"""Keys of sections that a report need not have."""
NAMES = {"packages", "features", "weights", "machine", "mixture[]"}
"""Objects whose keys are names, or whose values are not golden."""
OF_STORES = {"first_epoch_s", "later_s", "whole_s", "download", "examples_per_s"}
"""Of object stores only, or of others only."""


def differences(golden: Any, value: Any, where: str = "$") -> Iterator[str]:
    """Yields where a value has other keys or types than the golden one; null and empty fit everything."""
    if isinstance(golden, dict) and isinstance(value, dict):
        if where.rpartition(".")[2] in NAMES or not value or not golden:
            return
        unknown = (golden.keys() ^ value.keys()) - OF_STORES - (WHERE_KNOWN if where == "$" else set())
        if unknown:
            yield f"{where}: {sorted(unknown)} missing or unknown"
        for key in golden.keys() & value.keys():
            yield from differences(golden[key], value[key], f"{where}.{key}")
    elif isinstance(golden, list) and isinstance(value, list):
        for one in value:
            yield from differences(golden[0] if golden else None, one, f"{where}[]")
    elif golden is not None and value is not None:
        numbers = (int, float) if not isinstance(golden, bool) and isinstance(golden, int | float) else type(golden)
        if not isinstance(value, numbers) or isinstance(value, bool) is not isinstance(golden, bool):
            yield f"{where}: {value!r} where {golden!r} is golden"


def keys_of(value: Any) -> set[str]:
    """Returns every key that is no name of the data."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    inner = (keys_of(one) for key, one in value.items() if key not in NAMES)
    return set(value).union(*inner)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def load(path: Path) -> dict[str, Any]:
    """Returns a report that is valid JSON, of harmless characters, and of its form."""
    text = path.read_bytes().decode("ascii")
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text.endswith("}\n")
    report: dict[str, Any] = json.loads(text, parse_constant=refuse_constant)
    found = list(differences(GOLDEN, report))
    assert not found, f"{found}; a new section's key is put into the golden report: docs/contributing.md"
    return report
