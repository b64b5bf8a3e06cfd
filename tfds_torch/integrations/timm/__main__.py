"""`python -m tfds_torch.timm SCRIPT`: run a script, unmodified, with the shim installed."""

import builtins
import os
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType

from tfds_torch.errors import ConfigError
from tfds_torch.integrations.timm import install
from tfds_torch.runtime.printable import printable

_PROGRAM = "python -m tfds_torch.timm"
_USAGE = f"usage: {_PROGRAM} [-h] SCRIPT [ARGUMENT ...]"
_HELP = f"""{_USAGE}

Runs a script that uses timm, such as timm's train.py or validate.py, as `python SCRIPT ARGUMENT ...` does, after
tfds_torch.timm.install(): its datasets `tfds/NAME` are read by tfds_torch, and the crop, resize and flips with which
their transforms begin are done while images are decoded (TFDS_TORCH_FUSE=0 in the environment turns that off). On
several ranks:

  torchrun --nproc-per-node 2 -m tfds_torch.timm train.py --dataset tfds/cifar10 ...
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0, or 2 where the script was not started.

    Errors of the script, `SystemExit` included, pass through.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_HELP)
        return 0
    try:
        script = _check_script(arguments)
        install()
    except ConfigError as error:
        sys.stderr.write(f"{_PROGRAM}: {printable(str(error))}\n")
        return 2
    sys.argv[:] = arguments
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 has an option that leaves the path alone.
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    _run(os.path.abspath(script))
    return 0


def _run(path: str) -> None:
    """Run a script as Python does, in a fresh module `__main__`, whose file spawned workers look up.

    Not by `runpy`, which changes sys.argv[0], and takes the module away before the functions that end the process run.
    """
    loader = SourceFileLoader("__main__", path)
    module = ModuleType("__main__")
    vars(module).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    code = loader.source_to_code(loader.get_data(path), path)
    sys.modules["__main__"] = module
    exec(code, vars(module))  # noqa: S102 (what the user asked for)


def _check_script(arguments: Sequence[str]) -> str:
    if not arguments:
        raise ConfigError(f"no script was given.\n{_USAGE}")
    script = arguments[0]
    if script.startswith("-"):
        raise ConfigError(f"{script!r} is not an option; the script's own options follow the script.\n{_USAGE}")
    if not os.path.isfile(script):
        raise ConfigError(f"there is no script {script!r} in {os.getcwd()}.")
    return script


if __name__ == "__main__":
    sys.exit(main())
