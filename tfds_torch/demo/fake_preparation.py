"""prepare_fake: any TFDS dataset's features and label names with made-up content."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfds_torch.demo.damage import check_files
from tfds_torch.demo.fake_spec import FakeSpec
from tfds_torch.demo.installation import choose_data_dir, describe_conflict, install
from tfds_torch.demo.metadata import FakeMetadata
from tfds_torch.demo.spec import DEMO_NAMES
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime import fresh_process


def prepare_fake(
    name: str,
    *,
    num_examples: int,
    num_shards: int | None = None,
    splits: Sequence[str] = ("train",),
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Returns a data dir with a dataset of TFDS's, of which only the content is made up; builds it if need be.

    Name, config, version, features, label names and supervised keys are the real ones, so that TFDS's own builder of
    this name reads it as well as `ParserTfds(returned, name)`. It lies in `<returned>/<name>[/<config>]/<version>/`.
    It is built without a network, in another process (this one does not import tensorflow), at most once, and is
    there as a whole or not at all.

    Args:
        name: a dataset of TFDS: `name`, `name/config`, `name:version` or `name/config:version`.
        num_examples: examples of each split.
        num_shards: shards of each split, at most num_examples; None: 8, or as many as there are examples.
        splits: their names; they need not be those of the real dataset.
        root: the data dir; None means a folder of its own in the user's cache for each combination of parameters.
        seed: which content is made up. Example i of a split depends on the seed, the split and i alone.
        progress: show a build's progress on standard error.

    Returns:
        The data dir: root, or the folder in the cache.

    Raises:
        DatasetNotFoundError: TFDS has no dataset of this name.
        ConfigError: a parameter that cannot be, an unknown config or version, a dataset whose builder does not start
            without a network or an optional package, a feature for which nothing can be made up, a root that cannot be
            written, or one that already holds the dataset with other parameters, or a real one of this name.
        ShardError: the dataset was prepared here, but its files have been damaged since; the message names the file.
        WorkerError: TFDS could not write the dataset (a full disk, for example).
    """
    spec = FakeSpec.check(name, num_examples, num_shards, splits, seed)
    data_dir = choose_data_dir(spec, root)

    def is_installed() -> bool:
        return _find(spec, data_dir) is not None

    def build_in(workplace: Path) -> Path:
        version_dir = Path(fresh_process.call(_build, spec, os.fspath(workplace), os.fspath(data_dir), progress))
        if (data_dir / version_dir).exists():
            # Another TFDS wrote it, and only now it is known that it has the same defaults.
            _check_same(spec, data_dir / version_dir)
        return version_dir

    if not is_installed():
        _check_known(spec.name)
        install(spec, data_dir, is_installed=is_installed, build=build_in)
    return data_dir


def _build(spec: FakeSpec, workplace: str, data_dir: str, progress: bool) -> str:
    from tfds_torch.demo.build import build_fake

    return build_fake(spec, workplace, data_dir, progress=progress)


def _find(spec: FakeSpec, data_dir: Path) -> Path | None:
    """Returns the version directory of the fake that was asked for, if it is there and whole.

    Raises:
        ConfigError: it is there with other parameters, or the data dir has a dataset of this name that is no fake:
            real and made-up data must not be mistaken for each other.
        ShardError: it is damaged.
    """
    name = data_dir / spec.name
    for info in sorted([*name.glob("*/dataset_info.json"), *name.glob("*/*/dataset_info.json")]):
        written = FakeMetadata.read(info.parent)
        if written is None:
            raise ConfigError(describe_conflict(spec, info.parent, None))
        if written.complete(spec).full_name == written.spec.full_name:
            _check_same(spec, info.parent)
            return info.parent
    return None


def _check_same(spec: FakeSpec, folder: Path) -> None:
    """Raises unless the fake in folder has the parameters that were asked for and is whole."""
    written = FakeMetadata.read(folder)
    if written is None or written.spec != replace(spec, config=written.spec.config, version=written.spec.version):
        raise ConfigError(describe_conflict(spec, folder, written and written.spec))
    check_files(folder)


def _check_known(name: str) -> None:
    from tfds_torch.parsers.tfds.dataset_opening import registered_names  # Imports TFDS.

    names = registered_names()
    if name not in names:
        hint = f" prepare({name!r}) has it." if name in DEMO_NAMES else did_you_mean(name, names)
        raise DatasetNotFoundError(
            f"TFDS has no dataset {name!r}.{hint} A fake takes its features from TFDS's own builder; "
            f"tfds.list_builders(with_community_datasets=False) lists the {len(names)} there are."
        )
