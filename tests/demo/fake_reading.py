"""What runs in fresh processes for the tests of fakes: building many in one process, and reading them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tfds_fixtures import iterate_tfds

from tfds_torch.demo.builder import real_splits
from tfds_torch.demo.preparation import _cut_network, build
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import TfdsTorchError
from tfds_torch.parsers.tfds.parser import ParserTfds


@dataclass(frozen=True)
class Leaf:
    """A feature that is no container.

    Attributes:
        keys: the way to it.
        kind: its class.
        depth: how many sequences it is in.
        shape: of one value; None where it is free. Likewise dtype.
        dtype: see shape.
        num_classes: of ClassLabel and LabeledImage.
        names: of the classes.
    """

    keys: tuple[str, ...]
    kind: str
    depth: int
    shape: tuple[int | None, ...]
    dtype: Any
    num_classes: int | None
    names: list[str] | None


@dataclass(frozen=True)
class Reading:
    """What TFDS and ParserTfds read of a fake, and what TFDS's own builder says without it.

    Attributes:
        module: of the builder that `tfds.builder` chose.
        version_dir: where it lies.
        leaves: as the builder's code says; from_files: as the files alone say.
        from_files: see leaves.
        features: the features' text, by the code of an unprepared builder and of the one that reads.
        supervised_keys: of the same two.
        shard_lengths: split -> examples of each shard.
        description: of the dataset.
        examples: split -> TFDS's examples in the order of the files.
        batches: split -> ParserTfds's batches with every top-level feature.
    """

    module: str
    version_dir: Path
    leaves: list[Leaf]
    from_files: list[Leaf]
    features: tuple[str, str]
    supervised_keys: tuple[Any, Any]
    shard_lengths: dict[str, list[int]]
    description: str
    examples: dict[str, list[dict[str, Any]]]
    batches: dict[str, list[Batch]]


def list_leaves(feature: Any, keys: tuple[str, ...] = (), depth: int = 0) -> list[Leaf]:
    if isinstance(feature, tfds.features.FeaturesDict):
        return [leaf for key, inner in sorted(feature.items()) for leaf in list_leaves(inner, (*keys, key), depth)]
    if isinstance(feature, tfds.features.Sequence):
        return list_leaves(feature.feature, keys, depth + 1)
    names = list(feature.names) if isinstance(feature, tfds.features.ClassLabel) else None
    num_classes = getattr(feature, "num_classes", None)
    return [Leaf(keys, type(feature).__name__, depth, feature.shape, feature.np_dtype, num_classes, names)]


def read(root: str, names: Sequence[str]) -> dict[str, Reading]:
    return {name: _read(root, name) for name in names}


def build_and_read(root: str, specs: Sequence[DemoSpec]) -> dict[str, Reading]:
    """Builds into one data dir, and reads; one start of tensorflow for all."""
    for spec in specs:
        build(spec, root, "", progress=False)
    return read(root, [spec.full_name for spec in specs])


def list_real_splits(root: str, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the splits of datasets, as their builders tell them where nothing is downloaded."""
    _cut_network()
    return {name: real_splits(tfds.builder(name, data_dir=root)) for name in names}


def ask_for_fakes(root: str, specs: Sequence[DemoSpec], missing_package: str) -> list[tuple[str, str]]:
    """Returns type and message of the error of each build, with one package missing."""
    sys.modules[missing_package] = None
    answers = []
    for spec in specs:
        try:
            build(spec, root, "", progress=False)
            answers.append(("nothing was raised", ""))
        except TfdsTorchError as error:
            answers.append((type(error).__name__, str(error)))
    return answers


def _read(root: str, name: str) -> Reading:
    builder, real = tfds.builder(name, data_dir=root), tfds.builder(name, data_dir=f"{root}/none")
    files = tfds.builder_from_directory(builder.data_dir)
    examples, batches = {}, {}
    for split in builder.info.splits:
        examples[split] = list(iterate_tfds(root, name, split))
        parser = ParserTfds(root, name, split, batch_size=4, image_mode=None)
        batches[split] = list(parser.batches(fields=("index", *builder.info.features)))
    return Reading(
        module=type(builder).__module__,
        version_dir=Path(builder.data_dir),
        leaves=list_leaves(real.info.features),
        from_files=list_leaves(files.info.features),
        features=(repr(real.info.features), repr(builder.info.features)),
        supervised_keys=(real.info.supervised_keys, files.info.supervised_keys),
        shard_lengths={split: list(info.shard_lengths) for split, info in builder.info.splits.items()},
        description=builder.info.description + files.info.description,
        examples=examples,
        batches=batches,
    )
