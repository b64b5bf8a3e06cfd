"""The indices of shards in object stores: made by reading the shards once, and written beside them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.parsers.one_split import is_beton, is_one_split
from tfds_torch.parsers.remote_store import open_dataset_store, open_files
from tfds_torch.parsers.tfds.feature_tree import Dictionary, Feature, Repeated, find_feature, list_keys
from tfds_torch.parsers.tfds.find import open_dataset
from tfds_torch.parsers.tfds.windows import episode_features
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.own_folder import cache_folder
from tfds_torch.storage.array_record.source import ArrayRecordSource
from tfds_torch.storage.episodes.layout import EpisodeLayout
from tfds_torch.storage.episodes.step_index import kind_of, open_step_index, scan_steps, steps_beside
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.urls import split
from tfds_torch.storage.shard_files import read_beside
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.remote_index import RemoteRecordIndex
from tfds_torch.storage.tfrecord.source import TfrecordSource
from tfds_torch.storage.webdataset.shard_paths import shard_paths
from tfds_torch.storage.webdataset.tar_index import index_beside, open_index, scan_tar


@dataclass(frozen=True)
class IndexedShards:
    """The result of `index_shards`.

    Attributes:
        dataset: name of the dataset, or of the tars.
        num_shards: number of shards that were indexed.
        num_examples: number of examples in these shards.
        num_bytes: size of the indices that were written beside the shards.
        folder: the folder in which this machine keeps its indices.
        refusal: why nothing could be written beside the shards; None where the indices were written there.
        sequences: features whose steps were indexed, for windows of episodes.
    """

    dataset: str
    num_shards: int
    num_examples: int
    num_bytes: int
    folder: str
    refusal: str | None
    sequences: tuple[str, ...] = ()


def index_shards(url: str, remote: RemoteOptions | None = None) -> IndexedShards:
    """Index the shards of a dataset, and write their indices beside them, where that is allowed.

    Args:
        url: URL of a TFDS version directory, or of tars (braces are expanded).
        remote: how objects are fetched, and where they are cached; None: the defaults of RemoteOptions.

    Returns:
        The number and size of what was indexed, and whether it could be written beside the shards.

    Raises:
        ConfigError: `url` is not a URL, or it names a dataset that has no index of this kind.
        DatasetNotFoundError: there is no dataset at `url`.
        ShardError, CorruptRecordError: a shard is missing, cannot be read, or is damaged.
    """
    split(url)
    if is_beton(url):
        raise ConfigError(f"{url} needs no index: a .beton file holds where its samples lie.")
    return _index_tars(url, remote) if is_one_split(url) else _index_dataset(url, remote)


def _index_dataset(url: str, remote: RemoteOptions | None) -> IndexedShards:
    dataset = open_dataset(None, url, download=False, store=open_dataset_store(None, url, remote))
    source = dataset.source("+".join(dataset.splits))
    if not isinstance(source, TfrecordSource | ArrayRecordSource) or not isinstance(source.files, ObjectFiles):
        raise ConfigError(f"{dataset.name}: only TFRecord and ArrayRecord files have an index of this kind.")
    layouts = _step_layouts(dataset.features, dataset.name)
    index: RemoteRecordIndex | None = None
    if isinstance(source, TfrecordSource):
        index = RemoteRecordIndex(source.table, source.files, source.fetched_records)
    elif not layouts:
        raise ConfigError(f"{dataset.name} needs no index: its ArrayRecord files hold where their records lie.")
    shards, stamps = source.table.files, list(source.files.stamps(source.table.files))
    writer = _Writer(source.files)

    def scan(file: int, advance: Advance) -> None:
        shard, stamp, count = shards[file], stamps[file], source.table.num_in_file[file]
        for layout in layouts:  # Before the index of records, which divides the object that was fetched for this one.
            beside = steps_beside(layout, dataset.name, shard, stamp, count)
            steps = read_beside(writer.files, shard, beside, kind_of(layout))
            if steps is None:
                steps = scan_steps(layout, dataset.name, shard, stamp, count, source.scan, advance)
            writer.write(shard, beside.to_bytes(steps), kind_of(layout))
        if index is not None:
            index.look_at_one(file, advance)
            writer.write(shard, index.to_bytes(file))

    scan_shards(scan, [size for size, _ in stamps], dataset.name, source.files.networks)
    if writer.refusal is not None:  # This machine keeps the indices, where parsers of the splits look for them.
        for own in map(dataset.source, dataset.splits):
            if isinstance(own, RecordSource) and own.table.files:
                table = own.table
                own_shards = table.files, list(source.files.stamps(table.files)), table.num_in_file
                for layout in layouts:
                    open_step_index(layout, own.name, *own_shards, own.scan, source.files)
    return writer.report(dataset.name, len(shards), len(source), [layout.sequence for layout in layouts])


def _step_layouts(features: Feature, dataset: str) -> list[EpisodeLayout]:
    """Return the layouts by which windows find steps: of each feature that is a nested dataset, and of `steps`."""
    found = []
    for key in list_keys(features) if isinstance(features, Dictionary) else ():
        one = find_feature(features, key)
        if one is None or one.sequence_depth or not isinstance(one.feature, Repeated):
            continue
        if key == Windows().sequence or one.feature.is_dataset:
            with suppress(ConfigError):  # Its steps cannot be counted.
                found.append(episode_features(features, one, dataset).layout)
    return found


def _index_tars(url: str, remote: RemoteOptions | None) -> IndexedShards:
    paths, files = open_files(shard_paths(url), remote, ReadOptions())
    if not isinstance(files, ObjectFiles):
        raise AssertionError("It was looked at: it is a URL.")
    stamps = list(files.stamps(paths))

    writer = _Writer(files)

    def scan(place: int, advance: Advance) -> int:
        index = scan_tar(paths[place], advance, stamps[place], files)
        writer.write(paths[place], index_beside(paths[place], stamps[place]).to_bytes(index))
        return len(index)

    counts = scan_shards(scan, [size for size, _ in stamps], url, files.networks)
    if writer.refusal is not None:
        open_index(paths, stamps, url, files)  # This machine keeps the index.
    return writer.report(url, len(paths), sum(counts))


class _Writer:
    """Writes indices beside shards, until the store refuses one. Threads may share it."""

    def __init__(self, files: ObjectFiles) -> None:
        self.files = files
        self.refusal: str | None = None
        self._num_bytes = 0
        self._lock = ProcessLock()

    def write(self, shard: str, content: bytes, kind: str = "") -> None:
        if self.refusal is not None:
            return
        try:
            self.files.write_index(shard, content, kind)
        except (ShardError, ConfigError) as error:
            self.refusal = str(error)
            return
        with self._lock:
            self._num_bytes += len(content)

    def report(self, dataset: str, num_shards: int, num_examples: int, sequences: Sequence[str] = ()) -> IndexedShards:
        folder = str(cache_folder("record_index"))
        counts = num_shards, num_examples, self._num_bytes
        return IndexedShards(dataset, *counts, folder, self.refusal, tuple(sequences))
