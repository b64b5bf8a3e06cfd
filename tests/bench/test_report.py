"""What is written and shown: nothing is left out, nothing is made up."""

import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bench.made_up import outcome, report, section
from rich.console import Console

from tfds_torch.bench import output
from tfds_torch.bench import report as reports
from tfds_torch.bench.contest_tables import table_of
from tfds_torch.bench.report import Report
from tfds_torch.errors import ConfigError

FIGURES = {"first_batch_s", "tail_s", "whole_s", "num_batches", "num_examples", "start_s", "waiting_cpu_s"}
FIGURES |= {"cpu_s", "disk_bytes"}


def sample() -> Report:
    return report("sample", [outcome("ours", (300, 400, 200)), outcome("timm"), outcome("grain", missing="it | broke")])


def start() -> Report:
    return report("start", [outcome("ours"), outcome("as_numpy", memory_bytes=None)])


def index() -> Report:
    return report("index", [], [section(), section("size", bars=None), section("cold speed")])


def test_the_data_is_complete() -> None:
    data = json.loads(json.dumps(reports.as_dict(sample())))
    assert list(data) == [
        *("schema", "suite", "title", "method", "command", "date", "machine", "versions", "settings"),
        *("contestants", "sections", "targets"),
    ]
    ours, timm, grain = data["contestants"]
    assert [ours["name"], ours["title"], ours["missing"]] == ["ours", "tfds_torch", None]
    assert ours["summary"]["examples_per_s"] == pytest.approx({"median": 300, "least": 200, "greatest": 400})
    assert set(ours["summary"]) == {
        *("start_s", "first_epoch_batch_s", "first_batch_s", "tail_s", "cpu_us_per_example"),
        *("examples_per_s", "examples_per_s_without_tail"),
    }
    assert ours["memory"]["total_bytes"] == 600_000_000
    assert ours["memory"]["worker_bytes"] == [200_000_000, 300_000_000]
    assert [len(ours["warm_ups"]), len(ours["epochs"])] == [2, 3]
    assert set(ours["epochs"][0]) == FIGURES | {"examples_per_s"}
    assert [round(epoch["examples_per_s"]) for epoch in ours["epochs"]] == [300, 400, 200]
    assert (ours["times_timm"], timm["times_timm"]) == (pytest.approx(2.0), 1.0)
    assert (grain["missing"], grain["epochs"], grain["times_timm"], grain["memory"]) == ("it | broke", [], None, None)
    assert data["targets"][0] == {
        "name": "speed against timm",
        "wanted": "at least 2 x timm's",
        "found": "2.00 x",
        "kept": True,
    }


def test_without_timm_nothing_is_compared_with_it() -> None:
    data = reports.as_dict(report("sample", [outcome("ours"), outcome("timm", missing="gone")]))
    assert [contestant["times_timm"] for contestant in data["contestants"]] == [None, None]


def test_rows_of_the_suite_sample() -> None:
    headings, rows = table_of("sample", sample().outcomes)
    assert headings == [
        "contestant",
        "examples/s",
        "tfds_torch by it",
        "first batch, s",
        "tail, s",
        "examples an epoch",
    ]
    assert rows[0][:3] == ["tfds_torch", "300 (200 to 400)", "1.00"]
    assert rows[1][2] == "2.00"
    assert rows[0][3:] == ["0.50 (0.50 to 0.50)", "0.010 (0.010 to 0.010)", "100"]
    assert rows[2] == ["Grain", "-", "-", "-", "-", "-"]


def test_rows_of_the_suite_start() -> None:
    _, rows = table_of("start", start().outcomes)
    assert rows[0][1] == "3.50 (3.00 to 4.00)"
    assert rows[0][4:] == ["600", "100 + 200 + 300"]
    assert rows[1][4:] == ["-", "-"]


@pytest.mark.parametrize(("speed", "told"), [((300, 300, 300), "kept"), ((150, 150, 150), "**MISSED**")])
def test_the_page_tells_figures_targets_reasons_and_circumstances(speed: tuple[float, ...], told: str) -> None:
    page = reports.markdown(
        report("sample", [outcome("ours", speed), outcome("timm"), outcome("grain", missing="it | broke")]), "x.png"
    )
    assert page.startswith("# sample: photographs a second")
    assert f"| tfds_torch | {speed[0]} ({speed[0]} to {speed[0]}) |" in page
    assert f"| {told} |" in page
    assert "\nGrain is missing: it | broke.\n" in page
    assert "](x.png)" in page
    for fact in ("python -m tfds_torch.bench sample", "2026-01-02T03:04:05Z", "A fine one", "2 cores", "8 GiB"):
        assert fact in page
    for fact in ("Linux 6.1", "load before: 0.25", "python 3.11.0", "timm not installed", "4,096 photographs"):
        assert fact in page
    assert page.count("\n| ") == 1 + 3 + 1 + 2  # Two headings, three contestants, two targets.


def test_sections_are_in_the_data_with_all_that_their_rows_hold() -> None:
    data = json.loads(json.dumps(reports.as_dict(index())))
    assert data["contestants"] == []
    speed, size, _ = data["sections"]
    assert (speed["name"], speed["title"], speed["note"]) == ("speed", "the speed of it", "How it was done.")
    assert speed["columns"] == {"mode": "read mode", "speed": "examples/s", "share": "x examples"}
    assert speed["rows"][0] == {
        "mode": "index",
        "speed": {"median": 1000.0, "least": 900.0, "greatest": 1100.0},
        "share": 1.1,
        "epochs": [{"whole_s": 2.0}],
    }
    assert speed["rows"][2] == {"mode": "files", "speed": None}
    assert size["missing"] == ["files is missing: it | broke"]


def test_sections_are_tables_with_their_notes_on_the_page_and_in_the_terminal() -> None:
    page = reports.markdown(index(), None)
    for line in (
        "## The speed of it",
        "How it was done.",
        "| read mode | examples/s | x examples |",
        "| index | 1,000 (900 to 1,100) | 1.10 |",
        "| files | - | - |",
        "files is missing: it | broke.",
    ):
        assert f"\n{line}\n" in page
    assert "| contestant |" not in page
    assert "- how it is measured, and why: tfds_torch.bench.index_suite" in page
    console = Console(file=io.StringIO(), width=120)
    output.show(index(), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for piece in ("index: the speed of it", "1,000 (900 to 1,100)", "files is missing: it | broke"):
        assert piece in text
    assert "contestant" not in text


def test_what_is_not_known_is_said() -> None:
    unknown = sample()
    unknown.machine.update(cpu=None, ram_bytes=None, load_before=None)
    text = "\n".join(reports.facts(unknown))
    assert "CPU not known" in text
    assert "memory not known" in text
    assert "load before: not known" in text


def jpeg() -> Report:
    others = [outcome(name) for name in ("timm", "webdataset", "grain", "limit")]
    return report("jpeg", [outcome("ours"), outcome("ours_0"), *others, outcome("ffcv", missing="gone")])


def jpeg_eval() -> Report:
    return report("jpeg_eval", [outcome("ours"), outcome("timm")])


def png32() -> Report:
    return report("png32", [outcome("ours"), outcome("timm")])


def memory() -> Report:
    return report("memory", [outcome("ours"), outcome("timm", memory_bytes=None)], [section("imports", bars=None)])


def scale() -> Report:
    return report("scale", [], [section("32"), section("128"), section("256")])


@pytest.mark.parametrize("made", [sample, start, index, jpeg, jpeg_eval, png32, memory, scale])
def test_data_page_and_chart_are_written(made: Any, tmp_path: Path) -> None:
    made_up = made()
    notes = output.write(made_up, tmp_path)
    data, page, picture = (tmp_path / f"{made_up.suite}.{ending}" for ending in ("json", "md", "png"))
    assert json.loads(data.read_text()) == json.loads(json.dumps(reports.as_dict(made_up)))
    has_chart = find_spec("matplotlib") is not None
    assert page.read_text() == reports.markdown(made_up, picture.name if has_chart else None)
    assert picture.exists() == has_chart == (notes == [])
    if has_chart:
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        assert picture.stat().st_size > 5000


def test_a_chart_is_drawn_though_all_are_missing(tmp_path: Path) -> None:
    nobody = report("start", [outcome("ours", missing="gone")])
    assert output.write(nobody, tmp_path) == [] or find_spec("matplotlib") is None


def test_without_matplotlib_the_page_has_no_chart_and_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sample.png").write_bytes(b"of another run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (note,) = output.write(sample(), tmp_path)
    assert note.startswith("No chart: ")
    assert note.endswith("(pip install 'tfds-torch[bench]').")
    assert not (tmp_path / "sample.png").exists()
    assert "![" not in (tmp_path / "sample.md").read_text()


def test_without_targets_none_are_told() -> None:
    page = reports.markdown(jpeg_eval(), None)
    assert "Targets" not in page
    assert "\n\n## Where and how\n" in page
    console = Console(file=io.StringIO(), width=120)
    output.show(jpeg_eval(), console)
    assert isinstance(console.file, io.StringIO)
    assert "Targets" not in console.file.getvalue()


def test_the_terminal_shows_figures_targets_and_reasons() -> None:
    console = Console(file=io.StringIO(), width=120)
    output.show(sample(), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for piece in ("300 (200 to 400)", "kept", "speed against timm", "Grain is missing: it | broke", "A fine one"):
        assert piece in text
    missed = Console(file=io.StringIO(), width=120)
    output.show(report("sample", [outcome("ours"), outcome("timm")]), missed)
    assert isinstance(missed.file, io.StringIO)
    assert "MISSED" in missed.file.getvalue()


@pytest.mark.parametrize("obstacle", ["a file", "a folder in a report's place", "a file above"])
def test_a_folder_that_cannot_be_written_is_said(obstacle: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    if obstacle == "a folder in a report's place":
        (folder / "start.md").mkdir(parents=True)
    else:
        folder.write_text("")
        folder = folder / "deeper" if obstacle == "a file above" else folder
    with pytest.raises(ConfigError, match=r"^The reports cannot be written.*Choose another --out\.$"):
        output.check_folder(folder, ["sample", "start"])


def test_a_checkout_has_its_own_folder_for_results() -> None:
    folder = output.default_folder(is_full=True)
    assert folder.parts[-3:] == ("tfds_torch", "bench", "results")


def test_elsewhere_results_go_into_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "tfds_torch" / "bench" / "output.py"
    monkeypatch.setattr(output, "__file__", str(installed))
    assert output.default_folder(is_full=True) == Path("bench_results")


def test_a_partial_run_does_not_replace_the_results_of_a_checkout() -> None:
    assert output.default_folder(is_full=False) == Path("bench_results")
