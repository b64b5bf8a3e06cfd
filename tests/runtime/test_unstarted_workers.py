"""What a user reads where workers that are not forked cannot begin: real scripts, in processes of their own."""

import os
import subprocess
import sys
from multiprocessing import process
from pathlib import Path
from typing import Any

import pytest

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.processes import WorkerProcesses
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput

slow, campaign = pytest.mark.slow, pytest.mark.campaign
ROOT = Path(__file__).parents[2]
GUARD = 'if __name__ == "__main__":'
MAKE = {
    "create_loader": "create_loader({data}, num_workers=2, batch_size=4, multiprocessing_context={method!r})",
    "MultiLoader": "MultiLoader({data}, num_workers=2, start_method={method!r})",
}


def run(script: str, tmp_path: Path, from_stdin: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a script; it must end by itself."""
    path = tmp_path / "training.py"
    path.write_text(script)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-" if from_stdin else str(path)]
    given = script if from_stdin else None
    return subprocess.run(command, input=given, capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=100)


def loop(loader: str, method: str, data: str) -> str:
    return f"for batch in {MAKE[loader].format(data=data, method=method)}:\n    print('batch')\n"


@pytest.mark.parametrize(
    ("size", "loader", "method"),
    [
        ("small", "MultiLoader", "spawn"),
        pytest.param("small", "create_loader", "forkserver", marks=slow),
        pytest.param("small", "MultiLoader", "forkserver", marks=campaign),
        pytest.param("small", "create_loader", "spawn", marks=campaign),
        pytest.param("larger than a pipe", "MultiLoader", "spawn", marks=slow),
        pytest.param("larger than a pipe", "MultiLoader", "forkserver", marks=slow),
        pytest.param("larger than a pipe", "create_loader", "spawn", marks=slow),
        pytest.param("larger than a pipe", "create_loader", "forkserver", marks=campaign),
    ],
)
def test_a_script_without_its_guard_is_told_the_line_to_add(
    loader: str, method: str, size: str, tmp_path: Path
) -> None:
    """A message larger than a pipe kept the parent waiting for ever under spawn; under forkserver it broke the pipe."""
    data = "list(range(100))" if size == "small" else "[bytes(1000) for _ in range(1000)]"
    done = run(f"from tfds_torch import {loader}\n{loop(loader, method, data)}", tmp_path)
    assert done.returncode == 1
    assert "batch" not in done.stdout
    error = done.stderr.partition("tfds_torch.errors.WorkerError: ")[2]
    assert error.startswith("Worker ")
    assert "ended with exit code 1 before it had begun: what it wrote to standard error says why." in error
    assert f"\n\n    {GUARD}\n\n" in error
    assert "='fork'" in error
    assert "An attempt has been made to start a new process before" in done.stderr


@pytest.mark.parametrize(
    ("loader", "method"),
    [
        pytest.param("MultiLoader", "spawn", marks=slow),
        pytest.param("create_loader", "forkserver", marks=slow),
        pytest.param("MultiLoader", "forkserver", marks=campaign),
        pytest.param("create_loader", "spawn", marks=campaign),
    ],
)
def test_a_name_below_the_guard_is_in_the_message(loader: str, method: str, tmp_path: Path) -> None:
    body = f"class Numbers(list):\n    pass\n{loop(loader, method, 'Numbers(range(100))')}"
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    done = run(f"from tfds_torch import {loader}\n{GUARD}\n{indented}", tmp_path)
    error = done.stderr.partition("tfds_torch.errors.WorkerError: ")[2]
    assert "ended with exit code 1 before it had begun" in error
    assert "leave imports, functions and classes above it, or in a module." in error
    assert "to standard error:\nTraceback" in error
    assert "AttributeError: Can't get attribute 'Numbers'" in error


def test_a_script_from_standard_input_is_told_to_save_it(tmp_path: Path) -> None:
    done = run(
        f"from tfds_torch import MultiLoader\n{loop('MultiLoader', 'spawn', 'list(range(3))')}",
        tmp_path,
        from_stdin=True,
    )
    error = done.stderr.partition("tfds_torch.errors.WorkerError: ")[2]
    assert "ended with exit code 1 before it had begun" in error
    assert "finds nothing of a notebook or of standard input" in error


def test_a_name_that_was_typed_in_is_in_the_message(tmp_path: Path) -> None:
    """`python -c`, as a notebook, has a main module without a file: nothing of it is found."""
    body = f"class Numbers(list):\n    pass\n{loop('MultiLoader', 'spawn', 'Numbers([1])')}"
    script = f"from tfds_torch import MultiLoader\n{body}"
    done = run(
        f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', {script!r}]).returncode)", tmp_path
    )
    error = done.stderr.partition("tfds_torch.errors.WorkerError: ")[2]
    assert "finds nothing of a notebook" in error
    assert "AttributeError: Can't get attribute 'Numbers'" in error


@pytest.mark.parametrize(
    ("loader", "method", "size"),
    [
        pytest.param("MultiLoader", "spawn", 10, marks=slow),
        pytest.param("MultiLoader", "forkserver", 100_000, marks=slow),
        pytest.param("create_loader", "spawn", 100_000, marks=slow),
        pytest.param("create_loader", "forkserver", 10, marks=slow),
        pytest.param("MultiLoader", "spawn", 100_000, marks=campaign),
        pytest.param("MultiLoader", "forkserver", 10, marks=campaign),
        pytest.param("create_loader", "spawn", 10, marks=campaign),
        pytest.param("create_loader", "forkserver", 100_000, marks=campaign),
    ],
)
def test_a_script_with_its_guard_reads_all(loader: str, method: str, size: int, tmp_path: Path) -> None:
    body = loop(loader, method, f"Numbers(b'0' * {size} for _ in range(4))").replace("'batch'", "len(batch)")
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    done = run(f"from tfds_torch import {loader}\nclass Numbers(list):\n    pass\n{GUARD}\n{indented}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == (1 if loader == "create_loader" else 8)  # MultiLoader: each worker reads all.


@slow
def test_what_another_library_starts_in_a_script_without_guard_is_explained(tmp_path: Path) -> None:
    other = "import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()\n"
    guarded = f"{GUARD}\n    for batch in MultiLoader([1], 1, start_method='spawn'): pass\n"
    done = run(f"from tfds_torch import MultiLoader\n{guarded}\n{other}", tmp_path)
    error = done.stderr.partition("tfds_torch.errors.WorkerError: ")[2]
    assert "ended with exit code 1 before it had begun: what it wrote to standard error says why." in error
    assert f"\n\n    {GUARD}\n\n" in error


def test_a_worker_that_has_not_begun_in_time_may_be_importing_the_script() -> None:
    faults = WorkerFaults(ErrorContext("digits"), StageMetrics(1), WorkerOutput(1), 5.0, True)
    message = faults.describe_stall([os.getpid()], 0)
    assert "has not begun to read digits." in message
    assert "It may still import the script. A worker that is not forked imports the script anew" in message


def test_a_fork_server_that_ends_with_the_script_is_told_with_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later versions of Python let the fork server itself import the script."""

    def end(*args: Any) -> None:
        raise EOFError

    processes = WorkerProcesses("forkserver", WorkerOutput(1))
    monkeypatch.setattr(process.BaseProcess, "start", end)
    with pytest.raises(WorkerError, match=r"(?s)^A worker cannot be started: .*EOFError.*if __name__ == \"__main__\":"):
        processes.start(print, (), {})
