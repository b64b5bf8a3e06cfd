"""DemoSpec: the parameters that say which demo dataset is meant, checked once."""

from dataclasses import asdict, dataclass
from typing import Any

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.plan.arguments import check_integer, did_you_mean

DEMO_NAMES = ("digits", "photos")
VERSION = "1.0.0"

NUM_DIGITS_TRAIN = 1437
NUM_DIGITS_TEST = 360


@dataclass(frozen=True)
class DemoSpec:
    """What a demo dataset is made from; equal specs give equal examples.

    Args:
        name: one of `DEMO_NAMES`.
        num_examples: examples of the split `train`.
        num_shards: shards of the split `train`.
        seed: which photographs are made, or which digits are kept for the split `test`.
    """

    name: str
    num_examples: int
    num_shards: int
    seed: int

    @classmethod
    def check(cls, name: str, num_examples: int | None, num_shards: int | None, seed: int) -> "DemoSpec":
        """Returns the spec that these arguments of `prepare` ask for; None means the dataset's default.

        Raises:
            DatasetNotFoundError: no demo dataset has this name.
            ConfigError: a number that cannot be, more shards than examples, or `num_examples` for `digits`.
        """
        if name not in DEMO_NAMES:
            raise DatasetNotFoundError(_describe_unknown(name))
        if name == "digits" and num_examples is not None:
            raise ConfigError(
                f"num_examples={num_examples!r} cannot be chosen for 'digits': it always has {NUM_DIGITS_TRAIN} "
                f"training and {NUM_DIGITS_TEST} test examples. Leave num_examples out, or take 'photos'."
            )
        default_examples, default_shards = {"digits": (NUM_DIGITS_TRAIN, 1), "photos": (512, 8)}[name]
        spec = cls(
            name,
            check_integer("num_examples", default_examples if num_examples is None else num_examples, 1),
            check_integer("num_shards", default_shards if num_shards is None else num_shards, 1),
            check_integer("seed", seed, 0),
        )
        check_num_shards(name, spec.num_shards, spec.num_examples)
        return spec

    @property
    def folder_name(self) -> str:
        """The name of this spec's own folder in the cache: `photos-512x8-0` (examples x shards, seed)."""
        return f"{self.name}-{self.num_examples}x{self.num_shards}-{self.seed}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the parameters by name, as they are kept in the dataset's `metadata.json`."""
        return asdict(self)

    def __str__(self) -> str:
        return f"'{self.name}' with num_examples={self.num_examples}, num_shards={self.num_shards}, seed={self.seed}"


def check_num_shards(name: str, num_shards: int, num_examples: int) -> None:
    """Raises ConfigError when a dataset is to have more shards than examples."""
    if num_shards > num_examples:
        raise ConfigError(
            f"num_shards={num_shards} is more than num_examples={num_examples} of '{name}': TFDS writes no empty "
            f"shards. Ask for at most {num_examples} shards."
        )


def _describe_unknown(name: object) -> str:
    hint = did_you_mean(name, DEMO_NAMES)
    return (
        f"There is no demo dataset {name!r}.{hint} There are {' and '.join(map(repr, DEMO_NAMES))}; prepare_fake, or "
        f"--fake N, makes up the content of any other."
    )
