"""Manifests that somebody has changed: they name no file outside their folder, and are refused with typed errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.export.api import export_dataset
from tfds_torch.export.plan import MOST_SHARDS, ExportPlan, ShardSizes, read_manifest
from tfds_torch.export.records import read_dataset_name, write_metadata
from tfds_torch.parsers.tfds.folder import Folder

PLAN = ExportPlan("webdataset", "list", "all", {"name": "list"}, {}, (0, 2, 4))
SHARD = {"number": 0, "num_bytes": 1, "crc32c": 2, "content_bytes": 1}


@pytest.mark.parametrize("name", ["dataset", "split"])
def test_a_manifest_names_no_files_outside_its_folder(tmp_path: Path, name: str) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious-all-000000.tar"
    export_dataset([{"label": 1}], out, format="webdataset", num_workers=1)
    precious.write_bytes(b"precious")
    manifest = out / "export-all.json"
    values = json.loads(manifest.read_bytes())
    values["plan"][name] = {"dataset": "../precious", "split": "x/../../precious-all"}[name]
    manifest.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=f"is not a {name}'s name of letters, digits and _"):
        export_dataset([{"label": 2}], out, format="webdataset", num_workers=1)
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "beton", "there is no format 'beton' of shards"),
        ("format", ["tfrecord"], r"there is no format \['tfrecord'\] of shards"),
        ("dataset", 5, "5 is not a dataset's name"),
        ("split", "other", "it is of the split 'other'"),
        ("bounds", "0123", "bounds are not a list of integers"),
        ("bounds", [0, 2.0, 4], "bounds are not a list of integers"),
        ("bounds", [False, True], "bounds are not a list of integers"),
        ("bounds", [1, 2, 4], "bounds do not rise from 0"),
        ("bounds", [0, 4, 2], "bounds do not rise from 0"),
        ("bounds", [0, 2, 2], "bounds do not rise from 0"),
        ("bounds", [0], "1 bounds are not those of 1 to 1,000,000 shards"),
        ("bounds", list(range(MOST_SHARDS + 2)), "1,000,002 bounds are not those of 1 to 1,000,000 shards"),
        ("source", 3, "TypeError"),
        ("options", None, "TypeError"),
    ],
)
def test_a_plan_that_no_export_has_is_refused(tmp_path: Path, name: str, value: Any, message: str) -> None:
    manifest = tmp_path / "export-all.json"
    manifest.write_text(json.dumps({"plan": {**PLAN.to_dict(), name: value}, "shards": None, "metadata": []}))
    with pytest.raises(ConfigError, match=message):
        read_manifest(manifest)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"plan":' * 100_000,
        b"\xff\xfe\xfd",
        b"1" * 5_000,
        json.dumps({"plan": PLAN.to_dict(), "metadata": [], "shards": 7}).encode(),
        json.dumps({"plan": PLAN.to_dict(), "metadata": [], "shards": [7, 8]}).encode(),
        json.dumps({"plan": PLAN.to_dict(), "metadata": [], "shards": [SHARD]}).encode(),
        json.dumps({"plan": PLAN.to_dict(), "metadata": [], "shards": [SHARD, SHARD]}).encode(),
        json.dumps({"plan": PLAN.to_dict(), "metadata": [], "shards": [{**SHARD, "num_bytes": float("inf")}]}).encode(),
    ],
)
def test_a_malformed_manifest_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    manifest = tmp_path / "export-all.json"
    manifest.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read as the manifest of an export"):
        read_manifest(manifest)
    manifest.write_text(json.dumps({"plan": PLAN.to_dict(), "shards": [SHARD, {**SHARD, "number": 1}], "metadata": []}))
    assert read_manifest(manifest)[0] == PLAN


def test_lines_of_a_log_that_tell_of_no_shard_are_passed_over(tmp_path: Path) -> None:
    out, samples = tmp_path / "out", [{"label": 1}]
    export_dataset(samples, out, format="webdataset", num_workers=1)
    lines = [b"[" * 100_000, b'{"number": []}', b"[1]", b"7", json.dumps({**SHARD, "number": []}).encode()]
    (out / ".export-all.log").write_bytes(b"\n".join(lines))
    assert export_dataset(samples, out, format="webdataset", num_workers=1).num_kept == 1


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({"name": "../../precious"}, read_dataset_name),
        ({"splits": [3]}, lambda folder: write_metadata(folder, Path(folder.path), PLAN, [2, 2], 9)),
        ({"splits": "train"}, lambda folder: write_metadata(folder, Path(folder.path), PLAN, [2, 2], 9)),
    ],
)
def test_a_datasets_own_metadata_is_checked_too(
    tmp_path: Path, change: dict[str, Any], read: Callable[[Folder], object]
) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "digits", "splits": [], **change}))
    with pytest.raises(ConfigError, match=r"dataset_info\.json"):
        read(Folder(str(tmp_path)))


def test_more_shards_than_a_manifest_may_hold_are_refused_before_they_are_written() -> None:
    with pytest.raises(ConfigError, match="These would be 1,000,001 shards, and 1,000,000 is the most: ask for fewer"):
        ShardSizes(max_count=1).bounds(MOST_SHARDS + 1, None)
    assert len(ShardSizes(max_count=1).bounds(MOST_SHARDS, None)) == MOST_SHARDS + 1
