"""A dataset without a fingerprint that has changed: its samples are not mixed with those of before."""

from pathlib import Path

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset


def export(labels: list[int], out: Path, overwrite: bool = False) -> int:
    samples = [{"label": label} for label in labels]
    return export_dataset(
        samples, out, format="webdataset", max_count=2, num_workers=1, overwrite=overwrite, key="number"
    ).num_kept


@pytest.mark.parametrize("changed", [[100, 101, 102, 103, 104], [9, 1, 2, 3, 4], [0, 1, 9, 3, 4], [0, 1, 2, 3, 9]])
def test_other_samples_are_refused_and_overwrite_replaces_all_shards(tmp_path: Path, changed: list[int]) -> None:
    out = tmp_path / "out"
    export([0, 1, 2, 3, 4], out)
    (out / "list-all-000000.tar").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="which stays: source samples is"):
        export(changed, out)
    assert export(changed, out, overwrite=True) == 0
    export(changed, tmp_path / "new")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()
    }


def test_the_same_samples_keep_their_shards(tmp_path: Path) -> None:
    export([0, 1, 2, 3, 4], tmp_path / "out")
    assert export([0, 1, 2, 3, 4], tmp_path / "out") == 3
