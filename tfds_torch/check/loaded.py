"""What comes out of a loader: ledger entries, and errors in plain words."""

from collections.abc import Iterator
from typing import Any, TypeVar

from tfds_torch.check.ledger import Entry
from tfds_torch.errors import TfdsTorchError, WorkerError

T = TypeVar("T")


class CollateEntries:
    """Rows of field values -> ledger entries; a class, so that spawn can pickle it.

    Args:
        fields: what a row consists of; `id`, `index` and `valid` among them.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __call__(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        """Returns a batch of entries."""
        named = [dict(zip(self.fields, row, strict=True)) for row in rows]
        return [Entry(row["id"], row["index"], row["valid"], row.get("label"), row.get("image")) for row in named]


def explained(batches: Iterator[T]) -> Iterator[T]:
    """Yields the batches; a worker that died, for torch a bare RuntimeError, is a WorkerError.

    Raises:
        TfdsTorchError: as reading raises it, without the traceback that torch puts before a worker's message.
    """
    try:
        yield from batches
    except TfdsTorchError as error:
        raise type(error)(_last_message(error)) from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(
            f"{str(error).splitlines()[0].rstrip('.')}. Where nobody ended it, the memory did not suffice: try fewer "
            f"workers, or a smaller batch_size."
        ) from error


def _last_message(error: TfdsTorchError) -> str:
    text = str(error)
    marker = f"{type(error).__name__}: "
    return text.rpartition(marker)[2].strip() if marker in text else text
