"""Preprocesses of a recipe: its table [preprocess], and those of windows' cameras, [preprocess.CAMERA]."""

from collections.abc import Mapping
from typing import Any, get_type_hints

from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.config_values import checked, shown
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

PREPROCESS = "[preprocess]"

_KINDS: dict[str, Any] = {"train": TrainPreprocess, "eval": EvalPreprocess}
PREPROCESS_KEYS = frozenset({"kind"}.union(*map(get_type_hints, _KINDS.values())))


def of_cameras(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns camera -> its table, where the table [preprocess] holds those of cameras; else nothing."""
    is_of_cameras = all(isinstance(one, dict) and name not in PREPROCESS_KEYS for name, one in table.items())
    return dict(table) if is_of_cameras else {}


def make_preprocess(source: str, name: str, table: Mapping[str, Any]) -> Preprocess:
    """Returns the preprocess that a table describes.

    Args:
        source: the file, for messages.
        name: the table's, as it is written.
        table: what it holds; its keys are known.

    Raises:
        ConfigError: it lacks a key, or has one of another kind of preprocess; or a value cannot work.
    """
    where, kinds = f"{source}: {name}", " or ".join(map(repr, _KINDS))
    given = dict(table)
    kind = given.pop("kind", None)
    if kind is None:
        raise ConfigError(f"{where} does not say what it is for: it needs a line kind = {kinds}.")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"{where} kind = {shown(kind)} must be {kinds}.{did_you_mean(kind, _KINDS)}")
    owner = _KINDS[kind]
    strange = next((key for key in given if key not in get_type_hints(owner)), None)
    if strange is not None:
        other = next(one for one in _KINDS if one != kind)
        raise ConfigError(
            f"{where} kind = {quoted(kind)} has no {quoted(strange)}: it belongs to kind = {quoted(other)}."
        )
    if "size" not in given:
        raise ConfigError(f"{where} needs size: the pixels of a side, or [height, width].")
    values = checked(source, name, given, owner)
    try:
        return owner(**values)  # type: ignore[no-any-return]
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from None
