"""MultiLoader imports neither torch nor tensorflow: not here, not in its workers."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

slow = pytest.mark.slow
# `find_spec` finds what it refuses: etils and TFDS ask.
REFUSE = """
import os, sys
from importlib.machinery import ModuleSpec

class Refusal:
    def create_module(self, spec):
        with open(os.environ["TOLD"], "a") as file:
            file.write(f"{os.getpid()} {spec.name}\\n")
        raise AssertionError(f"{spec.name} was imported")

    def exec_module(self, module):
        pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, Refusal()) if name in ("torch", "tensorflow") else None

sys.meta_path.insert(0, Finder())
"""
LIFE = """
import sys
from tfds_torch import MultiLoader, ParserTfds, TrainPreprocess

if __name__ == "__main__":
    root, method, transport = sys.argv[1:]
    parser = ParserTfds(root, "numbered", is_training=True, batch_size=12, preprocess=TrainPreprocess(size=6))
    with MultiLoader(parser, 2, start_method=method, transport=transport, timeout_s=120.0) as loader:
        batches = list(loader)
        loader.load_state_dict(loader.state_dict())
        print(sum(len(batch) for batch in batches), batches[0].image.shape, loader.stats().batches)
    assert not {"torch", "tensorflow"} & set(sys.modules)
    EXTRA
"""
RunPython = Callable[..., Any]


@pytest.fixture
def live(root: Path, tmp_path: Path, run_python: RunPython) -> Callable[..., tuple[str, list[str]]]:
    """`live(script, *args)`: what a script printed, and who imported what: "<pid> <module>"."""

    def run(script: str, *args: str) -> tuple[str, list[str]]:
        (tmp_path / "sitecustomize.py").write_text(REFUSE)
        (tmp_path / "told").touch()
        (tmp_path / "life.py").write_text(script)
        path = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
        done = run_python(str(tmp_path / "life.py"), *args, env={"PYTHONPATH": path, "TOLD": str(tmp_path / "told")})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), (tmp_path / "told").read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("method", "transport"),
    [
        ("fork", "shared"),
        pytest.param("fork", "zmq", marks=slow),
        pytest.param("spawn", "shared", marks=slow),
        pytest.param("forkserver", "shared", marks=slow),
    ],
)
def test_nobody_imports_torch_or_tensorflow(
    method: str, transport: str, live: Callable[..., tuple[str, list[str]]], numbered_root: str
) -> None:
    printed, imports = live(LIFE.replace("EXTRA", ""), numbered_root, method, transport)
    assert printed == "48 (12, 6, 6, 3) 4"
    assert imports == []


def test_an_import_would_be_told(live: Callable[..., tuple[str, list[str]]], numbered_root: str) -> None:
    script = LIFE.replace("EXTRA", "try:\n        import torch\n    except AssertionError: pass")
    _, imports = live(script, numbered_root, "fork", "shared")
    assert [line.split()[1] for line in imports] == ["torch"]


@slow
def test_the_loop_of_the_docs_needs_no_torch(
    root: Path, live: Callable[..., tuple[str, list[str]]], run_python: RunPython
) -> None:
    page = (root / "docs" / "without-torch.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    done = run_python("-c", "from tfds_torch import demo; demo.prepare('digits')")  # By tensorflow, elsewhere.
    assert done.returncode == 0, done.stderr
    printed, imports = live(blocks[0])
    assert [line.split(":")[0] for line in printed.splitlines()[-3:]] == ["epoch 0", "epoch 1", "epoch 2"]
    assert float(printed.split()[-2]) > 0.8
    assert imports == []
    assert live(blocks[1]) == ("", [])
    assert live(blocks[2])[1] == []  # The last one hands a Feeder's batches to create_loader, which is torch's.
