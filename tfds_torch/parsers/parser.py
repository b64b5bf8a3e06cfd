"""What every source of examples offers, and what it yields."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tfds_torch.pipeline.canvas import ArrayCanvas, MakeCanvas
from tfds_torch.pipeline.preprocess import Preprocess
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.world import World
from tfds_torch.runtime.clock import Clock

DEFAULT_FIELDS = ("image", "label")
LEDGER_FIELDS = ("valid", "index", "id")
"""Fields that every example has, whatever its dataset."""


@dataclass(frozen=True)
class Batch:
    """The examples of one batch of one rank, in numpy.

    Attributes:
        image: uint8 [B, H, W, C] where there is a preprocess; else a list of B arrays uint8 [H, W, C] of their own
            sizes, which are read-only views; None when not asked for.
        label: int64 [B], -100 where padded; None when not asked for or when the target is no scalar integer.
        valid: bool [B]; False marks padding, which only fills the batch.
        index: int64 [B], positions of the examples in the split.
        id: B strings as TFDS gives them, `<shard file>__<record>`.
        features: the other features asked for: name -> array [B, ...] or list of B values.
        epoch: the epoch the batch belongs to.
        batch: its number among the rank's batches of the epoch.
    """

    image: Any
    label: NDArray[np.int64] | None
    valid: NDArray[np.bool_]
    index: NDArray[np.int64]
    id: list[str]
    features: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    batch: int = 0

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class FieldSpec:
    """Shape (None: varies) and numpy dtype of one value of a field."""

    shape: tuple[int | None, ...]
    dtype: Any


@dataclass(frozen=True)
class ElementSpec:
    """The fields that can be asked for, as single examples have them.

    Attributes:
        fields: name -> FieldSpec; nested features are dictionaries.
    """

    fields: Mapping[str, Any]


@runtime_checkable
class Parser(Protocol):
    """A source of examples. It is built without tensorflow, can be pickled, and reads nothing until asked to."""

    @property
    def dataset_name(self) -> str:
        """What the examples belong to, for messages: `name/config:version`."""

    @property
    def split(self) -> str:
        """The split expression."""

    @property
    def num_examples(self) -> int:
        """Examples of the split."""

    @property
    def class_names(self) -> list[str] | None:
        """Names of the labels, by number; None when the target has no names."""

    @property
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for."""

    @property
    def fingerprint(self) -> str:
        """Identity of the examples and their order: equal for equal name, version, split and shard lengths."""

    @property
    def batch_size(self) -> int | None:
        """Examples of a rank's batch; None: not said (evaluation only)."""

    @property
    def preprocess(self) -> Preprocess | None:
        """What is done to images while they are decoded, so that batches of them are one array; None: nothing."""

    def check_fields(self, fields: Sequence[str]) -> None:
        """Raises ConfigError when a field does not exist, or does not have the type that its use needs."""

    def plan(self, world: World) -> EpochPlan:
        """Returns the arithmetic of an epoch at a place in the world."""

    def read_mode(self, world: World) -> str:
        """Returns how examples are read at a place in the world; raises ConfigError where they cannot be."""

    def batches(
        self,
        world: World,
        epoch: int = 0,
        start_batch: int = 0,
        *,
        fields: Sequence[str] = DEFAULT_FIELDS,
        in_pieces: bool = False,
        make_canvas: MakeCanvas = ArrayCanvas,
        clock: Clock | None = None,
    ) -> Iterator[Batch]:
        """Yields the batches of one worker of one rank, from the rank's batch `start_batch` on.

        With `in_pieces` a batch that is not preprocessed may come as several, one after the other, each as soon as it
        is decoded. Preprocessed images are written into the memory that `make_canvas` makes, and `Batch.image` is what
        it hands over.
        """

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Returns a name for every example, in the order of `index`."""
