"""What the tests of Beam run in its own environment: `python beam_lives.py FUNCTION FOLDER [ROOT]`, which prints JSON.

Outside of a process of pytest, which keeps a journal of what it forks; and here alone apache_beam is installed.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export.made_sources import Numbered
from tfds_torch.errors import TfdsTorchError
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.tfds.parser import ParserTfds

FORMATS = ("webdataset", "tfrecord", "array_record")
NUM_SHARDS = 5
RUNNER = "FnApiRunner"
"""Of those of this machine, the one that does not try to download another."""
TRYING_AGAIN = "BundleBasedDirectRunner"


class Dying(Numbered):
    """A dataset at one of whose samples the process that reads it is killed, as often as there are files to take."""

    def __init__(self, lives: Path, at: int = 13) -> None:
        super().__init__(at=at, act=self._die)
        self.lives = lives

    def _die(self) -> None:
        for life in self.lives.iterdir():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class Waiting(Numbered):
    """A dataset whose samples wait for a file `go`, once a folder has two shards; it makes a file `waits` then."""

    def __init__(self, folder: Path, shards: Path) -> None:
        super().__init__()
        self.folder, self.shards = folder, shards

    def __getitem__(self, number: int) -> tuple[Any, int]:
        while len(list(self.shards.glob("*.tar"))) >= 2 and not (self.folder / "go").exists():
            (self.folder / "waits").touch()
            time.sleep(0.01)
        return super().__getitem__(number)


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("[!.]*-*-*")}


def write_all_formats(folder: Path, root: str) -> dict[str, Any]:
    parser = ParserTfds(root, "photos")
    progress: list[tuple[int, int]] = []
    options: dict[str, Any] = {"num_shards": NUM_SHARDS, "shuffle_seed": 3, "beam_runner": RUNNER}
    reports = {}
    for file_format in FORMATS:
        report = export_dataset(
            parser, folder / file_format, format=file_format, progress=lambda *now: progress.append(now), **options
        )
        reports[file_format] = report.to_dict()
    written = identities(folder / "webdataset")
    lost = sorted(written)[2]
    (folder / "webdataset" / lost).unlink()
    again = export_dataset(
        parser,
        folder / "webdataset",
        format="webdataset",
        beam_options=["direct_num_workers=2", "--direct_running_mode=multi_threading"],
        **options,
    )
    now = identities(folder / "webdataset")
    rewritten = [name for name in now if now[name] != written.get(name)]
    return {"reports": reports, "progress": progress, "kept": again.num_kept, "lost": lost, "rewritten": rewritten}


def die(folder: Path) -> Any:
    lives, out = folder / "lives", folder / "out"
    lives.mkdir()
    (lives / "1").touch()
    source = Dying(lives)
    report = export_dataset(source, out, format="webdataset", num_shards=NUM_SHARDS, beam_runner=TRYING_AGAIN)
    found: dict[str, Any] = {"died": not list(lives.iterdir()), "kept": report.num_kept, "shards": report.num_shards}
    for life in range(20):  # More often than any runner tries it.
        (lives / str(life)).touch()
    dead = folder / "dead"
    try:
        export_dataset(source, dead, format="webdataset", num_shards=NUM_SHARDS, beam_runner=TRYING_AGAIN)
    except TfdsTorchError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    before = identities(dead)
    found["unfinished"] = [path.name for path in dead.iterdir() if path.name.endswith(".tmp")]
    for life in lives.iterdir():  # type: ignore[assignment]
        life.unlink()
    last = export_dataset(source, dead, format="webdataset", num_shards=NUM_SHARDS, num_workers=1)
    after = identities(dead)
    return found | {
        "complete before": len(before),
        "kept after": last.num_kept,
        "rewritten": [name for name in before if before[name] != after[name]],
    }


def wait(folder: Path) -> int:
    """Returns how many shards were kept."""
    source = Waiting(folder, folder / "out")
    report = export_dataset(
        source, folder / "out", format="webdataset", num_shards=NUM_SHARDS, beam_runner=TRYING_AGAIN
    )
    return report.num_kept or 0


def refuse(folder: Path) -> list[str]:
    requests: list[dict[str, Any]] = [
        {"beam_runner": "DirektRunner"},
        {"beam_runner": "no.such.Runner"},
        {"beam_runner": RUNNER, "beam_options": ["direct_num_workers=many"]},
        {"beam_runner": RUNNER, "beam_options": ["direct_num_worker=2"]},
        {"beam_runner": RUNNER, "beam_options": ["--runner=DirectRunner"]},
        {"beam_runner": RUNNER, "beam_options": ["--direct_num_workers", "2"]},
        {"beam_runner": "DataflowRunner"},
        {"beam_runner": RUNNER, "source": Numbered(act=threading.Lock().release)},
    ]
    return list(_refusals(folder, requests))


def _refusals(folder: Path, requests: list[dict[str, Any]]) -> Iterator[str]:
    for request in requests:
        source = request.pop("source", Numbered())
        try:
            export_dataset(source, folder / "refused", format="webdataset", **request)
        except TfdsTorchError as error:
            yield f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
