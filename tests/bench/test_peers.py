"""The real competitors: each is measured, or missing for a reason that is true."""

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.index_costs import write_shards
from benchmarks.peers.dali import write_index
from benchmarks.peers.decode_limit import _box
from benchmarks.task import PEERS, SINGLE_PEERS
from tfds_torch.storage.tfrecord.framing import scan_offsets

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


NEEDS_BUT_DALI = {name: needs for name, needs in FUSED_NEEDS.items() if name != "dali"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suites", "needs"),
    [
        pytest.param(("sample", "start"), NEEDS, marks=pytest.mark.campaign, id="single examples"),
        pytest.param(("jpeg",), NEEDS_BUT_DALI, marks=pytest.mark.campaign, id="whole batches"),
        pytest.param(("jpeg_eval", "png32"), NEEDS_BUT_DALI, marks=pytest.mark.campaign, id="evaluation and PNG"),
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
                assert competitor["missing"].startswith(("Revision edba0d4 is", "nvidia-dali-cuda120 could"))
            elif absent:
                assert any(package in competitor["missing"] for package in absent)
            else:
                assert competitor["missing"] is None
                assert [epoch["num_examples"] for epoch in competitor["epochs"]] == [320 if suite == "png32" else 64]
                assert competitor["figures"]["examples_per_s"]["median"] > 0
        if suite == "start":
            assert all(competitor["figures"]["memory_mb"]["median"] > 20 for competitor in competitors[::4])
    assert "overview" in done.stdout


# DALI's index files: its own script tfrecord2idx writes them alike


def test_an_index_has_offset_and_size_of_every_record(tmp_path: Path) -> None:
    (made,) = write_shards(tmp_path / "made", 50, range(1, 200), 1)
    write_index(Path(made.path), tmp_path / "index")
    lines = [tuple(map(int, line.split())) for line in (tmp_path / "index").read_text().splitlines()]
    offsets = scan_offsets(made.path).tolist()
    assert lines == [(start, stop - start) for start, stop in pairwise(offsets)]
    assert len(lines) == 50
    (tmp_path / "empty").write_bytes(b"")
    write_index(tmp_path / "empty", tmp_path / "index")
    assert (tmp_path / "index").read_text() == ""


@pytest.mark.parametrize("num_missing", [1, 150, 199])
def test_a_shard_that_was_cut_is_an_error(num_missing: int, tmp_path: Path) -> None:
    (made,) = write_shards(tmp_path / "made", 2, range(184, 185), 1)  # 200 bytes with the framing.
    with open(made.path, "r+b") as file:
        file.truncate(400 - num_missing)
    with pytest.raises(ValueError, match=f"ends within its record 1, at byte {400 - num_missing}$"):
        write_index(Path(made.path), tmp_path / "index")


# The limit decodes pieces as training and evaluation cut them


def jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "JPEG")
    return file.getvalue()


def test_pieces_of_training_lie_inside_and_differ() -> None:
    boxes = np.array([_box(jpeg(500, 375), "train") for _ in range(200)])
    top, left, height, width = boxes.T
    assert min(top.min(), left.min()) >= 0
    assert (top + height).max() <= 375
    assert (left + width).max() <= 500
    assert 0.2 < (height * width / (500 * 375)).mean() < 0.7
    assert len(np.unique(boxes, axis=0)) > 150


@pytest.mark.parametrize(("width", "height", "box"), [(500, 400, (25, 75, 350, 350)), (64, 80, (12, 4, 56, 56))])
def test_the_piece_of_an_evaluation_is_the_middle(width: int, height: int, box: tuple[int, ...]) -> None:
    assert _box(jpeg(width, height), "eval") == box
