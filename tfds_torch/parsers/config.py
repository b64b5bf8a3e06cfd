"""Config: what to read and how, from a TOML file such as those in `configs/`."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.cache.decoded_cache import DecodedCache
from tfds_torch.parsers.class_map import check_entries
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

_MAX_FILE_BYTES = 64 * 2**10
_BOUNDS = {
    "batch_size": (1, 2**16),
    "repeats": (0, 10_000),
    "seed": (0, 2**63 - 1),
    "num_workers": (0, 1024),
    "num_threads": (1, 1024),
    "cycle_length": (1, 4096),
    "read_buffer_bytes": (1, 2**30),
    "shuffle_buffer": (1, 10**8),
    "prefetch_batches": (1, 1024),
    "ram_budget_bytes": (1, 2**40),
    "block_records": (1, 10**8),
    "max_replaced": (1, 10**8),
    "size": (1, 2**14),
    "crop_padding": (0, 2**14),
    "fill": (0, 255),
    "max_pixels": (1, 2**40),
}
_SHOWN_TYPES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "a table of labels by class name",
}
_PREPROCESSES: dict[str, Any] = {"train": TrainPreprocess, "eval": EvalPreprocess}


@dataclass(frozen=True)
class Config:
    """A recipe: which dataset is read, and how.

    In the file, `read` is a table `[read]` with the fields of ReadOptions, `preprocess` a table `[preprocess]` with
    `kind = "train"` or `"eval"` and the fields of TrainPreprocess or EvalPreprocess, and `num_workers` stands in the
    table `[loader]`; the other keys stand at the top. A key that is left out has the default of ParserTfds.

    Attributes:
        name: the dataset, `name`, `name/config`, `name:version` or `name/config:version`.
        split: a TFDS split expression; None: `train`.
        is_training: whether the examples are for training.
        batch_size: examples of a rank's batch.
        shuffle: whether the order is shuffled; None: as `is_training`.
        repeats: passes over the split in one epoch.
        seed: seed of the order.
        remainder: `wrap`, `drop`, `pad` or `keep`; None: the usual one.
        image_key: feature that holds the image.
        target_key: feature that holds the target; several, in the file a list of strings.
        image_mode: `RGB`, `L` or `RGBA`.
        class_map: new labels for the target: in the file a table of labels by class name, or the path of a `.txt` or
            `.pkl` file, seen from the folder of the config and without `..`.
        read: how examples are read.
        preprocess: what is done to images while they are decoded; None: they come as they are stored.
        num_workers: loader processes of a rank.
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

    def make_parser(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        download: bool = False,
        cache: DecodedCache | None = None,
    ) -> ParserTfds:
        """Returns the parser that reads it.

        Args:
            root: TFDS data directory; None: TFDS's default.
            download: whether to prepare a dataset that is not there.
            cache: where decoded images are kept; None: nowhere.

        Raises:
            ConfigError: values that cannot work together, or not with this dataset.
            DatasetNotFoundError: the dataset is not prepared under `root`.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "num_workers"}
        given["split"] = "train" if self.split is None else self.split
        return ParserTfds(root, download=download, cache=cache, **given)


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
    has_preprocess = "preprocess" in content
    tables: dict[str, Mapping[str, Any]] = {"read": {}, "loader": {}, "preprocess": {}}
    for name in tables:
        table = content.pop(name, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"{source}: {name} = {quoted(table)} must be a table: a line [{name}], and its keys below it."
            )
        tables[name] = table
    keys = {name: set(get_type_hints(owner)) for name, owner in (("", Config), ("read", ReadOptions))}
    keys["loader"] = {"num_workers"}
    keys["preprocess"] = {"kind"}.union(*map(get_type_hints, _PREPROCESSES.values()))
    keys[""] -= {"read", "num_workers", "preprocess"}
    for name, table in {"": content, **tables}.items():
        _check_keys(source, name, table, keys)
    top = _checked(source, "", content, Config) | _checked(source, "loader", tables["loader"], Config)
    read = _checked(source, "read", tables["read"], ReadOptions)
    if has_preprocess:
        top["preprocess"] = _make_preprocess(source, tables["preprocess"])
    if isinstance(top.get("class_map"), dict):
        check_entries(top["class_map"], f"{source}: class_map")
    elif "class_map" in top:
        top["class_map"] = _resolve(top["class_map"], Path(path), source)
    if "name" not in top:
        raise ConfigError(f"{source} does not say which dataset it is about: it needs a line such as name = 'cifar10'.")
    try:
        return Config(**top, read=ReadOptions(**read))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _make_preprocess(source: str, table: Mapping[str, Any]) -> Preprocess:
    where, kinds = f"{source}: [preprocess]", " or ".join(map(repr, _PREPROCESSES))
    given = dict(table)
    kind = given.pop("kind", None)
    if kind is None:
        raise ConfigError(f"{where} does not say what it is for: it needs a line kind = {kinds}.")
    if not isinstance(kind, str) or kind not in _PREPROCESSES:
        raise ConfigError(f"{where} kind = {_shown(kind)} must be {kinds}.{did_you_mean(kind, _PREPROCESSES)}")
    owner = _PREPROCESSES[kind]
    strange = next((key for key in given if key not in get_type_hints(owner)), None)
    if strange is not None:
        other = next(name for name in _PREPROCESSES if name != kind)
        raise ConfigError(
            f"{where} kind = {quoted(kind)} has no {quoted(strange)}: it belongs to kind = {quoted(other)}."
        )
    if "size" not in given:
        raise ConfigError(f"{where} needs size: the pixels of a side, or [height, width].")
    values = _checked(source, "preprocess", given, owner)
    try:
        return owner(**values)  # type: ignore[no-any-return]
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from None


def _resolve(name: str, config: Path, source: str) -> str:
    """Returns the path of a file that a config names: it lies in the config's folder, or in one below."""
    if ".." in Path(name).parts:
        raise ConfigError(f"{source}: class_map = {_shown(name)} leads out of the config's folder by '..'.")
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


def _check_keys(source: str, table: str, given: Mapping[str, Any], keys: Mapping[str, set[str]]) -> None:
    known = keys[table] if table else keys[table] | (keys.keys() - {""})
    for key in given:
        if key in known:
            continue
        where = f" in [{table}]" if table else ""
        elsewhere = [f"[{other}]" if other else "the top of the file" for other in keys if key in keys[other]]
        hint = f" It belongs to {elsewhere[0]}." if elsewhere else did_you_mean(key, known)
        raise ConfigError(
            f"{source}: unknown key {quoted(key)}{where}.{hint} The keys{where} are: {', '.join(sorted(known))}."
        )


def _checked(source: str, table: str, given: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Returns the given values, each of the type that its field has in `owner`, and within its bounds.

    A list is a tuple there, which cannot be changed in a Config.
    """
    hints = get_type_hints(owner)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    for key, value in values.items():
        kinds = get_args(hints[key]) if isinstance(hints[key], UnionType) else (hints[key],)
        shown = " ".join(filter(None, (f"[{table}]" if table else "", key)))
        if not any(_is_of(value, kind) for kind in kinds):
            wanted = " or ".join(filter(None, map(_describe, kinds)))
            raise ConfigError(f"{source}: {shown} = {_shown(given[key])} must be {wanted}.")
        least, most = _BOUNDS.get(key, (None, None))
        numbers = value if isinstance(value, tuple) else (value,)
        if least is not None and not all(least <= number <= most for number in numbers):
            raise ConfigError(f"{source}: {shown} = {_shown(given[key])} must be in {least}..{most}.")
    return values


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of the type that a hint names: not by isinstance, because a boolean is not a number."""
    if get_origin(kind) is tuple:
        return type(value) is tuple and all(_is_of(item, get_args(kind)[0]) for item in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (get_origin(kind) or kind)


def _describe(kind: Any) -> str:
    """Returns what a file may hold for a hint; empty where it cannot hold any."""
    if get_origin(kind) is tuple:
        return f"a list of {_SHOWN_TYPES[get_args(kind)[0]].split()[-1]}s"
    return _SHOWN_TYPES.get(get_origin(kind) or kind, "")


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
