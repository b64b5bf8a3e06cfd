"""RowsDataset: the items of a map-style dataset, in the order of a plan, for `create_loader(rows, batch_size=...)`."""

from collections.abc import Iterator
from typing import Any

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import CorruptRecordError, WorkerError
from tfds_torch.parsers.own import ParserMapStyle
from tfds_torch.parsers.protocol import stored_name
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.storage.map_style.source import WHOLE_ITEM
from tfds_torch.torch_data.batches import NumberedColumns, NumberedItems
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.wrapped_datasets import unwrap

SEED = 42
"""Of an order whose seed is not given, as of every parser."""


class RowsDataset(ImageDataset):
    """Lists of the items of whole batches, which a loader collates as torch does.

    Every item comes once in an epoch; on several ranks the last batch is filled with the first items of the epoch.

    Args:
        rows: a dataset with `__len__` and `__getitem__`, or a dictionary of columns. It, and datasets within it, are
            told the epoch wherever they are read, if they have `set_epoch`.
        batch_size: items of a rank's batch.
        shuffle: whether every epoch has its own order.
        drop_last: whether an incomplete last batch is left out.
        seed: of the order; None: SEED.

    Raises:
        ConfigError: it has no items by number, or no length.
    """

    _loader_warns_of_padding = True  # With the remedy for rows, and once ranks are known.

    def __init__(self, rows: Any, batch_size: int, *, shuffle: bool, drop_last: bool, seed: int | None) -> None:
        parser = ParserMapStyle(
            rows,
            shuffle=shuffle,
            batch_size=batch_size,
            seed=SEED if seed is None else seed,
            remainder=Remainder.DROP if drop_last else None,
            read=ReadOptions(num_threads=1),  # Nothing is decoded.
        )
        self.rows = rows
        self._columns = list(parser.column_names)
        fields = [stored_name(name) for name in self._columns] or [WHOLE_ITEM]
        super().__init__(parser, fields=fields, batched=True)

    @property
    def users_own(self) -> Any:
        """The dataset that a loader was given."""
        return self.rows

    @property
    def is_collated(self) -> bool:
        """True: a loader makes batches of the yielded items."""
        return True

    def read(  # noqa: D102
        self,
        world: World,
        start: Start,
        metrics: StageMetrics | None = None,
        slots: SharedSlots | None = None,
        seed: int | None = None,
    ) -> Iterator[Any]:
        for layer in unwrap(self.rows):
            if callable(getattr(layer, "set_epoch", None)):
                layer.set_epoch(start.epoch)
        batches = self._batches(world, start, metrics, slots)
        while True:
            raised, message = None, ""
            try:
                batch = next(batches, None)
            except CorruptRecordError as error:
                if error.__cause__ is None:  # One that the dataset has raised.
                    raise
                raised, message = error.__cause__, str(error)
            if raised is not None:
                raise self._users_error(raised, message)
            if batch is None:
                return
            if self._columns:
                columns = {name: batch.features[stored_name(name)] for name in self._columns}
                yield NumberedColumns(columns, batch.index)
            else:
                yield NumberedItems(batch.features[WHOLE_ITEM], batch.index)

    def _users_error(self, error: BaseException, message: str) -> BaseException:
        """Return the dataset's own error for an item: a training script may expect its type."""
        if isinstance(error, StopIteration):  # It would pass for the end of the epoch.
            return WorkerError(f"{self.parser.dataset_name} raised StopIteration for an index it has. {message}")
        error.add_note(message)
        return error
