"""WebDatasetShards: the samples of tar files, as WebDataset reads them. A shard is the unit of work."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.samples import Sample, SampleOrder, SampleSource
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

_KEY = "__key__"


class WebDatasetShards(SampleSource):
    """Tar files of WebDataset, to be exported. It needs the package webdataset (extra `webdataset`).

    Their samples are counted first, all shards at a time; then each shard is read by one worker. The pipeline runs in
    these workers, twice, and must make the same samples both times.

    Args:
        urls: the URLs of the shards, in the order of their samples; or one text with braces, like
            "train-{000..099}.tar", which WebDataset expands.
        pipeline: turns a shard's `webdataset.WebDataset` into an iterable of samples, dictionaries or tuples, like
            `lambda shard: shard.decode("rgb8").to_tuple("jpg", "cls")`. None: samples as they are stored, bytes by
            extension. The `__key__` of a dictionary becomes the id.

    Raises:
        ConfigError: there are no shards, one is named twice, or webdataset is not installed.
    """

    name = "WebDatasetShards"

    def __init__(
        self, urls: str | Sequence[str | os.PathLike[str]], pipeline: Callable[[Any], Iterable[Any]] | None = None
    ) -> None:
        package = _import_webdataset()
        named = package.shardlists.expand_urls(urls) if isinstance(urls, str) else urls
        self.urls = [os.fspath(url) for url in named]
        if not self.urls:
            raise ConfigError("WebDatasetShards: there are no shards: urls is empty.")
        if len(set(self.urls)) < len(self.urls):
            twice = next(url for url in self.urls if self.urls.count(url) > 1)
            raise ConfigError(f"WebDatasetShards: {twice} is named twice.")
        if pipeline is not None and not callable(pipeline):
            raise ConfigError(f"pipeline={quoted(pipeline)} must be a function of a webdataset.WebDataset, or None.")
        self._pipeline = pipeline
        self._starts: list[int] | None = None

    @property
    def paths(self) -> Iterable[str]:  # noqa: D102
        return (url.removeprefix("file:") for url in self.urls)

    def set_counts(self, counts: Sequence[int]) -> None:
        """Set how many samples each shard has."""
        self._starts = [0]
        for count in counts:
            self._starts.append(self._starts[-1] + count)

    def __len__(self) -> int:
        if self._starts is None:
            raise ConfigError("WebDatasetShards: how many samples there are is known once they have been counted.")
        return self._starts[-1]

    def describe(self, number: int) -> str:
        """Return the shard of a sample, and its number there."""
        starts = self._starts or [0] * (len(self.urls) + 1)
        shard = max(n for n, start in enumerate(starts[:-1]) if start <= number)
        return _id_of(self.urls[shard], number - starts[shard], None)

    def first(self, number: int, fields: Sequence[str] | None) -> Sample | None:
        """Return the first sample of the first shard that has any."""
        return next((sample for shard in range(len(self.urls)) for sample in self.read(shard)), None)

    def tasks(self, order: SampleOrder, chunk_size: int) -> Iterator[int]:
        """Yield the numbers of shards."""
        return iter(range(len(self.urls)))

    def samples(
        self, task: int, order: SampleOrder, fields: Sequence[str] | None, metrics: StageMetrics
    ) -> Iterator[tuple[int, Sample]]:
        """Yield the samples of a shard; raise ExportError where it has more or fewer than were counted."""
        assert self._starts is not None  # noqa: S101 (it was counted before)
        start, stop = self._starts[task : task + 2]
        number = start
        metrics.note_reading(number)
        for sample in self.read(task):
            if number == stop:
                raise ExportError(f"{self.urls[task]} has more than the {stop - start} samples counted before.")
            for place in order.places_of(number):
                yield place, sample
            number += 1
            metrics.note_reading(min(number, stop - 1))
        if number < stop:
            raise ExportError(
                f"{self.urls[task]} has {number - start} samples, and {stop - start} were counted before."
            )

    def read(self, shard: int) -> Iterator[Sample]:
        """Yield the samples of a shard."""
        package, url = _import_webdataset(), self.urls[shard]
        # Its default splits what belongs to one worker; here, a shard is all of a worker's.
        read = package.WebDataset([url], shardshuffle=False, nodesplitter=None, workersplitter=None, empty_check=False)
        for record, value in enumerate(read if self._pipeline is None else self._pipeline(read)):
            key = None
            if isinstance(value, Mapping):
                key = value.get(_KEY)
                value = {name: inner for name, inner in value.items() if not _is_private(name)}
            yield Sample(value, _id_of(url, record, key))


def _is_private(name: object) -> bool:
    """Return whether a name is WebDataset's own: `__url__`, `__local_path__`."""
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def _id_of(url: str, record: int, key: object) -> str:
    return key if isinstance(key, str) else f"{os.path.basename(url)}__{record}"


def _import_webdataset() -> Any:
    try:
        import webdataset
    except ImportError:
        raise ConfigError(
            "WebDatasetShards needs the package webdataset. Install it with: pip install 'tfds-torch[webdataset]'"
        ) from None
    return webdataset
