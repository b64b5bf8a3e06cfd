"""What is built once per run, or kept for the next one."""

from pathlib import Path

import pytest
import run_folder
from run_folder import built_once, computed_once


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose code writes a dataset; what it writes is kept."""
    monkeypatch.setattr(run_folder, "kept", tmp_path)
    path = tmp_path / "source.py"
    path.write_text("one")
    return path


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def new_run(folder: Path) -> pytest.TempPathFactory:
    folder.mkdir()
    return pytest.TempPathFactory(folder, 0, "all", lambda *_, **__: None, _ispytest=True)


def test_a_value_is_computed_once_per_run(tmp_path: Path) -> None:
    values, run = iter(range(9)), new_run(tmp_path / "run")
    assert [computed_once(run, "value", lambda: next(values)) for _ in range(3)] == [0, 0, 0]
    assert computed_once(new_run(tmp_path / "other"), "value", lambda: next(values)) == 1


def test_the_next_run_gets_a_copy_until_a_source_changes(source: Path, tmp_path: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "data").write_text(source.read_text())

    first = built_once(new_run(tmp_path / "first"), "made", build, sources=[source])
    (first / "data").write_text("damaged")
    second = built_once(new_run(tmp_path / "second"), "made", build, sources=[source])
    assert (second / "data").read_text() == "one"
    assert built == [first]
    source.write_text("two")
    third = built_once(new_run(tmp_path / "third"), "made", build, sources=[source])
    assert (third / "data").read_text() == "two"
    assert len(list(tmp_path.glob("made-*"))) == 1  # What the old source wrote has gone.


def test_what_has_no_sources_is_built_in_each_run(tmp_path: Path, source: Path) -> None:
    built: list[Path] = []
    for name in ("first", "second"):
        built_once(new_run(tmp_path / name), "made", built.append)
    assert len(built) == 2
