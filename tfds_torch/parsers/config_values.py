"""What a recipe may say: known keys, types and bounds, and the messages about others."""

from collections.abc import Mapping, Set
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

_BOUNDS = {
    "epoch_size": (1, 2**62),
    "start": (1, 2**62),
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
    "block_groups": (1, 2**16),
    "max_replaced": (1, 10**8),
    "size": (1, 2**14),
    "crop_padding": (0, 2**14),
    "fill": (0, 255),
    "max_pixels": (1, 2**40),
    "min_visible": (0, 1),
}
_OPTIONAL = ("image_key", "target_key")
_SHOWN_TYPES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "a table of labels by class name",
    Mapping: "a table of lists of strings",
}
_SHOWN_TABLES = {bool: "a table of true or false by field", str: "a table of features by the names of fields"}


def check_keys(source: str, table: str, given: Mapping[str, Any], homes: Mapping[str, Set[str]]) -> None:
    """Raises ConfigError for a key that does not belong to a table, with the table that it belongs to.

    Args:
        source: the file, for messages.
        table: its name as it is written, `[read]`; empty: the top of the file.
        given: what it holds.
        homes: table -> its keys.
    """
    for key in given:
        if key in homes[table]:
            continue
        where = f" in {table}" if table else ""
        elsewhere = [other or "the top of the file" for other in homes if key in homes[other]]
        hint = f" It belongs to {elsewhere[0]}." if elsewhere else did_you_mean(key, homes[table])
        raise ConfigError(
            f"{source}: unknown key {quoted(key)}{where}.{hint} The keys{where} are: {', '.join(sorted(homes[table]))}."
        )


def checked(source: str, table: str, given: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Returns the given values of a table, each of the type that its field has in `owner`, and within its bounds.

    A list is a tuple there, which cannot be changed in a Config; `false` as the key of an image or target is None.

    Raises:
        ConfigError: a value of another type, or out of its bounds.
    """
    hints = get_type_hints(owner)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    values |= {key: None for key in _OPTIONAL if values.get(key) is False}
    for key, value in values.items():
        kinds = get_args(hints[key]) if isinstance(hints[key], UnionType) else (hints[key],)
        named = " ".join(filter(None, (table, key)))
        if not any(_is_of(value, kind) for kind in kinds):
            wanted = " or ".join(filter(None, map(_describe, kinds)))
            raise ConfigError(f"{source}: {named} = {shown(given[key])} must be {wanted}.")
        least, most = _BOUNDS.get(key, (None, None))
        numbers = value if isinstance(value, tuple) else () if isinstance(value, str) else (value,)
        if least is not None and not all(least <= number <= most for number in numbers):
            raise ConfigError(f"{source}: {named} = {shown(given[key])} must be in {least}..{most}.")
    return values


def take_tables(source: str, content: dict[str, Any], name: str, shown_name: str = "") -> list[dict[str, Any]]:
    """Takes the tables of a list out of the content of a file; none where there are none.

    Raises:
        ConfigError: it is not a list of tables, or an empty one.
    """
    shown_name = shown_name or name
    is_given, tables = name in content, content.pop(name, [])
    is_list = isinstance(tables, list) and all(isinstance(one, dict) for one in tables)
    if not is_list or (is_given and not tables):
        raise ConfigError(
            f"{source}: {shown_name} = {shown(tables)} must be a list of tables: a line [[{shown_name}]] before the "
            f"keys of each."
        )
    return list(tables)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of the type that a hint names: not by isinstance, because a boolean is not a number."""
    if isinstance(kind, UnionType):
        return any(_is_of(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return type(value) is tuple and all(_is_of(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) is Mapping:
        wanted = get_args(kind)[1]
        return type(value) is dict and not (
            wanted in _SHOWN_TABLES and any(type(one) is not wanted for one in value.values())
        )
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (get_origin(kind) or kind)


def _describe(kind: Any) -> str:
    """Returns what a file may hold for a hint; empty where it cannot hold any."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return f"a list of {_SHOWN_TYPES[get_args(item)[0] if isinstance(item, UnionType) else item].split()[-1]}s"
    if get_origin(kind) is Mapping and get_args(kind)[1] in _SHOWN_TABLES:
        return _SHOWN_TABLES[get_args(kind)[1]]
    return _SHOWN_TYPES.get(get_origin(kind) or kind, "")


def shown(value: object) -> str:
    """Returns a value as a file has it, cut after 40 characters."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
