"""Datasets of the user's own that a recipe names: `source = "module:function"`."""

import re
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser_map_style import ParserMapStyle
from tfds_torch.runtime.imported_function import import_function
from tfds_torch.runtime.printable import quoted

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_source(where: str, source: str, *, has_name: bool, has_split: bool) -> None:
    """Raises ConfigError where a recipe's source has not the form `module:function`, or stands beside a name or split.

    Args:
        where: the recipe, for messages.
        source: its value.
        has_name: whether the recipe names a dataset, too.
        has_split: whether it has a split.
    """
    if not _NAME.fullmatch(source):
        raise ConfigError(
            f"{where}: source = {quoted(source)} must be 'module:function', such as 'my_data:make_dataset': a function "
            f"without arguments that returns the dataset."
        )
    if has_name or has_split:
        other = "name" if has_name else "split"
        raise ConfigError(
            f"{where}: source = {quoted(source)} is a dataset of your own, which has no {other} to choose: leave out "
            f"{other}."
        )


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
