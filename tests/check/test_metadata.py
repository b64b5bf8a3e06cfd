"""What a dataset says about itself."""

import json
from pathlib import Path

import pytest
from tensorflow_datasets.core.proto import dataset_info_pb2

from tfds_torch.check.metadata import Metadata, read_metadata


def test_all_that_dataset_info_tells_is_read(tmp_path: Path) -> None:
    info = {
        "description": " What it is.\n",
        "configDescription": "This part of it.",
        "citation": "@misc{x}\n",
        "redistributionInfo": {"license": "CC BY 4.0"},
        "location": {"urls": ["https://a", "https://b", "https://c", "https://d"]},
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    urls = ("https://a", "https://b", "https://c")
    expected = Metadata("What it is.\n\nThis part of it.", "@misc{x}", "CC BY 4.0", urls)
    assert read_metadata(tmp_path) == expected


@pytest.mark.parametrize("content", [None, "{}", "{bad", '{"location": {}, "citation": ""}'])
def test_what_is_not_told_is_empty(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "dataset_info.json").write_text(content)
    assert read_metadata(tmp_path) == Metadata()


def test_the_keys_are_those_that_tfds_writes() -> None:
    fields = dataset_info_pb2.DatasetInfo.DESCRIPTOR.fields
    messages = {field.json_name: field.message_type for field in fields}
    assert {"description", "configDescription", "citation"} <= messages.keys()
    assert "license" in messages["redistributionInfo"].fields_by_name
    assert "urls" in messages["location"].fields_by_name
