"""Windows of a recipe: its tables [windows] and [[transform]], or those of a member of a mixture."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tfds_torch.engines.window_transform import WindowTransform
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.config_values import check_keys, checked, shown
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.imported_function import import_function, is_function_name
from tfds_torch.runtime.printable import quoted

WINDOWS, WINDOWS_OF_MEMBER = "[windows]", "[mixture.windows]"
TRANSFORM, TRANSFORM_OF_MEMBER = "[[transform]]", "[[mixture.transform]]"

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


@dataclass(frozen=True)
class TransformConfig:
    """A function that makes fields of a window out of others, an entry [[transform]] of the file.

    Attributes:
        function: `module:function`; it is imported when a parser is made.
        reads, gives: as of WindowTransform; in the file lists of strings.
    """

    function: str
    reads: tuple[str, ...]
    gives: tuple[str, ...] | None = None

    def make(self) -> WindowTransform:
        """Returns the transform; raises ConfigError where its function cannot be imported."""
        return WindowTransform(import_function("transform: function", self.function), self.reads, self.gives)


def make_transforms(source: str, table: str, entries: Sequence[Mapping[str, Any]]) -> tuple[TransformConfig, ...]:
    """Returns the transforms that tables describe.

    Args:
        source: the file, for messages.
        table: their name as it is written.
        entries: what each holds.

    Raises:
        ConfigError: an unknown or missing key, or a value that cannot work.
    """
    found = []
    for entry in entries:
        check_keys(source, table, entry, {table: {one.name for one in fields(TransformConfig)}})
        values = checked(source, table, entry, TransformConfig)
        for name, example in (("function", "'my_robot:to_deltas'"), ("reads", "['action', 'observation/state']")):
            if not values.get(name):
                raise ConfigError(f"{source}: {table} needs a line {name} = {example}.")
        if not is_function_name(values["function"]):
            raise ConfigError(
                f"{source}: {table} function = {quoted(values['function'])} must be 'module:function', such as "
                f"'my_robot:to_deltas': a function of a window's fields that returns a dictionary of fields."
            )
        found.append(TransformConfig(**values))
    return tuple(found)
