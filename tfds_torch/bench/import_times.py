"""What an import takes."""

import importlib
import time


def import_s(module: str) -> float:
    """Imports a module that this process has not imported, and returns how long that took, seconds."""
    start = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - start
