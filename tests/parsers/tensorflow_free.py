"""A process in which tensorflow cannot be imported: it opens datasets and decodes all that they have.

Run as `python tensorflow_free.py JOB RESULT`: reads a pickled (function of this module, its arguments), and pickles
what it returns.
"""

import importlib
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


class TensorflowImportedError(AssertionError):
    """tensorflow was imported."""


class _Refusal(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        raise TensorflowImportedError(f"{spec.name} was imported.")

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError


class _Finder:
    """Finds tensorflow, as it is installed, and fails where it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, _Refusal(), is_package=True) if name.partition(".")[0] == "tensorflow" else None


def call(folder: Path, function: str, *arguments: Any) -> Any:
    """Returns what a function of this module returns in a process without tensorflow.

    Args:
        folder: an empty one.
        function: its name.
        arguments: its arguments.

    Raises:
        RuntimeError: it raised; the message is its traceback.
    """
    job, result = folder / "job.pickle", folder / "result.pickle"
    job.write_bytes(pickle.dumps((function, arguments)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, __file__, str(job), str(result)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return pickle.loads(result.read_bytes())


def import_module(name: str) -> None:
    """Imports a module."""
    importlib.import_module(name)


def decode_records(version_dir: str, records: Sequence[bytes]) -> list[Any]:
    """Returns examples with all of a dataset's features.

    Args:
        version_dir: where its features.json is.
        records: encoded examples.
    """
    from tfds_torch.parsers.tfds.connectors import plain_features, stored_specs
    from tfds_torch.parsers.tfds.features_json import read_connectors
    from tfds_torch.parsers.tfds.folder import FEATURES, folder_at
    from tfds_torch.parsers.tfds.info import read_json

    folder = folder_at(version_dir)
    connectors = read_connectors(folder, read_json(folder, FEATURES) or {})
    return _decode(plain_features(connectors), stored_specs(connectors), records)


def decode_datasets(data_dir: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns name -> the examples of the split `train`, with all their features."""
    from tfds_torch.parsers.tfds.find import open_dataset

    decoded = {}
    for name in names:
        info = open_dataset(data_dir, name, download=False)
        files = [item.filename for item in info.splits["train"].file_instructions]
        records = [record for file in files for record in _records(file)]
        decoded[name] = _decode(info.features, info.specs, records)
    return decoded


def _decode(features: Any, specs: Any, records: Sequence[bytes]) -> list[Any]:
    from tfds_torch.parsers.tfds.feature_tree import features_by_key
    from tfds_torch.parsers.tfds.features import structured_field
    from tfds_torch.storage.example import ExampleReader

    reader = ExampleReader(specs)
    values = {}
    for name in sorted(features_by_key(features)):
        field = pickle.loads(pickle.dumps(structured_field(features, (name,))))
        values[name] = field.decode(reader.read(records, field.keys))
    return [dict(zip(values, example, strict=True)) for example in zip(*values.values(), strict=True)]


def _records(file: str) -> Iterator[bytes]:
    content = Path(file).read_bytes()
    position = 0
    while position < len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        yield content[position + 12 : position + 12 + length]
        position += length + 16


if __name__ == "__main__":
    sys.meta_path.insert(0, _Finder())
    name, arguments = pickle.loads(Path(sys.argv[1]).read_bytes())
    returned = globals()[name](*arguments)
    assert "tensorflow" not in sys.modules
    Path(sys.argv[2]).write_bytes(pickle.dumps(returned))
