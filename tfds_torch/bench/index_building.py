"""How long it takes to build the index of a split's records and to open one that is there, and in how much memory.

Every build and every opening happens in a fresh process, whose imports are not counted.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.bench.system import drop_from_page_cache, resident_bytes
from tfds_torch.runtime import fresh_process
from tfds_torch.storage.file_instruction import FileInstruction
from tfds_torch.storage.tfrecord.record_index import RecordIndex


@dataclass(frozen=True)
class IndexFigures:
    """One index.

    Attributes:
        build_s: seconds to build and store it.
        peak_bytes: resident memory of that, at its greatest, above what the process had before; None: not told.
        open_s: seconds to open it in a process that has not seen it, by which it is held against its checksum.
        index_bytes: size of its file.
    """

    build_s: float
    peak_bytes: int | None
    open_s: float
    index_bytes: int


def measure_index(
    instructions: Sequence[FileInstruction], dataset: str, cache_dir: Path, *, is_cold: bool
) -> IndexFigures:
    """Builds and opens the index of these instructions' files.

    Args:
        instructions: whole files.
        dataset: what the files belong to, never used before in this cache.
        cache_dir: where the index is stored (on Linux; elsewhere it goes where it always goes).
        is_cold: whether the files are read from their disk.

    Raises:
        ConfigError: the files are to be cold, and this system cannot be asked for that.
        TfdsTorchError: the files cannot be indexed.
    """
    if is_cold:
        drop_from_page_cache(item.path for item in instructions)
    build_s, peak_bytes = fresh_process.call(_open, instructions, dataset, str(cache_dir))
    open_s, _ = fresh_process.call(_open, instructions, dataset, str(cache_dir))
    return IndexFigures(build_s, peak_bytes, open_s, 8 * sum(item.take + 1 for item in instructions))


def _open(instructions: Sequence[FileInstruction], dataset: str, cache_dir: str) -> tuple[float, int | None]:
    os.environ["XDG_CACHE_HOME"] = cache_dir
    before = resident_bytes()
    start = time.perf_counter()
    RecordIndex.open(instructions, dataset)
    took_s = time.perf_counter() - start
    after = resident_bytes()
    return took_s, None if before is None or after is None else after[1] - before[0]
