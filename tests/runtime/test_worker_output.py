"""What a worker has written can be read when it is gone, and its stack while it is not."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tfds_torch.runtime import worker_output
from tfds_torch.runtime.worker_output import WorkerOutput

DEADLINE_S = 30.0


def write_and_end(output: WorkerOutput, link: Connection) -> None:
    output.bind(1)
    print("one", file=sys.stderr)
    sys.stderr.writelines(["two\n", "three\n"])
    os._exit(3)


def crash(output: WorkerOutput, link: Connection) -> None:
    output.bind(1)
    print("before", file=sys.stderr)
    ctypes.string_at(0)


def wait_in_a_named_function(output: WorkerOutput, link: Connection) -> None:
    output.bind(1)
    link.send("here")
    threading.Event().wait(DEADLINE_S)


def start(target: Any, method: str = "fork") -> tuple[Any, WorkerOutput, Connection]:
    context = multiprocessing.get_context(method)
    output, (ours, theirs) = WorkerOutput(2), context.Pipe()
    process = context.Process(target=target, args=(output, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, output, ours


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_the_last_lines_outlive_the_worker(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    process, output, _ = start(write_and_end, method)
    process.join()
    assert process.exitcode == 3
    assert output.last_lines(1) == "one\ntwo\nthree"
    assert output.last_lines(1, most=2) == "two\nthree"
    assert output.last_lines(0) == ""
    if method != "forkserver":  # Whose own standard error is that of the time when it was started.
        assert "one\ntwo\nthree" in capfd.readouterr().err  # It goes where it always goes, too.


def test_a_crash_tells_its_stack() -> None:
    process, output, _ = start(crash)
    process.join()
    assert process.exitcode == -signal.SIGSEGV
    message = output.last_lines(1)
    assert message.startswith("Fatal Python error: Segmentation fault")
    assert "in crash" in message


def test_a_worker_tells_its_stack_as_often_as_it_is_asked() -> None:
    process, output, link = start(wait_in_a_named_function)
    link.recv()
    for _ in range(2):
        stack = output.ask_for_stack(1, process.pid)
        assert stack is not None
        assert stack.count("in wait_in_a_named_function") == 1
    os.kill(process.pid, signal.SIGSTOP)
    assert output.ask_for_stack(1, process.pid, wait_s=0.1) is None
    process.kill()
    process.join()
    assert output.ask_for_stack(1, process.pid, wait_s=0.1) is None


def test_a_long_text_takes_no_more_than_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    def write_much(output: WorkerOutput, link: Connection) -> None:
        output.bind(0)
        for number in range(40):
            sys.stderr.write(f"{number} {'x' * 10_000}\n")
        print("the last", file=sys.stderr)

    process, output, _ = start(write_much)
    process.join()
    assert output.last_lines(0).endswith("the last")
    assert len(output.last_lines(0)) < worker_output._TAIL_BYTES
    assert os.fstat(output._files[0]).st_size <= worker_output._MOST_BYTES + 10_010
    capfd.readouterr()


def test_a_system_without_memory_files_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    output = WorkerOutput(2)
    output.bind(1)
    assert (output.last_lines(1), output.ask_for_stack(1, os.getpid())) == ("", None)


def test_its_files_go_with_it() -> None:
    before = set(os.listdir("/proc/self/fd"))
    output = WorkerOutput(3)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 3
    del output
    assert set(os.listdir("/proc/self/fd")) <= before


def test_it_is_no_thing_to_be_saved() -> None:
    with pytest.raises(TypeError, match="travels to new processes only"):
        pickle.dumps(WorkerOutput(1))
