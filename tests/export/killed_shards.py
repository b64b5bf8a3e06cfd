"""Sharded exports with two workers that are killed at a random moment, and then run again. Run as a script.

`python killed_shards.py ROOT FOLDER FORMAT KILLS SEED`: prints counts as JSON, of so many kills or more. It is a
process of its own, because it forks.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.tfds.parser import ParserTfds

NUM_SHARDS = 8
ORPHANS_MAY_TAKE_S = 10.0
BEFORE_RENAME = 0.75
"""The share of kills that come before the last rename; how many do depends on how busy the machine is."""


def export(parser: ParserTfds, out: Path, file_format: str) -> int:
    return export_dataset(parser, out, format=file_format, num_shards=NUM_SHARDS, num_workers=2).num_kept


def shards_in(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("photos-*")}


def is_complete(out: Path) -> bool:
    manifest = out / "export-train.json"
    return manifest.exists() and json.loads(manifest.read_text())["shards"] is not None


def main() -> None:
    parser = ParserTfds(sys.argv[1], "photos")
    folder, file_format, num_kills = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    rng = random.Random(int(sys.argv[5]))
    began = time.monotonic()
    for number in range(3):
        export(parser, folder / f"whole{number}", file_format)
    usual_s = (time.monotonic() - began) / 3
    whole = shards_in(folder / "whole0")
    counts = dict.fromkeys(("killed", "before_rename", "with_shards", "broken", "rewritten", "kept", "incomplete"), 0)
    workers: list[psutil.Process] = []
    out = folder / "out"
    while counts["killed"] < num_kills or counts["before_rename"] < BEFORE_RENAME * num_kills:
        shutil.rmtree(out, ignore_errors=True)
        pid = os.fork()
        if pid == 0:
            export(parser, out, file_format)
            time.sleep(0.2 * usual_s)
            os._exit(0)
        time.sleep(rng.uniform(0, 1.15 * usual_s))
        children = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):  # It was through before.
            continue
        psutil.wait_procs(children, ORPHANS_MAY_TAKE_S)
        workers += children
        counts["killed"] += 1
        counts["before_rename"] += not is_complete(out)
        there = shards_in(out)
        numbers = {name: (out / name).stat().st_ino for name in there}
        counts["with_shards"] += 0 < len(there) < NUM_SHARDS
        counts["broken"] += sum(content != whole[name] for name, content in there.items())
        counts["kept"] += export(parser, out, file_format)
        counts["rewritten"] += sum((out / name).stat().st_ino != number for name, number in numbers.items())
        counts["incomplete"] += shards_in(out) != whole or not is_complete(out)
        counts["incomplete"] += any(path.name.startswith(".") for path in out.iterdir())
    _, alive = psutil.wait_procs(workers, ORPHANS_MAY_TAKE_S)
    print(json.dumps({**counts, "orphans": len(alive), "workers_seen": len(workers)}))


if __name__ == "__main__":
    main()
