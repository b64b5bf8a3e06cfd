"""The registry of formats: a Source for those that are read, and a refusal for the others."""

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.storage.array_record.source import ArrayRecordSource
from tfds_torch.storage.image_folder.source import ImageFolderSource
from tfds_torch.storage.source import source_type
from tfds_torch.storage.tfrecord.source import TfrecordSource


def test_every_format_that_is_read_has_its_source() -> None:
    assert source_type("tfrecord") is TfrecordSource
    assert source_type("array_record") is ArrayRecordSource
    assert source_type("image_folder") is ImageFolderSource


@pytest.mark.parametrize(
    ("file_format", "reason"),
    [
        (
            "parquet",
            ": TFDS 4.9.10 writes them with records missing (1,000 written, 400 found), so they are not to be relied "
            "on. Prepare the dataset again as 'tfrecord' or 'array_record': tfds build <name> --file_format=tfrecord.",
        ),
        (
            "riegeli",
            ": they have no random access. Convert the dataset: tfds convert_format --dataset_version_dir=<its version "
            "directory> --out_file_format=tfrecord --out_dir=<another one>.",
        ),
        (
            "TFRECORD",
            ". Convert the dataset: tfds convert_format --dataset_version_dir=<its version directory> "
            "--out_file_format=tfrecord --out_dir=<another one>.",
        ),
    ],
)
def test_another_format_is_refused_with_what_can_be_read_and_what_to_do(file_format: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source_type(file_format)
    assert str(caught.value) == (
        f"Files of the format {file_format!r} are not read (what can be read is 'tfrecord' and 'array_record'){reason}"
    )
