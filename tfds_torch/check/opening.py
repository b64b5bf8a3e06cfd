"""Open the dataset that a command is about: prepared, embedded or made up."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tfds_torch import demo
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.one_split import is_beton, is_one_split
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.recipes import Config, MemberConfig
from tfds_torch.parsers.tfds.find import registered_names
from tfds_torch.parsers.tfds.not_found import base_name
from tfds_torch.parsers.tfds.parser import ParserTfds

_FAKE_HINT = 1000


def open_parser(
    config: Config,
    root: str | None = None,
    *,
    num_fake: int | None = None,
    num_shards: int | None = None,
    command: str = "python -m tfds_torch.check",
) -> DatasetParser:
    """Return the parser, without a preprocess, all decoded; build an embedded or made-up dataset first.

    Args:
        config: the dataset; without a split the usual one is opened.
        root: TFDS data directory; None for TFDS's default, or the embedded datasets' own.
        num_fake: examples per split of a made-up dataset; None if the dataset is there.
        num_shards: shards per split of an embedded or made-up dataset; None for its default.
        command: of the caller, for messages.

    Raises:
        ConfigError: arguments that cannot work, or not together.
        DatasetNotFoundError: no such dataset, or it is not prepared; the message names both remedies.
        ShardError: an embedded or made-up dataset was damaged since it was built.
        WorkerError: the dataset could not be built.
    """
    config = replace(
        config, preprocess=None, cameras=None, transform=None, decode=None
    )  # The received images are compared with pixels.
    if config.mixture is not None:
        return _open_mixture(config, root, num_fake, num_shards, command)
    return _open_dataset(config, root, num_fake=num_fake, num_shards=num_shards, command=command)


def _open_mixture(
    config: Config, root: str | None, num_fake: int | None, num_shards: int | None, command: str
) -> ParserMixture:
    """Return the mixture; build those members that are made up or embedded."""
    members = config.mixture or ()
    found = [one for one in members if one.source is None]
    embedded = [one.member_name for one in found if _is_embedded(one.name, one.root or root)]
    if num_fake is not None and len(embedded) == len(members):
        raise ConfigError(f"--fake {num_fake}: all members are embedded, with real content. Drop --fake.")

    def open_member(one: MemberConfig, recipe: Config) -> DatasetParser:
        is_fixed, is_there = one.source is not None or is_one_split(one.name), one.member_name in embedded
        is_made_up = num_fake is not None and not is_there and not is_fixed
        return _open_dataset(
            recipe,
            None if is_fixed else one.root or root,
            num_fake=num_fake if is_made_up else None,
            num_shards=num_shards if is_made_up or is_there else None,
            command=command,
        )

    return config.mix(open_member)


def _open_dataset(
    config: Config, root: str | tuple[str, ...] | None, *, num_fake: int | None, num_shards: int | None, command: str
) -> DatasetParser:
    if config.source is not None or is_one_split(config.name):
        _check_is_one_split(config, {"--root": root, "--fake": num_fake, "--shards": num_shards})
        return config.make_parser()
    name, is_embedded = _unversioned(config.name), _is_embedded(config.name, root)
    asked_root = root
    if num_fake is not None:
        if is_embedded:
            raise ConfigError(f"--fake {num_fake}: {name!r} is embedded, with real content. Drop --fake.")
        if isinstance(root, tuple):
            raise ConfigError(f"--fake {num_fake}: {config.name!r} lies in several roots. Drop --fake, or name one.")
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
            f"for datasets that are built here: with --fake, or {_embedded_names()}."
        )
    try:
        if config.split is None:
            config = replace(config, split=_usual_split(ParserTfds.split_names(root, config.name), config.is_training))
        return config.make_parser(root)
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(f"{error}{_ways_on(config.name, asked_root, command)}") from None


def _check_is_one_split(config: Config, flags: Mapping[str, object]) -> None:
    """Raise ConfigError for arguments that only a dataset of TFDS has."""
    what = ("a .beton file" if is_beton(config.name) else "WebDataset's tars") + ", which is one split, written before"
    if config.source is not None:
        what = "a dataset of your own, which has neither splits nor a folder"
    for flag, value in {**flags, "--split": config.split}.items():
        if value is not None:
            raise ConfigError(f"{flag} {value}: {config.name!r} names {what}. Drop {flag}.")


def _check_holds_no_real_data(root: str | None) -> None:
    """Raise ConfigError where made-up content would lie under a real name among the user's own datasets."""
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
    """Return whether `open_parser` builds the dataset where it is not there yet: it is embedded or made up."""
    return num_fake is not None or (config.source is None and _is_embedded(config.name, root))


def _is_embedded(name: str, root: str | tuple[str, ...] | None) -> bool:
    return root is None and _unversioned(name).partition("/")[0] in demo.DEMO_NAMES


def _embedded_names() -> str:
    *first, last = demo.DEMO_NAMES
    return f"{', '.join(first)} and {last}"


def _unversioned(name: str) -> str:
    return name.partition(":")[0]


def _ways_on(name: str, root: str | tuple[str, ...] | None, command: str) -> str:
    if base_name(name) in registered_names():
        return (
            f" Or try it with made-up content of the same form: "
            f"{command} --name {shlex.quote(name)} --fake {_FAKE_HINT}"
        )
    return f" Embedded: {_embedded_names()}." if root is None else ""


def _usual_split(there: Sequence[str], is_training: bool) -> str:
    wanted = ("train",) if is_training else ("test", "validation", "val", "train")
    return next((split for split in wanted if split in there), next(iter(there), "train"))


def _splits_to_fake(expression: str) -> tuple[str, ...]:
    """Return `train` and the splits that an expression like `validation[:10%]+test` names."""
    named = [part.partition("[")[0].strip() for part in expression.split("+")]
    return tuple(dict.fromkeys(["train", *(name for name in named if name != "all")]))
