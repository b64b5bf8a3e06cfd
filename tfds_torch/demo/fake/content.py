"""Made-up content with the features of a dataset of TFDS. Imports TFDS: for the process that builds."""

import json
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.demo.fake.example import ExampleMaker
from tfds_torch.demo.metadata import tfds_version
from tfds_torch.demo.spec import Content, DemoSpec, Example
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.plan.arguments import did_you_mean

_MAX_LISTED = 20


def make_fake(spec: DemoSpec, real: Any) -> Content:
    """Returns made-up content with the features of TFDS's own builder, whose label names are filled in.

    Raises:
        ConfigError: a feature for which nothing can be made up.
    """
    _name_labels(real.name, real.info.features)
    maker = ExampleMaker(spec.full_name, real.info.features, real.info.supervised_keys, spec.seed)
    maker.try_out()

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for index in range(spec.num_examples):
            yield index, maker.make(split, index)

    info = {
        "description": f"MADE-UP CONTENT. This dataset has the features and label names of {spec.full_name}, and not "
        f"one of its examples: tfds_torch.demo made up {spec.num_examples} examples for each split (seed {spec.seed}).",
        "features": real.info.features,
        "supervised_keys": real.info.supervised_keys,
        "disable_shuffling": real.info.disable_shuffling,
    }
    return Content(info, make_examples)


def open_real_builder(spec: DemoSpec, data_dir: str) -> Any:
    """Returns TFDS's own builder of a dataset.

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


def _name_labels(dataset: str, features: Any) -> None:
    """Gives labels their names where TFDS's builder reads them from its download only, and has "0", "1" until then.

    The names of the best known datasets are kept here; the others (deep_weeds, gref, nsynth, omniglot,
    open_images_challenge2019_detection, stanford_dogs, coco's panoptic configs) keep their numbers.
    """
    known = json.loads(resources.files("tfds_torch.demo").joinpath("data", "label_names.json").read_bytes())
    for path, key in known["features"].items():
        name, *keys = path.split("/")
        feature = _find(features, keys) if name == dataset else None
        names = known["names"][key]
        if feature is not None and list(feature.names) == [str(number) for number in range(len(names))]:
            feature.names = names


def _find(features: Any, keys: list[str]) -> Any:
    for key in keys:
        if key not in features:
            return None
        features = features[key]
    return features
