"""DemoSpec: which dataset is asked for, checked once; DemoMetadata: which one lies in a folder."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.runtime.arguments import check_integer, did_you_mean

DEMO_NAMES = ("digits", "photos", "episodes")
EPISODE_CONFIGS = ("bridge", "droid", "libero")
"""Configs of `episodes`, named by the robot data whose features they have; the first one is the default."""
NUM_DIGITS_TRAIN = 1437
NUM_DIGITS_TEST = 360

EMBEDDED_KEY = "tfds_torch_demo"
FAKE_KEY = "tfds_torch_fake"
"""The key that a fake dataset's `metadata.json` has, and no other dataset's."""

# TFDS's own rules, without its wildcards, arguments and namespaces (which name datasets that a server lists).
_NAME = re.compile(r"(?P<name>[a-zA-Z]\w*)(/(?P<config>[\w+.-]*\w[\w+.-]*))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_SPLIT = re.compile(r"[\w-]+", re.ASCII)
_VERSION = "1.0.0"
_NUM_SHARDS = 8
_NUM_EXAMPLES = {"digits": NUM_DIGITS_TRAIN, "photos": 512, "episodes": 64}
_EMBEDDED_PARAMETERS = ("name", "num_examples", "num_shards", "seed")
_MAX_FOLDER_NAME = 100

Example = dict[str, Any]


@dataclass(frozen=True)
class DemoSpec:
    """The parameters of a dataset; equal specs give equal examples.

    Args:
        name: the dataset's name.
        num_examples: examples of each split (digits: of train).
        num_shards: shards of each split (digits: of train).
        splits: their names; None for a fake: those of the real dataset, which are known once it is built.
        seed: chooses the made-up content, or the digits of the split `test`.
        config: the dataset's config; None: TFDS's default, or there are none.
        version: `x.y.z`; None: TFDS's default.
        is_fake: whether the content is made up under the name of a dataset that TFDS has.
    """

    name: str
    num_examples: int
    num_shards: int
    splits: tuple[str, ...] | None
    seed: int
    config: str | None = None
    version: str | None = None
    is_fake: bool = False

    @classmethod
    def embedded(
        cls, name: str, num_examples: int | None = None, num_shards: int | None = None, seed: int = 0
    ) -> "DemoSpec":
        """Return the spec that these arguments of `prepare` ask for; None means the dataset's default.

        Raises:
            DatasetNotFoundError: no demo dataset has this name.
            ConfigError: an invalid number, more shards than examples, or `num_examples` for `digits`.
        """
        with_configs = [f"episodes/{config}" for config in EPISODE_CONFIGS]
        if name not in (*DEMO_NAMES, *with_configs):
            *others, last = map(repr, [*DEMO_NAMES[:-1], *with_configs])
            raise DatasetNotFoundError(
                f"There is no demo dataset {name!r}.{did_you_mean(name, [*DEMO_NAMES, *with_configs])} There are "
                f"{', '.join(others)} and {last}; prepare_fake, or --fake N, makes up the content of any other."
            )
        family, _, config = name.partition("/")
        is_digits = family == "digits"
        if is_digits and num_examples not in (None, NUM_DIGITS_TRAIN):
            raise ConfigError(
                f"num_examples={num_examples!r} cannot be chosen for 'digits': it always has {NUM_DIGITS_TRAIN} "
                f"training and {NUM_DIGITS_TEST} test examples. Leave num_examples out, or take 'photos'."
            )
        num_examples = check_integer("num_examples", _NUM_EXAMPLES[family] if num_examples is None else num_examples, 1)
        return cls(
            name=family,
            num_examples=num_examples,
            num_shards=_check_shards(name, num_examples, num_shards, 1 if is_digits else _NUM_SHARDS),
            splits=("train", "test") if is_digits else ("train",),
            seed=check_integer("seed", seed, 0),
            config=config or EPISODE_CONFIGS[0] if family == "episodes" else None,
            version=_VERSION,
        )

    @classmethod
    def fake(
        cls,
        name: str,
        num_examples: int,
        num_shards: int | None = None,
        splits: Sequence[str] | None = None,
        seed: int = 0,
    ) -> "DemoSpec":
        """Return the spec that these arguments of `prepare_fake` ask for. TFDS is not asked whether it has the name.

        Raises:
            ConfigError: a malformed name, an invalid number, more shards than examples, or bad names of splits.
        """
        parts = _NAME.fullmatch(name) if isinstance(name, str) else None
        if parts is None:
            raise ConfigError(
                f"The dataset name {name!r} does not have the form name, name/config, name:x.y.z or name/config:x.y.z."
            )
        num_examples = check_integer("num_examples", num_examples, 1)
        return cls(
            name=parts["name"],
            num_examples=num_examples,
            num_shards=_check_shards(name, num_examples, num_shards, _NUM_SHARDS),
            splits=None if splits is None else _check_splits(splits),
            seed=check_integer("seed", seed, 0),
            config=parts["config"],
            version=parts["version"],
            is_fake=True,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, is_fake: bool) -> "DemoSpec":
        """Return the spec from the result of `as_dict`."""
        if not is_fake:
            return cls.embedded(**values)
        splits = values["splits"] and tuple(values["splits"])
        return cls(**{**values, "splits": splits, "is_fake": True})

    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name, as the dataset's `metadata.json` keeps them."""
        if not self.is_fake:
            return {key: vars(self)[key] for key in _EMBEDDED_PARAMETERS} | {"name": self._embedded_name}
        values = asdict(self) | {"splits": None if self.splits is None else list(self.splits)}
        del values["is_fake"]
        return values

    @property
    def split_sizes(self) -> dict[str, int]:
        """The number of examples of each split that is known."""
        sizes = dict.fromkeys(self.splits or (), self.num_examples)
        return sizes | {"test": NUM_DIGITS_TEST} if (self.name, self.is_fake) == ("digits", False) else sizes

    @property
    def full_name(self) -> str:
        """As TFDS writes it: `voc/2007:5.0.0`, without the parts that are open."""
        config = f"/{self.config}" if self.config else ""
        version = f":{self.version}" if self.version else ""
        return f"{self.name}{config}{version}"

    @property
    def folder_name(self) -> str:
        """The name of this spec's folder in the cache: `photos-512x8-0` or `fake-cifar10-5000x8-all-0`."""
        counts = f"{self.num_examples}x{self.num_shards}"
        if not self.is_fake:
            return f"{self._embedded_name.replace('/', '-')}-{counts}-{self.seed}"
        name = self.full_name.replace("/", "-").replace(":", "-")
        full = f"fake-{name}-{counts}-{self._splits_name}-{self.seed}"
        if len(full) <= _MAX_FOLDER_NAME and "/" not in self.full_name:
            return full
        # Two specs may differ where they were cut, or in what was replaced: the digest tells them apart.
        digest = hashlib.blake2b(str(self).encode(), digest_size=6).hexdigest()
        return f"{full[: _MAX_FOLDER_NAME - 13]}-{digest}"

    def __str__(self) -> str:
        name, splits = f"'{self._embedded_name}'", ""
        if self.is_fake:
            name, splits = f"'{self.full_name}' (fake)", f", splits={self._splits_name}"
        return f"{name} with num_examples={self.num_examples}, num_shards={self.num_shards}{splits}, seed={self.seed}"

    @property
    def _splits_name(self) -> str:
        """`train+test`; `all`, which is not the name of a split, where they are those of the real dataset."""
        return "all" if self.splits is None else "+".join(self.splits)

    @property
    def _embedded_name(self) -> str:
        """As `prepare` takes it: `photos`, `episodes/bridge`."""
        return f"{self.name}/{self.config}" if self.config else self.name


@dataclass(frozen=True)
class DemoMetadata:
    """The `metadata.json` of a dataset that was built here.

    Attributes:
        spec: with config and version as they came out.
        default_config: of a fake: TFDS's default config, at that time.
        default_version: of a fake: TFDS's default version of this config, at that time.
        tfds_version: of a fake: the version of TFDS that built it.
        has_all_splits: of a fake: whether its splits are the default ones.
    """

    spec: DemoSpec
    default_config: str | None = None
    default_version: str | None = None
    tfds_version: str | None = None
    has_all_splits: bool = False

    @classmethod
    def read(cls, folder: Path) -> "DemoMetadata | None":
        """Return the metadata of a version directory; None where it was not built here."""
        try:
            values = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
            if EMBEDDED_KEY in values:
                return cls(DemoSpec.from_dict(values[EMBEDDED_KEY], is_fake=False))
            values = values[FAKE_KEY]
            return cls(DemoSpec.from_dict(values.pop("recipe"), is_fake=True), **values)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, TfdsTorchError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `metadata.json`."""
        spec = self.spec.as_dict()
        if not self.spec.is_fake:
            return {EMBEDDED_KEY: spec}
        return {FAKE_KEY: {"recipe": spec, **{key: value for key, value in vars(self).items() if key != "spec"}}}

    def complete(self, asked: DemoSpec) -> DemoSpec:
        """Return a spec with the defaults filled in, as far as they can be known without TFDS."""
        if self.tfds_version != tfds_version():
            return asked
        return replace(asked, config=asked.config or self.default_config, version=asked.version or self.default_version)


def tfds_version() -> str:
    """Return the installed TFDS's version without importing it."""
    try:
        return metadata.version("tensorflow-datasets")
    except metadata.PackageNotFoundError:  # A nightly build has another name.
        return "unknown"


def is_fake(data_dir: str | os.PathLike[str]) -> bool:
    """Return whether `prepare_fake` made up the content of `data_dir`, which is `ParserTfds.data_dir`."""
    written = DemoMetadata.read(Path(data_dir))
    return written is not None and written.spec.is_fake


@dataclass(frozen=True)
class Content:
    """The content of a dataset's files.

    Attributes:
        info: the arguments of `tfds.core.DatasetInfo`: features, description and so on.
        make_examples: yields the examples of a split, each with its key, which is unique in the split.
    """

    info: dict[str, Any]
    make_examples: Callable[[str], Iterator[tuple[int, Example]]]


def is_split_name(name: object) -> bool:
    """Return whether a split can have this name."""
    return isinstance(name, str) and _SPLIT.fullmatch(name) is not None and name != "all"


def _check_shards(name: str, num_examples: int, num_shards: int | None, default: int) -> int:
    if num_shards is None:
        return min(default, num_examples)
    num_shards = check_integer("num_shards", num_shards, 1)
    if num_shards > num_examples:
        raise ConfigError(
            f"num_shards={num_shards} is more than num_examples={num_examples} of '{name}': TFDS writes no empty "
            f"shards. Ask for at most {num_examples} shards."
        )
    return num_shards


def _check_splits(splits: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(splits, str) or not isinstance(splits, Iterable) else tuple(splits)
    if not names:
        raise ConfigError(f"splits={splits!r} must be a sequence of split names, such as ('train', 'test').")
    for name in names:
        if not is_split_name(name):
            raise ConfigError(
                f"The split {name!r} in splits={names!r} must be a plain name of letters, digits, '_' and '-', and "
                f"not 'all'. Slices such as 'train[:10%]' are for reading."
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"splits={names!r} names a split twice.")
    return names
