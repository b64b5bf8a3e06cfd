"""Writes files in children that kill themselves at a random system call, and counts what is left. Run as a script.

`python killed_writer.py FOLDER ROUNDS SEED`: prints counts as JSON. It is a process of its own, because it forks.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from storage.beton.made_files import PAGE, write_samples

from tfds_torch.errors import TfdsTorchError
from tfds_torch.storage.beton.fields import BetonBytes
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import BetonWriter

CALLS = ("pwrite", "fsync", "replace")
NUM_SAMPLES = 8


def patch(before: Any) -> None:
    """Lets `before(name, call, arguments)` be called in place of every call that changes the disk."""

    def replaced(name: str, call: Any) -> Any:
        return lambda *arguments: before(name, call, arguments)

    for name in CALLS:
        setattr(os, name, replaced(name, getattr(os, name)))


def count_calls(folder: Path) -> int:
    """Returns how many there are."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        count = 0

        def note(name: str, call: Any, arguments: Any) -> Any:
            nonlocal count
            count += 1
            return call(*arguments)

        patch(note)
        write(folder / "counted.beton")
        os.write(write_end, str(count).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read_end, 100))


def write(path: Path) -> None:
    """Writes four pages."""
    with BetonWriter(path, {"text": BetonBytes()}, NUM_SAMPLES, page_size=PAGE, overwrite=True) as writer:
        for number in range(NUM_SAMPLES):
            writer.add((bytes([number]) * (PAGE // 2),))


def die_at(number: int, rng: random.Random) -> None:
    """Kills this process at a call: before it, or inside it where it writes."""
    left = number

    def call_or_die(name: str, call: Any, arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            if name == "pwrite":
                descriptor, content, offset = arguments
                call(descriptor, bytes(content)[: rng.randrange(len(content) + 1)], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    patch(call_or_die)


def main() -> None:
    folder, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    num_calls = count_calls(folder)
    counts = {"before_rename": 0, "absent": 0, "whole": 0, "broken": 0, "calls": num_calls}
    for round_number in range(rounds):
        path, at = folder / f"{round_number}.beton", rng.randrange(num_calls)
        has_old = rng.random() < 0.5
        if has_old:
            write_samples(path, 2)
        if os.fork() == 0:
            die_at(at, rng)
            write(path)
            os._exit(0)
        _, status = os.wait()
        assert os.WTERMSIG(status) == signal.SIGKILL
        counts["before_rename"] += at <= num_calls - 2  # The last two: the rename, and the folder's fsync.
        if not path.exists():
            counts["absent"] += 1
            assert not has_old
        else:
            try:
                assert verify(path).num_samples in ((2, NUM_SAMPLES) if has_old else (NUM_SAMPLES,))
                counts["whole"] += 1
            except TfdsTorchError:
                counts["broken"] += 1
        for left in folder.iterdir():
            left.unlink()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
