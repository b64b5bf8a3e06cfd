"""Sharded exports that lose a process by SIGKILL at a random moment, and are then run again. Run as a script.

`python killed_shards.py ROOT FOLDER parent|worker|part KILLS SEED`: prints counts as JSON. It is a process of its own,
because it forks.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from export.made_sources import FORMATS, contents
from tfds_torch.errors import ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.tfds.parser import ParserTfds

NUM_SHARDS, NUM_PARTS = 40, 4
ORPHANS_MAY_TAKE_S = 10.0


def export(parser: ParserTfds, out: Path, file_format: str, part: int | None = None) -> Any:
    options: dict[str, Any] = {} if part is None else {"part": (part, NUM_PARTS)}
    return export_dataset(parser, out, format=file_format, num_shards=NUM_SHARDS, num_workers=2, **options)


def in_child(*arguments: Any) -> int:
    """Exports in a forked process, and returns its pid; it ends with 0, or with 7 where it has lost a worker."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            export(*arguments)
            code = 0
        except ExportError as error:
            code = 7 if "was killed by SIGKILL" in str(error) else 8
        finally:
            os._exit(code)
    return pid


def wait_for_shards(out: Path, number: int) -> None:
    deadline = time.monotonic() + 2.0  # A process that has ended makes no more.
    while len(list(out.glob("digits-*"))) < number and time.monotonic() < deadline:
        pass


def main() -> None:
    parser = ParserTfds(sys.argv[1], "digits")
    folder, victim, num_kills = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    rng = random.Random(int(sys.argv[5]))
    whole, usual_s = {}, {}
    for file_format in FORMATS:
        began = time.monotonic()
        export(parser, folder / file_format, file_format)
        usual_s[file_format] = (time.monotonic() - began) / (NUM_PARTS if victim == "part" else 1)
        whole[file_format] = contents(folder / file_format)
    names = ("killed", "with_shards", "broken", "rewritten", "different", "left", "kept", "children_seen")
    counts = dict.fromkeys(names, 0)
    seen: list[psutil.Process] = []
    out, number = folder / "out", 0
    while counts["killed"] < num_kills:
        number += 1
        file_format, part = FORMATS[number % 3], rng.randint(1, NUM_PARTS) if victim == "part" else None
        shutil.rmtree(out, ignore_errors=True)
        parts = [one for one in range(1, NUM_PARTS + 1) if one != part]
        rng.shuffle(parts)
        early, late = (parts[: (cut := rng.randint(0, 3))], parts[cut:]) if part else ([], [])
        for one in early:
            export(parser, out, file_format, one)
        before = set(out.glob("digits-*"))
        pid = in_child(parser, out, file_format, part)
        if rng.random() < 0.4:
            time.sleep(rng.uniform(0, 1.1 * usual_s[file_format]))
        else:
            wait_for_shards(out, len(before) + rng.randint(1, NUM_SHARDS // (NUM_PARTS if part else 1) - 1))
        children = psutil.Process(pid).children(recursive=True)
        target = rng.choice(children).pid if victim == "worker" and children else pid
        was_killed = victim != "worker" or bool(children)
        with suppress(ProcessLookupError):
            if was_killed:
                os.kill(target, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if victim == "worker":
            was_killed = was_killed and os.waitstatus_to_exitcode(status) == 7
        elif not os.WIFSIGNALED(status):  # It was through before.
            was_killed = False
        _, alive = psutil.wait_procs(children, ORPHANS_MAY_TAKE_S)
        counts["orphans"] = counts.get("orphans", 0) + len(alive)
        if not was_killed:
            continue
        counts["killed"] += 1
        counts["children_seen"] += len(children)
        seen += children
        there = {path.name: path.stat().st_ino for path in out.glob("digits-*")}
        counts["with_shards"] += len(before) < len(there) < NUM_SHARDS
        counts["broken"] += sum((out / name).read_bytes() != whole[file_format][name] for name in there)
        again = [export(parser, out, file_format, one) for one in ([part, *late] if part else [None])]
        counts["kept"] += sum(report.num_kept for report in again)
        counts["rewritten"] += sum((out / name).stat().st_ino != inode for name, inode in there.items())
        counts["different"] += contents(out) != whole[file_format]
        counts["left"] += any(path.name.startswith(".") for path in out.iterdir())
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
