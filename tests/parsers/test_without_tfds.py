"""A process that gets a parser pickled needs neither TFDS nor what TFDS imports: spawned workers do without them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tfds_fixtures import write_numbered

from tfds_torch import EvalPreprocess, ParserTfds

TOLD = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("tensorflow_datasets", "cv2", "tensorflow"):
            with open(os.environ["TOLD"], "a") as file:
                file.write(f"{os.getpid()} {name}\\n")

sys.meta_path.insert(0, Finder())
"""
"""Every process notes which of these modules it looks for."""

READ = """
import os, sys
from tfds_torch import {imported}, ParserTfds, TrainPreprocess

def names(world):
    import tensorflow_datasets
    yield world.worker

if __name__ == "__main__":
    parser = ParserTfds(sys.argv[1], "numbered", is_training=True, batch_size=4, preprocess=TrainPreprocess(size=6))
    loader = {made}
    print(os.getpid(), len(list(loader)))
"""
LOADERS = {
    "MultiLoader": ("MultiLoader", "MultiLoader(parser, 2, start_method='spawn')"),
    "create_loader": (
        "ImageDataset, create_loader",
        "create_loader(ImageDataset(parser), num_workers=2, multiprocessing_context='spawn')",
    ),
    "one that needs it": ("MultiLoader", "MultiLoader(names, 2, start_method='spawn')"),
}
"""What a script imports, which is torch for one of them, and how it makes its loader."""
RunPython = Callable[..., Any]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": (6, 6)})
    return root


@pytest.mark.parametrize(
    "loader",
    ["MultiLoader", *(pytest.param(name, marks=pytest.mark.slow) for name in ("create_loader", "one that needs it"))],
)
def test_spawned_workers_look_for_no_tfds(
    loader: str, numbered: Path, tmp_path: Path, root: Path, run_python: RunPython
) -> None:
    (tmp_path / "sitecustomize.py").write_text(TOLD)
    imported, made = LOADERS[loader]
    (tmp_path / "training.py").write_text(READ.format(imported=imported, made=made))
    path = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
    environ = {"PYTHONPATH": path, "TOLD": str(tmp_path / "told")}
    done = run_python(str(tmp_path / "training.py"), str(numbered), env=environ)
    assert done.returncode == 0, done.stderr
    parent, number = done.stdout.split()
    told = {tuple(line.split()) for line in (tmp_path / "told").read_text().splitlines()}
    assert (parent, "tensorflow_datasets") in told
    others = [name for pid, name in told if pid != parent]
    assert (number, len(others) >= 2) == (("2", True) if loader == "one that needs it" else ("3", False)), told


UNPICKLE = """
import pickle, sys
from pathlib import Path

parser = pickle.loads(Path(sys.argv[1]).read_bytes())
(batch,) = parser.batches(fields=["image", "label", "index"])
other = parser.with_read(parser.read).with_batch_size(5)
fields = sorted(parser.element_spec.fields)
print(batch.label.tolist(), fields, parser.class_names, other[3].label, len(other.ids([0])))
print(sorted({"tensorflow_datasets", "cv2", "tensorflow"} & set(sys.modules)))
"""


def test_a_fresh_interpreter_that_unpickles_a_parser_reads_without_tfds(
    numbered: Path, tmp_path: Path, root: Path, run_python: RunPython
) -> None:
    parser = ParserTfds(numbered, "numbered", batch_size=12, preprocess=EvalPreprocess(size=4))
    (tmp_path / "parser").write_bytes(pickle.dumps(parser))
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = run_python("-c", UNPICKLE, str(tmp_path / "parser"), env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    read, modules = done.stdout.splitlines()
    assert read == f"{list(range(12))} {sorted(parser.element_spec.fields)} {parser.class_names} 3 1"
    assert modules == "[]"
