"""A mixture of three parts of `numbered`, whose labels are the examples' indices. Importable by every child."""

from dataclasses import replace
from typing import Any

from tfds_torch import ParserMixture, ParserTfds

SPLITS = {"a": "train[:9]", "b": "train[9:26]", "c": "train[26:]"}
SCHEDULE = [(0, {"a": 0.5, "b": 0.2, "c": 0.3}), (37, {"a": 0.0, "b": 0.6, "c": 0.4})]
EPOCH_SIZE = 42


def mix_numbered(root: str, name: str = "numbered", is_training: bool = True, **arguments: Any) -> ParserMixture:
    """Returns the mixture: by the schedule in training, whose epochs are of 42 examples, else all 41 examples."""
    of_members = take_blocks(arguments)
    members = {member: ParserTfds(root, name, split, **of_members) for member, split in SPLITS.items()}
    if is_training:
        arguments = {"weights": SCHEDULE, "epoch_size": EPOCH_SIZE, **arguments}
    return ParserMixture(members, is_training=is_training, **arguments)


def take_blocks(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes the read options out of a mixture's arguments where they set blocks: those are its members'; no threads."""
    read = arguments.get("read")
    if read is None or read.block_records == "auto":
        return {}
    return {"read": replace(arguments.pop("read"), num_threads=None)}
