"""TFRecord shards of made-up bytes, as many and as large as a measurement needs."""

import random
from collections.abc import Iterator
from pathlib import Path

from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.tfrecord.framing import TfrecordWriter

_NUM_BYTES = 1 << 20
_RECORDS_AT_A_TIME = 1024


def write_shards(
    folder: Path, num_records: int, sizes: range, num_shards: int, seed: int = 0
) -> tuple[FileInstruction, ...]:
    """Writes shards with right checksums.

    Args:
        folder: where they are written; it is made if need be.
        num_records: of all shards together, at least num_shards.
        sizes: of the data of a record, bytes, each as likely.
        num_shards: how many files.
        seed: of sizes and bytes.

    Returns:
        An instruction for each shard, which is read whole.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)  # noqa: S311 (nothing secret)
    instructions, first = [], 0
    for number in range(num_shards):
        stop = num_records * (number + 1) // num_shards
        path = folder / f"made.tfrecord-{number:05d}-of-{num_shards:05d}"
        with path.open("wb") as file:
            writer = TfrecordWriter(file.write)
            for start in range(first, stop, _RECORDS_AT_A_TIME):
                for record in _records(draw, sizes, min(_RECORDS_AT_A_TIME, stop - start)):
                    writer.add(record)
        instructions.append(FileInstruction(str(path), 0, stop - first, first, stop - first))
        first = stop
    return tuple(instructions)


def _records(draw: random.Random, sizes: range, num_records: int) -> Iterator[bytes]:
    content = draw.randbytes(max(_NUM_BYTES, 2 * sizes[-1]))
    last = len(content) - sizes[-1]
    for _ in range(num_records):
        start = int(draw.random() * last)
        yield content[start : start + sizes[int(draw.random() * len(sizes))]]
