"""OrderBlocks: the files and records at which the blocks of an order begin and end."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tfds_torch.plan.order import Int64Array, unique


class ExampleTable(Protocol):
    """The places of the examples of a split in files: an InstructionTable."""

    def find(self, index: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the files of examples, int64 [n], and their record numbers in these files."""

    def parts_of(self, file: int) -> list[tuple[int, int, int]]:
        """Return (first example, first record, number of records) of each instruction of a file."""


class OrderBlocks:
    """Blocks of neighbouring examples, counted from example 0 of a split; a block may lie in several files.

    Args:
        table: where the examples are.
        block_records: number of examples in a block.
    """

    def __init__(self, table: ExampleTable, block_records: int) -> None:
        self._table, self._block_records = table, block_records

    def bounds(self, file: int) -> Int64Array:
        """Return the records of a file at which its parts of blocks begin and end.

        The parts of a file are counted from its first record on, even where the split begins at a later record.

        Returns:
            int64 [k], ascending, each once, 0 first.
        """
        bounds = [np.zeros(1, np.int64)]
        for first, skip, take in self._table.parts_of(file):
            size = self._block_records
            inner = np.arange(first + -first % size, first + take, size, dtype=np.int64)
            bounds += [np.array([skip, skip + take], np.int64), inner - first + skip]
        return unique(np.concatenate(bounds)).values

    def of(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts in which examples start..stop-1 lie: position of the file, number of the part in the file."""
        files, records = self._table.find(np.arange(start, stop, dtype=np.int64))
        for file in unique(files).values.tolist():
            places = np.searchsorted(self.bounds(file), records[files == file], side="right") - 1
            yield from ((file, number) for number in unique(places).values.tolist())
