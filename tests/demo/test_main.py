import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from demo.conftest import PHOTOS
from tfds_torch.demo import __main__ as command
from tfds_torch.errors import WorkerError


def read_terminal(descriptor: int) -> str:
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # Linux's way to say that the other side is closed.
            chunk = b""
        if not chunk:
            return b"".join(chunks).decode()
        chunks.append(chunk)


def test_in_a_terminal_it_shows_progress_and_then_how_to_open(tmp_path: Path) -> None:
    terminal, terminal_of_child = pty.openpty()
    arguments = ["digits", "--root", str(tmp_path), "--shards", "2", "--seed", "5"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", "tfds_torch.demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=terminal_of_child,
        text=True,
        env=environment,
    ) as process:
        os.close(terminal_of_child)
        shown = read_terminal(terminal)
        assert process.stdout
        printed = process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0, shown
    assert printed.splitlines() == [
        f"digits is in {tmp_path}; this opens it:",
        f"  parser = tfds_torch.ParserTfds({str(tmp_path)!r}, 'digits')",
    ]
    assert "building digits" in shown
    assert "1797/1797" in shown
    assert "\x1b[?25l" not in shown, "the cursor was hidden"
    for chatter in ("oneDNN", "absl", "Generating", "Shuffling", "Downloading", "tfds_torch:"):
        assert chatter not in shown


def test_a_prepared_dataset_is_opened_in_silence(demo_root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    numbers = [f"--{key.removeprefix('num_')}={value}" for key, value in PHOTOS.items()]
    assert command.main(["photos", "--root", str(demo_root), *numbers]) == 0
    printed = capfd.readouterr()
    assert f"tfds_torch.ParserTfds({str(demo_root)!r}, 'photos')" in printed.out
    assert printed.err == ""


REFUSED = {  # The messages of specifications are tested in test_spec.py.
    "digit": "There is no demo dataset 'digit'. Did you mean 'digits'?",
    "photos --examples 3 --shards 8": "num_shards=8 is more than num_examples=3",
    "mnsit --fake 3": "TFDS has no dataset 'mnsit'. Did you mean 'mnist'?",
    "mnist --fake 3 --shards 4": "num_shards=4 is more than num_examples=3",
    "mnist --fake 3 --seed -1": "seed=-1 must be an integer >= 0.",
    "mnist --fake 3 --split train[:1]": "The split 'train[:1]'",
    "mnist --fake 3 --examples 4": "--examples 4 is for embedded datasets; --fake 3 already says how many.",
    "photos --seed -1": "seed=-1 must be an integer >= 0.",
    "photos --split test": "--split chooses what --fake writes",
    "mnist --fake 3 --root /dev/null/x": "cannot be prepared under root='/dev/null/x'",
    "photos --root /dev/null/x": "cannot be prepared under root='/dev/null/x'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_usage_is_one_line_and_exit_code_2(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(words.split()) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("python -m tfds_torch.demo: ")
    assert REFUSED[words] in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["photos", "--num-shards", "3"], ["photos", "--shards", "many"]])
def test_arguments_that_do_not_parse_are_exit_code_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "python -m tfds_torch.demo: error: " in capfd.readouterr().err


def test_a_failed_build_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(name: str, **options: Any) -> NoReturn:
        raise WorkerError("no space left on device")

    monkeypatch.setattr(command, "prepare", fail)
    assert command.main(["photos"]) == 1
    assert capfd.readouterr().err == "python -m tfds_torch.demo: no space left on device\n"


def test_ctrl_c_is_exit_code_130_and_leaves_nothing(tmp_path: Path) -> None:
    # A shell that runs the tests in the background may have left SIGINT ignored.
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('tfds_torch.demo', run_name='__main__', alter_sys=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "photos", "--root", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr
        process.stderr.readline()  # The build has begun.
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does: to the process and to its child.
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest == "python -m tfds_torch.demo: interrupted; nothing was left behind\n"
    assert {path.name for path in tmp_path.iterdir()} <= {".photos.lock"}
