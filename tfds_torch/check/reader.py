"""Reader: a rank's loader as a training script has it, and the batches that it yields.

The loader is the one that the README recommends, `create_loader`, or torch's own DataLoader.
"""

import json
import warnings
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.check.ledger import Received
from tfds_torch.errors import ConfigError, StateMismatchError, TfdsTorchError, WorkerError
from tfds_torch.parsers.mixture_source import MEMBER
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, METADATA_FIELDS
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import EpochTimer, LoaderStats
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import Loader, create_loader
from tfds_torch.torch_data.plain_dataloader import make_plain_loader

_TIMEOUT_S = 600.0
NUM_AFTER = 3
"""How many batches are read after a state was loaded."""
_NUM_RANDOM_POINTS = 3


class Point(NamedTuple):
    """A point between two batches of a rank, or the batch that follows it: `number` batches of `epoch` came before."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.number}"


@dataclass(frozen=True)
class Resumed:
    """The batches that came after a state was loaded.

    Attributes:
        point: where the state was taken.
        state: the state as JSON; empty where none could be taken.
        iterations: a few batches that came then, a list for each iteration of the loader.
        error: why the state could not be taken or loaded; else empty.
    """

    point: Point
    state: str
    iterations: Sequence[Sequence[Received]] = ()
    error: str = ""


def choose_points(plan: EpochPlan, num_epochs: int) -> list[Point]:
    """Return points in the epochs 0..num_epochs-1, in order; the same for the same seed.

    Among them are those before the first batch, before the last one and at the end of epoch 0.
    """
    last = plan.num_batches
    points = {Point(0, 0), Point(0, max(0, last - 1)), Point(0, last)}
    if last > 1:
        numbers = np.random.default_rng(plan.seed)
        epochs = numbers.integers(num_epochs, size=_NUM_RANDOM_POINTS)
        delivered = numbers.integers(1, last, size=_NUM_RANDOM_POINTS)
        points |= {Point(*point) for point in zip(epochs.tolist(), delivered.tolist(), strict=True)}
    return sorted(points)


def batches_after(point: Point, num_batches: int, num_epochs: int) -> list[list[Point]]:
    """Return the next few batches that must come after a point, a list for each iteration of the loader.

    Where an epoch ends, the next one follows; the iteration after an epoch's last batch is empty.
    """
    iterations: list[list[Point]] = []
    num_missing = NUM_AFTER
    for epoch in range(point.epoch, num_epochs):
        if num_missing:
            first = point.number if epoch == point.epoch else 0
            iterations.append([Point(epoch, number) for number in range(first, min(first + num_missing, num_batches))])
            num_missing -= len(iterations[-1])
    return iterations


def kept_batches(points: Collection[Point], num_batches: int, num_epochs: int) -> set[Point]:
    """Return the batches that an uninterrupted reading must remember, for comparison with resumed ones."""
    return {at for point in points for part in batches_after(point, num_batches, num_epochs) for at in part}


# The loader


class Reader:
    """Reads the batches that a parser plans for one rank; a context manager that ends its workers.

    Args:
        parser: the parser; it is read in whole batches where it has a preprocess, else in single examples.
        world: the rank; None for that of the process.
        num_workers: loader processes; 0 reads in this process.
        is_plain: whether torch's DataLoader reads; else `create_loader`.
        sample: indices of the examples whose pixels are kept.
        has_content: whether images and labels are read, as far as the dataset has them; a dataset of the user's own
            that has neither is read with all its fields; see `content_of`.
        has_pixels: whether images are looked at.
    """

    def __init__(
        self,
        parser: DatasetParser,
        world: World | None,
        num_workers: int,
        *,
        is_plain: bool = False,
        sample: Collection[int] = (),
        has_content: bool = True,
        has_pixels: bool = True,
    ) -> None:
        if parser.batch_size is None and num_workers < 2:
            parser = parser.with_batch_size(1)  # As it is planned; states count batches, whose size must be known.
        content = content_of(parser) if has_content else []
        fields = (*content, *METADATA_FIELDS, *([MEMBER] if parser.provenance().members else []))
        with warnings.catch_warnings():
            # Advice reports batches that repeat a small split; here each reader would warn of them.
            warnings.simplefilter("ignore", UserWarning)
            self.dataset = ImageDataset(parser, fields=fields, world=world)
        self._receive = Receive(fields, frozenset(sample), self.dataset.is_batched, has_pixels)
        collate = None if self.dataset.is_batched else self._receive
        self.loader: Any
        if is_plain:
            # As it is planned; None would mean no batches.
            batch_size = None if self.dataset.is_batched else parser.batch_size or 1
            self.loader = make_plain_loader(self.dataset, batch_size, num_workers, collate)
            return
        with warnings.catch_warnings():
            # Advice reports memory and workers; here each rank would warn of them.
            warnings.simplefilter("ignore", UserWarning)
            self.loader = create_loader(self.dataset, num_workers, timeout_s=_TIMEOUT_S, collate_fn=collate)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(self.loader, Loader):
            self.loader.close()

    def __len__(self) -> int:
        """Batches of an epoch, as the loader announces them."""
        return len(self.loader)

    @property
    def loader_batch_size(self) -> int | None:
        """The loader's batch size; None where the dataset makes the batches."""
        return None if self.dataset.is_batched else self.loader.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the loader leaves out a last batch that is not full."""
        return getattr(self.loader, "drop_last", False)

    @property
    def stats(self) -> LoaderStats | None:
        """Where the time went; None if the loader does not report it."""
        return self.loader.stats() if isinstance(self.loader, Loader) else None

    def batches(
        self, timer: EpochTimer | None = None, digested: Collection[int] = ()
    ) -> Generator[Received, None, None]:
        """Yield the batches of the next epoch, or those after the state that was loaded.

        Args:
            timer: keeps the times of the epoch.
            digested: numbers of the batches, counted from the first that comes, whose images are digested.

        Raises:
            TfdsTorchError: as reading raises it; a worker of a DataLoader that died is a WorkerError.
        """
        loader = self.loader if timer is None else timer.time(self.loader)
        try:
            for number, batch in enumerate(loader):
                yield self._receive(batch, number in digested) if self.dataset.is_batched else batch
        except TfdsTorchError as error:
            raise type(error)(_last_message(error)) from error
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise WorkerError(
                f"{str(error).splitlines()[0].rstrip('.')}. If it was not stopped by hand, memory ran out: try "
                f"fewer workers, or a smaller batch_size."
            ) from error

    def take_state(self, point: Point) -> Resumed:
        """Return the state at a point that the loader has reached, with nothing read after it."""
        try:
            if isinstance(self.loader, Loader):
                state = self.loader.state_dict()
            else:
                # None: before the first batch, as a program that was just started saves.
                state = self.dataset.state_dict(point.number or None)
            return Resumed(point, json.dumps(state))
        except ConfigError as error:
            return Resumed(point, "", error=str(error))

    def read_on(self, saved: Resumed, num_epochs: int) -> Resumed:
        """Return the few batches that come after a state is loaded.

        Where an epoch ends, the next one of `num_epochs` follows.
        """
        if saved.error:
            return saved
        num_missing = NUM_AFTER
        iterations: list[list[Received]] = []
        try:
            owner = self.loader if isinstance(self.loader, Loader) else self.dataset
            owner.load_state_dict(json.loads(saved.state))
            for _ in batches_after(saved.point, len(self), num_epochs):
                iterations.append(self.take(num_missing))
                num_missing -= len(iterations[-1])
        except (StateMismatchError, WorkerError) as error:  # A Loader counts the batches itself.
            return Resumed(saved.point, saved.state, error=str(error))
        return Resumed(saved.point, saved.state, iterations)

    def take(self, number: int) -> list[Received]:
        """Return the first batches of the next iteration, all of them where it has no more."""
        with closing(self.batches(digested=range(number))) as batches:
            return list(islice(batches, number))


class Receive:
    """Makes a Received of a whole batch, field by field, or of the rows of single examples.

    It is a class, so that spawn can pickle it: where a worker collates single examples, only their ids, indices and
    labels, and the pixels that are kept, travel to the training process.

    Args:
        fields: the fields that come; `id`, `index` and `valid` among them.
        sample: indices whose pixels are kept.
        is_batched: whether whole batches come.
        has_pixels: whether images are looked at.
    """

    def __init__(
        self, fields: tuple[str, ...], sample: frozenset[int], is_batched: bool, has_pixels: bool = True
    ) -> None:
        self._fields, self._sample, self._is_batched, self._has_pixels = fields, sample, is_batched, has_pixels

    def __call__(self, batch: Any, is_digested: bool = False) -> Received:
        """Return a batch; of its images only those that are kept are copied, unless all are digested."""
        values = batch if self._is_batched else zip(*batch, strict=True)
        columns = dict(zip(self._fields, values, strict=True))
        index, image = np.asarray(columns["index"]).astype(np.int64), columns.get("image")
        image = image if self._has_pixels else None
        rows = {number: i for i, number in enumerate(index.tolist()) if number in self._sample}
        return Received(
            columns["id"],
            index,
            np.asarray(columns["valid"]).astype(np.bool_),
            _integers(columns.get("label")),
            {} if image is None else {number: self._pixels(image[i]) for number, i in rows.items()},
            blake2b(image.numpy().tobytes(), digest_size=16).digest() if is_digested and image is not None else b"",
            np.asarray(columns[MEMBER]).astype(np.int64) if MEMBER in columns else None,
        )

    def _pixels(self, image: Any) -> NDArray[np.uint8]:
        """Return a copy, uint8 [h, w, C], of a row of a batch, or of a PIL image."""
        pixels = image.permute(1, 2, 0).numpy() if self._is_batched else np.asarray(image)
        return np.array(pixels if pixels.ndim == 3 else pixels[..., None])


def content_of(parser: DatasetParser) -> list[str]:
    """Return the fields of an example that are read.

    They are image and label, the fields that transforms name, and for windows the fields with offsets. They are all
    fields where there is none of these and the dataset is the user's own or has windows, or where a transform does not
    name its fields.
    """
    found = next(iter(parser.provenance().members.values()), parser.dataset).provenance()
    offsets = () if found.episodes is None else found.episodes.windows.offsets
    if parser.dataset.transformed.reads_any:
        return list(parser.dataset.all_fields().values())
    given = parser.dataset.transformed.specs
    names = [name for name in dict.fromkeys([*DEFAULT_FIELDS, *offsets, *given]) if parser.dataset.has_field(name)]
    if names or not (parser.provenance().is_own or found.episodes is not None):
        return names
    return [name for name in parser.element_spec.fields if name not in METADATA_FIELDS]


def _integers(labels: Any) -> NDArray[np.int64] | None:
    """Return labels as int64 [n]; None where they are something else, or there are none."""
    if labels is None:
        return None
    values = np.asarray(labels) if hasattr(labels, "numpy") or all(isinstance(one, int) for one in labels) else None
    return values.astype(np.int64) if values is not None and values.ndim == 1 and values.dtype.kind in "iu" else None


def _last_message(error: TfdsTorchError) -> str:
    """Return the message without the traceback that torch puts before that of a worker."""
    text = str(error)
    marker = f"{type(error).__name__}: "
    return text.rpartition(marker)[2].strip() if marker in text else text
