"""The Parser protocol, which every source of batches offers to loaders, and the state of a loader over one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.worker_faults import ErrorContext
from tfds_torch.storage.source import FieldSpec

if TYPE_CHECKING:
    from tfds_torch.parsers.dataset import Dataset

DEFAULT_FIELDS = ("image", "label")
METADATA_SPECS = {
    "valid": FieldSpec((), np.bool_),
    "index": FieldSpec((), np.int64),
    "id": FieldSpec((), np.object_),
}
"""Fields that every example has, whatever its dataset."""
METADATA_FIELDS = tuple(METADATA_SPECS)

_STORED = "stored/"


def stored_key(name: str) -> str | None:
    """Return the key of the stored field that a field `stored/<key>` is; None: the name is not of that form.

    A dataset may store fields with names that a batch uses: `index`, `id` and `valid`, and `image` or `label` where
    image_key or target_key name others. All parsers have them under this name. A field that is itself stored under a
    name of that form comes first.
    """
    return name.removeprefix(_STORED) if name.startswith(_STORED) and name != _STORED else None


def stored_name(key: str) -> str:
    """Return the name of the stored field of a key, also where a batch has another field of that name."""
    return f"{_STORED}{key}"


def field_name(key: str) -> str:
    """Return the name by which a stored field is asked for; it differs where a batch has another field of that name."""
    return stored_name(key) if key in METADATA_FIELDS else key


@dataclass(frozen=True)
class ElementSpec:
    """The fields that can be asked for, as single examples have them."""

    fields: Mapping[str, Any]


@runtime_checkable
class Parser(Protocol):
    """A source of batches. It is built without tensorflow, can be pickled, and reads nothing until asked to."""

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
        """Examples of a rank's batch; None: unknown (evaluation only)."""

    @property
    def preprocess(self) -> Preprocess | None:
        """How images are cut and resized while they are decoded, so that a batch is one array; None: they are not."""

    @property
    def read(self) -> ReadOptions:
        """How its files are read."""

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example, bytes."""

    def check_fields(self, fields: Sequence[str]) -> None:
        """Raise ConfigError when one of `fields` does not exist, or does not have the type that its use needs."""

    def plan(self, world: World, *, first_example: int = 0) -> EpochPlan:
        """Return the arithmetic of an epoch at a place in the world.

        Args:
            world: the grid, and the place in it.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; the plan is that of the rest.
        """

    def read_mode(self, world: World) -> str:
        """Return how examples are read at a place in the world: `index`, `files` or `examples`.

        Args:
            world: the grid, and the place in it.

        Raises:
            ConfigError: they cannot be read there.
        """

    def batches(
        self,
        world: World,
        epoch: int = 0,
        start_batch: int = 0,
        *,
        fields: Sequence[str] = DEFAULT_FIELDS,
        in_pieces: bool = False,
        context: ReadContext = ReadContext(),
        first_example: int = 0,
    ) -> Iterator[Batch]:
        """Yield the batches of one worker of one rank, from the rank's batch `start_batch` on.

        With `in_pieces` a batch whose images are separate arrays may come as several, one after the other, each as soon
        as it is decoded. Preprocessed images, and those for which the context makes batch buffers, are written into
        these buffers, and `Batch.image` is the object that a buffer hands over.

        Args:
            world: the grid, and the place whose batches are wanted.
            epoch: number of the epoch, >= 0.
            start_batch: the rank's batch at which to begin.
            fields: the fields to decode: `image`, `label`, and any feature of the dataset; the rest is not decoded.
            in_pieces: whether a batch may come as several.
            context: the objects that the run supplies: the memory of batches, metrics, the ranks of this machine.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; batches are dealt and counted from there on.

        Raises:
            ConfigError: a field does not exist, or the plan cannot work in this world.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """

    def ids(self, index: NDArray[np.int64]) -> Sequence[str]:
        """Return the ids of examples: `<shard file>__<record>`, or a path.

        Args:
            index: numbers of examples in the split, int64 [n].
        """

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example, in the order of `index`.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the folder of the files.
        """


def members_of(parser: Parser | None) -> Mapping[str, int]:
    """Return member -> its number of examples where a parser reads a mixture; empty for other parsers."""
    sizes: Mapping[str, int] = getattr(parser, "member_sizes", {})
    return sizes


def dataset_of(parser: object) -> "Dataset | None":
    """Return the dataset of a parser of this package; None for the user's own parser, which need not have one."""
    from tfds_torch.parsers.dataset import Dataset  # It imports this module.

    found = getattr(parser, "dataset", None)
    return found if isinstance(found, Dataset) else None


def is_undecoded(parser: Parser, name: str) -> bool:
    """Return whether a field of a parser comes as bytes."""
    dataset = dataset_of(parser)
    return dataset is not None and dataset.is_undecoded(name)


def images_beside(parser: Parser, fields: Sequence[str]) -> frozenset[str]:
    """Return which fields of a parser are single images [H, W, C] that are not *the* image."""
    dataset = dataset_of(parser)
    return frozenset() if dataset is None else dataset.images_beside(fields)


def has_windows(parser: Parser) -> bool:
    """Return whether a parser's examples are windows of episodes, which come in whole batches."""
    dataset = dataset_of(parser)
    return dataset is not None and dataset.has_windows


def transforms_of(parser: Parser) -> list[str]:
    """Return the names of the user's functions that examples go through before they become a batch, in turn."""
    dataset = dataset_of(parser)
    return [] if dataset is None else dataset.transformed.identities


def draws_numbers(parser: Parser) -> bool:
    """Return whether a transform of a parser takes the example's generator."""
    dataset = dataset_of(parser)
    return dataset is not None and dataset.transformed.takes_rng


def varying_fields(parser: Parser, fields: Sequence[str]) -> frozenset[str]:
    """Return the fields of which a value has a side that varies, as it is declared: lists in every batch."""
    dataset = dataset_of(parser)
    if dataset is not None:
        return dataset.varying_fields(fields)
    return find_varying(parser.element_spec, {name: name for name in fields if name != "image"})


def find_varying(spec: ElementSpec, fields: Mapping[str, str]) -> frozenset[str]:
    """Return which fields are declared with a side that varies.

    Args:
        spec: declares fields, some as dictionaries.
        fields: name -> the declared field, or a part of one (`objects/bbox`).
    """
    declared = {name: find_spec(spec, key) for name, key in fields.items() if name not in METADATA_SPECS}
    return frozenset(name for name, one in declared.items() if one is not None and None in one.shape)


def flat_names(spec: ElementSpec) -> list[str]:
    """Return the names of all declared fields but metadata; of those within others, flat ones (`objects/bbox`)."""
    return [name for key, own in spec.fields.items() for name in _flat_names(key, own) if name not in METADATA_FIELDS]


def _flat_names(key: str, spec: Any) -> Iterator[str]:
    if not isinstance(spec, Mapping):
        yield key
        return
    for name, inner in spec.items():
        yield from _flat_names(f"{key}/{name}", inner)


def find_spec(spec: ElementSpec, key: str) -> FieldSpec | None:
    """Return how a field, or a part of one (`objects/bbox`), is declared; None: it is not."""
    declared: Any = spec.fields
    for part in (key,) if key in spec.fields else key.split("/"):
        declared = declared.get(part) if isinstance(declared, Mapping) else None
    return declared if isinstance(declared, FieldSpec) else None


def name_of(parser: Parser) -> str:
    """Return which examples a parser reads, for messages."""
    return f"{parser.dataset_name}, split {quoted(parser.split)}"


def error_context_of(parser: Parser, loader: str, start_argument: str) -> ErrorContext:
    """Return the parts of a loader's messages: its examples, the next step, the argument for how workers start."""
    next_step = (
        f"The {loader}'s state_dict() counts what was delivered: load it, here or in a new process, and the next "
        f"iteration goes on after that."
    )
    return ErrorContext(
        name_of(parser), next_step, partial(_find_id, parser), start_argument, partial(_find_cut, parser)
    )


def _find_id(parser: Parser, index: int) -> str:
    return parser.ids(np.array([index], np.int64))[0]


def _find_cut(parser: Parser) -> str | None:
    """Return which file was cut short while it was read; None where no file was."""
    members: Mapping[str, Parser] = getattr(parser, "members", {"": parser})
    sources = [getattr(one, "source", None) for one in members.values()]
    return next(filter(None, (find() for one in sources if (find := getattr(one, "describe_cut", None)))), None)


def state_at(parser: Parser, rank: World, now: Start, num_workers: int | None) -> LoaderState:
    """Return the state that a loader over a parser saves at a point in an epoch; num_workers None: unknown."""
    num_readers = None if num_workers is None else max(1, num_workers)
    world = rank.at_worker(0, num_readers or 1)
    return LoaderState.of(
        parser.plan(world, first_example=now.first_example),
        dataset=parser.dataset_name,
        split=parser.split,
        fingerprint=parser.fingerprint,
        read_mode=parser.read_mode(world),
        num_workers=num_readers,
        epoch=now.epoch,
        batches=now.start_batch,
        transforms=transforms_of(parser),
    )
