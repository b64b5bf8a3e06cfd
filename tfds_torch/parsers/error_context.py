"""The facts about a parser that error messages of its loader give."""

import os
from collections.abc import Mapping
from functools import partial

import numpy as np

from tfds_torch.parsers.protocol import Parser
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.worker_faults import ErrorContext
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.cached_source import CachedSource


def name_of(parser: Parser) -> str:
    """Returns which examples a parser reads."""
    return f"{parser.dataset_name}, split {quoted(parser.split)}"


def error_context_of(parser: Parser, loader: str, start_argument: str) -> ErrorContext:
    """Returns what messages of a loader name: its examples, the next step, the argument that sets how workers start."""
    next_step = (
        f"The {loader}'s state_dict() counts what was delivered: load it, here or in a new process, and the next "
        f"iteration goes on after that."
    )
    return ErrorContext(
        name_of(parser), next_step, partial(_find_id, parser), start_argument, partial(_find_cut, parser)
    )


def _find_id(parser: Parser, index: int) -> str:
    return parser.ids(np.array([index], np.int64))[0]


def _find_cut(parser: Parser) -> str | None:
    members: Mapping[str, Parser] = getattr(parser, "members", {"": parser})
    return next(filter(None, map(_find_cut_file, members.values())), None)


def _find_cut_file(parser: Parser) -> str | None:
    source = getattr(parser, "source", None)
    file = source.file if isinstance(source, CachedSource) else source
    if not isinstance(file, BetonSource):
        return None
    try:
        size = os.stat(file.head.path).st_size
    except OSError:
        return None
    was = file.head.stamp[0]
    return f"{file.head.path} was cut while it was read: it had {was} bytes and has {size}" if size < was else None
