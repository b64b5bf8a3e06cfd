"""The suite `export`: how it is judged, and that it measures."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tfds_torch.bench import export_suite
from tfds_torch.bench.export_suite import EXPORT, Writing, judge_exports
from tfds_torch.bench.peers import exports
from tfds_torch.bench.suite import Run, Settings
from tfds_torch.errors import ConfigError


@pytest.mark.parametrize(("ffcv_s", "kept"), [((5.0, 1.0), [True, True]), ((4.9, 0.9), [False, False])])
def test_each_mode_is_judged_by_ffcvs_time_turn_by_turn(ffcv_s: tuple[float, ...], kept: list[bool]) -> None:
    writings = [
        one
        for mode, took_s in zip(exports.MODES, ffcv_s, strict=True)
        for one in (Writing("tfds_torch", mode, 8, [1.0, 2.0]), Writing("FFCV", mode, 8, [took_s, 2 * took_s]))
    ]
    assert [target.kept for target in judge_exports(writings)] == kept
    for writing in writings[1::2]:
        writing.took_s.clear()
    assert not any(target.kept for target in judge_exports(writings))


def test_writers_take_turns_and_one_that_is_missing_has_no_further_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(write: Callable[..., float], source: str, target: str, mode: str, num_photos: int) -> float:
        calls.append(f"{write.__name__} {mode} {num_photos}")
        if write is exports.write_with_ffcv:
            raise ConfigError("No module named 'ffcv' (install it)")
        return 2.0

    monkeypatch.setattr(export_suite.fresh_process, "call", call)
    monkeypatch.setattr(export_suite, "converted", lambda *arguments: tmp_path)
    settings = Settings(num_photos=40, batch_size=4, num_workers=2, num_repeats=2, timeout_s=60)
    found = EXPORT.measure(Run((), settings, tmp_path, lambda text: None))
    assert calls[:3] == ["export passthrough 40", "write_with_ffcv passthrough 40", "export passthrough 40"]
    assert len(calls) == 6
    (section,) = found.sections
    _, rows = section.table()
    assert [row[0] for row in rows] == ["tfds_torch, passthrough", "FFCV, jpg", "tfds_torch, raw", "FFCV, raw"]
    assert rows[0][1:] == ["20 (20 to 20)", "-"]
    assert section.missing[0] == "FFCV, passthrough, is missing: No module named 'ffcv' (install it)"
    assert not any(target.kept for target in found.targets)
