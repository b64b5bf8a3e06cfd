"""FakeSpec: the parameters that say which fake dataset is meant, checked once."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfds_torch.demo.spec import check_num_shards
from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import check_integer

DEFAULT_NUM_SHARDS = 8

# TFDS's own rules, without its wildcards, arguments and namespaces (which name datasets that a server lists).
_NAME = re.compile(r"(?P<name>[a-zA-Z]\w*)(/(?P<config>[\w+.-]*\w[\w+.-]*))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_SPLIT = re.compile(r"[\w-]+", re.ASCII)
_MAX_FOLDER_NAME = 100


@dataclass(frozen=True)
class FakeSpec:
    """What a fake dataset is made from; equal specs give equal examples.

    Args:
        name: the dataset's name.
        config: its config; None: TFDS's default, or there are none.
        version: `x.y.z`; None: TFDS's default.
        num_examples: examples of each split.
        num_shards: shards of each split.
        splits: their names.
        seed: which content is made up.
    """

    name: str
    config: str | None
    version: str | None
    num_examples: int
    num_shards: int
    splits: tuple[str, ...]
    seed: int

    @classmethod
    def check(
        cls, name: str, num_examples: int, num_shards: int | None, splits: Sequence[str], seed: int
    ) -> "FakeSpec":
        """Returns the spec that these arguments of `prepare_fake` ask for.

        Raises:
            ConfigError: a malformed name, a number that cannot be, more shards than examples, or splits that are no
                plain names. Whether TFDS knows the dataset is not looked at here.
        """
        parts = _NAME.fullmatch(name) if isinstance(name, str) else None
        if parts is None:
            raise ConfigError(
                f"The dataset name {name!r} does not have the form name, name/config, name:x.y.z or name/config:x.y.z."
            )
        num_examples = check_integer("num_examples", num_examples, 1)
        default_shards = min(DEFAULT_NUM_SHARDS, num_examples)
        spec = cls(
            parts["name"],
            parts["config"],
            parts["version"],
            num_examples,
            check_integer("num_shards", default_shards if num_shards is None else num_shards, 1),
            _check_splits(splits),
            check_integer("seed", seed, 0),
        )
        check_num_shards(spec.full_name, spec.num_shards, num_examples)
        return spec

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "FakeSpec":
        """Returns the spec that `as_dict` gave."""
        return cls(**{**values, "splits": tuple(values["splits"])})

    def as_dict(self) -> dict[str, Any]:
        """Returns the parameters by name, as they are kept in the dataset's `metadata.json`."""
        return asdict(self) | {"splits": list(self.splits)}

    @property
    def full_name(self) -> str:
        """As TFDS writes it: `voc/2007:5.0.0`, without what is not given."""
        config = f"/{self.config}" if self.config else ""
        version = f":{self.version}" if self.version else ""
        return f"{self.name}{config}{version}"

    @property
    def folder_name(self) -> str:
        """The name of this spec's own folder in the cache: `fake-cifar10-5000x8-train-0`."""
        name = self.full_name.replace("/", "-").replace(":", "-")
        full = f"fake-{name}-{self.num_examples}x{self.num_shards}-{'+'.join(self.splits)}-{self.seed}"
        if len(full) <= _MAX_FOLDER_NAME and "/" not in self.full_name:
            return full
        # Two specs may differ where they were cut, or in what was replaced: the digest tells them apart.
        digest = hashlib.blake2b(repr(self).encode(), digest_size=6).hexdigest()
        return f"{full[: _MAX_FOLDER_NAME - 13]}-{digest}"

    def __str__(self) -> str:
        return (
            f"'{self.full_name}' (fake) with num_examples={self.num_examples}, num_shards={self.num_shards}, "
            f"splits={'+'.join(self.splits)}, seed={self.seed}"
        )


def _check_splits(splits: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(splits, str) or not isinstance(splits, Iterable) else tuple(splits)
    if not names:
        raise ConfigError(f"splits={splits!r} must be a sequence of split names, such as ('train', 'test').")
    for name in names:
        if not isinstance(name, str) or not _SPLIT.fullmatch(name) or name == "all":
            raise ConfigError(
                f"The split {name!r} in splits={names!r} must be a plain name of letters, digits, '_' and '-', and "
                f"not 'all'. Slices such as 'train[:10%]' are for reading."
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"splits={names!r} names a split twice.")
    return names
