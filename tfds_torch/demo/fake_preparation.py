"""prepare_fake: any TFDS dataset's features and label names with made-up content."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tfds_torch.demo.damage import check_files
from tfds_torch.demo.fake_recipe import FakeRecipe
from tfds_torch.demo.installation import choose_data_dir, describe_conflict, install
from tfds_torch.demo.recipe import DEMO_NAMES
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime import fresh_process

FAKE_KEY = "tfds_torch_fake"
"""What a fake dataset's `metadata.json` has, and no other dataset."""


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
    recipe = FakeRecipe.check(name, num_examples, num_shards, splits, seed)
    data_dir = choose_data_dir(recipe, root)

    def is_installed() -> bool:
        return _find(recipe, data_dir) is not None

    def build_in(workplace: Path) -> Path:
        version_dir = Path(fresh_process.call(_build, recipe, os.fspath(workplace), os.fspath(data_dir), progress))
        if (data_dir / version_dir).exists():
            # Another TFDS wrote it, and only now it is known that it has the same defaults.
            _check_same(recipe, data_dir / version_dir)
        return version_dir

    if not is_installed():
        _check_known(recipe.name)
        install(recipe, data_dir, is_installed=is_installed, build=build_in)
    return data_dir


def is_fake(data_dir: str | os.PathLike[str]) -> bool:
    """Whether a dataset's content was made up by `prepare_fake`.

    Args:
        data_dir: its version directory, such as `ParserTfds.data_dir`.
    """
    return Written.read(Path(data_dir)) is not None


@dataclass(frozen=True)
class Written:
    """What `metadata.json` says of a fake dataset.

    Attributes:
        recipe: with config and version as they came out.
        default_config: what TFDS took for no config, at that time.
        default_version: what TFDS took for no version of this config.
        tfds_version: which TFDS that was.
    """

    recipe: FakeRecipe
    default_config: str | None
    default_version: str
    tfds_version: str

    @classmethod
    def read(cls, folder: Path) -> "Written | None":
        """Returns what a version directory says of itself, or None where it is no fake."""
        try:
            values = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))[FAKE_KEY]
            return cls(**{**values, "recipe": FakeRecipe.from_dict(values["recipe"])})
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Returns the values for `metadata.json`."""
        return {**vars(self), "recipe": self.recipe.as_dict()}

    def complete(self, asked: FakeRecipe) -> FakeRecipe:
        """Returns a recipe with the defaults filled in, as far as they can be known without TFDS."""
        if self.tfds_version != tfds_version():
            return asked
        return replace(asked, config=asked.config or self.default_config, version=asked.version or self.default_version)


def tfds_version() -> str:
    """Returns the installed TFDS's version, without importing it."""
    try:
        return metadata.version("tensorflow-datasets")
    except metadata.PackageNotFoundError:  # A nightly build has another name.
        return "unknown"


def _build(recipe: FakeRecipe, workplace: str, data_dir: str, progress: bool) -> str:
    from tfds_torch.demo.build import build_fake

    return build_fake(recipe, workplace, data_dir, progress=progress)


def _find(recipe: FakeRecipe, data_dir: Path) -> Path | None:
    """Returns the version directory of the fake that was asked for, if it is there and whole.

    Raises:
        ConfigError: it is there with other parameters, or the data dir has a dataset of this name that is no fake:
            real and made-up data must not be mistaken for each other.
        ShardError: it is damaged.
    """
    name = data_dir / recipe.name
    for info in sorted([*name.glob("*/dataset_info.json"), *name.glob("*/*/dataset_info.json")]):
        written = Written.read(info.parent)
        if written is None:
            raise ConfigError(describe_conflict(recipe, info.parent, None))
        if written.complete(recipe).full_name == written.recipe.full_name:
            _check_same(recipe, info.parent)
            return info.parent
    return None


def _check_same(recipe: FakeRecipe, folder: Path) -> None:
    """Raises unless the fake in folder has the parameters that were asked for and is whole."""
    written = Written.read(folder)
    if written is None or written.recipe != replace(
        recipe, config=written.recipe.config, version=written.recipe.version
    ):
        raise ConfigError(describe_conflict(recipe, folder, written and written.recipe))
    check_files(folder)


def _check_known(name: str) -> None:
    from tfds_torch.parsers.parser_tfds import registered_names  # Imports TFDS.

    names = registered_names()
    if name not in names:
        hint = f" prepare({name!r}) has it." if name in DEMO_NAMES else did_you_mean(name, names)
        raise DatasetNotFoundError(
            f"TFDS has no dataset {name!r}.{hint} A fake takes its features from TFDS's own builder; "
            f"tfds.list_builders(with_community_datasets=False) lists the {len(names)} there are."
        )
