"""--max-bytes: what is advised where it is too small works, and nothing smaller does."""

import re
from pathlib import Path

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds


@pytest.mark.parametrize("file_format", ["webdataset", "tfrecord"])
def test_the_number_of_bytes_that_is_advised_is_the_least_that_works(
    exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    parser = ParserTfds(exported_root, "digits", "test[:20]")

    def export(max_bytes: int) -> None:
        export_dataset(parser, tmp_path / "out", format=file_format, max_bytes=max_bytes, num_workers=1)

    with pytest.raises(ConfigError, match="Allow ") as caught:
        export(100)
    advised = int(re.findall(r"Allow ([\d,]+) or more", str(caught.value))[0].replace(",", ""))
    with pytest.raises(ConfigError, match=f"Allow {advised:,} or more"):
        export(advised - 1)
    export(advised)
    assert max(path.stat().st_size for path in (tmp_path / "out").glob("digits-*")) <= advised
