"""The preloaded processes that tests fork from."""

import os
import signal
import sys
from pathlib import Path

import pytest
from zygote import Answering, Script, forked_instead_of_fresh, tensorflow_zygote, torch_zygote

from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime import subprocess_call


def loaded() -> set[str]:
    return {"tensorflow", "torch"} & set(sys.modules)


def pid() -> int:
    return os.getpid()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def fail(kind: str) -> None:
    if kind == "ours":
        raise ConfigError("no such thing")
    if kind == "foreign":
        raise KeyError("lost")
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_has_torch_and_the_other_one_tensorflow_too() -> None:
    assert torch_zygote().call(loaded) == {"torch"}
    assert tensorflow_zygote().call(loaded) == {"tensorflow", "torch"}
    with forked_instead_of_fresh():
        assert subprocess_call.call(loaded) == {"torch"}
    with forked_instead_of_fresh(tensorflow_zygote):
        assert subprocess_call.call(loaded) == {"tensorflow", "torch"}
    assert subprocess_call.call(loaded) == set()


def test_each_call_has_a_process_and_an_answering_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = {torch_zygote().call(pid), torch_zygote().call(pid), os.getpid()}
    assert len(pids) == 3
    with Answering(torch_zygote()) as answering:
        assert answering.ask(pid) == answering.ask(pid) not in pids
        monkeypatch.setenv("ZYGOTE_TEST", "here")
        assert answering.ask(variable, "ZYGOTE_TEST") == "here"
        monkeypatch.delenv("ZYGOTE_TEST")
        assert answering.ask(variable, "ZYGOTE_TEST") is None


def test_errors_are_those_of_fresh_processes() -> None:
    with pytest.raises(ConfigError, match=r"^no such thing$"):
        torch_zygote().call(fail, "ours")
    with pytest.raises(WorkerError, match="KeyError: 'lost'"):
        torch_zygote().call(fail, "foreign")
    with pytest.raises(WorkerError, match=r"The process \(pid \d+\) ended while it ran fail"):
        torch_zygote().call(fail, "killed")


SCRIPT = """
import multiprocessing, os, sys, time
assert __name__ == "__main__" and sys.argv[1:] == ["one", "two"]
print(os.getcwd(), os.getpid() == os.getsid(0), flush=True)
multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
open(os.devnull)
raise SystemExit(3)
"""


def test_a_script_is_one_and_what_it_leaves_is_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    started = Script(torch_zygote(), [str(script), "one", "two"], os.environ, tmp_path)
    assert started.read_line() == f"{tmp_path} True\n"
    while len(left := [process for process in started.left() if process.pid != started.pid]) != 1:
        pass
    left[0].kill()  # The script waits for its child.
    done = started.finish()
    assert done.returncode == 3
    assert "ResourceWarning: unclosed file" in done.stderr
    assert started.left() == []


@pytest.mark.slow  # The tests after it have to start other ones.
def test_an_answer_that_was_not_waited_for_is_not_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    zygote = torch_zygote()
    number, link = zygote.fork(wait_for_the_end)
    with monkeypatch.context() as patch:
        patch.setattr(type(zygote._control), "recv", interrupt)
        with pytest.raises(KeyboardInterrupt):
            zygote.wait(number)
    link.close()
    assert torch_zygote() is not zygote
    assert torch_zygote().call(loaded) == {"torch"}


def wait_for_the_end(link: object) -> None:
    link.recv()  # type: ignore[attr-defined]


def interrupt(connection: object) -> None:
    raise KeyboardInterrupt
