"""Datasets of the user's own that a recipe names: `source = "module:function"`."""

from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser_map_style import ParserMapStyle
from tfds_torch.runtime.imported_function import import_function


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
