"""The real competitors: each is measured, or missing for a reason that is true."""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.task import PEERS, SINGLE_PEERS

NEEDS = {
    "ours": ("torch", "tensorflow_datasets"),
    "timm": ("timm", "torchvision", "torch"),
    "webdataset": ("webdataset",),
    "grain": ("grain", "array_record"),
    "as_numpy": ("tensorflow_datasets",),
}
FUSED_NEEDS = {
    "ours": NEEDS["ours"],
    "baseline": NEEDS["ours"],
    "ours_0": NEEDS["ours"],
    "timm": NEEDS["timm"],
    "webdataset": NEEDS["webdataset"],
    "grain": NEEDS["grain"],
    "dali": (),
    "ffcv": ("ffcv",),
    "limit": ("tensorflow",),
}
SMALL = ("--photos", "64", "--batch-size", "16", "--repeats", "1")


@pytest.mark.parametrize("loader", sorted({peer.loader for peer in (*PEERS.values(), *SINGLE_PEERS.values())}))
def test_every_peer_says_what_is_configured_and_is_light_to_import(loader: str) -> None:
    module_name, _, function = loader.partition(":")
    module = importlib.import_module(module_name)
    assert callable(getattr(module, function))
    assert module.__doc__ is not None
    assert "Configured" in module.__doc__


SLOW_NEEDS = {name: needs for name, needs in FUSED_NEEDS.items() if name != "dali"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suites", "needs"),
    [
        pytest.param(("sample", "start"), NEEDS, marks=pytest.mark.campaign, id="single examples"),
        pytest.param(("jpeg",), SLOW_NEEDS, marks=pytest.mark.slow, id="whole batches"),
        pytest.param(("jpeg_eval", "png32"), SLOW_NEEDS, marks=pytest.mark.campaign, id="evaluation and PNG"),
        # A gigabyte of packages is installed for it, into this test's own cache folder.
        pytest.param(("jpeg",), {"dali": ()}, marks=pytest.mark.campaign, id="DALI"),
    ],
)
def test_every_peer_is_measured_or_missing_for_a_true_reason(
    suites: Sequence[str], needs: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *suites, *SMALL, "--out", str(tmp_path), "--only", ",".join(needs)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for suite in suites:
        found: dict[str, Any] = json.loads((tmp_path / f"{suite}.json").read_text())
        taking_part = [name for name in needs if (suite == "jpeg" or name != "baseline")]
        competitors = found["tables"][0]["rows"]
        assert [competitor["name"] for competitor in competitors] == taking_part
        for competitor in competitors:
            absent = [package for package in needs[competitor["name"]] if find_spec(package) is None]
            if competitor["name"] in ("baseline", "dali") and competitor["missing"] is not None:
                assert competitor["missing"].startswith(("Revision edba0d4 cannot be had", "nvidia-dali-cuda120 could"))
            elif absent:
                assert any(package in competitor["missing"] for package in absent)
            else:
                assert competitor["missing"] is None
                assert [epoch["num_examples"] for epoch in competitor["epochs"]] == [320 if suite == "png32" else 64]
                assert competitor["figures"]["examples_per_s"]["median"] > 0
        if suite == "start":
            assert all(competitor["figures"]["memory_mb"]["median"] > 20 for competitor in competitors[::4])
        assert (tmp_path / f"{suite}.png").exists() == (find_spec("matplotlib") is not None)
    assert "overview" in done.stdout
