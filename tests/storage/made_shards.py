"""Small shards whose every record is known, and the instructions of a split over them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter
from storage.tfrecord_writer import write

from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.source import FileInstruction

DATASET = "fake/plain:1.0.0"


@dataclass
class MadeSplit:
    """File instructions of a split, and what its examples are.

    Attributes:
        instructions: consecutive.
        examples: data of every example, by index.
        records: of every shard, by path.
    """

    instructions: list[FileInstruction] = field(default_factory=list)
    examples: list[bytes] = field(default_factory=list)
    records: dict[str, list[bytes]] = field(default_factory=dict)

    def add_instruction(self, path: str, skip: int, take: int) -> None:
        """Appends an instruction for a shard's records to the split."""
        records = self.records[path]
        self.instructions.append(FileInstruction(path, skip, take, len(self.examples), len(records)))
        self.examples.extend(records[skip : skip + take])

    @property
    def table(self) -> InstructionTable:
        return InstructionTable(self.instructions, DATASET)


def made_records(count: int, seed: int = 0, largest: int = 300) -> list[bytes]:
    """Returns records of different sizes and contents."""
    numbers = random.Random(seed)
    return [numbers.randbytes(numbers.randrange(largest + 1)) for _ in range(count)]


def write_array_record(path: Path, records: Sequence[bytes]) -> None:
    """Writes an ArrayRecord file as TFDS does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_shards(folder: Path, counts: Sequence[int], largest: int = 300) -> MadeSplit:
    """Writes one TFRecord file for each count; the split is all of them, whole."""
    split = MadeSplit()
    for number, count in enumerate(counts):
        path = str(folder / f"fake-train.tfrecord-{number:05d}-of-{len(counts):05d}")
        split.records[path] = made_records(count, number, largest)
        write(Path(path), split.records[path])
        split.add_instruction(path, 0, count)
    return split
