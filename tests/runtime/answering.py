"""What the tests of FreshProcess let answer in fresh processes, and lives of whole processes that ask. Importable."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.child_functions import die_after_writing

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.subprocess_call import FreshProcess


def calls(*made_of: Any) -> Callable[[Any], Any]:
    """Answers (name, *arguments) by calling the method of that name."""
    return Caller(made_of)


class Caller:
    def __init__(self, made_of: Any) -> None:
        self.made_of = made_of
        self.num_asked = 0

    def __call__(self, request: tuple[Any, ...]) -> Any:
        self.num_asked += 1
        name, *arguments = request
        return getattr(self, name)(*arguments)

    def who(self) -> tuple[int, int, Any]:
        return os.getpid(), self.num_asked, self.made_of

    def echo(self, value: Any) -> Any:
        return value

    def raise_ours(self) -> None:
        raise ConfigError("batch_size=0: this and that")

    def raise_a_foreign_error(self) -> None:
        raise KeyError("lost")

    def leave_by_sys_exit(self) -> None:
        sys.exit("leaving")

    def unpicklable(self, size: int) -> Any:
        return [bytes(size), lambda: 0]

    def die_by(self, number: int) -> None:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)  # A shell has jobs in its background ignore SIGQUIT.
        os.kill(os.getpid(), number)
        threading.Event().wait()

    def leave_with(self, code: int) -> None:
        os._exit(code)

    def die_after_bytes_of_a_reply(self, num_bytes: int) -> None:
        die_after_writing(num_bytes)

    def interrupt_and_wait(self, pid: int) -> None:
        os.kill(pid, signal.SIGINT)
        threading.Event().wait()

    def press_ctrl_c(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "unharmed"

    def say(self, text: str) -> str:
        print(text)
        return "said"

    def tell_and_wait(self, fifo: str) -> None:
        """Tells its pid to who reads the named pipe, and then works for ever."""
        Path(fifo).write_text(str(os.getpid()))
        threading.Event().wait()


def only_if_there(path: str) -> Callable[[Any], Any]:
    if not Path(path).exists():
        raise ConfigError(f"{path} is not there.")
    return calls()


# Lives


def ask_and_block(replies: Any, work: str) -> None:
    """Tells the pid of what answers, forks a process that lives on, and then waits, for an answer or just so."""
    process = FreshProcess(calls)
    pid = process.ask(("who",))[0]
    fork = multiprocessing.get_context("fork")
    forked = fork.Process(target=threading.Event().wait)
    forked.start()
    replies.send((pid, forked.pid))
    if work:
        process.ask(("tell_and_wait", work))
    threading.Event().wait()


def ask_from_a_daemon(replies: Any) -> None:
    process = FreshProcess(calls)
    replies.send((multiprocessing.current_process().daemon, process.ask(("who",))[0], os.getpid()))


def ask_across_a_fork() -> None:
    """The parent has asked; both sides of a fork go on asking; the forked one ends as a program does."""
    process = FreshProcess(calls)
    before = process.ask(("who",))
    forked = os.fork()
    if not forked:
        first, second = process.ask(("who",)), process.ask(("who",))
        print(first[0] == second[0] != before[0], (first[1], second[1]), flush=True)
        del process
        sys.exit()
    _, status = os.waitpid(forked, 0)
    after = process.ask(("who",))
    print(status, after[0] == before[0], (before[1], after[1]))


def fork_in_the_middle_of_an_answer(fifo: str) -> None:
    """A thread waits for an answer when its process is forked: the lock it holds is held for ever in the new one."""
    process = FreshProcess(calls)
    threading.Thread(target=ask_quietly, args=(process, ("tell_and_wait", fifo)), daemon=True).start()
    print(Path(fifo).read_text(), flush=True)
    forked = os.fork()
    if not forked:
        print(process.ask(("echo", "answered")), flush=True)
        process.close()
        os._exit(0)
    os.waitpid(forked, 0)


def ask_quietly(process: FreshProcess, request: Any) -> None:
    try:
        process.ask(request)
    except Exception:  # The program ends, and what answers with it.
        pass


kept: FreshProcess


def ask_and_end() -> None:
    """Ends without a word to what answers, which still has nothing to do."""
    global kept
    kept = FreshProcess(calls)
    print(kept.ask(("who",))[0])
