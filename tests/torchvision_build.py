"""Whether torchvision can be imported beside this torch, and what stands in for its operators where it cannot.

Where the two come from different builds, importing torchvision ends with `operator torchvision::nms does not exist`.
timm, Lightning and transformers import it for what needs no operator: there, the tests declare the operators. Where a
fresh process can import it, as on a user's machine, nothing is declared. The summary of a run shows which was the case.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SYMPTOM = "operator torchvision::nms does not exist"
FOUND = "TFDS_TORCH_TEST_TORCHVISION"  # Found once in a run, also for the processes that tests start.
_STARTUP = """
import builtins
from benchmarks.peers.timm_reader import declare_torchvision_operators
builtins.held = declare_torchvision_operators()
"""


def find_error(environment: Mapping[str, str] | None = None) -> str:
    """Returns the last line of the error with which a fresh process fails to import torchvision; "" for none."""
    command = [sys.executable, "-W", "ignore", "-c", "import torchvision"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def needs_declarations() -> bool:
    """Whether torchvision's operators are what keeps it from being imported here."""
    if FOUND not in os.environ:
        os.environ[FOUND] = find_error()
    return SYMPTOM in os.environ[FOUND]


def declare_where_needed() -> Any:
    """Lets this process import torchvision, as long as the result is held."""
    if not needs_declarations():
        return None
    from benchmarks.peers.timm_reader import declare_torchvision_operators

    return declare_torchvision_operators()


def write_startup(folder: Path) -> None:
    """Lets the Python processes that have a folder on their path import torchvision."""
    folder.mkdir(exist_ok=True)
    if needs_declarations():
        (folder / "sitecustomize.py").write_text(_STARTUP)


def describe() -> list[str]:
    """Returns the lines of a run's summary; none where no test needed torchvision."""
    if FOUND not in os.environ:
        return []
    if not os.environ[FOUND]:
        return ["imported as it is: docs and integrations ran as they do for users"]
    if not needs_declarations():
        return [f"cannot be imported: {os.environ[FOUND]}"]
    return [
        f"cannot be imported beside this torch: {os.environ[FOUND]}",
        "docs and integrations ran with declarations of its operators: here, users of Lightning, timm and",
        "transformers would see this error (docs/install.md has the remedy)",
    ]
