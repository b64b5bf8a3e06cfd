"""The real contestants: each is measured, or missing for a reason that is true."""

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tfds_torch.bench.task import PEERS, Peer

NEEDS = {
    "ours": ("torch", "tensorflow_datasets"),
    "timm": ("timm", "torchvision", "torch"),
    "webdataset": ("webdataset",),
    "grain": ("grain", "array_record"),
    "as_numpy": ("tensorflow_datasets",),
}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_says_what_is_configured_and_is_light_to_import(peer: Peer) -> None:
    module_name, _, function = peer.loader.partition(":")
    module = importlib.import_module(module_name)
    assert callable(getattr(module, function))
    assert module.__doc__ is not None
    assert "Configured" in module.__doc__


def test_names_of_peers_are_unique_and_ours_and_timm_are_among_them() -> None:
    names = [peer.name for peer in PEERS]
    assert len(set(names)) == len(names)
    assert names[:2] == ["ours", "timm"]
    assert set(NEEDS) == set(names)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_peer_is_measured_or_missing_for_a_true_reason(tmp_path: Path) -> None:
    options = ("sample", "start", "--photos", "64", "--batch-size", "16", "--repeats", "1", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "tfds_torch.bench", *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    for suite in ("sample", "start"):
        found: dict[str, Any] = json.loads((tmp_path / f"{suite}.json").read_text())
        assert [contestant["name"] for contestant in found["contestants"]] == list(NEEDS)
        for contestant in found["contestants"]:
            absent = [package for package in NEEDS[contestant["name"]] if find_spec(package) is None]
            if absent:
                assert any(package in contestant["missing"] for package in absent)
            else:
                assert contestant["missing"] is None
                assert [epoch["num_examples"] for epoch in contestant["epochs"]] == [64]
                assert contestant["summary"]["examples_per_s"]["median"] > 0
        if suite == "start":
            assert all(contestant["memory"]["total_bytes"] > 2e7 for contestant in found["contestants"][::4])
        assert (tmp_path / f"{suite}.png").exists() == (find_spec("matplotlib") is not None)
