"""Windows of a recipe: its table [windows], or that of a member of a mixture."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.config_values import shown
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted

WINDOWS, WINDOWS_OF_MEMBER = "[windows]", "[mixture.windows]"

WINDOWS_KEYS = frozenset(field.name for field in fields(Windows))

_STEPS = re.compile(r"(-?[0-9]{1,10}):(-?[0-9]{1,10})")


def make_windows(source: str, table: str, given: Mapping[str, Any]) -> Windows:
    """Returns the windows that a table describes.

    The offsets of a field are a list of steps, or a text such as `"0:16"`, which stands for the steps 0 to 15.

    Args:
        source: the file, for messages.
        table: its name as it is written.
        given: what it holds; its keys are known.

    Raises:
        ConfigError: a value that cannot work.
    """
    values = dict(given)
    offsets = values.get("offsets")
    if isinstance(offsets, dict):
        values["offsets"] = {name: _read_steps(source, table, name, steps) for name, steps in offsets.items()}
    try:
        return Windows(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {table} {error}") from None


def _read_steps(source: str, table: str, name: str, steps: object) -> object:
    """Returns the steps that a text stands for; anything else as it is."""
    if not isinstance(steps, str):
        return steps
    found = _STEPS.fullmatch(steps)
    if found is None:
        raise ConfigError(
            f"{source}: {table} offsets of {quoted(name)} = {shown(steps)} must be a list of steps, such as [-1, 0], "
            f"or a text of the first step and the one behind the last, such as '0:16'."
        )
    return range(int(found[1]), int(found[2]))
