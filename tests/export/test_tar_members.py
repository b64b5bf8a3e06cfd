"""Members of tar files: what has no place in one is refused before anything is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ({"A": np.zeros(2), "a": np.ones(2)}, {}),
        ({"A": np.zeros(2), "b": np.ones(2)}, {"b": "a"}),
        ({"A": "x", "b": "y"}, {"b": "A"}),
    ],
)
def test_fields_that_readers_cannot_tell_apart_are_refused(
    tmp_path: Path, sample: dict[str, Any], names: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"another field has the name '[aA]\.(npy|txt)' already"):
        export_dataset([sample] * 3, tmp_path / "out", format="webdataset", names=names, num_workers=1)
    assert not (tmp_path / "out").exists()
