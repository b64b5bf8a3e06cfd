"""The builder that writes a fake dataset. Imported only in the process that builds: it imports TFDS at its top."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.demo.fake.example import ExampleMaker
from tfds_torch.demo.fake.label_names import name_labels
from tfds_torch.demo.fake_spec import FakeSpec
from tfds_torch.demo.metadata import FAKE_KEY, FakeMetadata, tfds_version
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.plan.arguments import did_you_mean

_MAX_LISTED = 20


class FakeBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes made-up examples with another builder's features, under that builder's name.

    `make_builder` derives a class per dataset, because TFDS takes name and configs from the class.

    Args:
        real: TFDS's own builder of the dataset.
        metadata: what to build, with config and version as they came out.
        data_dir: TFDS's data dir.
        on_example: called once per example, in the calling thread.
    """

    def __init__(self, real: Any, metadata: FakeMetadata, *, data_dir: str, on_example: Callable[[], None]) -> None:
        self._real = real
        self._metadata = metadata
        self._on_example = on_example
        super().__init__(data_dir=data_dir, config=real.builder_config)

    def _info(self) -> Any:
        info, spec = self._real.info, self._metadata.spec
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"MADE-UP CONTENT. This dataset has the features and label names of {spec.full_name}, and "
            f"not one of its examples: tfds_torch.demo made up {spec.num_examples} examples for each split (seed "
            f"{spec.seed}).",
            features=info.features,
            supervised_keys=info.supervised_keys,
            disable_shuffling=info.disable_shuffling,
            metadata=tfds.core.MetadataDict({FAKE_KEY: self._metadata.as_dict()}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Any]]]:
        del dl_manager  # Nothing is downloaded.
        return {split: self._generate_examples(split) for split in self._metadata.spec.splits}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, Any]]:
        spec = self._metadata.spec
        maker = ExampleMaker(spec.full_name, self.info.features, self.info.supervised_keys, spec.seed)
        for index in range(spec.num_examples):
            yield index, maker.make(split, index)
            self._on_example()


def open_real_builder(spec: FakeSpec, data_dir: str) -> Any:
    """Returns TFDS's own builder of a dataset.

    Args:
        spec: what is to be built.
        data_dir: an empty folder.

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
        raise ConfigError(f"TFDS does not say which features {spec.full_name} has, so it cannot be faked.")
    return builder


def make_builder(real: Any, spec: FakeSpec, *, data_dir: str, on_example: Callable[[], None]) -> Any:
    """Returns the builder that writes a fake.

    Args:
        real: TFDS's own builder of the dataset.
        spec: what to build.
        data_dir: an empty folder to become TFDS's data dir.
        on_example: called once per example, in the calling thread.

    Raises:
        ConfigError: a feature for which nothing can be made up.
    """
    default_config = real.get_default_builder_config()
    config, version = real.builder_config_name, str(real.version)
    written = FakeMetadata(
        spec=FakeSpec(**{**vars(spec), "config": config, "version": version}),
        default_config=default_config and default_config.name,
        default_version=str(real.versions[0]),
        tfds_version=tfds_version(),
    )
    name_labels(real.name, real.info.features)
    ExampleMaker(written.spec.full_name, real.info.features, real.info.supervised_keys, spec.seed).try_out()
    attributes = {
        "name": real.name,
        "canonical_version": tfds.core.Version(version),
        "supported_versions": [],
        "BUILDER_CONFIGS": list(real.builder_configs.values()),
        "DEFAULT_BUILDER_CONFIG_NAME": default_config and default_config.name,
        "__module__": __name__,
    }
    derived = types.new_class(
        "Fake", (FakeBuilder,), {"skip_registration": True}, lambda namespace: namespace.update(attributes)
    )
    return derived(real, written, data_dir=data_dir, on_example=on_example)


def _run_real(spec: FakeSpec, start: Callable[[], Any]) -> Any:
    """Runs code of a dataset of TFDS, which may need anything."""
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
