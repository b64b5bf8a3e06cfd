"""DemoSpec: which dataset is to be built; its parameters are checked once."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.runtime.arguments import check_integer, did_you_mean

DEMO_NAMES = ("digits", "photos", "episodes")
EPISODE_CONFIGS = ("bridge", "droid", "libero")
"""Configs of `episodes`, by the datasets whose features they have; the first one is the default."""
VERSION = "1.0.0"
NUM_DIGITS_TRAIN = 1437
NUM_DIGITS_TEST = 360
DEFAULT_NUM_SHARDS = 8

# TFDS's own rules, without its wildcards, arguments and namespaces (which name datasets that a server lists).
_NAME = re.compile(r"(?P<name>[a-zA-Z]\w*)(/(?P<config>[\w+.-]*\w[\w+.-]*))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_SPLIT = re.compile(r"[\w-]+", re.ASCII)
_MAX_FOLDER_NAME = 100
Example = dict[str, Any]

_EMBEDDED_KEYS = ("name", "num_examples", "num_shards", "seed")
_DEFAULT_NUM_EXAMPLES = {"digits": NUM_DIGITS_TRAIN, "photos": 512, "episodes": 64}


@dataclass(frozen=True)
class DemoSpec:
    """What a dataset is built from; equal specs give equal examples.

    Args:
        name: the dataset's name.
        num_examples: examples of each split (digits: of train).
        num_shards: shards of each split (digits: of train).
        splits: their names; None: of a fake, those of the real dataset, which are known once it is built.
        seed: which content is made up, or which digits are kept for the split `test`.
        config: the dataset's config; None: of a fake, TFDS's default, or there are none.
        version: `x.y.z`; None: TFDS's default.
        is_fake: whether its content is made up, under the name of a dataset that TFDS has.
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
        """Returns the spec that these arguments of `prepare` ask for; None means the dataset's default.

        Raises:
            DatasetNotFoundError: no demo dataset has this name.
            ConfigError: an invalid number, more shards than examples, or `num_examples` for `digits`.
        """
        family, config = _embedded_parts(name)
        is_digits = family == "digits"
        if is_digits and num_examples not in (None, NUM_DIGITS_TRAIN):
            raise ConfigError(
                f"num_examples={num_examples!r} cannot be chosen for 'digits': it always has {NUM_DIGITS_TRAIN} "
                f"training and {NUM_DIGITS_TEST} test examples. Leave num_examples out, or take 'photos'."
            )
        num_examples = _DEFAULT_NUM_EXAMPLES[family] if num_examples is None else num_examples
        return cls(
            family,
            *_check_counts(name, num_examples, num_shards, 1 if is_digits else DEFAULT_NUM_SHARDS),
            splits=("train", "test") if is_digits else ("train",),
            seed=check_integer("seed", seed, 0),
            config=config,
            version=VERSION,
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
        """Returns the spec that these arguments of `prepare_fake` ask for. TFDS is not asked whether it has the name.

        Raises:
            ConfigError: a malformed name, an invalid number, more shards than examples, or bad names of splits.
        """
        parts = _NAME.fullmatch(name) if isinstance(name, str) else None
        if parts is None:
            raise ConfigError(
                f"The dataset name {name!r} does not have the form name, name/config, name:x.y.z or name/config:x.y.z."
            )
        return cls(
            parts["name"],
            *_check_counts(name, num_examples, num_shards, DEFAULT_NUM_SHARDS),
            None if splits is None else _check_splits(splits),
            check_integer("seed", seed, 0),
            parts["config"],
            parts["version"],
            is_fake=True,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, is_fake: bool) -> "DemoSpec":
        """Returns the spec that `as_dict` gave."""
        if not is_fake:
            return cls.embedded(**values)
        splits = values["splits"] and tuple(values["splits"])
        return cls(**{**values, "splits": splits, "is_fake": True})

    def as_dict(self) -> dict[str, Any]:
        """Returns the parameters by name, as they are kept in the dataset's `metadata.json`."""
        values = asdict(self) | {"splits": None if self.splits is None else list(self.splits)}
        del values["is_fake"]
        if self.is_fake:
            return values
        return {key: values[key] for key in _EMBEDDED_KEYS} | {"name": self._embedded_name}

    @property
    def split_sizes(self) -> dict[str, int]:
        """The number of examples of each split that is known."""
        sizes = dict.fromkeys(self.splits or (), self.num_examples)
        return sizes | {"test": NUM_DIGITS_TEST} if (self.name, self.is_fake) == ("digits", False) else sizes

    @property
    def _splits_name(self) -> str:
        """`train+test`; `all`, which is not the name of a split, where they are those of the real dataset."""
        return "all" if self.splits is None else "+".join(self.splits)

    @property
    def _embedded_name(self) -> str:
        """As `prepare` takes it: `photos`, `episodes/bridge`."""
        return f"{self.name}/{self.config}" if self.config else self.name

    @property
    def full_name(self) -> str:
        """As TFDS writes it: `voc/2007:5.0.0`, without what is not given."""
        config = f"/{self.config}" if self.config else ""
        version = f":{self.version}" if self.version else ""
        return f"{self.name}{config}{version}"

    @property
    def folder_name(self) -> str:
        """The name of this spec's own folder in the cache: `photos-512x8-0` or `fake-cifar10-5000x8-all-0`."""
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


@dataclass(frozen=True)
class Content:
    """What is written into the files of a dataset.

    Attributes:
        info: the arguments of `tfds.core.DatasetInfo`: features, description and so on.
        make_examples: yields the examples of a split, each with its key, which is unique in the split.
    """

    info: dict[str, Any]
    make_examples: Callable[[str], Iterator[tuple[int, Example]]]


def _check_counts(name: str, num_examples: int, num_shards: int | None, default_shards: int) -> tuple[int, int]:
    """Returns both numbers; num_shards None means default_shards, or as many as there are examples."""
    num_examples = check_integer("num_examples", num_examples, 1)
    num_shards = min(default_shards, num_examples) if num_shards is None else check_integer("num_shards", num_shards, 1)
    if num_shards > num_examples:
        raise ConfigError(
            f"num_shards={num_shards} is more than num_examples={num_examples} of '{name}': TFDS writes no empty "
            f"shards. Ask for at most {num_examples} shards."
        )
    return num_examples, num_shards


def is_split_name(name: object) -> bool:
    """Whether a split can have this name."""
    return isinstance(name, str) and _SPLIT.fullmatch(name) is not None and name != "all"


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


def _embedded_parts(name: str) -> tuple[str, str | None]:
    """Returns the name and the config of an embedded dataset."""
    if name in DEMO_NAMES:
        return name, EPISODE_CONFIGS[0] if name == "episodes" else None
    with_configs = [f"episodes/{config}" for config in EPISODE_CONFIGS]
    if name in with_configs:
        return "episodes", name.removeprefix("episodes/")
    hint = did_you_mean(name, [*DEMO_NAMES, *with_configs])
    raise DatasetNotFoundError(
        f"There is no demo dataset {name!r}.{hint} There are {_list_names([*DEMO_NAMES[:-1], *with_configs])}; "
        f"prepare_fake, or --fake N, makes up the content of any other."
    )


def _list_names(names: Sequence[str]) -> str:
    """Returns quoted names as a sentence has them: 'a', 'b' and 'c'."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} and {last}" if first else last
