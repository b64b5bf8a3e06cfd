"""Datasets of the user's own that a recipe names: `source = "module:function"`."""

from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser_map_style import ParserMapStyle
from tfds_torch.runtime.imported_function import import_function, is_function_name
from tfds_torch.runtime.printable import quoted


def name_by_source(where: str, values: dict[str, Any]) -> bool:
    """Names the dataset of a recipe, or of a member of its mixture, by its source; returns whether it has one.

    Args:
        where: the recipe, or its table, for messages.
        values: its keys, to which the name is added.

    Raises:
        ConfigError: the source has not the form `module:function`, or stands beside a name or split.
    """
    if "source" not in values:
        return False
    source = values["source"]
    if not is_function_name(source):
        raise ConfigError(
            f"{where}: source = {quoted(source)} must be 'module:function', such as 'my_data:make_dataset': a function "
            f"without arguments that returns the dataset."
        )
    other = next((key for key in ("name", "split") if key in values), None)
    if other is not None:
        raise ConfigError(
            f"{where}: source = {quoted(source)} is a dataset of your own, which has no {other} to choose: leave out "
            f"{other}."
        )
    values["name"] = source
    return True


def open_own_dataset(source: str, **arguments: Any) -> ParserMapStyle:
    """Returns the parser of a dataset that a function returns.

    Args:
        source: `module:function`; the function is called without arguments, here and now.
        arguments: of ParserMapStyle.

    Raises:
        ConfigError: there is no such function, it raises, or its result is not a dataset with a length and items by
            number.
    """
    if isinstance(arguments["target_key"], tuple):
        raise ConfigError(
            f"target_key={arguments['target_key']}: the target of your own dataset is one field. Name one."
        )
    function = import_function("source", source)
    try:
        dataset = function()
    except Exception as error:  # Of whatever the function does.
        raise ConfigError(f"source={source!r} raised {type(error).__name__}: {error}.") from error
    try:
        return ParserMapStyle(dataset, **arguments)
    except ConfigError as error:
        raise ConfigError(f"source={source!r}: {error}") from None
