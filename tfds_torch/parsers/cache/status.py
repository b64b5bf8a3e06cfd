"""A cache's builder reports how far it is in a file, which waiting processes read."""

import json
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import get_type_hints

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
READING, WRITING, COMPLETE, FAILED, DAMAGED = "reading", "writing", "complete", "failed", "damaged"
LONGEST_SILENCE_S = 300.0
"""A builder that decodes images and reports nothing for longer is stuck."""


@dataclass(frozen=True)
class CacheStatus:
    """What a builder reports. It stays beside a complete cache, as its description.

    Attributes:
        dataset: `name/config:version`.
        split: the split expression.
        max_resolution: longest side of the images in pixels; None: as they are.
        phase: `reading`, `writing`, `complete`, `failed`, or `damaged`: a reader found so, and it is built again.
        num_done: examples that are decoded.
        num_examples: number of examples of the split.
        beat: number of the report.
        silence_s: seconds for which the builder may report nothing.
        reason: why it failed, or how it is damaged.
        pid: process number of the builder.
        host: its machine.
        build: a random name of this attempt.
    """

    dataset: str | None = None
    split: str | None = None
    max_resolution: int | None = None
    phase: str = READING
    num_done: int = 0
    num_examples: int = 0
    beat: int = 0
    silence_s: float = LONGEST_SILENCE_S
    reason: str = ""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    build: str = field(default_factory=lambda: secrets.token_hex(8))


def write_status(path: Path, status: CacheStatus) -> None:
    """Reports how far a builder is, where that can be written: building goes on without it.

    In place: a process that reads at that moment finds nothing that makes sense, and reads again.
    """
    with suppress(OSError), open(os.open(path, _NEW, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(status), file)


def note_damage(path: Path, reason: str) -> None:
    """Reports that a complete cache is damaged, where that can be written."""
    write_status(path, replace(read_status(path) or CacheStatus(), phase=DAMAGED, reason=reason))


def read_status(path: Path) -> CacheStatus | None:
    """Returns what a builder reported; None: nothing that makes sense."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        values = json.loads(path.read_bytes())
        if all(isinstance(values[name], kind) for name, kind in get_type_hints(CacheStatus).items()):
            return CacheStatus(**values)
    return None
