"""A stateful model of an export's folder: whatever happens to it, no shard is broken and the end is the same. A script.

`python folder_model.py ROOT FOLDER EXAMPLES`: prints as JSON how often each thing happened. It is a process of its own,
because it forks.
"""

import errno
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from export.made_sources import contents
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.tfds.parser import ParserTfds

NUM_SHARDS, NUM_PARTS = 6, 3
FOREIGN = ("notes.txt", ".export-train-000001.mine.tmp", "digits-train.tfrecord-00009-of-00099", ".export-train-x.log")
CALLS = ("pwrite", "write", "fsync", "replace", "link", "unlink")
PARTS = st.integers(1, NUM_PARTS)

happened: Counter[str] = Counter()


def number_of(shard: str) -> int:
    return int(shard.split("-")[2])


class TwiceExecutor(Executor):
    """Runs each task twice at a time, as a scheduler does that has lost sight of a machine."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(4)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        barrier = threading.Barrier(2)

        def run() -> Any:
            barrier.wait(60)
            return fn(*args, **kwargs)

        twice = [self.threads.submit(run) for _ in range(2)]
        first: Future[Any] = Future()
        twice[0].add_done_callback(lambda done: [twice[1].result(60), first.set_result(done.result())])
        return first


def damage_calls(call: str, at: int, how: str) -> None:
    """Lets the n-th of the system's calls kill its process or fail, counted in each process of this one's."""
    original, left = getattr(os, call), [at]

    def act(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments, **options)

    setattr(os, call, act)


class FolderModel(RuleBasedStateMachine):
    """Exports, parts, kills, full disks, damage and foreign files, in any order."""

    parser: ParserTfds
    place: Path
    whole: dict[str, bytes]

    def __init__(self) -> None:
        super().__init__()
        self.out = self.place / "out"
        self.foreign: dict[str, bytes] = {}
        self.damaged: set[str] = set()

    def export(self, part: int | None = None, executor: Executor | None = None) -> Any:
        options: dict[str, Any] = {} if part is None else {"part": f"{part}/{NUM_PARTS}"}
        return export_dataset(
            self.parser, self.out, format="tfrecord", num_shards=NUM_SHARDS, num_workers=2, executor=executor, **options
        )

    def in_child(self, part: int | None, change: Callable[[], None] = lambda: None) -> int:
        """Exports in a forked process, and returns its pid."""
        pid = os.fork()
        if pid == 0:
            with suppress(ExportError):
                change()
                self.export(part)
            os._exit(0)
        return pid

    def has_manifest(self) -> bool:
        return (self.out / "export-train.json").exists()

    @rule()
    def export_all(self) -> None:
        happened["whole"] += 1
        self.export()
        self.damaged.clear()
        assert self.own() == self.whole

    @rule(part=PARTS)
    def export_part(self, part: int) -> None:
        happened["part"] += 1
        report = self.export(part)
        mine = {name for name in self.whole if name.startswith("digits-") and number_of(name) % NUM_PARTS == part - 1}
        self.damaged -= mine
        assert mine <= self.own().keys()
        assert report.num_missing or self.own() == self.whole or self.damaged

    @rule(first=PARTS, second=PARTS)
    def export_two_parts_at_once(self, first: int, second: int) -> None:
        happened["two at once"] += first != second
        for pid in [self.in_child(part) for part in {first, second}]:
            assert os.waitpid(pid, 0)[1] == 0
        self.damaged -= {name for name in self.damaged if number_of(name) % NUM_PARTS in (first - 1, second - 1)}

    @rule()
    def export_by_attempts_that_run_twice(self) -> None:
        happened["twice"] += 1
        executor = TwiceExecutor()
        assert self.export(executor=executor).num_workers == 0
        executor.threads.shutdown()
        self.damaged.clear()
        assert self.own() == self.whole

    @rule(
        part=st.none() | PARTS, call=st.sampled_from(CALLS), at=st.integers(1, 4), how=st.sampled_from(["kill", "full"])
    )
    def interrupt(self, part: int | None, call: str, at: int, how: str) -> None:
        before = self.own()
        _, status = os.waitpid(self.in_child(part, lambda: damage_calls(call, at, how)), 0)
        happened[how] += status != 0 or self.own() != before

    @precondition(has_manifest)
    @rule(data=st.data(), how=st.sampled_from(["cut", "other", "gone"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        there = sorted(name for name in self.own() if name.startswith("digits-"))
        if there:
            path = self.out / data.draw(st.sampled_from(there))
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            {"cut": lambda: os.truncate(path, 99), "other": lambda: path.write_bytes(content), "gone": path.unlink}[
                how
            ]()
            happened["damage"] += 1
            self.damaged.add(path.name)

    @precondition(has_manifest)
    @rule(name=st.sampled_from(FOREIGN))
    def add_foreign(self, name: str) -> None:
        happened["foreign"] += 1
        self.foreign[name] = name.encode()
        (self.out / name).write_bytes(name.encode())

    @precondition(has_manifest)
    @rule()
    def ask_for_another_plan(self) -> None:
        before = contents(self.out)
        usual: dict[str, Any] = {"format": "tfrecord", "num_shards": NUM_SHARDS, "num_workers": 1}
        for options in ({"num_shards": 5}, {"num_shards": 5, "part": (1, 3)}, {"format": "webdataset"}):
            with suppress(ConfigError):
                export_dataset(self.parser, self.out, **usual | options)
                raise AssertionError(options)
        assert contents(self.out) == before

    def own(self) -> dict[str, bytes]:
        found = contents(self.out) if self.out.exists() else {}
        return {name: content for name, content in found.items() if name not in self.foreign}

    @invariant()
    def shards_are_whole_and_foreign_files_stay(self) -> None:
        for name, content in self.own().items():
            assert not name.startswith("digits-") or name in self.damaged or content == self.whole[name], name
        for name, content in self.foreign.items():
            assert (self.out / name).read_bytes() == content

    def teardown(self) -> None:
        try:
            self.export()
            assert self.own() == self.whole
        finally:
            shutil.rmtree(self.out, ignore_errors=True)


def main() -> None:
    parser = ParserTfds(sys.argv[1], "digits", "train[:60]")
    folder = Path(sys.argv[2])
    FolderModel.parser, FolderModel.place = parser, folder
    export_dataset(parser, folder / "whole", format="tfrecord", num_shards=NUM_SHARDS, num_workers=1)
    FolderModel.whole = contents(folder / "whole")
    how = settings(
        max_examples=int(sys.argv[3]),
        stateful_step_count=8,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # Shrinking takes minutes.
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(FolderModel, settings=how)
    print(json.dumps(happened))


if __name__ == "__main__":
    main()
