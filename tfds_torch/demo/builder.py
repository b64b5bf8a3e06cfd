"""The builder that TFDS runs. Imports TFDS: for the process that builds.

`skip_registration`: TFDS keeps a global register of builder classes by name; ours must not be found there, so that
`tfds.builder("photos", data_dir=...)` always reads the files as they are.
"""

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core.utils import shard_utils

from tfds_torch.demo.embedded import EMBEDDED
from tfds_torch.demo.fake import make_fake
from tfds_torch.demo.metadata import DemoMetadata, tfds_version
from tfds_torch.demo.spec import EPISODE_CONFIGS, Content, DemoSpec, Example
from tfds_torch.demo.split_names import real_splits
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.storage.tfrecord.framing import TfrecordWriter

_MAX_LISTED = 20


class DemoBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes a content, keeps in `metadata.json` what it was built from, and calls `on_example` once per example.

    `_derive` makes a class per dataset, because TFDS takes name and configs from the class. `options` are TFDS's.
    """

    def __init__(
        self, content: Content, metadata: DemoMetadata, *, on_example: Callable[[], None], **options: Any
    ) -> None:
        self._content = content
        self._metadata = metadata
        self._on_example = on_example
        super().__init__(**options)

    @property
    def spec(self) -> DemoSpec:
        """What it builds, with nothing left open."""
        return self._metadata.spec

    def _info(self) -> Any:
        metadata = tfds.core.MetadataDict(self._metadata.as_dict())
        return tfds.core.DatasetInfo(builder=self, metadata=metadata, **self._content.info)

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Example]]]:
        del dl_manager  # Nothing is downloaded.
        return {split: self._generate_examples(split) for split in self.spec.splits or ()}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, Example]]:
        for keyed in self._content.make_examples(split):
            yield keyed
            self._on_example()


class _PlainTfrecordFiles(file_adapters.TfRecordFileAdapter):
    """Writes the same bytes as TFDS's adapter, without importing tensorflow, which takes seconds."""

    @classmethod
    def write_examples(cls, path: Any, iterator: Iterable[tuple[Any, bytes]]) -> None:
        with open(path, "wb") as file:
            writer = TfrecordWriter(file.write)
            for _, example in iterator:
                writer.add(example)


def write_without_tensorflow() -> None:
    """Lets TFDS write TFRecord files without tensorflow, for the rest of this process."""
    file_adapters.ADAPTER_FOR_FORMAT[file_adapters.FileFormat.TFRECORD] = _PlainTfrecordFiles


def make_builder(spec: DemoSpec, *, data_dir: str, on_example: Callable[[], None]) -> DemoBuilder:
    """Returns the builder of a dataset in an empty data dir; `on_example` is called once per example.

    Raises:
        DatasetNotFoundError: TFDS itself does not have the dataset of a fake.
        ConfigError: of a fake: an unknown config or version, a builder that does not start, or a feature for which
            nothing can be made up.
    """
    if spec.is_fake:
        real = _open_real_builder(spec, data_dir)
        return make_fake_builder(real, spec, data_dir=data_dir, on_example=on_example)
    configs: dict[str, Any] = {}
    if spec.config is not None:
        all_configs = [tfds.core.BuilderConfig(name=name) for name in EPISODE_CONFIGS]
        configs = {"BUILDER_CONFIGS": all_configs, "DEFAULT_BUILDER_CONFIG_NAME": EPISODE_CONFIGS[0]}
    derived = _derive(EMBEDDED[spec.name](spec), DemoMetadata(spec), **configs)
    return derived(data_dir=data_dir, config=spec.config, on_example=on_example)


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
        there = f"The configs are: {_list(configs)}." if configs else "It has no configs."
        raise ConfigError(f"'{spec.name}' has no config {spec.config!r}.{did_you_mean(spec.config, configs)} {there}")
    builder = _run_real(spec, lambda: builder_class(data_dir=data_dir, config=spec.config))
    versions = list(dict.fromkeys(str(version) for version in builder.versions))
    if spec.version not in (None, *versions):
        raise ConfigError(
            f"'{spec.name}' has no version {spec.version!r} in TFDS {tfds_version()}. "
            f"The versions are: {_list(versions)}."
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


def _list(names: list[str]) -> str:
    listed = ", ".join(names[:_MAX_LISTED])
    return listed if len(names) <= _MAX_LISTED else f"{listed}, and {len(names) - _MAX_LISTED} more"


def make_fake_builder(real: Any, spec: DemoSpec, *, data_dir: str, on_example: Callable[[], None]) -> DemoBuilder:
    """Returns a builder that writes made-up examples with the features and the name of TFDS's own builder, `real`.

    Raises:
        ConfigError: a feature for which nothing can be made up.
    """
    default_config = real.get_default_builder_config()
    default_name = default_config and default_config.name
    splits = real_splits(_copy_of(real, data_dir)) if spec.splits is None else spec.splits
    written = DemoMetadata(
        spec=replace(spec, config=real.builder_config_name, version=str(real.version), splits=splits),
        default_config=default_name,
        default_version=str(real.versions[0]),
        tfds_version=tfds_version(),
        has_all_splits=spec.splits is None,
    )
    configs = {"BUILDER_CONFIGS": list(real.builder_configs.values()), "DEFAULT_BUILDER_CONFIG_NAME": default_name}
    derived = _derive(make_fake(written.spec, real), written, **configs)
    return derived(data_dir=data_dir, config=real.builder_config, on_example=on_example)


def _copy_of(real: Any, data_dir: str) -> Any:
    return type(real)(data_dir=data_dir, config=real.builder_config, version=str(real.version))


def _derive(content: Content, metadata: DemoMetadata, **attributes: Any) -> Callable[..., DemoBuilder]:
    own = {
        "name": metadata.spec.name,
        "canonical_version": tfds.core.Version(metadata.spec.version),
        "supported_versions": [],
        "__module__": __name__,
        **attributes,
    }
    derived = types.new_class(
        "Demo", (DemoBuilder,), {"skip_registration": True}, lambda namespace: namespace.update(own)
    )
    return functools.partial(derived, content, metadata)


@dataclass(frozen=True)
class DemoShards(shard_utils.ShardConfig):
    """The asked number of shards for splits of `num_examples` examples, and one for any other."""

    num_examples: int = 0

    def get_number_shards(self, total_size: int, num_examples: int, uses_precise_sharding: bool = True) -> int:
        """Returns the number of shards of a split."""
        del total_size, uses_precise_sharding
        return int(self.num_shards) if num_examples == self.num_examples else 1


@dataclass
class DemoConfig(tfds.download.DownloadConfig):
    """TFDS's settings of a build; TFDS's own `num_shards` would hold for all splits alike."""

    num_examples: int = 0

    def get_shard_config(self) -> DemoShards:
        """Returns how TFDS is to cut the splits into shards."""
        return DemoShards(num_shards=self.num_shards, num_examples=self.num_examples)
