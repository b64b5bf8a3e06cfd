"""Episodes whose every value is known, written as TFDS writes them, and the layout of their records."""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from storage.example_writer import nested_parts, write_example
from storage.made_shards import MadeSplit, write_array_record
from storage.tfrecord_writer import write

from tfds_torch.storage.episodes.layout import EpisodeLayout, Numbers
from tfds_torch.storage.source import FieldSpec

IMAGE, TEXT, ACTION = "steps/image", "steps/text", "steps/action"
COUNT, FLAG, WIDE = "steps/count", "steps/flag", "steps/wide"
TAGS, TASK = "steps/tags", "task"
LAYOUT = EpisodeLayout(
    "steps",
    values=(IMAGE, TEXT),
    numbers={ACTION: Numbers(7, True), COUNT: Numbers(2, False), FLAG: Numbers(1, False), WIDE: Numbers(600, True)},
    others=(f"{TAGS}/ragged_flat_values", f"{TAGS}/ragged_row_lengths_0", TASK, "rank"),
)
SPECS = {
    IMAGE: FieldSpec((None,), object),
    TEXT: FieldSpec((None,), object),
    ACTION: FieldSpec((None, 7), np.dtype(np.float32)),
    COUNT: FieldSpec((None, 2), np.dtype(np.int64)),
    FLAG: FieldSpec((None,), np.dtype(np.bool_)),
    WIDE: FieldSpec((None, 600), np.dtype(np.float32)),
    TAGS: FieldSpec((None, None), object),
    TASK: FieldSpec((), object),
    "rank": FieldSpec((), np.dtype(np.int64), -1),
}


@cache
def made_episode(num_steps: int, seed: int) -> dict[str, Any]:
    """Returns feature -> values of an episode, one row a step; `rank` is not in every one."""
    numbers = random.Random(seed)
    floats = np.random.default_rng(seed)
    episode = {
        IMAGE: [numbers.randbytes(numbers.randrange(400)) for _ in range(num_steps)],
        TEXT: [numbers.choice([b"", b"put the spoon on the towel"]) for _ in range(num_steps)],
        ACTION: floats.normal(size=(num_steps, 7)).astype(np.float32),
        COUNT: [[numbers.randrange(-3, 300), numbers.randrange(-(2**63), 2**63)] for _ in range(num_steps)],
        FLAG: [[numbers.random() < 0.5] for _ in range(num_steps)],
        WIDE: floats.normal(size=(num_steps, 600)).astype(np.float32),
        TAGS: [[numbers.randbytes(3) for _ in range(numbers.randrange(3))] for _ in range(num_steps)],
        TASK: b"task %d" % seed,
    }
    return episode | ({"rank": seed} if seed % 2 else {})


def write_episode(episode: dict[str, Any]) -> bytes:
    """Returns an episode as a record."""
    flat: dict[str, Any] = {}
    for key, values in episode.items():
        if key == TAGS:
            flat |= nested_parts(TAGS, values, 2)
        elif key in (TASK, "rank"):
            flat[key] = [values]
        elif key in LAYOUT.numbers:
            flat[key] = (
                np.asarray(values, np.float32 if LAYOUT.numbers[key].is_float else np.int64).reshape(-1).tolist()
            )
        else:
            flat[key] = list(values)
    return write_example(flat)


def write_episodes(folder: Path, lengths: Sequence[Sequence[int]], file_format: str = "tfrecord") -> MadeSplit:
    """Writes a shard for each list of numbers of steps; the split is all of them, whole."""
    split = MadeSplit()
    seed = 0
    for number, own in enumerate(lengths):
        path = folder / f"robot-train.{file_format}-{number:05d}-of-{len(lengths):05d}"
        records = [write_episode(made_episode(num_steps, seed + at)) for at, num_steps in enumerate(own)]
        seed += len(own)
        split.records[str(path)] = records
        (write if file_format == "tfrecord" else write_array_record)(path, records)
        split.add_instruction(str(path), 0, len(records))
    return split
