"""The dataset that the command line of `python -m tfds_torch.check` asks for, and how it is read."""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from tfds_torch.check.opening import is_built_here
from tfds_torch.check.prove import How
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.parsers.recipes import Config
from tfds_torch.runtime.limits import num_cores

_DEFAULTS = Config(name="digits", is_training=True, batch_size=32, num_workers=2)


def check_reports(flags: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield the flag and the file of every report, before anything else is checked: reports cover all that follows.

    Raises:
        ConfigError: it cannot be written there.
    """
    if flags.json is not None:
        check_writable("--json", flags.json)
        yield "--json", flags.json
    if flags.html is not None:
        check_writable("--html", flags.html)
        if flags.html.suffix.lower() not in (".html", ".htm"):
            raise ConfigError(f"--html {flags.html}: the report page is an HTML file; end its name with .html.")
        _check_differ(flags, "json", "html")
        yield "--html", flags.html


def resolve(flags: argparse.Namespace) -> tuple[Config, How]:
    """Return the dataset that the flags and their config file ask for, and how it is read.

    `check_reports` has checked the reports. Without a split the usual one is read.

    Raises:
        ConfigError: a number out of range, flags that contradict each other, a config that cannot be read, a contact
            sheet that cannot be written, or this process is itself a rank of torchrun.
    """
    _check_is_no_rank(os.environ)
    _check_numbers(flags)
    config = _merge(flags, _DEFAULTS if flags.config is None else load_config(flags.config))
    _check_images(flags)
    how = How(
        num_replicas=flags.torchrun or flags.replicas or 1,
        num_workers=config.num_workers,
        num_epochs=flags.epochs,
        is_torchrun=flags.torchrun is not None,
        is_plain=flags.plain_loader,
        as_made=False,
        preprocess=config.preprocess,
        is_single=flags.single_examples,
        has_pictures=flags.html is not None,
        is_built_here=is_built_here(config, flags.root, flags.fake),
    )
    return config, how


def _check_numbers(flags: argparse.Namespace) -> None:
    least_of = {"workers": 0, "replicas": 1, "torchrun": 1, "epochs": 1, "fake": 1, "shards": 1}
    for name, least in least_of.items():
        number = getattr(flags, name)
        if number is not None and number < least:
            raise ConfigError(f"--{name} {number}: must be at least {least}.")
    most = max(16, 4 * num_cores())
    if flags.torchrun is not None and flags.torchrun > most:
        raise ConfigError(
            f"--torchrun {flags.torchrun}: each rank is a process with workers of its own, and this machine has "
            f"{num_cores()} cores. Ask for at most {most}, or read one rank after the other with --replicas."
        )
    if flags.torchrun is not None and flags.replicas not in (None, flags.torchrun):
        raise ConfigError(
            f"--torchrun {flags.torchrun} and --replicas {flags.replicas} contradict each other: both say how many "
            f"ranks there are. Leave out --replicas."
        )


def _merge(flags: argparse.Namespace, config: Config) -> Config:
    if flags.eval and config.is_training:
        # No other flag could take back what a file sets for training only.
        mode = "auto" if config.read.mode == "files" else config.read.mode
        config = structs.replace(
            config, shuffle=None, repeats=0, remainder=None, epoch_size=None, read=replace(config.read, mode=mode)
        )
        if isinstance(config.preprocess, TrainPreprocess):
            config = structs.replace(config, preprocess=None)
    for flag, value in {"--name": flags.name, "--split": flags.split}.items():
        if config.mixture is not None and value is not None:
            raise ConfigError(
                f"{flag} {value}: {flags.config} is the recipe of a mixture, whose entries [[mixture]] name its "
                f"datasets and splits. Leave out {flag}, or change the entries."
            )
        if config.source is not None and value is not None:
            raise ConfigError(
                f"{flag} {value}: {flags.config} has source = {config.source!r}, a dataset of your own, without names "
                f"and splits. Leave out {flag}."
            )
    given = {
        "name": flags.name,
        "split": flags.split,
        "batch_size": flags.batch_size,
        "num_workers": flags.workers,
        "is_training": False if flags.eval else None,
        "read": None if flags.read_mode is None else replace(config.read, mode=flags.read_mode),
    }
    return structs.replace(config, **{name: value for name, value in given.items() if value is not None})


def _check_images(flags: argparse.Namespace) -> None:
    if flags.images is None:
        return
    if flags.images.suffix.lower() != ".png":
        raise ConfigError(f"--images {flags.images}: the contact sheet is a PNG file; end its name with .png.")
    _check_differ(flags, "json", "images")
    check_writable("--images", flags.images)


def _check_differ(flags: argparse.Namespace, one: str, other: str) -> None:
    first, second = getattr(flags, one), getattr(flags, other)
    if first is not None and os.path.abspath(first) == os.path.abspath(second):
        raise ConfigError(f"--{one} and --{other} name the same file {first}: give two.")


def _check_is_no_rank(environ: Mapping[str, str]) -> None:
    """Raise ConfigError in a rank of torchrun: each rank would be a check of all ranks."""
    found = [f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in environ]
    if found:
        raise ConfigError(
            f"The environment sets {' and '.join(found)}, as under torchrun, and check starts its own ranks. Start it "
            f"by itself, with --torchrun {environ.get('WORLD_SIZE', 'R')} for ranks of torch.distributed; where "
            f"something else set them, unset RANK and WORLD_SIZE."
        )


def check_writable(flag: str, path: Path) -> None:
    """Find out before the work whether a file can be put there afterwards."""
    try:
        is_taken = _exists(path) and not path.is_file()
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(b"?")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path.
        raise ConfigError(
            f"{flag} {os.fspath(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}. Give a file "
            f"in a folder that exists and may be written."
        ) from None
    if is_taken:
        raise ConfigError(f"{flag} {os.fspath(path)!r} names something else than a file. Give the path of a file.")


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True
