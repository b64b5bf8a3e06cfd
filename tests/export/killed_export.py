"""Exports with two workers in a process that is killed at a random moment, and counts what is left. Run as a script.

`python killed_export.py FOLDER KILLS SEED`: prints counts as JSON, of so many kills or more. It is a process of its
own, because it forks.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from export.made_sources import PAGE, Numbered
from tfds_torch.errors import TfdsTorchError
from tfds_torch.export.api import export_dataset
from tfds_torch.storage.beton.verify import verify

NUM_SAMPLES = 60
ORPHANS_MAY_TAKE_S = 5.0
RENAMED = b"r"
BEFORE_RENAME = 0.75
"""The share of kills that come before the file is in its place; how many do depends on how busy the machine is."""


def export(path: Path, num_samples: int = NUM_SAMPLES) -> None:
    export_dataset(
        Numbered(num_samples), path, format="beton", num_workers=2, chunk_size=2, page_size=PAGE, overwrite=True
    )


def tell_renames(pipe: int) -> None:
    """Lets the process tell when its file is in its place."""
    replace = os.replace

    def act(*arguments: Any) -> None:
        replace(*arguments)
        os.write(pipe, RENAMED)

    os.replace = act  # type: ignore[assignment]


def main() -> None:
    folder, num_kills, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    began = time.monotonic()
    for number in range(3):
        export(folder / f"timed{number}.beton")
    usual_s = (time.monotonic() - began) / 3
    counts = {"before_rename": 0, "after_rename": 0, "absent": 0, "whole": 0, "broken": 0, "killed": 0}
    workers: list[psutil.Process] = []
    while counts["killed"] < num_kills or counts["before_rename"] < BEFORE_RENAME * num_kills:
        path = folder / "a.beton"
        has_old = rng.random() < 0.5
        if has_old:
            export(path, 2)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            tell_renames(write_end)
            export(path)
            time.sleep(0.2 * usual_s)
            os._exit(0)
        os.close(write_end)
        time.sleep(rng.uniform(0, 1.15 * usual_s))
        workers += psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):  # It was through before.
            os.close(read_end)
            path.unlink()
            continue
        counts["killed"] += 1
        os.set_blocking(read_end, False)
        try:
            is_renamed = os.read(read_end, 1) == RENAMED
        except BlockingIOError:
            is_renamed = False  # Its workers hold the pipe open for a moment.
        os.close(read_end)
        counts["after_rename" if is_renamed else "before_rename"] += 1
        if not path.exists():
            counts["absent"] += 1
            assert not has_old
            assert not is_renamed
        else:
            try:
                assert verify(path).num_samples in ((2, NUM_SAMPLES) if has_old else (NUM_SAMPLES,))
                counts["whole"] += 1
            except TfdsTorchError:
                counts["broken"] += 1
        for left in folder.iterdir():
            left.unlink()
    _, alive = psutil.wait_procs(workers, ORPHANS_MAY_TAKE_S)
    print(json.dumps({**counts, "orphans": len(alive), "workers_seen": len(workers)}))


if __name__ == "__main__":
    main()
