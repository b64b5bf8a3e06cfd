"""Exports that replace another one, killed before each change of the file system in turn, and then run again.

`python killed_replacements.py ROOT FOLDER FORMAT EXCHANGE`: prints counts as JSON. EXCHANGE is `call`, or `renames` for
a system that cannot exchange two folders by one call. It is a process of its own, because it forks.
"""

import json
import mmap
import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfds_torch.export.exporting import export_dataset
from tfds_torch.export.shard_folder import verify_shards
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.runtime import atomic_folder

OLD_SHARDS, NEW_SHARDS = 2, 3
CALLS = ("mkdir", "write", "pwrite", "fsync", "replace", "rename", "link", "unlink", "rmdir", "chmod")
FOREIGN = {
    "notes.txt": b"notes",
    ".a.0123456789abcdef.tmp": b"temporary",
    "digits-train-000007.tar": b"shard",
    "digits-train.tfrecord-00007-of-00008": b"shard",
    "more/inner/notes.txt": b"inner",
}


def export(parser: ParserTfds, out: Path, file_format: str, num_shards: int, **options: Any) -> int | None:
    chosen = {"indices": range(6), "num_shards": num_shards, "num_workers": 1, **options}
    return export_dataset(parser, out, format=file_format, **chosen).num_kept


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Kill:
    """Kills this process, and its workers, before the n-th call; the numbers are those of all processes together."""

    def __init__(self, at: int) -> None:
        os.setpgid(0, 0)
        self.at, self.count = at, mmap.mmap(-1, 8)
        for name in CALLS:
            setattr(os, name, self.counted(getattr(os, name)))
        call = atomic_folder._exchanging_call()
        atomic_folder._exchanging_call = lambda: None if call is None else self.counted(call)  # type: ignore[assignment]

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            (number,) = struct.unpack("q", self.count[:8])
            self.count[:8] = struct.pack("q", number + 1)
            if number == self.at:
                os.killpg(0, signal.SIGKILL)
            return call(*arguments, **options)

        return act


def main() -> None:
    root, folder, file_format, exchange = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    if exchange == "renames":
        atomic_folder._exchanging_call = lambda: None  # type: ignore[assignment]
    parser, other = ParserTfds(root, "digits"), ParserTfds(root, "digits", "test")
    old, whole, out = folder / "old", folder / "whole", folder / "place" / "out"
    for place, num_shards in ((old, OLD_SHARDS), (whole, NEW_SHARDS)):
        export(parser, place, file_format, num_shards)
        export(other, place, file_format, 1)
        for name, content in FOREIGN.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
    expected = {OLD_SHARDS: contents(old), NEW_SHARDS: contents(whole)}
    counts = {"kills": 0, "old": 0, "new": 0, "absent": 0, "broken": 0, "lost": 0, "rewritten": 0, "wrong": 0}
    for at in range(10_000):
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir()
        shutil.copytree(old, out)
        pid = os.fork()
        if pid == 0:
            Kill(at)
            export(parser, out, file_format, NEW_SHARDS, overwrite=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            break
        counts["kills"] += 1
        counts["absent"] += not out.exists()
        verify_shards(out)
        there = contents(out)
        num_shards = len(json.loads(there["export-train.json"])["shards"])
        counts["old" if num_shards == OLD_SHARDS else "new"] += 1
        files = {name: content for name, content in expected[num_shards].items() if "/" not in name}
        counts["broken"] += any(there.get(name) != content for name, content in files.items())
        beside = contents(out.parent)
        counts["lost"] += not any(name.endswith("more/inner/notes.txt") for name in beside)
        new = out.parent / ".out.new"
        done = [path.name for path in new.glob("digits-train*") if path.name not in FOREIGN] if num_shards == 2 else []
        numbers = {name: (new / name).stat().st_ino for name in done}
        export(parser, out, file_format, NEW_SHARDS, overwrite=True)
        counts["rewritten"] += sum((out / name).stat().st_ino != number for name, number in numbers.items())
        counts["wrong"] += contents(out) != expected[NEW_SHARDS] or os.listdir(out.parent) != ["out"]
        verify_shards(out)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
