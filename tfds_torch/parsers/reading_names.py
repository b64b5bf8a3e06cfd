"""What messages about the workers of a loader over a parser tell."""

from functools import partial

import numpy as np

from tfds_torch.parsers.parser import Parser
from tfds_torch.runtime.worker_faults import ReadingNames


def name_of(parser: Parser) -> str:
    """Returns which examples a parser reads."""
    return f"{parser.dataset_name}, split {parser.split!r}"


def names_of(parser: Parser, loader: str, start_argument: str) -> ReadingNames:
    """Returns what messages tell of a loader over a parser.

    Args:
        parser: that its workers read.
        loader: the name of its class.
        start_argument: of the loader, that says how workers start.
    """
    next_step = (
        f"The {loader}'s state_dict() counts what was delivered: load it, here or in a new process, and the next "
        f"iteration goes on after that."
    )
    return ReadingNames(name_of(parser), next_step, partial(_find_id, parser), start_argument)


def _find_id(parser: Parser, index: int) -> str:
    return parser.ids(np.array([index], np.int64))[0]
