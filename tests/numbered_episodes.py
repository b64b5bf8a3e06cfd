"""Episodes whose steps are numbered through the split, and which steps each window of them must hold.

Importable by every child. What is expected is arithmetic of its own: it knows nothing of the package's numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from mixed_numbers import take_blocks
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard

from tfds_torch import ParserMixture, ParserTfds, Windows

NAME = "numbered_episodes"
SHARDS = ((4, 1, 7), (), (2, 12, 0, 3), (1, 9, 2))
LENGTHS = tuple(length for shard in SHARDS for length in shard)
"""Steps of each episode: 41 together; one has none."""

OFFSETS = (-1, 0, 2)
FIELDS = ("number", "name", "name_pad", "episode", "step")
EPOCH_SIZE = 42
_FIRST_STEPS = tuple(sum(LENGTHS[:episode]) for episode in range(len(LENGTHS)))


@dataclass(frozen=True)
class Member:
    """A member of the mixture: its weight, which episodes it has, and which windows there are of them."""

    weight: float
    episodes: range
    stride: int = 1
    whole: bool = False

    def steps(self) -> list[tuple[int, int]]:
        """Returns (episode, step) of every window in order."""
        before, after = (1, 2) if self.whole else (0, 0)
        places = [(episode, step) for episode in self.episodes for step in range(0, LENGTHS[episode], self.stride)]
        return [(episode, step) for episode, step in places if before <= step < LENGTHS[episode] - after]


ALL = Member(1.0, range(len(LENGTHS)))
MEMBERS = {
    "z": Member(0.5, range(len(LENGTHS)), stride=2),
    "a": Member(0.3, range(3, 10), whole=True),
    "k": Member(0.2, range(4)),
}
"""In an order that is neither that of their names nor that of their sizes."""


def write_numbered_episodes(root: Path) -> None:
    """Writes the dataset."""
    directory = root / NAME / "1.0.0"
    directory.mkdir(parents=True)
    records = [_record(episode) for episode in range(len(LENGTHS))]
    for shard, lengths in enumerate(SHARDS):
        own, records = records[: len(lengths)], records[len(lengths) :]
        write_shard(directory / f"{NAME}-train.tfrecord-{shard:05}-of-{len(SHARDS):05}", own)
    f = tfds.features
    steps = f.Dataset({"number": np.int64, "name": f.Text()})
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=f.FeaturesDict({"steps": steps}),
        split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=list(map(len, SHARDS)), num_bytes=1)],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )


def name_of(number: int) -> str:
    """Returns the text of a step; its length depends on the number."""
    return f"step {number}{'!' * (number % 3)}"


def _record(episode: int) -> bytes:
    example = tf_example_pb2.Example()
    numbers = range(_FIRST_STEPS[episode], _FIRST_STEPS[episode] + LENGTHS[episode])
    example.features.feature["steps/number"].int64_list.value.extend(numbers)
    example.features.feature["steps/name"].bytes_list.value.extend(name_of(number).encode() for number in numbers)
    return bytes(example.SerializeToString())


def windows_of(root: str, split: str = "train", *, stride: int = 1, whole: bool = False, **more: Any) -> ParserTfds:
    """Returns a parser of windows: the number of their own step, and the texts of three around it."""
    windows = Windows(offsets={"name": OFFSETS}, stride=stride, whole=whole, texts=["name"])
    return ParserTfds(root, f"{NAME}:1.0.0", split, windows=windows, **more)


def mix_windows(root: str, is_training: bool = True, **arguments: Any) -> ParserMixture:
    """Returns a mixture of three parsers of windows: by their weights in training, whose epochs are of 42, else all."""
    of_members = take_blocks(arguments)
    members = {
        name: windows_of(
            root, f"train[{one.episodes.start}:{one.episodes.stop}]", stride=one.stride, whole=one.whole, **of_members
        )
        for name, one in MEMBERS.items()
    }
    if is_training:
        weights = {name: one.weight for name, one in MEMBERS.items()}
        arguments = {"weights": weights, "epoch_size": EPOCH_SIZE, **arguments}
    return ParserMixture(members, is_training=is_training, **arguments)


WINDOWS: dict[str, Callable[..., Any]] = {"windows": windows_of, "mixture": mix_windows}
"""What windows are read, by a key of STEPS."""


def member_ranges() -> list[range]:
    """Returns the numbers of each member's windows in the mixture."""
    stops = [sum(len(one.steps()) for one in list(MEMBERS.values())[: at + 1]) for at in range(len(MEMBERS))]
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


STEPS = {"windows": ALL.steps(), "mixture": [place for one in MEMBERS.values() for place in one.steps()]}
"""What is read -> (episode, step) of every window by its number. A member counts its own episodes from 0."""


def check_windows(reads: str, index: Sequence[int], fields: dict[str, Any]) -> None:
    """Raises AssertionError where a window does not hold the steps that its number says.

    Args:
        reads: a key of STEPS.
        index: the numbers of windows.
        fields: the values of FIELDS, in lists.
    """
    first_episodes = [one.episodes.start for one in MEMBERS.values()] if reads == "mixture" else [0]
    ranges = member_ranges() if reads == "mixture" else [range(len(STEPS[reads]))]
    for row, window in enumerate(index):
        (member,) = (number for number, own in enumerate(ranges) if window in own)
        episode, step = STEPS[reads][window]
        rows = [min(max(step + offset, 0), LENGTHS[episode] - 1) for offset in OFFSETS]
        expected = {
            "number": _FIRST_STEPS[episode] + step,
            "name": [name_of(_FIRST_STEPS[episode] + one) for one in rows],
            "name_pad": [not 0 <= step + offset < LENGTHS[episode] for offset in OFFSETS],
            "episode": episode - first_episodes[member],
            "step": step,
        }
        found = {name: fields[name][row] for name in FIELDS}
        if found != expected:  # Not an assert statement: it runs in workers, too.
            raise AssertionError(f"window {window} is {found}, not {expected}")
