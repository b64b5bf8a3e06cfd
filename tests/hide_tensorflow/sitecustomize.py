"""Python imports this when it starts with this folder on its path: tensorflow is then as good as not installed."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Finder(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] == "tensorflow" else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder
