"""Functions of the user's that a text names: `module:function`."""

import importlib
import re
from collections.abc import Callable
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def import_function(argument: str, name: str) -> Callable[..., Any]:
    """Returns the function that a text names.

    Args:
        argument: whose value the text is, for messages.
        name: `module:function`.

    Raises:
        ConfigError: the text has another form, the module cannot be imported, or has no such function.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{argument}={quoted(name)} must be 'module:function', such as 'my_data:make_dataset'.")
    module, _, function_name = name.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # Of whatever the module does.
        raise ConfigError(
            f"{argument}={name!r}: the module {module!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    function = getattr(found, function_name, None)
    if not callable(function):
        raise ConfigError(f"{argument}={name!r}: the module {module!r} has no function {function_name!r}.")
    return function  # type: ignore[no-any-return]
