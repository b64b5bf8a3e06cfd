"""Opens the dataset that a command is about: prepared, embedded or made up."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tfds_torch import demo
from tfds_torch.check.reference import CheckedParser
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.parsers.config import Config
from tfds_torch.parsers.mixture_config import MixtureConfig
from tfds_torch.parsers.mixture_parser import ParserMixture
from tfds_torch.parsers.parser_beton import ParserBeton
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset
from tfds_torch.parsers.tfds.dataset_names import base_name
from tfds_torch.parsers.tfds.dataset_opening import registered_names
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.parsers.web_dataset_fields import DEFAULT_EXTENSIONS
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.webdataset.shard_paths import expand_braces, look_at, shard_paths

_FAKE_HINT = 1000
_OF_MEMBERS = ("name", "split", "image_key", "target_key", "class_map", "read")
_OF_EPOCHS = ("shuffle", "is_training", "batch_size", "repeats", "seed", "remainder", "read")
_BETON, _TAR = ".beton", ".tar"
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def open_parser(
    config: Config,
    root: str | None = None,
    *,
    num_fake: int | None = None,
    num_shards: int | None = None,
    command: str = "python -m tfds_torch.check",
) -> CheckedParser:
    """Returns the parser, without a preprocess; an embedded or made-up dataset that is asked for is built first.

    Args:
        config: the dataset; without a split the usual one is opened.
        root: TFDS data directory; None: TFDS's default, or the embedded datasets' own.
        num_fake: examples per split of a made-up dataset; None: the dataset is there.
        num_shards: shards per split of an embedded or made-up dataset; None: its default.
        command: of the caller, for messages.

    Raises:
        ConfigError: arguments that cannot work, or not together.
        DatasetNotFoundError: no such dataset, or it is not prepared; the message gives both ways on.
        ShardError: an embedded or made-up dataset was damaged since it was built.
        WorkerError: the dataset could not be built.
    """
    config = replace(config, preprocess=None)
    if config.mixture is not None:
        return _open_mixture(config, config.mixture, root, num_fake, num_shards, command)
    return _open_dataset(config, root, num_fake=num_fake, num_shards=num_shards, command=command)


def _open_mixture(
    config: Config, mixture: MixtureConfig, root: str | None, num_fake: int | None, num_shards: int | None, command: str
) -> ParserMixture:
    """Returns the mixture; what is built is built for those members that are made up or embedded."""
    embedded = [one.member_name for one in mixture.members if _is_embedded(one.name, one.root or root)]
    if num_fake is not None and len(embedded) == len(mixture.members):
        raise ConfigError(f"--fake {num_fake}: all members are embedded, with real content. Drop --fake.")
    members = {}
    for one in mixture.members:
        name, is_fixed = one.member_name, is_one_split(one.name)
        is_made_up = num_fake is not None and name not in embedded and not is_fixed
        own = {key: getattr(one, key) for key in _OF_MEMBERS}
        dataset = replace(config, mixture=None, **own)
        try:
            members[name] = _open_dataset(
                dataset,
                None if is_fixed else one.root or root,
                num_fake=num_fake if is_made_up else None,
                num_shards=num_shards if is_made_up or name in embedded else None,
                command=command,
            )
        except (ConfigError, DatasetNotFoundError) as error:
            raise type(error)(f"Member {quoted(name)} of the mixture: {error}") from None
    epoch = {name: getattr(config, name) for name in _OF_EPOCHS}
    return ParserMixture(members, **epoch, **(mixture.arguments if config.is_training else {}))


def _open_dataset(
    config: Config, root: str | None, *, num_fake: int | None, num_shards: int | None, command: str
) -> ParserTfds | ParserBeton | ParserWebDataset:
    if is_one_split(config.name):
        _check_is_one_split(config, {"--root": root, "--fake": num_fake, "--shards": num_shards})
        return _open_beton(config) if config.name.endswith(_BETON) else _open_tars(config)
    name, is_embedded = _unversioned(config.name), _is_embedded(config.name, root)
    asked_root = root
    if num_fake is not None:
        if is_embedded:
            raise ConfigError(f"--fake {num_fake}: {name!r} is embedded, with real content. Drop --fake.")
        _check_holds_no_real_data(root)
        root = str(
            demo.prepare_fake(
                config.name,
                num_examples=num_fake,
                num_shards=num_shards,
                splits=_splits_to_fake("train" if config.split is None else config.split),
                root=root,
            )
        )
    elif is_embedded:
        root = str(demo.prepare(name, num_shards=num_shards))
    elif num_shards is not None:
        raise ConfigError(
            f"--shards {num_shards}: {config.name!r} has the shards that it was prepared with. --shards is "
            f"for datasets that are built here: with --fake, or {' and '.join(demo.DEMO_NAMES)}."
        )
    try:
        if config.split is None:
            config = replace(config, split=_usual_split(ParserTfds.split_names(root, config.name), config.is_training))
        return config.make_parser(root)
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(f"{error}{_ways_on(config.name, asked_root, command)}") from None


def is_one_split(name: str) -> bool:
    """Whether a name is the path of a `.beton` file or of tars, which have no splits to choose from."""
    return name.endswith(_BETON) or _names_tars(name)


def _open_beton(config: Config) -> ParserBeton:
    path = Path(config.name)
    _check_is_there(path)
    return ParserBeton(path, **_arguments(config))


def _open_tars(config: Config) -> ParserWebDataset:
    """Returns the parser of tars; a key of the config that is not the usual one is an extension."""
    paths = shard_paths(config.name)
    try:
        look_at(paths)
    except ShardError as error:  # A mistyped path is not a broken promise.
        raise DatasetNotFoundError(str(error)) from None
    arguments = _arguments(config)
    keys = {"image": arguments.pop("image_key"), "label": arguments.pop("target_key")}
    if keys == {"image": "image", "label": "label"}:
        return ParserWebDataset(config.name, **arguments)
    extensions = {name: DEFAULT_EXTENSIONS[name] if key == name else key for name, key in keys.items() if key}
    return ParserWebDataset(config.name, extensions, **arguments)


def _names_tars(name: str) -> bool:
    """Whether a name is the path of tars, or the first one that its braces make is: `{a,b}.tar`, `{a.tar,b.tar}`."""
    try:
        name = next(expand_braces(name), name)
    except ConfigError:  # Of braces that are not closed, which is said where tars are opened.
        pass
    return name.lower().endswith((_TAR, *_COMPRESSED_TARS))


def _check_is_there(path: Path) -> None:
    try:
        is_there = path.is_file()
    except OSError as error:  # No permission, or too long a name.
        raise DatasetNotFoundError(f"The file {str(path)!r} cannot be looked at: {error.strerror}.") from None
    if not is_there:
        there = sorted(found.name for found in path.parent.glob(f"*{path.suffix}"))
        hint = " Wildcards are not expanded: write a-{000..099}.tar." if "*" in path.name else ""
        raise DatasetNotFoundError(f"There is no file {str(path)!r}.{hint or did_you_mean(path.name, there)}")


def _check_is_one_split(config: Config, flags: Mapping[str, object]) -> None:
    """Raises ConfigError for what only a dataset of TFDS has."""
    what = "a .beton file" if config.name.endswith(_BETON) else "WebDataset's tars"
    for flag, value in {**flags, "--split": config.split}.items():
        if value is not None:
            raise ConfigError(
                f"{flag} {value}: {config.name!r} names {what}, which is one split, written before. Drop {flag}."
            )
    if isinstance(config.target_key, tuple):
        raise ConfigError(f"target_key={config.target_key}: the target of {what} is one field. Name one.")


def _arguments(config: Config) -> dict[str, Any]:
    others = ("name", "split", "preprocess", "num_workers", "mixture")
    return {key.name: getattr(config, key.name) for key in fields(config) if key.name not in others}


def _check_holds_no_real_data(root: str | None) -> None:
    """Made-up content must not be found later under a real name, among the user's own datasets."""
    if root is None:
        return
    infos = (path for depth in ("*/*", "*/*/*") for path in Path(root).expanduser().glob(f"{depth}/dataset_info.json"))
    real = next((path.parent for path in infos if not demo.is_fake(path.parent)), None)
    if real is not None:
        raise ConfigError(
            f"--fake with --root {root}: that folder holds a real dataset ({real.name} in {real.parent}), and made-up "
            f"content must not lie beside it. Leave out --root, or give a folder of its own."
        )


def is_built_here(config: Config, root: str | None, num_fake: int | None) -> bool:
    """Whether `open_parser` builds the dataset where it is not there yet: it is embedded or made up."""
    return num_fake is not None or _is_embedded(config.name, root)


def _is_embedded(name: str, root: str | None) -> bool:
    return root is None and _unversioned(name) in demo.DEMO_NAMES


def _unversioned(name: str) -> str:
    return name.partition(":")[0]


def _ways_on(name: str, root: str | None, command: str) -> str:
    if base_name(name) in registered_names():
        return (
            f" Or try it with made-up content of the same form: "
            f"{command} --name {shlex.quote(name)} --fake {_FAKE_HINT}"
        )
    return f" Embedded: {' and '.join(demo.DEMO_NAMES)}." if root is None else ""


def _usual_split(there: Sequence[str], is_training: bool) -> str:
    wanted = ("train",) if is_training else ("test", "validation", "train")
    return next((split for split in wanted if split in there), next(iter(there), "train"))


def _splits_to_fake(expression: str) -> tuple[str, ...]:
    """Returns `train` and the splits that an expression such as `validation[:10%]+test` names."""
    named = [part.partition("[")[0].strip() for part in expression.split("+")]
    return tuple(dict.fromkeys(["train", *(name for name in named if name != "all")]))
