"""Config: what to read and how, from a TOML file such as those in `configs/`."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.cache.decoded_cache import DecodedCache
from tfds_torch.parsers.class_map import check_entries
from tfds_torch.parsers.config_values import check_keys, checked, shown, take_tables
from tfds_torch.parsers.mixture_config import MEMBER_KEYS, MIXTURE, TOP_KEYS, MemberConfig, MixtureConfig, make_mixture
from tfds_torch.parsers.mixture_parser import ParserMixture
from tfds_torch.parsers.one_split import is_one_split, open_one_split
from tfds_torch.parsers.own_dataset import name_by_source, open_own_dataset
from tfds_torch.parsers.parser_base import ParserBase
from tfds_torch.parsers.parser_beton import ParserBeton
from tfds_torch.parsers.parser_map_style import ParserMapStyle
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset
from tfds_torch.parsers.preprocess_config import PREPROCESS, PREPROCESS_KEYS, make_preprocess, of_cameras
from tfds_torch.parsers.remote_config import REMOTE, REMOTE_KEYS, make_remote
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.parsers.windows_config import (
    TRANSFORM,
    WINDOWS,
    WINDOWS_KEYS,
    TransformConfig,
    make_transforms,
    make_windows,
)
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.options import RemoteOptions

_MAX_FILE_BYTES = 64 * 2**10
_OF_MEMBERS = ("name", "split", "image_key", "target_key", "class_map", "read", "source", "fields")
_OF_EPOCHS = ("shuffle", "is_training", "batch_size", "repeats", "seed", "remainder", "epoch_size")


@dataclass(frozen=True)
class Config:
    """A recipe: which dataset is read, and how.

    In the file, `read` is a table `[read]` with the fields of ReadOptions, `preprocess` a table `[preprocess]` with
    `kind = "train"` or `"eval"` and the fields of TrainPreprocess or EvalPreprocess (of windows there is one for each
    camera, `[preprocess.image_primary]`), and `num_workers` stands in the table `[loader]`; the other keys stand at the
    top. A key that is left out has the default of ParserTfds.

    A mixture has a table [[mixture]] for each dataset (see MemberConfig), and the keys of MixtureConfig at the top.

    Attributes:
        name: the dataset, `name`, `name/config`, `name:version` or `name/config:version`.
        split: a TFDS split expression; None: `train`.
        is_training: whether the examples are for training.
        batch_size: examples of a rank's batch.
        shuffle: whether the order is shuffled; None: as `is_training`.
        repeats: passes over the split in one epoch.
        seed: seed of the order.
        remainder: `wrap`, `drop`, `pad` or `keep`; None: the usual one.
        image_key: feature that holds the image; None, in the file false: there is none.
        target_key: feature that holds the target; several, in the file a list of strings; None, in the file false.
        image_mode: `RGB`, `L` or `RGBA`.
        class_map: new labels for the target: in the file a table of labels by class name, or the path of a `.txt` or
            `.pkl` file, seen from the folder of the config and without `..`.
        read: how examples are read.
        preprocess: what is done to images while they are decoded; None: they come as they are stored.
        num_workers: loader processes of a rank.
        epoch_size: examples of an epoch, in training; None: whole passes, or as a mixture's `stop` says.
        decode: field -> whether it is decoded, as in ParserTfds: in the file a table, {image = false}; of a mixture,
            that of all its members.
        source: a dataset of the user's own in the place of a name, `module:function`: the function is imported, called
            without arguments, and returns what ParserMapStyle reads; None: the name says it.
        windows: the windows of episodes that are the examples, in the file a table `[windows]`; of a mixture, those of
            all members that have none of their own. None: examples are whole records.
        fields: of windows: names of the user's own -> the features that they stand for, as in ParserTfds.
        cameras: of windows: field -> its preprocess; of a mixture, those of all members.
        transform: of windows: functions that make fields out of others, in the file a table `[[transform]]` for each,
            whose function is `module:function`; of a mixture, those of all members that have none of their own.
        remote: of URLs: how objects are fetched, and where they are cached, in the file a table `[remote]` with the
            fields of RemoteOptions and a table `storage_options` without secrets; None: RemoteOptions().
        mixture: the datasets that are mixed, each with its own name, split, keys and class map; None: one is read.
    """

    name: str
    split: str | None = None
    is_training: bool = False
    batch_size: int | None = None
    shuffle: bool | None = None
    repeats: int = 0
    seed: int = 42
    remainder: str | None = None
    image_key: str | None = "image"
    target_key: str | tuple[str, ...] | None = "label"
    image_mode: str | None = "RGB"
    class_map: str | dict[str, int] | None = None
    read: ReadOptions = ReadOptions()
    preprocess: Preprocess | None = None
    num_workers: int = 2
    epoch_size: int | None = None
    mixture: MixtureConfig | None = None
    decode: Mapping[str, bool] | None = None
    source: str | None = None
    windows: Windows | None = None
    fields: Mapping[str, str] | None = None
    cameras: Mapping[str, Preprocess] | None = None
    transform: tuple[TransformConfig, ...] | None = None
    remote: RemoteOptions | None = None

    def make_parser(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        download: bool = False,
        cache: DecodedCache | None = None,
        remote: RemoteOptions | None = None,
    ) -> ParserTfds | ParserBeton | ParserWebDataset | ParserMapStyle | ParserMixture:
        """Returns the parser that reads it.

        Args:
            root: TFDS data directory, a path or a URL; None: TFDS's default. A path of a `.beton` file or of tars does
                not need one.
            download: whether to prepare a dataset of TFDS that is not there.
            cache: where decoded images of a dataset of TFDS are kept; None: nowhere.
            remote: of URLs: how objects are fetched, and where they are cached; None: as the recipe says.

        Raises:
            ConfigError: values that cannot work together, or not with this dataset.
            DatasetNotFoundError: the dataset is not prepared under `root`.
        """
        remote = remote or self.remote
        if self.mixture is not None:
            here: dict[str, Any] = {"download": download, "cache": cache, "remote": remote}
            return self.mix(lambda one, recipe: recipe.make_parser(one.root or root, **here))
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("num_workers", "mixture", "source", "remote"):
            del given[name]
        is_of_tfds = self.source is None and not is_one_split(self.name)
        of_windows = {name: given.pop(name) for name in ("windows", "fields", "cameras", "transform")}
        if not is_of_tfds and any(one is not None for one in of_windows.values()):
            raise ConfigError(
                f"{quoted(self.source or self.name)} has no windows: they are of datasets of TFDS whose records are "
                f"episodes. Leave out {', '.join(name for name, one in of_windows.items() if one is not None)}."
            )
        if self.source is not None:
            del given["name"], given["split"]
            return open_own_dataset(self.source, **given)
        if not is_of_tfds:
            del given["split"]
            return open_one_split(**given, remote=remote)
        given |= {
            "split": "train" if self.split is None else self.split,
            "windows": self.windows,
            "fields": self.fields,
        }
        if self.cameras is not None:
            of_image = {} if self.preprocess is None else {"image": self.preprocess}
            given["preprocess"] = {**self.cameras, **of_image}
        if self.transform is not None:
            given["transform"] = [one.make() for one in self.transform]
        return ParserTfds(root, download=download, cache=cache, remote=remote, **given)

    def for_evaluation(self) -> "Config":
        """Returns this recipe without what it says of training only: every example once, in order."""
        return replace(self, is_training=False, shuffle=None, repeats=0, remainder=None, epoch_size=None)

    def mix(self, open_member: "Callable[[MemberConfig, Config], ParserBase]") -> ParserMixture:
        """Returns the mixture, as this recipe mixes its members; in evaluation without their weights.

        Args:
            open_member: returns the parser of a member, of whose dataset it is given the recipe: what belongs to an
                epoch is the mixture's.

        Raises:
            ConfigError, DatasetNotFoundError: as `open_member`, with the member's name; and as ParserMixture.
        """
        mixture, members = self.mixture, dict[str, ParserBase]()
        for one in () if mixture is None else mixture.members:
            own = {name: getattr(one, name) for name in _OF_MEMBERS} | {"windows": one.windows or self.windows}
            own["transform"] = self.transform if one.transform is None else one.transform
            recipe = replace(self, mixture=None, preprocess=None, epoch_size=None, **own)
            try:
                members[one.member_name] = open_member(one, recipe)
            except (ConfigError, DatasetNotFoundError) as error:
                raise type(error)(f"Member {quoted(one.member_name)} of the mixture: {error}") from None
        epoch = {name: getattr(self, name) for name in _OF_EPOCHS}
        arguments = mixture.arguments if mixture is not None and self.is_training else {}
        return ParserMixture(members, preprocess=self.preprocess, read=self.read, **epoch, **arguments)


def load_config(path: str | os.PathLike[str]) -> Config:
    """Reads a config file.

    Args:
        path: a TOML file, at most 64 KiB. A path with `..` is refused: a name that comes from a job's settings must not
            lead out of the folder it is looked up in.

    Raises:
        ConfigError: no such file, no valid TOML, an unknown key (with the nearest one), a value of the wrong type or
            out of bounds.
    """
    source = f"The config {quoted(os.fspath(path))}"
    content = _parse(_read(Path(path), source), source)
    is_mixture, has_preprocess, has_windows, has_remote = (
        name in content for name in ("mixture", "preprocess", "windows", "remote")
    )
    names = ("read", "loader", "preprocess", "windows", "remote")
    tables = {name: _take_table(source, content, name) for name in names}
    read, loader, preprocess, windows, remote = tables.values()
    entries, schedule, transforms = (
        take_tables(source, content, name) for name in ("mixture", "schedule", "transform")
    )
    _check_all_keys(source, content, tables, entries, _homes(is_mixture))

    def find_class_map(value: object, where: str) -> Any:
        if isinstance(value, dict):
            check_entries(value, where)
            return value
        return _resolve(str(value), Path(path), source)

    mixed = {key: content.pop(key) for key in TOP_KEYS & content.keys()}
    top = checked(source, "", content, Config) | checked(source, "[loader]", loader, Config)
    if has_preprocess:
        top |= _make_preprocesses(source, preprocess)
    if "cameras" in top and not (has_windows or any("windows" in one for one in entries)):
        camera = next(iter(top["cameras"]))
        raise ConfigError(
            f"{source}: [preprocess.{camera}] is for a camera of windows, and there are none: give a table {WINDOWS}, "
            f"or the keys of one {PREPROCESS}, which is for the image of whole records."
        )
    if has_remote:
        if "source" in top:
            raise ConfigError(f"{source}: {REMOTE} has no effect on a dataset of your own: its function opens it.")
        top["remote"] = make_remote(source, remote)
    if has_windows:
        top["windows"] = make_windows(source, WINDOWS, windows)
    if transforms:
        top["transform"] = make_transforms(source, TRANSFORM, transforms)
    if "class_map" in top:
        top["class_map"] = find_class_map(top["class_map"], f"{source}: class_map")
    if is_mixture:
        mixture = make_mixture(source, mixed, entries, schedule, find_class_map)
        if mixture.arguments and not top.get("is_training", False):
            raise ConfigError(
                f"{source}: weights are those of training: give is_training = true, or leave out the weights; "
                f"evaluation has every example of every member exactly once."
            )
        top |= {"name": "mixture", "mixture": mixture}
    elif schedule:
        raise ConfigError(f"{source}: [[schedule]] is that of a mixture: give its datasets, each below {MIXTURE}.")
    elif not name_by_source(source, top) and "name" not in top:
        raise ConfigError(
            f"{source} does not say which dataset it is about: it needs a line such as name = 'cifar10', or source = "
            f"'module:function' for one of your own, or the datasets of a mixture, each below {MIXTURE}."
        )
    options = checked(source, "[read]", read, ReadOptions)
    try:
        return Config(**top, read=ReadOptions(**options))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _check_all_keys(
    source: str,
    top: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    homes: Mapping[str, set[str]],
) -> None:
    """Raises ConfigError for an unknown key at the top of a file, in its tables, or in the entries of a mixture."""
    check_keys(source, "", top, homes)
    for name, table in tables.items():
        cameras = of_cameras(table) if name == "preprocess" else {}
        if not cameras:
            check_keys(source, f"[{name}]", table, homes)
        for camera, own in cameras.items():
            _check_keys_of(source, f"[preprocess.{camera}]", own, homes, PREPROCESS)
    for entry in entries:
        check_keys(source, MIXTURE, entry, homes)
        for name in ("read", "windows"):
            of_member = _take_table(source, dict(entry), name, f"mixture.{name}")
            _check_keys_of(source, f"[mixture.{name}]", of_member, homes, f"[{name}]")


def _check_keys_of(
    source: str, shown_name: str, table: Mapping[str, Any], homes: Mapping[str, set[str]], as_in: str
) -> None:
    """Raises ConfigError for an unknown key in a table that has the keys of another one."""
    check_keys(source, shown_name, table, {**homes, shown_name: homes[as_in]})


def _make_preprocesses(source: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields `preprocess` and `cameras` of a Config, as far as the file gives them."""
    cameras = {name: make_preprocess(source, f"[preprocess.{name}]", own) for name, own in of_cameras(table).items()}
    if not cameras:
        return {"preprocess": make_preprocess(source, PREPROCESS, table)}
    of_image = {"preprocess": cameras.pop("image")} if "image" in cameras else {}
    return {"cameras": cameras, **of_image}


def _homes(is_mixture: bool) -> dict[str, set[str]]:
    """Returns the tables of a file and their keys; of a mixture, what says which dataset is read is each member's."""
    top = set(get_type_hints(Config)) - {"num_workers", "cameras"}
    homes = {"": top | {"loader", "schedule"}, "[read]": set(get_type_hints(ReadOptions)), "[loader]": {"num_workers"}}
    homes |= {WINDOWS: set(WINDOWS_KEYS), PREPROCESS: set(PREPROCESS_KEYS), REMOTE: set(REMOTE_KEYS)}
    if is_mixture:
        homes[""] = homes[""] - MEMBER_KEYS | TOP_KEYS
        homes[MIXTURE] = {*MEMBER_KEYS, "read", "windows", "transform"}
    return homes


def _take_table(source: str, content: dict[str, Any], name: str, shown_name: str = "") -> dict[str, Any]:
    """Takes a table out of the content of a file; an empty one where there is none."""
    table, shown_name = content.pop(name, {}), shown_name or name
    if not isinstance(table, dict):
        raise ConfigError(
            f"{source}: {shown_name} = {quoted(table)} must be a table: a line [{shown_name}], and its keys below it."
        )
    return table


def _resolve(name: str, config: Path, source: str) -> str:
    """Returns the path of a file that a config names: it lies in the config's folder, or in one below."""
    if ".." in Path(name).parts:
        raise ConfigError(f"{source}: class_map = {shown(name)} leads out of the config's folder by '..'.")
    return os.fspath(config.parent / Path(name).expanduser())


def _read(path: Path, source: str) -> bytes:
    if ".." in path.parts:
        raise ConfigError(f"{source} leads out of its folder by '..'. Give the path of a config without '..'.")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        there = sorted(found.name for found in path.parent.glob("*.toml"))
        listed = f" In that folder are: {', '.join(there)}." if there else " That folder holds no .toml file."
        raise ConfigError(f"{source} does not exist.{did_you_mean(path.name, there)}{listed}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path.
        raise ConfigError(f"{source} cannot be read: {error}.") from None
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{source} is larger than {_MAX_FILE_BYTES // 2**10} KiB: that is not a config.")
    return content


def _parse(content: bytes, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply.") from None
