"""The indices of shards in object stores: found by reading the shards once, and written beside them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import platformdirs

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.parsers.one_split import is_beton, is_one_split
from tfds_torch.parsers.remote_store import open_files
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.urls import split
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.remote_index import RemoteRecordIndex
from tfds_torch.storage.tfrecord.source import TfrecordSource
from tfds_torch.storage.webdataset.shard_paths import shard_paths
from tfds_torch.storage.webdataset.tar_index import index_beside, open_index, scan_tar

Index = tuple[str, bytes]
"""URL of a shard, and what the file of its index holds."""


@dataclass(frozen=True)
class IndexedShards:
    """What `index_shards` has done.

    Attributes:
        dataset: name of the dataset, or of the tars.
        num_shards: shards that were indexed.
        num_examples: that they hold.
        num_bytes: of the indices that were written beside them.
        folder: where indices of this machine are kept.
        refusal: why nothing could be written beside the shards; None: it was.
    """

    dataset: str
    num_shards: int
    num_examples: int
    num_bytes: int
    folder: str
    refusal: str | None


def index_shards(url: str, remote: RemoteOptions | None = None) -> IndexedShards:
    """Indexes the shards of a dataset, and writes their indices beside them, where that is allowed.

    Args:
        url: of a TFDS version directory, or of tars (braces are expanded).
        remote: how objects are fetched, and where they are cached.

    Raises:
        ConfigError: it is not a URL, or what it names has no index of this kind.
        DatasetNotFoundError: there is no dataset.
        ShardError, CorruptRecordError: a shard is missing, cannot be read, or is damaged.
    """
    split(url)
    if is_beton(url):
        raise ConfigError(f"{url} needs no index: a .beton file holds where its samples lie.")
    return _index_tars(url, remote) if is_one_split(url) else _index_dataset(url, remote)


def _index_dataset(url: str, remote: RemoteOptions | None) -> IndexedShards:
    names = ParserTfds.split_names(None, url, remote)
    parser = ParserTfds(None, url, "+".join(names), image_key=None, target_key=None, remote=remote)
    source = parser.source
    if not isinstance(source, TfrecordSource) or not isinstance(source.files, ObjectFiles):
        raise ConfigError(f"{parser.dataset_name}: only TFRecord files have an index of this kind.")
    index = RemoteRecordIndex(source.table, source.files, source.fetched_records)
    index.look_at_all()

    def found() -> Iterator[Index]:
        for file, shard in enumerate(index.files):
            yield shard, index.to_bytes(file)

    return _write(parser.dataset_name, len(index.files), len(index), source.files, found)


def _index_tars(url: str, remote: RemoteOptions | None) -> IndexedShards:
    paths, files = open_files(shard_paths(url), remote, ReadOptions())
    if not isinstance(files, ObjectFiles):
        raise AssertionError("It was looked at: it is a URL.")
    stamps = list(files.stamps(paths))

    def scan(place: int, advance: Advance) -> tuple[Index, int]:
        index = scan_tar(paths[place], advance, stamps[place], files)
        return (paths[place], index_beside(paths[place], stamps[place]).to_bytes(index)), len(index)

    found = scan_shards(scan, [size for size, _ in stamps], url, files.networks)
    indexed = _write(url, len(paths), sum(count for _, count in found), files, lambda: iter([one for one, _ in found]))
    if indexed.refusal is not None:
        open_index(paths, stamps, url, files)  # This machine keeps it.
    return indexed


def _write(
    dataset: str, num_shards: int, num_examples: int, files: ObjectFiles, found: Callable[[], Iterator[Index]]
) -> IndexedShards:
    num_bytes, refusal = 0, None
    folder = str(platformdirs.user_cache_path("tfds_torch") / "record_index")
    try:
        for shard, content in found():
            files.write_index(shard, content)
            num_bytes += len(content)
    except (ShardError, ConfigError) as error:
        refusal = str(error)
    return IndexedShards(dataset, num_shards, num_examples, num_bytes, folder, refusal)
