"""Read recipes: TOML files, whose keys, types and bounds are declared by Structs.

ReadOptions, a preprocess, Windows, RemoteOptions and the parsers check their own arguments: this module only puts the
name of the table before their messages.
"""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Collection
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.class_map import check_entries
from tfds_torch.parsers.recipes import Config, Dataset, MemberConfig, MemberKeys, Part, RecipeKeys, TransformConfig
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.options import RemoteOptions

_MAX_FILE_BYTES = 64 * 2**10
_OF_WEIGHTS = ("schedule", "temperature", "stop")
_SECRETS = ("key", "secret", "token", "password", "credential", "account", "headers", "certificate", "proxy_url")
"""Parts of the names of storage options that are secrets, or may hold secrets."""
_NO_SECRETS = ("account_name", "sse_bucket_key_enabled", "credential_type")
"""Ends of names that have such a part, and are not secrets."""
_STEPS = re.compile(r"(-?[0-9]{1,10}):(-?[0-9]{1,10})")

_Made = TypeVar("_Made")
_Table = dict[str, Any]


class _Loader(Struct, frozen=True, forbid_unknown_fields=True):
    num_workers: Annotated[int, Meta(ge=0, le=1024)] = 2


class _MemberTables(MemberKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    read: _Table = msgspec.field(default_factory=dict)
    windows: _Table | None = None


class _Tables(RecipeKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file; tables are not yet turned into the objects that they describe."""

    loader: _Loader = _Loader()
    read: _Table = msgspec.field(default_factory=dict)
    preprocess: _Table | None = None
    windows: _Table | None = None
    remote: _Table | None = None
    mixture: list[_MemberTables] | None = None


_PREPROCESSES: dict[str, type[TrainPreprocess] | type[EvalPreprocess]] = {
    "train": TrainPreprocess,
    "eval": EvalPreprocess,
}
_KEYS: dict[str, Collection[str]] = {
    "": _Tables.__struct_fields__,
    "[loader]": _Loader.__struct_fields__,
    "[[mixture]]": _MemberTables.__struct_fields__,
    "[[schedule]]": Part.__struct_fields__,
    **dict.fromkeys(("[[transform]]", "[[mixture.transform]]"), TransformConfig.__struct_fields__),
    "[read]": ReadOptions.__dataclass_fields__,
    "[windows]": Windows.__dataclass_fields__,
    "[remote]": RemoteOptions.__dataclass_fields__,
    **{f"[preprocess] of kind = '{kind}'": one.__dataclass_fields__ for kind, one in _PREPROCESSES.items()},
}
"""Table -> its keys; "" is the top of a file."""


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a recipe.

    Args:
        path: a TOML file, at most 64 KiB. A path with `..` is refused: a name that comes from a job's settings must not
            lead out of the folder it is looked up in.

    Raises:
        ConfigError: the file does not exist, is too large or is not valid TOML; a key is unknown (the message names the
            nearest one); a value is of the wrong type or out of bounds.
    """
    file = Path(path)
    try:
        return _make_config(_parse(file), file.parent)
    except ConfigError as error:
        raise ConfigError(f"The config {quoted(os.fspath(path))}: {error}") from None


def _parse(path: Path) -> _Table:
    if ".." in path.parts:
        raise ConfigError("it leads out of its folder by '..'. Give the path of a config without '..'.")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        parsed = tomllib.loads(content.decode()) if len(content) <= _MAX_FILE_BYTES else None
    except FileNotFoundError:
        there = sorted(found.name for found in path.parent.glob("*.toml"))
        listed = f" In that folder are: {', '.join(there)}." if there else " That folder holds no .toml file."
        raise ConfigError(f"it does not exist.{did_you_mean(path.name, there)}{listed}") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not TOML, not UTF-8, or a null in the path.
        raise ConfigError(f"it cannot be read as TOML: {error}.") from None
    if parsed is None:
        raise ConfigError(f"it is larger than {_MAX_FILE_BYTES // 2**10} KiB: that is not a config.")
    return parsed


def _make_config(content: _Table, folder: Path) -> Config:
    file = _convert(content)
    given = {name: getattr(file, name) for name in RecipeKeys.__struct_fields__}
    given |= _make_preprocesses(file)
    given["read"] = _make("[read]", file.read, ReadOptions)
    given["num_workers"] = file.loader.num_workers
    given["windows"] = _make_windows("[windows]", file.windows)
    if file.remote is not None:
        if file.source is not None:
            raise ConfigError("[remote] has no effect on a dataset of your own: its function opens it.")
        _refuse_secrets(file.remote.get("storage_options"))
        given["remote"] = _make("[remote]", file.remote, RemoteOptions)
    if file.mixture is None:
        if strange := next((key for key in ("weights", *_OF_WEIGHTS) if key in content), None):
            raise ConfigError(f"{strange} is for mixtures only: give the datasets of one, each below [[mixture]].")
        return Config(**given | _name_and_class_map(file, "", folder))
    given |= {"name": "mixture", "mixture": tuple(_make_member(one, folder) for one in file.mixture)}
    config = Config(**given)
    _check_mixture(config, content)
    return config


def _convert(content: _Table) -> _Tables:
    """Return the content of a file after a check of types and bounds; image_key or target_key `false` becomes None."""
    content = _without_false(content)
    if isinstance(content.get("mixture"), list):
        content["mixture"] = [_without_false(one) for one in content["mixture"]]
    try:
        return msgspec.convert(content, _Tables)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), content)) from None


def _without_false(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    return {key: None if key in ("image_key", "target_key") and one is False else one for key, one in table.items()}


def _explain(said: str, content: Any) -> str:
    """Return the message of msgspec about a file, with the table, the value, and the key nearest to an unknown one."""
    problem, _, path = said.partition(" - at `$")
    of_key = re.fullmatch("Object (?:contains unknown|(missing) required) field `(.*)`", problem, re.DOTALL)
    steps = re.findall(r"[^.\[\]`]+", path)
    while not of_key and steps[-1].isdigit():
        steps.pop()  # A position in a list: the message shows the whole list.
    tables = steps if of_key else steps[:-1]
    name = ".".join(one for one in tables if not one.isdigit())
    table = f"[[{name}]]" if tables[-1:] and tables[-1].isdigit() else f"[{name}]" if name else ""
    if of_key:
        return f"{table} needs a line {of_key[2]} = ..." if of_key[1] else _unknown_key(table, of_key[2], _KEYS[table])
    for step in steps:
        content = content[int(step) if isinstance(content, list) else step]
    wanted = problem.replace(" | null", "").replace("object", "table").replace("array", "list")
    return f"{table} {steps[-1]} = {_shown(content)} is not valid: {wanted[0].lower()}{wanted[1:]}.".lstrip()


def _unknown_key(table: str, key: str, keys: Collection[str]) -> str:
    where = f" in {table}" if table else ""
    home = next((home or "the top of the file" for home, others in _KEYS.items() if key in others), None)
    hint = did_you_mean(key, keys) if home is None else f" It belongs to {home}."
    return f"unknown key {quoted(key)}{where}.{hint} The keys{where} are: {', '.join(sorted(keys))}."


def _make(table: str, given: _Table, owner: type[_Made]) -> _Made:
    """Return the object that a table describes; its constructor checks the values."""
    values = fields(owner)  # type: ignore[arg-type]
    is_required = {one.name: one.default is MISSING and one.default_factory is MISSING for one in values}
    if strange := next((key for key in given if key not in is_required), None):
        raise ConfigError(_unknown_key(table, strange, is_required))
    if missing := next((key for key, is_so in is_required.items() if is_so and key not in given), None):
        raise ConfigError(f"{table} needs a line {missing} = ...")
    try:
        return owner(**{key: tuple(one) if isinstance(one, list) else one for key, one in given.items()})
    except (ConfigError, TypeError) as error:  # TypeError: a constructor iterates over a value that is not a list.
        raise ConfigError(f"{table} {error}") from None


def _make_preprocesses(file: _Tables) -> _Table:
    """Return the fields `preprocess` and `cameras` of a Config, as far as the file has them."""
    table = file.preprocess
    if table is None:
        return {}
    if "kind" in table or not table or not all(isinstance(one, dict) for one in table.values()):
        return {"preprocess": _make_preprocess("[preprocess]", table)}
    made = {name: _make_preprocess(f"[preprocess.{name}]", one) for name, one in table.items()}
    if file.windows is None and all(one.windows is None for one in file.mixture or ()):
        raise ConfigError(
            f"[preprocess.{next(iter(made))}] is for a camera of windows, and there are none: give a table [windows], "
            f"or the keys of one [preprocess], which is for the image of whole records."
        )
    return {"preprocess": made.pop("image", None), "cameras": made}


def _make_preprocess(table: str, given: _Table) -> Preprocess:
    kind = given.get("kind")
    if kind not in list(_PREPROCESSES):
        raise ConfigError(f"{table} needs a line kind = 'train' or kind = 'eval'.{did_you_mean(kind, _PREPROCESSES)}")
    return _make(table, {key: one for key, one in given.items() if key != "kind"}, _PREPROCESSES[kind])


def _make_windows(table: str, given: _Table | None) -> Windows | None:
    """Return windows; the offsets of a field are a list of steps, or a text: `"0:16"` are the steps 0 to 15."""
    if given is None:
        return None
    offsets = given.get("offsets", {})
    if isinstance(offsets, dict):
        found = {name: _STEPS.fullmatch(own) for name, own in offsets.items() if isinstance(own, str)}
        offsets = {**offsets, **{name: range(int(own[1]), int(own[2])) for name, own in found.items() if own}}
    return _make(table, {**given, "offsets": offsets}, Windows)


def _make_member(file: _MemberTables, folder: Path) -> MemberConfig:
    given = {name: getattr(file, name) for name in MemberKeys.__struct_fields__}
    given |= _name_and_class_map(file, "[[mixture]]", folder)
    given["read"] = _make("[mixture.read]", file.read, ReadOptions)
    given["windows"] = _make_windows("[mixture.windows]", file.windows)
    return MemberConfig(**given)


def _check_mixture(config: Config, content: _Table) -> None:
    """Raise ConfigError for keys that belong to members, and for names and weights that contradict each other."""
    members, of_members = config.mixture or (), set(Dataset.__struct_fields__) - {"transform"}
    if strange := next((key for key in content if key in of_members), None):
        raise ConfigError(f"unknown key {quoted(strange)}. It belongs to [[mixture]].")
    if not members:
        raise ConfigError("mixture = [] must be a list of tables: a line [[mixture]] before the keys of each.")
    name, number = Counter(one.member_name for one in members).most_common(1)[0]
    if number > 1:
        raise ConfigError(
            f"{number} entries [[mixture]] are called {quoted(name)}: give each its own name, by a line like "
            f"member = 'other'."
        )
    weighted = [one for one in members if one.weight is not None]
    if weighted and len(weighted) < len(members):
        raise ConfigError(
            f"[[mixture]] {quoted(weighted[0].member_name)} has a weight: give each member one (0 leaves it out), or "
            f"give none."
        )
    if not config.has_weights and (useless := next((key for key in _OF_WEIGHTS if key in content), None)):
        raise ConfigError(
            f"{useless} has no effect without weights: give each [[mixture]] a weight, or weights = 'sizes', or leave "
            f"it out."
        )
    if config.has_weights and not config.is_training:
        raise ConfigError(
            "weights are for training only: give is_training = true, or leave out the weights; evaluation yields every "
            "example of every member exactly once."
        )


def _name_and_class_map(file: Dataset, table: str, folder: Path) -> _Table:
    """Return a dataset's fields `name` and `class_map`; a dataset of the user's own is named by its source."""
    if (file.source is None) == (not file.name) or (file.source and file.split):
        raise ConfigError(
            f"{table or 'it'} must name one dataset, by a line like name = 'cifar10', or, without name and split, "
            f"source = 'module:function' for one of your own"
            f"{'' if table else ', or the datasets of a mixture, each below [[mixture]]'}."
        )
    class_map, named = file.class_map, f"{table} class_map".lstrip()
    if isinstance(class_map, dict):
        check_entries(class_map, named)
    elif class_map is not None:
        if ".." in Path(class_map).parts:
            raise ConfigError(f"{named} = {_shown(class_map)} leads out of the config's folder by '..'.")
        class_map = os.fspath(folder / Path(class_map).expanduser())
    return {"name": file.name or file.source, "class_map": class_map}


def _refuse_secrets(options: object) -> None:
    for name in options if isinstance(options, dict) else ():
        if any(part in name.lower() for part in _SECRETS) and not name.lower().endswith(_NO_SECRETS):
            raise ConfigError(
                f"[remote] storage_options {quoted(name)} is a secret, or may hold one, and a recipe is a file that "
                f"others read. Leave it out, and set it in the environment (for example AWS_SECRET_ACCESS_KEY), in the "
                f"store's own configuration, or in Python: make_parser(remote=RemoteOptions(...))."
            )


def _shown(value: object) -> str:
    """Return a value as a TOML file writes it, cut after 40 characters."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
