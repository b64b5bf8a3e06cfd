"""The folder of a dataset's metadata: of a dataset in an object store a copy, which lasts as long as this process."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.record_source import RecordSource

_copies: dict[str, TemporaryDirectory[str]] = {}


def metadata_folder(parser: ParserTfds) -> Path:
    """Returns the folder that holds the metadata of a parser's dataset.

    Raises:
        ShardError: it lies in a store, and cannot be read there.
    """
    files = parser.source.files if isinstance(parser.source, RecordSource | WindowSource) else None
    if not isinstance(files, ObjectFiles):
        return Path(parser.data_dir)
    from tfds_torch.parsers.tfds.remote_metadata import (  # It imports TFDS, which workers do without.
        MetadataObjects,
        fetch_metadata,
    )

    url = str(parser.data_dir)
    if url not in _copies:
        copy: TemporaryDirectory[str] = TemporaryDirectory(prefix="tfds_torch-metadata-")
        fetch_metadata(MetadataObjects(files.store), url, Path(copy.name))
        _copies[url] = copy
    return Path(_copies[url].name)
