"""A report that `--json` wrote, read as a machine would."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads(Path(__file__).with_name("report.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def load(path: Path) -> dict[str, Any]:
    """Returns a report that is valid JSON, of harmless characters, and as the schema says."""
    text = path.read_bytes().decode("ascii")
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text.endswith("}\n")
    report: dict[str, Any] = json.loads(text, parse_constant=refuse_constant)
    assert [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(report)] == []
    return report
