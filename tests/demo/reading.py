"""What runs in fresh processes for these tests: reading with TFDS alone, and building without `prepare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfds_torch.demo.build import build
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
