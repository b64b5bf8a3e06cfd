"""Python imports this when it starts with this folder on its path: whatever imports tensorflow then fails.

It is noted as well, as a line "<pid> <module>" of the file that `TENSORFLOW_IMPORTS` names: an error may be caught.
`importlib.util.find_spec("tensorflow")` finds it as it is installed; TFDS asks.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class TensorflowImportedError(AssertionError):
    """tensorflow was imported."""


class _Refusal(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with open(os.environ["TENSORFLOW_IMPORTS"], "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {spec.name}\n")
        raise TensorflowImportedError(f"{spec.name} was imported.")

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, _Refusal(), is_package=True) if fullname.partition(".")[0] == "tensorflow" else None


sys.meta_path.insert(0, _Finder())
