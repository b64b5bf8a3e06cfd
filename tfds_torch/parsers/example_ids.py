"""Which example is meant: a global index, counted from the end when negative, or an id as TFDS gives it."""

import os
import re
from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.parsers.example_files import ExampleFiles, Indices, RecordShards
from tfds_torch.parsers.image_folder import FolderFiles
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.records.record_run import is_local

_RECORD_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


def find_examples(files: ExampleFiles, split: str, keys: Iterable[Any]) -> Indices:
    """Returns the global indices, int64 [n], of examples given by index or by id, in any mix. Reads no file.

    Args:
        files: the examples of a split.
        split: the split expression, for messages.
        keys: integers, -num_examples <= i < num_examples; and ids, `<shard file>__<record>`, or the path below the root
            of an image folder.

    Raises:
        ConfigError: a key is neither.
        ExampleNotFoundError: the split has no such example.
    """
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise ConfigError(f"Examples are asked for by a list of indices and ids, not by {keys!r} alone.")
    where = f"{files.dataset}, split {split!r}"
    found = [_find_id(files, where, key) if isinstance(key, str) else _find_index(files, where, key) for key in keys]
    return np.array(found, np.int64)


def _find_index(files: ExampleFiles, where: str, key: Any) -> int:
    try:
        number = None if isinstance(key, bool | np.bool_) else index(key)
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{where}: {key!r} names no example: give its index (an integer) or its id (a string).")
    num_examples = files.num_examples
    if not -num_examples <= number < num_examples:
        there = f"its indices are 0 to {num_examples - 1}, or -{num_examples} to -1 from the end"
        raise ExampleNotFoundError(
            f"{where}: there is no example {number}: {there if num_examples else 'it is empty'}."
        )
    return number % num_examples


def _find_id(files: ExampleFiles, where: str, key: str) -> int:
    if isinstance(files, FolderFiles):
        return _find_image(files, where, key)
    if isinstance(files, RecordShards):
        return _find_record(files, where, key)
    raise ConfigError(f"{where}: its examples have no ids to be found by: give their indices.")


def _find_record(files: RecordShards, where: str, key: str) -> int:
    shard, separator, digits = key.rpartition("__")
    if not separator or not _RECORD_NUMBER.fullmatch(digits):
        raise ExampleNotFoundError(
            f"{where}: there is no example {key!r}: ids have the form '<shard file>__<record>'{_such_as(files)}."
        )
    record = int(digits)
    runs = [run for run in files.runs if os.path.basename(run.path) == shard]
    for run in runs:
        if run.skip <= record < run.skip + run.take:
            return run.first_index + record - run.skip
    if not runs:
        folders = {os.path.dirname(run.path) for run in files.runs}
        if any(os.path.isfile(os.path.join(folder, shard)) for folder in folders if is_local(folder)):
            reason = "the shard is there, but the split has no example of it"
            hint = ""
        else:
            reason, hint = "no such shard", did_you_mean(shard, {os.path.basename(run.path) for run in files.runs})
    elif record < runs[0].num_in_shard:
        parts = ", ".join(f"{run.skip} to {run.skip + run.take - 1}" for run in runs)
        reason, hint = f"the record is there, but outside the split, which has the shard's records {parts}", ""
    else:
        reason, hint = f"the shard has the records 0 to {runs[0].num_in_shard - 1}", ""
    raise ExampleNotFoundError(f"{where}: there is no example {key!r}: {reason}.{hint}")


def _such_as(files: ExampleFiles) -> str:
    return f", such as {files.ids(np.zeros(1, np.int64))[0]!r}" if files.num_examples else ""


def _find_image(files: FolderFiles, where: str, key: str) -> int:
    split, _, below = key.partition("/")
    label, _, name = below.partition("/")
    listed = files.listing.splits.get(split)
    record = -1
    if listed is not None and name and label in files.listing.class_names:
        record = _find_name(listed, os.fsencode(name), files.listing.class_names.index(label))
    runs = [run for run in files.runs if os.path.basename(run.path) == split]
    for run in runs:
        if record >= 0 and run.skip <= record < run.skip + run.take:
            return run.first_index + record - run.skip
    if record >= 0:
        raise ExampleNotFoundError(f"{where}: there is no example {key!r}: the image is there, but outside the split.")
    hint = did_you_mean(split, files.listing.splits) if listed is None else ""
    if listed is not None and label not in files.listing.class_names:
        hint = did_you_mean(label, files.listing.class_names)
    raise ExampleNotFoundError(
        f"{where}: there is no example {key!r}: ids are paths below {files.listing.root}, with '/'"
        f"{_such_as(files)}.{hint}"
    )


def _find_name(listed: Any, name: bytes, label: int) -> int:
    """Returns the number of an image in its split, or -1.

    The names lie end to end: a search through them all needs no string for each, of which there may be millions.
    """
    start = listed.names.find(name)
    while start >= 0:
        number = int(np.searchsorted(listed.stops, start, side="right"))
        begins = start == (listed.stops[number - 1] if number else 0)
        if begins and listed.stops[number] == start + len(name) and listed.labels[number] == label:
            return number
        start = listed.names.find(name, start + 1)
    return -1
