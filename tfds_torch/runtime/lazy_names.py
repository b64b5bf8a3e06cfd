"""Names that a package imports when they are first used (PEP 562): importing the package itself takes no time.

The package has its names in `__all__`, and imports them under TYPE_CHECKING for type checkers.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_at_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which raises AttributeError for other names.

    Args:
        package: its `__name__`.
        homes: name -> the module that has it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get
