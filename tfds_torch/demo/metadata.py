"""The `metadata.json` of a dataset that was built here."""

import json
import os
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tfds_torch.demo.spec import DemoSpec
from tfds_torch.errors import TfdsTorchError

EMBEDDED_KEY = "tfds_torch_demo"
FAKE_KEY = "tfds_torch_fake"
"""What a fake dataset's `metadata.json` has, and no other dataset."""


@dataclass(frozen=True)
class DemoMetadata:
    """What is known of a dataset that was built here.

    Attributes:
        spec: with config and version as they came out.
        default_config: of a fake: what TFDS took for no config, at that time.
        default_version: of a fake: what TFDS took for no version of this config.
        tfds_version: of a fake: which TFDS that was.
        has_all_splits: of a fake: whether its splits are those that it has where none are asked for.
    """

    spec: DemoSpec
    default_config: str | None = None
    default_version: str | None = None
    tfds_version: str | None = None
    has_all_splits: bool = False

    @classmethod
    def read(cls, folder: Path) -> "DemoMetadata | None":
        """Returns the metadata of a version directory; None: it was not built here."""
        try:
            values = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
            if EMBEDDED_KEY in values:
                return cls(DemoSpec.from_dict(values[EMBEDDED_KEY], is_fake=False))
            values = values[FAKE_KEY]
            return cls(DemoSpec.from_dict(values.pop("recipe"), is_fake=True), **values)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, TfdsTorchError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Returns what `metadata.json` is to hold."""
        spec = self.spec.as_dict()
        if not self.spec.is_fake:
            return {EMBEDDED_KEY: spec}
        values = {"recipe": spec, **vars(self)}
        del values["spec"]
        return {FAKE_KEY: values}

    def complete(self, asked: DemoSpec) -> DemoSpec:
        """Returns a spec with the defaults filled in, as far as they can be known without TFDS."""
        if self.tfds_version != tfds_version():
            return asked
        return replace(asked, config=asked.config or self.default_config, version=asked.version or self.default_version)


def tfds_version() -> str:
    """Returns the installed TFDS's version, without importing it."""
    try:
        return metadata.version("tensorflow-datasets")
    except metadata.PackageNotFoundError:  # A nightly build has another name.
        return "unknown"


def is_fake(data_dir: str | os.PathLike[str]) -> bool:
    """Whether the content in a version directory, such as `ParserTfds.data_dir`, was made up by `prepare_fake`."""
    written = DemoMetadata.read(Path(data_dir))
    return written is not None and written.spec.is_fake
