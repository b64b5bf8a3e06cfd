"""Single examples for people and samplers, decoded in whichever process may load tensorflow.

A training process must not load it. What is asked for there is read and decoded in one fresh process, which stays: the
first example takes the seconds in which tensorflow loads, the next ones milliseconds.
"""

import multiprocessing
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.example_decoder import Example, ExampleDecoder, cut
from tfds_torch.parsers.example_files import ExampleFiles, Indices
from tfds_torch.parsers.parser import LEDGER_FIELDS
from tfds_torch.pipeline import tensorflow_runtime
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.runtime.fresh_process import FreshProcess

_REQUEST_BYTES = 1 << 24  # Encoded. Photos become eight times as large, and answers are held twice on their way.
_MOST_DECODERS = 8  # In a fresh process.


class RandomAccess(Protocol):
    """A parser whose examples can be fetched one by one. It can be pickled, and hashed by its identity."""

    def _make_decoder(self) -> ExampleDecoder:
        """Returns what reads its examples in this process. It must not refer to the parser."""


def read_examples(
    parser: RandomAccess, files: ExampleFiles, read: ReadOptions, index: Indices, fields: Sequence[str]
) -> list[Example]:
    """Returns examples in the order asked for; those of a call are fetched together.

    Args:
        parser: what they are examples of.
        files: its files.
        read: how it reads.
        index: int64 [n], in any order, also several times the same.
        fields: what to decode; each must exist.

    Raises:
        ConfigError: the files are remote, or the class map lacks a label.
        ShardError: a file is missing, or holds another number of examples than promised.
        CorruptRecordError: a record or an image is damaged.
        WorkerError: the process that decodes for this one died; the next call starts another one.
    """
    obstacle = files.find_obstacle()
    if obstacle is not None:
        raise ConfigError(
            f"{files.dataset}: single examples cannot be fetched: {obstacle}. Copy the dataset to this machine, or "
            f"read it in order with batches()."
        )
    names = tuple(sorted(set(fields) - set(LEDGER_FIELDS)))
    is_worker = multiprocessing.current_process().daemon  # Loaders' workers are; a training process is not.
    num_parallel = read.num_threads or (1 if is_worker else read.threads_of_worker(1))
    runs_here = "tensorflow" in sys.modules or is_worker
    decode = _decode_here if runs_here and not tensorflow_runtime.has_inherited_runtime() else _ask
    parts = cut(len(index), files.mean_example_bytes, _REQUEST_BYTES)
    return [example for part in parts for example in decode(parser, index[part], names, num_parallel)]


_decoders: WeakKeyDictionary[RandomAccess, ExampleDecoder] = WeakKeyDictionary()
_lock = threading.Lock()


def _decode_here(parser: RandomAccess, index: Indices, names: tuple[str, ...], num_parallel: int) -> list[Example]:
    with _lock:
        decoder = _decoders.get(parser)
        if decoder is None:
            decoder = _decoders[parser] = parser._make_decoder()
    return decoder.read(index, names, num_parallel)


_inherited: list[object] = []


def _begin_anew() -> None:
    """In a forked process: a thread that is not here may have held a lock."""
    global _decoders, _lock
    _inherited.append(_decoders)  # Never dropped: tensorflow would be called, which was not forked with its threads.
    _decoders, _lock = WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class _Answers:
    """Decodes in a fresh process, for one that must not load tensorflow."""

    def __init__(self) -> None:
        self._decoders: OrderedDict[int, ExampleDecoder] = OrderedDict()

    def __call__(self, request: tuple[int, RandomAccess | None, tuple[Any, ...]]) -> list[Example] | None:
        number, parser, arguments = request
        if parser is not None:
            self._decoders[number] = parser._make_decoder()
        if number not in self._decoders:
            return None
        self._decoders.move_to_end(number)
        if len(self._decoders) > _MOST_DECODERS:
            self._decoders.popitem(last=False)
        return self._decoders[number].read(*arguments)


_numbers: WeakKeyDictionary[RandomAccess, int] = WeakKeyDictionary()
_next_number = count()
_process = FreshProcess(_Answers)


def _ask(parser: RandomAccess, *arguments: Any) -> list[Example]:
    number = _numbers.setdefault(parser, next(_next_number))
    examples: list[Example] | None = _process.ask((number, None, arguments))
    if examples is None:  # It does not know the parser, or not any more.
        examples = _process.ask((number, parser, arguments))
    return examples or []
