"""What a fake dataset's `metadata.json` says of it."""

import json
import os
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tfds_torch.demo.fake_spec import FakeSpec

FAKE_KEY = "tfds_torch_fake"
"""What a fake dataset's `metadata.json` has, and no other dataset."""


@dataclass(frozen=True)
class FakeMetadata:
    """What `metadata.json` says of a fake dataset.

    Attributes:
        spec: with config and version as they came out.
        default_config: what TFDS took for no config, at that time.
        default_version: what TFDS took for no version of this config.
        tfds_version: which TFDS that was.
    """

    spec: FakeSpec
    default_config: str | None
    default_version: str
    tfds_version: str

    @classmethod
    def read(cls, folder: Path) -> "FakeMetadata | None":
        """Returns what a version directory says of itself, or None where it is no fake."""
        try:
            values = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))[FAKE_KEY]
            return cls(FakeSpec.from_dict(values.pop("recipe")), **values)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Returns the values for `metadata.json`."""
        values = {"recipe": self.spec.as_dict(), **vars(self)}  # Fakes that were prepared before have this key.
        del values["spec"]
        return values

    def complete(self, asked: FakeSpec) -> FakeSpec:
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
    """Whether a dataset's content was made up by `prepare_fake`.

    Args:
        data_dir: its version directory, such as `ParserTfds.data_dir`.
    """
    return FakeMetadata.read(Path(data_dir)) is not None
