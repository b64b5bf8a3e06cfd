"""How long it takes to open a `.beton` file of very many samples, and in how much memory."""

import time
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.bench.system import resident_bytes
from tfds_torch.runtime import fresh_process
from tfds_torch.storage.beton.fields import BetonBytes, BetonInt
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter


@dataclass(frozen=True)
class Opening:
    """A file that was opened in a fresh process, whose imports are not counted.

    Attributes:
        num_samples: of the file.
        open_s: seconds, with all pointers checked.
        kept_bytes: resident memory afterwards above that before; None: the system does not tell.
    """

    num_samples: int
    open_s: float
    kept_bytes: int | None


def measure_opening(folder: Path, num_samples: int) -> Opening:
    """Writes a file of so many samples, each a few bytes and a number, and opens it.

    Raises:
        TfdsTorchError: it cannot be written.
    """
    path = folder / f"{num_samples}.beton"
    if not path.exists():
        fresh_process.call(_write, str(path), num_samples)
    open_s, kept_bytes = fresh_process.call(_open, str(path))
    return Opening(num_samples, open_s, kept_bytes)


def _write(path: str, num_samples: int) -> None:
    with BetonWriter(path, {"text": BetonBytes(), "label": BetonInt()}, num_samples) as writer:
        for number in range(num_samples):
            writer.add((b"%d" % number, number), id=f"train/{number:08d}")


def _open(path: str) -> tuple[float, int | None]:
    before, began_s = resident_bytes(), time.perf_counter()
    source = BetonSource(path)
    source.check()
    took_s, after = time.perf_counter() - began_s, resident_bytes()
    source.close()
    return took_s, None if before is None or after is None else after[0] - before[0]
