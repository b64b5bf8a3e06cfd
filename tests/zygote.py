"""Processes that have imported torch and tensorflow and run neither: what is forked from them begins at once.

A test process has two of them: `torch_zygote()`, which has not imported tensorflow, and `tensorflow_zygote()`. What a
fresh interpreter must show (that it imports nothing, that it was spawned) needs a fresh interpreter, not these.
"""

import gc
import importlib
import json
import os
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import Pipe, current_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from tfds_torch.engines.tensorflow_runtime import is_tensorflow_installed
from tfds_torch.errors import WorkerError
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.subprocess_call import to_ours

TESTS = Path(__file__).parent
RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""What names a rank: of whoever runs the tests, and not of these processes."""

TORCH = (
    "torch.distributed",
    "torch.utils.data",
    "psutil",
    "pytest",
    "tensorflow_datasets",
    "tfds_torch.parsers.tfds.parser",
    "tfds_torch.torch_data.image_dataset",
    "tfds_torch.torch_data.loader",
)
_VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "TF_ENABLE_ONEDNN_OPTS": "0"}
_GRACE_S = 15.0  # For a process to end.


class Zygote:
    """A process that forks others. One thread, one process may use it.

    Args:
        modules: what it imports before it forks.
        parent: the zygote that it is forked from, and that has imported the rest; None: it is a fresh process.
    """

    def __init__(self, *modules: str, parent: "Zygote | None" = None) -> None:
        self._parent = parent
        if parent is not None:
            self.pid, self._control = parent.fork(_serve, modules)
        else:
            self._control, theirs = Pipe()
            path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
            self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
            inherited = {name: value for name, value in os.environ.items() if name not in RANK}
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import zygote; zygote.serve({theirs.fileno()}, {modules!r})"],
                env={**inherited, **_VARIABLES, "PYTHONPATH": path, "TMPDIR": self._folder.name},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            self.pid = self._process.pid
        assert self._control.recv() == "ready"

    def fork(self, function: Callable[..., Any], *args: Any) -> tuple[int, Connection]:
        """Forks a process that calls `function(link, *args)` and ends.

        Returns:
            The pid, and our end of the link.
        """
        ours, theirs = Pipe()
        authkey = bytes(current_process().authkey)  # By which shared tensors are handed over.
        with self._exchanging():
            self._control.send(("fork", (sys.path, authkey), pickle.dumps((function, args))))
            send_handle(self._control, theirs.fileno(), None)
            theirs.close()
            return self._control.recv(), ours

    def wait(self, pid: int) -> int:
        """Waits for the end of a process that was forked, and returns its exit code."""
        with self._exchanging():
            self._control.send(("wait", pid, None))
            return int(self._control.recv())

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Returns `function(*args, **kwargs)` of a process of its own, as `subprocess_call.call` does."""
        with Answering(self) as answering:
            return answering.ask(function, *args, **kwargs)

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # Also a test's time limit: an answer that is still due is not the next one's.
            os.kill(self.pid, signal.SIGKILL)
            _forget_all()
            raise

    def close(self) -> None:
        """Ends it. What it has forked goes on."""
        with suppress(BrokenPipeError):  # It was killed.
            self._control.send(("end", None, None))
        self._control.close()
        if self._parent is None:
            self._process.wait(_GRACE_S)
            self._folder.cleanup()
        else:
            with suppress(OSError, EOFError):  # It was killed.
                self._parent.wait(self.pid)


class Answering:
    """A process that is forked once and answers calls one after the other, each under our environment of then."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._pid, self._link = zygote.fork(_answer)

    def ask(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Returns `function(*args, **kwargs)`; raises what `subprocess_call.call` raises."""
        self._link.send((dict(os.environ), pickle.dumps((function, args, kwargs))))
        try:
            is_error, result = self._link.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerError(f"The process (pid {self._pid}) ended while it ran {function.__qualname__}.") from None
        if is_error:
            raise result
        return result

    def close(self) -> None:
        """Ends it: by a message, as processes forked from ours may hold the link open."""
        with suppress(BrokenPipeError):
            self._link.send(None)
        self._link.close()
        self._zygote.wait(self._pid)

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Script:
    """`python script argument...`, in a session of its own, but for the time that the imports take."""

    def __init__(self, zygote: Zygote, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        self._zygote = zygote
        self._complaints = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115 (closed by finish)
        arguments = list(command), dict(environment), str(cwd), self._complaints.name
        self.pid, link = zygote.fork(_run_script, *arguments)
        self._stdout = os.fdopen(os.dup(link.fileno()))
        link.close()

    def read_line(self) -> str:
        """Returns the next line of its standard output, or an empty one when it has ended."""
        return self._stdout.readline()

    def finish(self) -> "subprocess.CompletedProcess[str]":
        """Waits for its end, once. Returns what was not read yet of its standard output, and its standard error."""
        with self._complaints, self._stdout:
            output = self._stdout.read()
            returncode = self._zygote.wait(self.pid)
            return subprocess.CompletedProcess([], returncode, output, self._complaints.read())

    def left(self) -> list[psutil.Process]:
        """Returns the processes of its session that are still there."""
        return [process for process in psutil.process_iter() if _session_of(process) == self.pid]


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):  # It has gone.
        return None


@contextmanager
def forked_instead_of_fresh(zygote: "Callable[[], Zygote] | None" = None) -> Iterator[None]:
    """Lets `subprocess_call.call` fork, from `torch_zygote()` by default: for tests that need what is built there."""
    with mock.patch.object(subprocess_call, "call", (zygote or torch_zygote)().call):
        yield


_started: list[Zygote] = []


@cache
def torch_zygote() -> Zygote:
    """The zygote of this process that has imported torch and this package, and not tensorflow."""
    return keep(Zygote(*TORCH))


@cache
def tensorflow_zygote() -> Zygote:
    """The zygote of this process that has imported tensorflow, too, where that is installed."""
    modules = ["tensorflow"] if is_tensorflow_installed() else []
    return keep(Zygote(*modules, "grids.rank", parent=torch_zygote()))


def keep(zygote: Zygote) -> Zygote:
    """Lets a zygote end with this process; returns it."""
    _started.append(zygote)
    return zygote


def close_all() -> None:
    """Ends the zygotes of this process."""
    while _started:
        _started.pop().close()


def _forget_all() -> None:
    """Lets the next ones who ask for a zygote have a new one."""
    torch_zygote.cache_clear()
    tensorflow_zygote.cache_clear()


# The other side


def serve(handle: int, modules: Sequence[str]) -> None:
    """Is a zygote, at the other end of a connection."""
    _serve(Connection(handle), modules)


def _serve(control: Connection, modules: Sequence[str]) -> None:
    """Forks a process for every request, and tells how processes ended. Returns in the forked ones only."""
    for module in modules:
        importlib.import_module(module)
    tempfile.gettempdir()  # Of all that is forked: what ends at once removes no temporary file.
    gc.collect()
    gc.freeze()  # A collection in a process that is forked would walk, and so copy, all that is here.
    control.send("ready")
    while True:
        try:
            action, value, request = control.recv()
        except (EOFError, KeyboardInterrupt):
            action = "end"
        if action == "end":
            os._exit(0)  # tensorflow takes seconds to end in order, and there is nothing to put in order.
        if action == "wait":
            control.send(os.waitstatus_to_exitcode(os.waitpid(value, 0)[1]))
            continue
        link = recv_handle(control)
        pid = os.fork()
        if pid == 0:
            control.close()
            sys.path[:], current_process().authkey = value
            _run(Connection(link), request)
            return
        os.close(link)
        control.send(pid)


def _run(link: Connection, request: bytes) -> None:
    """Runs what was asked for. A script, of this zygote or of one that is forked from it, then ends as scripts do."""
    function, args = pickle.loads(request)
    if function in (_run_script, _serve):
        return function(link, *args)
    try:
        function(link, *args)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _answer(link: Connection) -> None:
    """Answers calls until None comes, or the other side is gone."""
    while True:
        try:
            asked = link.recv()
        except EOFError:
            return
        if asked is None:
            return
        environment, request = asked
        _set_environment(environment)
        try:
            function, args, kwargs = pickle.loads(request)
            link.send((False, function(*args, **kwargs)))
        except Exception as error:
            link.send((True, to_ours(error)))


def become_leader(environment: Mapping[str, str], cwd: str) -> None:
    """Begins a session, as a process that was started in this folder with this environment."""
    os.setsid()
    os.chdir(cwd)
    _set_environment(environment)


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _run_script(
    link: Connection, command: Sequence[str], environment: Mapping[str, str], cwd: str, complaints: str
) -> None:
    os.dup2(link.fileno(), 1)
    link.close()
    os.dup2(os.open(complaints, os.O_WRONLY | os.O_APPEND), 2)
    become_leader(environment, cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("always", ResourceWarning)
    sys.argv = list(command)
    own = list(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:0] = [os.path.dirname(command[0]), *own]
    for entry in own:
        if os.path.exists(os.path.join(entry, "sitecustomize.py")):  # Python looks for it when it starts.
            runpy.run_path(os.path.join(entry, "sitecustomize.py"))
    main = types.ModuleType("__main__")
    main.__file__ = command[0]
    sys.modules["__main__"] = main
    exec(compile(Path(command[0]).read_text(), command[0], "exec"), main.__dict__)


def last_line_of(done: "subprocess.CompletedProcess[str]") -> Any:
    """Returns the JSON value on the last line that a script wrote, which must have succeeded."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
