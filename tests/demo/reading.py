"""What runs in fresh processes for these tests: reading with TFDS alone, and building without `prepare`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.demo.preparation import build
from tfds_torch.demo.spec import DemoSpec


def read_with_tfds(root: str, splits: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """Returns (name, split) -> the examples that TFDS reads: `image` still encoded, `pixels` decoded."""
    import tensorflow_datasets as tfds

    found: dict[tuple[str, str], Any] = {}
    for name, split in splits:
        builder = tfds.builder(name, data_dir=root)
        assert isinstance(builder, tfds.core.read_only_builder.ReadOnlyBuilder)
        encoded = builder.as_dataset(split=split, decoders={"image": tfds.decode.SkipDecoding()})
        decoded = builder.as_dataset(split=split)
        found[name, split] = [
            {**example, "pixels": whole["image"]}
            for example, whole in zip(tfds.as_numpy(encoded), tfds.as_numpy(decoded), strict=True)
        ]
    assert not any(module.startswith("tfds_torch.demo.builder") for module in sys.modules)
    return found


def build_each(root: str, specs: Sequence[DemoSpec]) -> None:
    """Builds each spec in its own folder under root, named by its number."""
    for number, spec in enumerate(specs):
        folder = Path(root) / str(number)
        folder.mkdir()
        build(spec, str(folder), "", progress=False)


def read_episodes(folders: Mapping[str, str], cameras: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Returns name -> the episodes that TFDS reads from a version directory: steps as arrays, images still encoded."""
    import tensorflow_datasets as tfds

    found: dict[str, list[dict[str, Any]]] = {}
    for name, folder in folders.items():
        skip = {"steps": {"observation": {camera: tfds.decode.SkipDecoding() for camera in cameras[name]}}}
        episodes = tfds.as_numpy(tfds.builder_from_directory(folder).as_dataset(split="train", decoders=skip))
        found[name] = [{**episode, "steps": _stack(list(episode["steps"]))} for episode in episodes]
    return found


def _stack(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns path of a feature -> the values of all steps: [T, ...], or a list of bytes."""
    columns: dict[str, Any] = {}
    for key in steps[0]:
        values = [step[key] for step in steps]
        if isinstance(values[0], Mapping):
            columns |= {f"{key}/{inner}": value for inner, value in _stack(values).items()}
        else:
            columns[key] = values if isinstance(values[0], bytes) else np.stack(values)
    return columns
