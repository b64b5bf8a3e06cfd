"""DESIGN's stairs: who may import whom, and what importing the package loads."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]  # conftest.py's fixture

LAYERS = "Rooms import downstairs only"
CIRCLES = "No import circles"
TORCH = "torch is imported by torch_data and integrations only"
TENSORFLOW = "tensorflow is imported by engines.tensorflow_runtime only"
TFDS = "tensorflow_datasets is imported by parsers.tfds and demo only"
BENCHMARKS = "the package does not need its benchmarks"
LOOPS = "other people's training loops are imported by integrations only"
CONTRACTS = (LAYERS, CIRCLES, TORCH, TENSORFLOW, TFDS, BENCHMARKS, LOOPS)


def lint_imports(directory: Path) -> tuple[int, str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def copy_package(root: Path, folder: Path) -> Path:
    shutil.copytree(root / "tfds_torch", folder / "tfds_torch", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", folder)
    return folder


def test_the_contracts_are_kept(root: Path) -> None:
    code, output = lint_imports(root)
    assert code == 0, output
    for name in CONTRACTS:
        assert f"{name} KEPT" in output


FORBIDDEN = [
    ("plan", "import tfds_torch.engines", LAYERS),
    ("plan", "def f():\n    from tfds_torch import storage", LAYERS),
    ("storage", "import tfds_torch.images", LAYERS),
    ("images", "import tfds_torch.engines", LAYERS),
    ("engines", "import tfds_torch.parsers", LAYERS),
    ("loaders", "import tfds_torch.torch_data", LAYERS),
    ("loaders", "def f():\n    import torch", TORCH),
    ("parsers", "import tfds_torch.loaders", LAYERS),
    ("torch_data", "import tfds_torch.check", LAYERS),
    ("torch_data", "import tfds_torch.integrations", LAYERS),
    ("torch_data", "def f():\n    import accelerate", LOOPS),
    ("check", "from timm.data import create_loader", LOOPS),
    ("torch_data", "import tfds_torch.export", LAYERS),
    ("parsers", "def f():\n    from tfds_torch.export import api", LAYERS),
    ("export", "import torch", TORCH),
    ("export", "import tensorflow_datasets", TFDS),
    ("demo", "import tfds_torch.torch_data", LAYERS),
    ("loaders", "import tfds_torch.demo", LAYERS),
    ("loaders", "import tensorflow_datasets", TFDS),
    ("loaders", "def f():\n    import tensorflow", TENSORFLOW),
    ("parsers", "import benchmarks.peers.ours", BENCHMARKS),
    ("parsers", "import torch", TORCH),
    ("parsers", "def f():\n    from torch.utils.data import Dataset", TORCH),
    ("demo", "import torch", TORCH),
    ("engines", "import tensorflow_datasets as tfds", TFDS),
    ("parsers", "from tensorflow_datasets.core import units", TFDS),
    ("torch_data", "import tensorflow_datasets", TFDS),
    ("engines", "def f():\n    import tensorflow as tf", TENSORFLOW),
    ("parsers/tfds", "from tensorflow.io import gfile", TENSORFLOW),
]
"""Room, what a module of it says, and the contract that it breaks."""


@pytest.fixture(scope="module")
def complaints(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Contract -> what is said of it, where every forbidden import is planted in a module of its own."""
    package = copy_package(root, tmp_path_factory.mktemp("forbidden"))
    for number, (room, planted, _) in enumerate(FORBIDDEN):
        (package / "tfds_torch" / room / f"planted_{number}.py").write_text(f"{planted}\n")
    code, output = lint_imports(package)
    assert code != 0
    # Below the summary: the name of a contract, a line of dashes, and what breaks it.
    parts = re.split(r"^(.+)\n-+\n", output.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("number", range(len(FORBIDDEN)))
def test_a_forbidden_import_breaks_its_contract(complaints: dict[str, str], number: int) -> None:
    room, _, contract = FORBIDDEN[number]
    module = f"tfds_torch.{room}.planted_{number}".replace("/", ".")
    assert re.search(rf"^-? *{re.escape(module)} -> ", complaints[contract], re.MULTILINE), complaints[contract]


@pytest.mark.parametrize(
    ("module", "planted", "contract"),
    [
        ("attic/__init__.py", "", "tfds_torch.attic"),  # A room without a place on the stairs.
        # What formats share, and a format, that import each other, in functions too.
        ("storage/record_source.py", "def f():\n    import tfds_torch.storage.tfrecord.source", CIRCLES),
    ],
)
def test_a_change_breaks_a_contract(root: Path, tmp_path: Path, module: str, planted: str, contract: str) -> None:
    package = copy_package(root, tmp_path)
    path = package / "tfds_torch" / module
    path.parent.mkdir(exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{before}\n{planted}\n")
    code, output = lint_imports(package)
    assert code != 0
    assert f"{contract} BROKEN" in output or (contract not in CONTRACTS and contract in output), output


def test_an_allowed_import_breaks_none(root: Path, tmp_path: Path) -> None:
    package = copy_package(root, tmp_path)
    for module, planted in (
        ("torch_data/planted.py", "import torch"),
        ("integrations/planted.py", "import torch, accelerate, timm"),
        ("demo/planted.py", "import tensorflow_datasets"),
        ("parsers/tfds/planted.py", "import tensorflow_datasets"),
        ("engines/planted.py", "import tfds_torch.plan"),
        ("plan/subset.py", "import tfds_torch.plan.passes"),  # A circle within a room.
    ):
        with (package / "tfds_torch" / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{planted}\n")
    code, output = lint_imports(package)
    assert code == 0, output


def executed_imports(body: list[ast.stmt]) -> Iterator[str]:
    """Yields the modules that a module's own import loads: all but those in functions and under TYPE_CHECKING."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield from executed_imports(node.orelse)
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case _:
                for part in ast.iter_child_nodes(node):
                    statements = part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part]
                    yield from executed_imports([s for s in statements if isinstance(s, ast.stmt)])


def imports_tensorflow(code: str) -> bool:
    if "tensorflow" not in code:
        return False
    return any(name.split(".")[0] == "tensorflow" for name in executed_imports(ast.parse(code).body))


def test_no_module_imports_tensorflow_at_its_top_level(root: Path) -> None:
    files = sorted((root / "tfds_torch").rglob("*.py"))
    assert len(files) > 10
    assert [str(file) for file in files if imports_tensorflow(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import tensorflow as tf",
        "import os, tensorflow.data",
        "from tensorflow.io import gfile",
        "try:\n    import tensorflow\nexcept ImportError:\n    pass",
        "try:\n    pass\nexcept ImportError:\n    import tensorflow",
        "class C:\n    import tensorflow",
        "if True:\n    with a:\n        import tensorflow",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import tensorflow",
        "match a:\n    case 1:\n        import tensorflow",
    ],
)
def test_a_top_level_import_of_tensorflow_is_seen(code: str) -> None:
    assert imports_tensorflow(code)


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    import tensorflow",
        "class C:\n    def f(self):\n        import tensorflow",
        "if TYPE_CHECKING:\n    import tensorflow",
        "import tensorflow_datasets",
        "from tensorflow_datasets import core",
        "from .tensorflow import x",
    ],
)
def test_other_imports_than_those_at_the_top_level_pass(code: str) -> None:
    assert not imports_tensorflow(code)


# Modules that are handed over


def modules_as_values(code: str, module: str) -> list[int]:
    """Returns the lines where a module that is imported is used otherwise than by its attributes."""
    if module not in code:
        return []
    tree = ast.parse(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    names = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == module}
    by_attribute = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return [node.lineno for node in used if node.id in names and id(node) not in by_attribute]


def test_no_module_passes_tensorflow_datasets_around(root: Path) -> None:
    found = {
        str(file): lines
        for file in sorted((root / "tfds_torch").rglob("*.py"))
        if (lines := modules_as_values(file.read_text(encoding="utf-8"), "tensorflow_datasets"))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import tensorflow_datasets as tfds\nread(tfds)", [2]),
        ("def f():\n    import tensorflow_datasets\n    return tensorflow_datasets", [3]),
        ("import tensorflow_datasets as tfds\nself.tfds = tfds\ntfds.builder(tfds.core)", [2]),
        ("import tensorflow_datasets as tfds\ntfds.builder(name)", []),
        ("read(tfds)", []),
    ],
)
def test_a_module_that_is_handed_over_is_seen(code: str, lines: list[int]) -> None:
    assert modules_as_values(code, "tensorflow_datasets") == lines


LOADED = "import sys; print(sorted({'tensorflow', 'tensorflow_datasets', 'torch'} & set(sys.modules)))"
EVERY_MODULE = """
import importlib, pkgutil, tfds_torch
for module in pkgutil.walk_packages(tfds_torch.__path__, "tfds_torch."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import tfds_torch", "[]"),
        ("import sys, tfds_torch; sys.modules['torch'] = sys", "['torch']"),  # The check can fail.
    ],
)
def test_the_front_door_loads_neither_tensorflow_nor_torch(
    run_python: RunPython, root: Path, code: str, loaded: str
) -> None:
    done = run_python("-c", f"{code}\n{LOADED}", cwd=root)
    assert done.stdout.splitlines() == [loaded], done.stderr


@pytest.mark.slow
def test_importing_every_module_loads_no_tensorflow(run_python: RunPython, root: Path) -> None:
    done = run_python("-c", f"{EVERY_MODULE}\n{LOADED}", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "'tensorflow'" not in done.stdout
