"""The messages of a dataset that was not found: the name asked for, the datasets that exist, the remedy."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.parsers.tfds.folder import FEATURES, INFO, Folder, UnreadableError
from tfds_torch.runtime.printable import quoted, shortened
from tfds_torch.storage.remote.store import UnlistedError

_MOST_LISTED = 20
_LONGEST_COMPARED = 100  # Characters: comparing names takes quadratic time.


def base_name(name: str) -> str:
    """Return a dataset's name without config and version."""
    return name.partition("/")[0].partition(":")[0]


def nearest_names(name: str, known: Sequence[str]) -> list[str]:
    """Return the known names that are most like a name."""
    return get_close_matches(name.lower(), known) if len(name) <= _LONGEST_COMPARED else []


def describe_not_found(
    text: str, name: str, arguments: Mapping[str, Any], root: Folder, registered: Sequence[str]
) -> str:
    """Return a message: the name asked for, the datasets that exist, the remedy.

    Args:
        text: the whole name as it was asked for.
        name: the name of the dataset, without config and version.
        arguments: the config and the version, as far as they were named.
        root: the folder that was looked into.
        registered: the names that TFDS knows.
    """
    return (
        _describe_near(text, arguments, Path(root.path), registered)
        if root.is_local
        else _describe_far(text, name, arguments, root)
    )


def _describe_near(text: str, arguments: Mapping[str, Any], data_dir: Path, registered: Sequence[str]) -> str:
    prepared, incomplete = _found_under(data_dir)
    found = f" Prepared there: {_listed(prepared)}." if prepared else " Nothing is prepared there."
    if incomplete:
        found += f" Incomplete, without a features.json: {_listed(incomplete)}."
    known = [*registered, *map(base_name, prepared)]
    base = _own_name(base_name(text), known)
    if base in known and base != _snake_case(base_name(text)):
        problem = f"There is no dataset {quoted(text)} under {data_dir}: its name is {quoted(base)}."
        advice = "" if base in map(base_name, prepared) else _build_advice(base, arguments, data_dir)
    elif base in registered:
        problem = f"The dataset {quoted(text)} is not prepared under {data_dir}."
        advice = _build_advice(base, arguments, data_dir)
    else:
        problem = f"There is no dataset {quoted(text)}, neither prepared under {data_dir} nor known to TFDS."
        near = nearest_names(text, known)
        advice = f" The nearest names are: {', '.join(dict.fromkeys(near))}." if near else ""
    if not data_dir.is_dir():
        return (
            f"The root {data_dir} of dataset {quoted(text)} does not exist, or is not a directory. Give the directory "
            f"that holds the folders of the datasets.{advice if base in known else ''}"
        )
    return problem + advice + found


def _describe_far(text: str, name: str, arguments: Mapping[str, Any], root: Folder) -> str:
    config, version = arguments.get("config"), arguments.get("version")
    asked = f"{name}{f'/{config}' if config else ''}{f':{version}' if version else ''}"
    problem = f"There is no dataset {quoted(asked)} under {root}."
    if not root.lists:
        return f"{problem} There is no {root.below(name)}/.../{FEATURES}: check the name and the version."
    try:
        there = root.folders()
        below = root.below(name).folders() if name in there else []
    except (UnlistedError, UnreadableError) as error:
        return f"{problem} What is there is not known: {error}"
    if name in there:
        return f"{problem} Configs and versions of {quoted(name)} there: {_listed(below) or 'none'}."
    near = nearest_names(name, there)
    hint = f" The nearest names are: {', '.join(near)}." if near else ""
    return problem + hint + (f" Prepared there: {_listed(there)}." if there else " Nothing is there.")


def root_above(name: str, path: str) -> str | None:
    """Return the root above a dataset's own folder, where that folder (or its config's) was given as root."""
    data_dir = Path(path)
    try:
        if not any(data_dir.glob(f"*/{INFO}")):  # It holds versions.
            is_own = data_dir.name == name and any(data_dir.glob(f"*/*/{INFO}"))
            return str(data_dir.parent) if is_own else None
    except OSError:
        return None
    return str(data_dir.parent.parent if data_dir.parent.name == name else data_dir.parent)


def _own_name(base: str, known: Sequence[str]) -> str:
    """Return the name that is meant: TFDS accepts CamelCase for its snake_case, and no other capitals (CIFAR10)."""
    snake, small = _snake_case(base), base.lower()
    return small if snake not in known and small in known else snake


def _snake_case(base: str) -> str:
    return str(tfds.core.naming.camelcase_to_snakecase(base))


def _build_advice(base: str, arguments: Mapping[str, Any], data_dir: Path) -> str:
    """Return the line that prepares a dataset, with the config and the version asked for where TFDS builds them."""
    try:
        builder = tfds.builder_cls(base)
        configs = {config.name: config for config in builder.BUILDER_CONFIGS}
    except Exception:  # The code of a dataset may need anything.
        builder, configs = None, {}
    config, version = arguments.get("config"), arguments.get("version")
    name, missing = base, ""
    if config in configs:
        name += f"/{config}"
    elif config is not None:
        missing += f" TFDS has no config {quoted(config)} of it; it has: {_listed(list(configs)) or 'none'}."
    known = _versions(builder, configs.get(config))
    if version in known:
        name += f":{version}"
    elif version is not None:
        missing += f" TFDS does not build the version {quoted(version)}; it builds: {_listed(known) or 'the newest'}."
    # In Python: the command `tfds build` of TFDS 4.9.10 needs packages that TFDS does not install.
    line = f"tfds.builder({name!r}, data_dir={str(data_dir)!r}).download_and_prepare()"
    return f"{missing} Prepare it with: {line} (or pass download=True)."


def _versions(builder: Any, config: Any) -> list[str]:
    """Return the versions that TFDS builds of a dataset, the newest first."""
    of_config = [config] if config is not None else getattr(builder, "BUILDER_CONFIGS", [])[:1]
    found: list[Any] = []
    for owner, newest, others in [
        *((one, "version", "supported_versions") for one in of_config),
        (builder, "VERSION", "SUPPORTED_VERSIONS"),
    ]:
        if owner is not None and (first := getattr(owner, newest, None)):
            found += [first, *(getattr(owner, others, None) or ())]
            break  # A config's versions go before those of its dataset.
    return list(dict.fromkeys(str(version) for version in found))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} others" if len(names) > _MOST_LISTED else ""
    return ", ".join(map(shortened, names[:_MOST_LISTED])) + more


def _found_under(data_dir: Path) -> tuple[list[str], list[str]]:
    """Return the datasets below a root, as `name:version` or `name/config:version`: whole ones, incomplete ones."""
    whole: list[str] = []
    incomplete: list[str] = []
    for info in sorted([*data_dir.glob("*/*/dataset_info.json"), *data_dir.glob("*/*/*/dataset_info.json")]):
        name = ":".join(info.parent.relative_to(data_dir).as_posix().rsplit("/", 1))
        (whole if (info.parent / "features.json").is_file() else incomplete).append(name)
    return whole, incomplete
