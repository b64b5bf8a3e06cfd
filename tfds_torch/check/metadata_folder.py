"""The folder of a dataset's `dataset_info.json`: of one in an object store a copy, which lasts as long as check."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.remote.urls import join

_NAMES = ("dataset_info.json", "features.json")
_copies: dict[str, TemporaryDirectory[str]] = {}


def metadata_folder(parser: ParserTfds) -> Path:
    """Returns the folder that holds the metadata of a parser's dataset.

    Raises:
        ShardError: it lies in a store, and cannot be read there.
    """
    files = parser.source.files if isinstance(parser.source, RecordSource | WindowSource) else None
    if not isinstance(files, ObjectFiles):
        return parser.data_dir
    url = str(parser.data_dir)
    if url not in _copies:
        _copies[url] = TemporaryDirectory(prefix="tfds_torch-check-")
        for name in _NAMES:
            content = files.store.read_small(join(url, name))
            if content is not None:
                Path(_copies[url].name, name).write_bytes(content)
    return Path(_copies[url].name)
