"""Loading tensorflow into a process that reads, and knowing when that must not be done.

tensorflow's runtime starts threads that do not survive a fork: a process forked after tensorflow has run may wait for
ever for one of them. Such a process is recognised here, so that its reading can be moved to a fresh process.
"""

import contextlib
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from tfds_torch.errors import ConfigError

_logger = logging.getLogger(__name__)
_inherited_runtime = False
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_WHERE_IN_GRAPH = re.compile(
    r"\{\{.*?\}\} ?|Error in user-defined function .*? Iterator::\S+: |^\s+\(0\) [\w ]+: +| \[Op:\w+\].*"
)
_BEFORE_REASON = re.compile(r"\s*$|\s+File |Graph execution error:|Detected at node |<stack traces|\d+ root error")


def is_tensorflow_installed() -> bool:
    """Return whether tensorflow can be imported, without importing it."""
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"] is not None
    return importlib.util.find_spec("tensorflow") is not None


def check_tensorflow_is_installed(user: str) -> None:
    """Raise ConfigError where tensorflow is not installed; `user` names who needs it, like "read mode 'files'"."""
    if not is_tensorflow_installed():
        raise ConfigError(
            f"tensorflow is not installed, and {user} needs it. Install it with `pip install tensorflow-cpu` "
            f"(`tensorflow` where that has no wheel). Local files are read without it, in read mode 'index'."
        )


def load_tensorflow(user: str) -> Any:
    """Return the module `tensorflow`, which `user` needs, with all GPUs hidden from it: GPU memory is for torch."""
    check_tensorflow_is_installed(user)
    with quiet_tensorflow():
        import tensorflow as tf

    try:
        if tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        _logger.warning("tensorflow was already running with GPUs visible in this process: they stay visible to it.")
    return tf


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Keep tensorflow's C++ code, while it is loaded and later, from writing to standard error.

    tensorflow reads its log level when it is loaded; errors of the import are raised. Where the user has set
    `TF_CPP_MIN_LOG_LEVEL`, that value holds. Processes that are started afterwards have the user's environment.
    """
    if "tensorflow" in sys.modules or _LEVEL in os.environ:
        yield
        return
    from tfds_torch.runtime.terminal import QUIET_ENVIRON  # It imports rich, which no other reader needs.

    added = {name: value for name, value in QUIET_ENVIRON.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def readable_reason(message: str) -> str:
    """Return the reason in the message of a `tf.errors.OpError`, without the place in the graph."""
    lines = message.splitlines() or [""]
    return _WHERE_IN_GRAPH.sub("", next((line for line in lines if not _BEFORE_REASON.match(line)), lines[0])).strip()


def has_inherited_runtime() -> bool:
    """Return whether this process was forked from one in which tensorflow had already run."""
    return _inherited_runtime


def _note_fork() -> None:
    global _inherited_runtime
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is not None:
        # An imported tensorflow that has not run yet has no context; where that is unknown, assume that it ran.
        _inherited_runtime = getattr(context, "_context", context) is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
