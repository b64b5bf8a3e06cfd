"""subprocess_call: functions that run in a process of their own."""

import multiprocessing
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from runtime import answering, child_functions

from tfds_torch.errors import ConfigError, StallError, WorkerError
from tfds_torch.runtime.group_signals import GROUP_SIGNALS
from tfds_torch.runtime.subprocess_call import FreshProcess, call, iterate

WATCHDOG_S = 60  # A hung test fails after it; nothing waits for it otherwise.


def open_pid(pid: int) -> int | None:
    """Returns a handle that stays this process's own, or None when it is already gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def assert_ends(handle: int | None) -> None:
    if handle is not None:
        readable, _, _ = select.select([handle], [], [], WATCHDOG_S)
        os.close(handle)
        assert readable, "the process still runs"


def assert_gone(pid: int) -> None:
    """The process has ended and was waited for: no zombie is left."""
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Calling and iterating.


def test_call_returns_what_the_function_returns() -> None:
    arguments: dict[str, Any] = {"word": "two", "array": [3.5, None]}
    assert call(child_functions.echo, 1, b"x", **arguments) == ((1, b"x"), arguments)
    assert call(child_functions.nothing) is None


def test_the_function_runs_in_a_new_process_each_time() -> None:
    assert len({os.getpid(), call(child_functions.pid), call(child_functions.pid)}) == 3


def test_the_process_begins_without_our_modules() -> None:
    loaded = call(child_functions.loaded_modules)
    assert "pytest" in sys.modules
    assert loaded.isdisjoint({"pytest", "hypothesis", "tensorflow", "torch"})


def test_iterate_yields_all_items_in_order() -> None:
    for number in (0, 1000):
        assert list(iterate(child_functions.count, number)) == list(range(number))


def test_items_larger_than_a_pipe_come_whole() -> None:
    blocks = list(iterate(child_functions.send_blocks, 3_000_001, 4))
    assert blocks == [bytes([number]) * 3_000_001 for number in range(4)]


def test_arguments_larger_than_a_pipe_arrive_whole() -> None:
    block = np.arange(10**6).tobytes()
    ((found,), _) = call(child_functions.echo, block)
    assert found == block


def test_two_iterators_at_once_do_not_mix() -> None:
    pairs = zip(iterate(child_functions.count, 50), iterate(child_functions.count, 50), strict=True)
    assert list(pairs) == [(number, number) for number in range(50)]


def test_nothing_starts_before_the_first_item_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    iterator = iterate(child_functions.count, 1)
    with pytest.raises(AssertionError, match="started"):
        next(iterator)


def test_the_process_is_never_far_ahead_of_its_reader(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    blocks = iterate(child_functions.note_blocks, 1 << 20, str(notes))
    for taken in range(1, 21):
        assert next(blocks) == bytes(1 << 20)
        # One may be in the pipe, one block may just have been read from it.
        assert notes.stat().st_size <= taken + 2
    blocks.close()


# Errors.


def test_an_error_of_ours_comes_back_as_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        call(child_functions.raise_ours, "batch_size=0: this and that")
    assert type(caught.value) is ConfigError
    assert str(caught.value) == "batch_size=0: this and that"


@pytest.mark.parametrize(
    ("function", "traces"),
    [
        (child_functions.raise_a_foreign_error, ["KeyError: 'lost'", "in raise_a_foreign_error"]),
        (child_functions.leave_by_sys_exit, ["SystemExit: leaving", "in leave_by_sys_exit"]),
    ],
)
def test_any_other_error_is_a_worker_error_with_its_traceback(function: Callable[[], None], traces: list[str]) -> None:
    with pytest.raises(WorkerError) as caught:
        call(function)
    for trace in traces:
        assert trace in str(caught.value)


def take_until_error(iterator: Iterator[Any]) -> tuple[list[Any], Exception | None]:
    items = []
    try:
        for item in iterator:
            items.append(item)
    except Exception as error:
        return items, error
    return items, None


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (child_functions.count_and_raise_ours, StallError, r"^no more$"),
        (child_functions.count_and_raise_a_foreign_error, WorkerError, "ZeroDivisionError: at the end"),
    ],
)
def test_an_error_comes_after_the_items_before_it(
    function: Callable[[int], Iterator[int]], kind: type[Exception], message: str
) -> None:
    items, error = take_until_error(iterate(function, 3))
    assert items == [0, 1, 2]
    assert type(error) is kind
    assert re.search(message, str(error))


def test_an_iterator_that_failed_has_ended() -> None:
    iterator = iterate(child_functions.count_and_raise_ours, 0)
    with pytest.raises(StallError):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("size", [0, 10**6], ids=["small", "partly sent"])
def test_a_reply_that_cannot_be_pickled_is_a_worker_error(size: int) -> None:
    items, error = take_until_error(iterate(child_functions.reply_with_something_unpicklable, size))
    assert items == ["first"]
    assert type(error) is WorkerError, repr(error)
    assert "lambda" in str(error)


def test_a_generator_that_is_called_is_a_worker_error() -> None:
    with pytest.raises(WorkerError, match="generator"):
        call(child_functions.count, 3)


def test_a_request_that_cannot_be_pickled_is_an_error_at_once() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError), match="lambda"):
        call(lambda: 0)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError), match="lambda"):
        call(child_functions.echo, lambda: 0)


def test_a_function_that_the_process_cannot_import_is_a_worker_error(run_python: RunPython, root: Path) -> None:
    code = textwrap.dedent(
        """
        from tfds_torch.errors import WorkerError
        from tfds_torch.runtime.subprocess_call import call
        def f(): return 1
        try:
            call(f)
        except WorkerError as error:
            print(error)
        """
    )
    done = run_python("-c", code, env={"PYTHONPATH": str(root)})
    assert "Can't get attribute 'f' on <module '__main__'" in done.stdout, done.stderr


def test_a_module_of_the_current_folder_is_not_taken_for_the_standard_librarys(
    run_python: RunPython, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "script").mkdir()
    script = tmp_path / "script" / "script.py"
    script.write_text(
        "import os; from tfds_torch.runtime.subprocess_call import call; print(call(os.path.basename, 'a/b'))"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pickle.py").write_text("raise RuntimeError('not the real one')")
    done = run_python(str(script), cwd=tmp_path / "data", env={"PYTHONPATH": str(root)})
    assert done.stdout == "b\n", done.stderr


def test_a_forked_process_that_exits_leaves_an_iteration_to_its_parent(run_python: RunPython, root: Path) -> None:
    code = textwrap.dedent(
        """
        import os, sys
        from runtime.child_functions import send_blocks
        from tfds_torch.runtime.subprocess_call import iterate
        blocks = iterate(send_blocks, 1 << 20, 3)
        next(blocks)
        if (pid := os.fork()) == 0:
            del blocks
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(len(list(blocks)))
        """
    )
    done = run_python("-c", code, env={"PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])})
    assert (done.stdout, done.stderr) == ("2\n", "")


# Deaths.


def test_a_killed_process_is_a_worker_error_that_names_signal_function_and_likely_cause() -> None:
    with pytest.raises(WorkerError) as caught:
        call(child_functions.die_by, signal.SIGKILL)
    message = str(caught.value)
    assert "runtime.child_functions.die_by was killed by SIGKILL (out of memory?) before it had finished." in message
    assert message.startswith("The process (pid ")


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_just_leaves_is_a_worker_error_with_its_exit_code(code: int) -> None:
    with pytest.raises(WorkerError) as caught:
        call(child_functions.leave_with, code)
    assert str(caught.value).endswith(f"leave_with ended with exit code {code} before it had finished.")


def test_a_process_that_leaves_early_is_no_short_iteration() -> None:
    items, error = take_until_error(iterate(child_functions.count_and_leave_with, 3, 0))
    assert items == [0, 1, 2]
    assert type(error) is WorkerError
    assert "ended with exit code 0 before it had finished" in str(error)


def test_a_process_killed_while_we_wait_for_it_is_a_worker_error() -> None:
    iterator = iterate(child_functions.pid_then_wait_for_ever)
    os.kill(next(iterator), signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        next(iterator)


@pytest.mark.parametrize("size", [0, 10**6], ids=["before it was sent", "partly sent"])
def test_a_process_killed_in_the_middle_of_a_reply_is_a_worker_error(size: int) -> None:
    items, error = take_until_error(iterate(child_functions.die_in_the_middle_of_a_reply, size))
    assert items == ["first"]
    assert type(error) is WorkerError, repr(error)
    assert "killed by SIGKILL" in str(error)


@pytest.mark.parametrize("num_bytes", [0, 3, 4, 15, 5000])
def test_a_process_killed_while_it_writes_is_a_worker_error(num_bytes: int) -> None:
    items, error = take_until_error(iterate(child_functions.die_after_bytes_of_a_reply, num_bytes))
    assert items == ["first"]
    assert type(error) is WorkerError, repr(error)
    assert "killed by SIGKILL" in str(error)


@pytest.mark.parametrize("size", [10, 10**6], ids=["small request", "request larger than a pipe"])
def test_a_process_that_dies_at_its_start_is_a_worker_error(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match="ended with exit code 1 before it had finished"):
        call(child_functions.echo, bytes(size))


class DeadOnArrival(subprocess.Popen[bytes]):
    """A process that has ended before anything is sent to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("size", [10, 10**6], ids=["small request", "request larger than a pipe"])
def test_a_process_that_is_dead_before_its_request_is_a_worker_error(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(subprocess, "Popen", DeadOnArrival)
    with pytest.raises(WorkerError, match="ended with exit code 1 before it had finished"):
        call(child_functions.echo, bytes(size))


# Ends.


@pytest.mark.parametrize("function", [child_functions.pid_then_wait_for_ever, child_functions.pid_then_write_for_ever])
def test_closing_an_iterator_early_ends_its_process(function: Callable[[], Iterator[Any]]) -> None:
    iterator = iterate(function)
    pid = next(iterator)
    iterator.close()
    assert_gone(pid)


def test_closing_ends_even_a_process_that_was_stopped() -> None:
    iterator = iterate(child_functions.pid_then_wait_for_ever)
    pid = next(iterator)
    os.kill(pid, signal.SIGSTOP)
    iterator.close()
    assert_gone(pid)


def test_dropping_an_iterator_ends_its_process() -> None:
    iterator = iterate(child_functions.pid_then_wait_for_ever)
    pid = next(iterator)
    del iterator
    assert_gone(pid)


def test_a_call_leaves_no_process() -> None:
    assert_gone(call(child_functions.pid))


def test_a_finished_iterator_leaves_no_open_files() -> None:
    list(iterate(child_functions.count, 3))
    before = set(os.listdir("/dev/fd"))
    list(iterate(child_functions.count, 3))
    with pytest.raises(WorkerError):
        call(child_functions.leave_with, 1)
    assert len(os.listdir("/dev/fd")) == len(before)


@pytest.mark.parametrize("function", [child_functions.pid_then_wait_for_ever, child_functions.pid_then_write_for_ever])
def test_the_process_ends_when_its_parent_is_killed(function: Callable[[], Iterator[Any]]) -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    parent = spawn.Process(target=child_functions.start_one_and_block, args=(theirs, function))
    parent.start()
    try:
        handle = open_pid(receive(ours))
        assert handle is not None
    finally:
        parent.kill()
        parent.join()
    assert_ends(handle)


def receive(connection: Connection) -> Any:
    assert connection.poll(WATCHDOG_S), "no answer"
    return connection.recv()


def test_it_works_in_a_daemonic_process() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    daemon = spawn.Process(target=child_functions.use_from_a_daemon, args=(theirs,), daemon=True)
    daemon.start()
    try:
        assert receive(ours) == (True, ((1,), {"word": "two"}), [0, 1, 2], daemon.pid)
    finally:
        daemon.kill()
        daemon.join()


def test_ctrl_c_is_left_to_the_parent() -> None:
    assert call(child_functions.press_ctrl_c) == "unharmed"


# Output.


@pytest.fixture
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's prints as users have them: buffered when they do not go to a terminal."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.mark.usefixtures("buffered")
def test_prints_go_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(child_functions.say, "hello from the child") == "said"
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "hello from the child\n"


@pytest.mark.usefixtures("buffered")
def test_prints_before_an_item_are_there_when_the_item_is(capfd: pytest.CaptureFixture[str]) -> None:
    iterator = iterate(child_functions.say_and_wait_for_ever, "before the item")
    assert next(iterator) == "said"
    iterator.close()
    assert capfd.readouterr().err == "before the item\n"


@pytest.mark.parametrize("function", [child_functions.say_without_python, child_functions.say_in_a_grandchild])
def test_output_of_libraries_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str], function: Callable[[str], object]
) -> None:
    call(function, "chatter")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == "chatter"


# A process that stays.


@pytest.fixture
def process() -> Iterator[FreshProcess]:
    process = FreshProcess(answering.calls, "made", 1)
    yield process
    process.close()


def pid_of(process: FreshProcess) -> int:
    return process.ask(("who",))[0]


def test_one_process_answers_every_request(process: FreshProcess) -> None:
    pid, *first = process.ask(("who",))
    assert first == [1, ("made", 1)]
    assert process.ask(("echo", None)) is None
    assert process.ask(("who",)) == (pid, 3, ("made", 1))
    assert pid != os.getpid()


def test_it_starts_with_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    process = FreshProcess(answering.calls)
    process.close()
    with pytest.raises(AssertionError, match="started"):
        process.ask(("who",))


def test_requests_and_answers_larger_than_a_pipe_come_whole(process: FreshProcess) -> None:
    for size in (0, 1, 65_535, 65_536, 3_000_001):
        block = np.arange(size, dtype=np.uint8)
        np.testing.assert_array_equal(process.ask(("echo", block)), block)


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (("raise_ours",), ConfigError, r"^batch_size=0: this and that$"),
        (("raise_a_foreign_error",), WorkerError, r"(?s)in raise_a_foreign_error.*KeyError: 'lost'"),
        (("leave_by_sys_exit",), WorkerError, "SystemExit: leaving"),
        (("unpicklable", 0), WorkerError, "lambda"),
        (("unpicklable", 10**6), WorkerError, "lambda"),
        (("echo", lambda: 0), (pickle.PicklingError, AttributeError, TypeError), "lambda"),
    ],
)
def test_an_error_comes_back_and_the_process_stays(
    process: FreshProcess, request_: Any, kind: Any, message: str
) -> None:
    pid = pid_of(process)
    with pytest.raises(kind, match=message):
        process.ask(request_)
    assert pid_of(process) == pid


def test_what_could_not_be_made_is_made_for_a_later_request(tmp_path: Path) -> None:
    process = FreshProcess(answering.only_if_there, str(tmp_path / "file"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"file is not there\.$"):
            process.ask(("who",))
    (tmp_path / "file").touch()
    assert process.ask(("echo", 1)) == 1
    process.close()


@pytest.mark.parametrize(
    ("request_", "how"),
    [
        (("die_by", signal.SIGKILL), r"answering.calls was killed by SIGKILL \(out of memory\?\) before"),
        (("die_by", signal.SIGQUIT), r"answering.calls was killed by SIGQUIT before"),
        (("leave_with", 3), "answering.calls ended with exit code 3 before"),
        (("die_after_bytes_of_a_reply", 5000), "killed by SIGKILL"),
    ],
)
def test_a_death_is_a_worker_error_and_the_next_request_starts_another(
    process: FreshProcess, request_: Any, how: str
) -> None:
    pid = pid_of(process)
    with pytest.raises(WorkerError, match=how):
        process.ask(request_)
    assert_gone(pid)
    assert process.ask(("who",))[1] == 1


def test_signals_to_the_process_group_leave_it_alone(process: FreshProcess) -> None:
    pid = pid_of(process)
    for number in GROUP_SIGNALS:
        os.kill(pid, number)
    assert pid_of(process) == pid


def test_a_process_that_died_in_between_is_a_worker_error(process: FreshProcess) -> None:
    os.kill(pid_of(process), signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        process.ask(("echo", bytes(10**6)))
    assert process.ask(("echo", 1)) == 1


def test_a_process_that_cannot_start_is_a_worker_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match="ended with exit code 1"):
        FreshProcess(answering.calls, bytes(10**6)).ask(("who",))


def test_a_closed_process_has_ended_and_the_next_request_starts_another(process: FreshProcess) -> None:
    pid = pid_of(process)
    process.close()
    process.close()
    assert_gone(pid)
    assert pid_of(process) != pid


def test_a_dropped_process_has_ended() -> None:
    process = FreshProcess(answering.calls)
    pid = pid_of(process)
    del process
    assert_gone(pid)


def test_a_closed_process_leaves_no_open_files(process: FreshProcess) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(2):
        pid_of(process)
        process.close()
    with pytest.raises(WorkerError):
        process.ask(("leave_with", 1))
    assert len(os.listdir("/dev/fd")) == before


def test_threads_get_their_own_answers(process: FreshProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda number: process.ask(("echo", (number, bytes(number * 1000)))), range(200))
    assert [(number, len(block)) for number, block in answers] == [(number, number * 1000) for number in range(200)]
    assert process.ask(("who",))[1] == 201


def test_ctrl_c_in_the_middle_of_an_answer_ends_the_process_and_mixes_nothing_up(process: FreshProcess) -> None:
    pid = pid_of(process)
    with pytest.raises(KeyboardInterrupt):
        process.ask(("interrupt_and_wait", os.getpid()))
    assert_gone(pid)
    assert process.ask(("echo", "mine")) == "mine"
    assert process.ask(("press_ctrl_c",)) == "unharmed"


@pytest.mark.usefixtures("buffered")
def test_prints_of_an_answer_go_to_standard_error(process: FreshProcess, capfd: pytest.CaptureFixture[str]) -> None:
    assert process.ask(("say", "hello")) == "said"
    assert capfd.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_process_ends_when_its_parent_is_killed_though_a_forked_one_lives_on(tmp_path: Path, is_busy: bool) -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    work = str(tmp_path / "fifo") if is_busy else ""
    os.mkfifo(tmp_path / "fifo")
    parent = spawn.Process(target=answering.ask_and_block, args=(theirs, work))
    parent.start()
    forked = None
    try:
        pid, forked = receive(ours)
        handle = open_pid(pid)
        assert handle is not None
        assert not is_busy or int(Path(work).read_text()) == pid
    finally:
        parent.kill()
        parent.join()
    assert_ends(handle)
    os.kill(forked, signal.SIGKILL)


def test_a_daemonic_process_has_one_of_its_own() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    daemon = spawn.Process(target=answering.ask_from_a_daemon, args=(theirs,), daemon=True)
    daemon.start()
    is_daemon, pid, own = receive(ours)
    handle = open_pid(pid)
    daemon.join()
    assert (is_daemon, own) == (True, daemon.pid)
    assert pid not in (own, os.getpid())
    assert_ends(handle)  # With the daemon, though that closed nothing.


@pytest.fixture
def run_life(run_python: RunPython, root: Path) -> Callable[..., list[str]]:
    """Runs a function of answering.py in a program, which must complain about nothing; returns what it printed."""

    def run(function: Callable[..., None], *args: str) -> list[str]:
        code = "import sys; from runtime import answering; getattr(answering, sys.argv[1])(*sys.argv[2:])"
        done = run_python(
            *("-W", "always::ResourceWarning", "-c", code, function.__name__, *args),
            env={"PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])},
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def test_a_forked_process_has_one_of_its_own_and_leaves_its_parents_alone(run_life: Callable[..., list[str]]) -> None:
    assert run_life(answering.ask_across_a_fork) == ["True (1, 2)", "0 True (1, 2)"]


def test_a_fork_in_the_middle_of_an_answer_can_ask(run_life: Callable[..., list[str]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    pid, answer = run_life(answering.fork_in_the_middle_of_an_answer, str(tmp_path / "fifo"))
    assert answer == "answered"
    assert_ends(open_pid(int(pid)))


def test_a_program_that_ends_ends_its_process(run_life: Callable[..., list[str]]) -> None:
    (pid,) = run_life(answering.ask_and_end)
    assert_ends(open_pid(int(pid)))


def test_the_function_may_fork_processes() -> None:
    assert call(child_functions.fork_and_join) == 0
