"""The builder that TFDS runs. Imports TFDS: for the process that builds.

`skip_registration`: TFDS keeps a global register of builder classes by name; ours must not be found there, so that
`tfds.builder("photos", data_dir=...)` always reads the files as they are.
"""

import contextlib
import inspect
import io
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core.utils import shard_utils

from tfds_torch.demo.embedded import make_digits, make_photos
from tfds_torch.demo.episodes import make_episodes
from tfds_torch.demo.fake import make_fake
from tfds_torch.demo.spec import EPISODE_CONFIGS, Content, DemoMetadata, DemoSpec, Example, is_split_name, tfds_version
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.storage.tfrecord.framing import TfrecordWriter

_EMBEDDED = {"digits": make_digits, "photos": make_photos, "episodes": make_episodes}
_MAX_LISTED = 20
_UNKNOWN_SPLITS = ("train",)
# `tfds.Split.TRAIN`, `SplitGenerator(name="dev", ...)` or `{"dev": self._generate_examples(...)}`.
_SPLIT_IN_CODE = re.compile(
    r"""Split\.([A-Z]+)\b|SplitGenerator\([^()]*?\bname=["'](.+?)["']|["'](\w+)["']:\s*[\w.]*generate\w*\("""
)


class DemoBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes a content, and its spec to `metadata.json`.

    `_derive` makes a class per dataset, because TFDS takes name and configs from the class. `options` are TFDS's.
    """

    def __init__(self, content: Content, metadata: DemoMetadata, **options: Any) -> None:
        self._content, self._metadata = content, metadata
        self.num_done = 0  # Examples that were made so far.
        super().__init__(**options)

    @property
    def spec(self) -> DemoSpec:
        """The spec that it builds, complete."""
        return self._metadata.spec

    def write(self) -> None:
        """Write the dataset as TFRecord files."""
        spec = self.spec
        config = _DownloadConfig(num_shards=spec.num_shards, num_examples=spec.num_examples, try_download_gcs=False)
        file_format = file_adapters.FileFormat.TFRECORD
        usual = file_adapters.ADAPTER_FOR_FORMAT[file_format]
        file_adapters.ADAPTER_FOR_FORMAT[file_format] = _PlainTfrecordFiles
        try:
            self.download_and_prepare(download_config=config, file_format=file_format)
        finally:
            file_adapters.ADAPTER_FOR_FORMAT[file_format] = usual

    def _info(self) -> Any:
        metadata = tfds.core.MetadataDict(self._metadata.as_dict())
        return tfds.core.DatasetInfo(builder=self, metadata=metadata, **self._content.info)

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Example]]]:
        del dl_manager  # Nothing is downloaded.
        return {split: self._generate_examples(split) for split in self.spec.splits or ()}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, Example]]:
        for keyed in self._content.make_examples(split):
            yield keyed
            self.num_done += 1


class _PlainTfrecordFiles(file_adapters.TfRecordFileAdapter):
    """Writes the same bytes as TFDS's adapter, without importing tensorflow, which takes seconds."""

    @classmethod
    def write_examples(cls, path: Any, iterator: Iterable[tuple[Any, bytes]]) -> None:
        with open(path, "wb") as file:
            writer = TfrecordWriter(file.write)
            for _, example in iterator:
                writer.add(example)


@dataclass
class _DownloadConfig(tfds.download.DownloadConfig):
    """TFDS's settings of a build, whose `num_shards` is for splits of `num_examples` examples, others having one."""

    num_examples: int = 0

    def get_shard_config(self) -> shard_utils.ShardConfig:
        return _ShardConfig(num_shards=self.num_shards, num_examples=self.num_examples)


@dataclass(frozen=True)
class _ShardConfig(shard_utils.ShardConfig):
    num_examples: int = 0

    def get_number_shards(self, total_size: int, num_examples: int, uses_precise_sharding: bool = True) -> int:
        del total_size, uses_precise_sharding
        return int(self.num_shards) if num_examples == self.num_examples else 1


def make_builder(spec: DemoSpec, *, data_dir: str) -> DemoBuilder:
    """Return the builder of a dataset in an empty data dir.

    Raises:
        DatasetNotFoundError: TFDS itself does not have the dataset of a fake.
        ConfigError: of a fake: an unknown config or version, a builder that does not start, or a feature for which
            nothing can be made up.
    """
    if spec.is_fake:
        return make_fake_builder(_open_real_builder(spec, data_dir), spec, data_dir=data_dir)
    configs: dict[str, Any] = {}
    if spec.config is not None:
        all_configs = [tfds.core.BuilderConfig(name=name) for name in EPISODE_CONFIGS]
        configs = {"BUILDER_CONFIGS": all_configs, "DEFAULT_BUILDER_CONFIG_NAME": EPISODE_CONFIGS[0]}
    derived = _derive(spec, configs)
    return derived(_EMBEDDED[spec.name](spec), DemoMetadata(spec), data_dir=data_dir, config=spec.config)


def make_fake_builder(real: Any, spec: DemoSpec, *, data_dir: str) -> DemoBuilder:
    """Return a builder that writes made-up examples with the features and the name of TFDS's own builder, `real`.

    Raises:
        ConfigError: a feature for which nothing can be made up.
    """
    version, default_config = str(real.version), real.get_default_builder_config()
    splits = spec.splits
    if splits is None:
        splits = real_splits(type(real)(data_dir=data_dir, config=real.builder_config, version=version))
    metadata = DemoMetadata(
        spec=replace(spec, config=real.builder_config_name, version=version, splits=splits),
        default_config=default_config and default_config.name,
        default_version=str(real.versions[0]),
        tfds_version=tfds_version(),
        has_all_splits=spec.splits is None,
    )
    configs = {
        "BUILDER_CONFIGS": list(real.builder_configs.values()),
        "DEFAULT_BUILDER_CONFIG_NAME": metadata.default_config,
    }
    derived, content = _derive(metadata.spec, configs), make_fake(metadata.spec, real)
    return derived(content, metadata, data_dir=data_dir, config=real.builder_config)


def _derive(spec: DemoSpec, configs: Mapping[str, Any]) -> type[DemoBuilder]:
    attributes = {
        "name": spec.name,
        "canonical_version": tfds.core.Version(spec.version),
        "supported_versions": [],
        "__module__": __name__,
        **configs,
    }
    return types.new_class("Demo", (DemoBuilder,), {"skip_registration": True}, lambda own: own.update(attributes))


# What TFDS's own builders know


def _open_real_builder(spec: DemoSpec, data_dir: str) -> Any:
    """Return TFDS's own builder of a dataset.

    Raises:
        DatasetNotFoundError: only the calling process has registered the dataset.
        ConfigError: an unknown config or version, or the builder does not start here.
    """
    if spec.name not in tfds.list_builders(with_community_datasets=False):
        raise DatasetNotFoundError(
            f"'{spec.name}' is not among the datasets that TFDS itself has. Fakes are built in another process, "
            f"which does not know the builders that yours has registered."
        )
    builder_class = _run_real(spec, lambda: tfds.builder_cls(spec.name))
    configs = list(dict.fromkeys(config.name for config in builder_class.BUILDER_CONFIGS))
    if spec.config is not None and spec.config not in configs:
        listed = ", ".join(configs[:_MAX_LISTED])
        if len(configs) > _MAX_LISTED:
            listed += f", and {len(configs) - _MAX_LISTED} more"
        there = f"The configs are: {listed}." if configs else "It has no configs."
        raise ConfigError(f"'{spec.name}' has no config {spec.config!r}.{did_you_mean(spec.config, configs)} {there}")
    builder = _run_real(spec, lambda: builder_class(data_dir=data_dir, config=spec.config))
    versions = list(dict.fromkeys(str(version) for version in builder.versions))
    if spec.version not in (None, *versions):
        raise ConfigError(
            f"'{spec.name}' has no version {spec.version!r} in TFDS {tfds_version()}. "
            f"The versions are: {', '.join(versions)}."
        )
    if spec.version not in (None, str(builder.version)):
        builder = _run_real(spec, lambda: builder_class(data_dir=data_dir, config=spec.config, version=spec.version))
    if builder.info.features is None:
        raise ConfigError(f"TFDS does not declare the features of {spec.full_name}, so it cannot be faked.")
    return builder


def _run_real(spec: DemoSpec, start: Callable[[], Any]) -> Any:
    """Run code of a dataset of TFDS, which may need anything."""
    try:
        return start()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"TFDS's own builder of '{spec.full_name}', which knows its features, does not start here, without a "
            f"network ({type(error).__name__}: {reason[:500]}). Install the package that it asks for, or choose "
            f"another dataset."
        ) from error


def real_splits(builder: Any) -> tuple[str, ...]:
    """Return the names of the splits that TFDS's own builder would write, in its order.

    TFDS itself knows them only once they are written. The builder is asked for its generators, with paths of downloads
    that are not there. Where it looks into its downloads first, the names are read from its code. The result is
    ("train",) where neither works.

    Args:
        builder: TFDS's own builder, in an empty data dir; it cannot be used afterwards.
    """
    for ask in (_ask_generators, _read_code):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):  # A dataset's code: any code.
            if names := tuple(dict.fromkeys(filter(is_split_name, ask(builder)))):
                return names
    return _UNKNOWN_SPLITS


def _ask_generators(builder: Any) -> list[str]:
    generators = builder._split_generators(_NoDownloads(tfds.core.Path(builder._data_dir_root)))
    return (
        [str(one) for one in generators] if isinstance(generators, Mapping) else [str(one.name) for one in generators]
    )


class _NoDownloads:
    """Stands for TFDS's download manager: all downloads lie in a folder, which is empty."""

    def __init__(self, folder: Any) -> None:
        self.manual_dir = self.download_dir = folder
        self._folder = folder

    def download_and_extract(self, urls: Any) -> Any:
        """Return a path for each URL, in the structure of the URLs."""
        if isinstance(urls, Mapping):
            return {key: self.download_and_extract(value) for key, value in urls.items()}
        if isinstance(urls, list | tuple):
            return type(urls)(map(self.download_and_extract, urls))
        return self._folder / "download"

    download = extract = download_kaggle_data = download_and_extract

    def iter_archive(self, path: Any) -> Iterator[Any]:
        """Return an iterator over nothing."""
        del path
        return iter(())


def _read_code(builder: Any) -> list[str]:
    code = inspect.getsource(type(builder)._split_generators)
    found = _SPLIT_IN_CODE.findall(code)
    return [str(getattr(tfds.Split, constant, "")) if constant else name or key for constant, name, key in found]
