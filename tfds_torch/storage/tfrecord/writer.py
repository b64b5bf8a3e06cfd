"""TfrecordWriter: TFRecord files, without tensorflow."""

from collections.abc import Callable

from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, checksum, record_header


class TfrecordWriter:
    """Writes records of a TFRecord file, one after the other.

    Args:
        write: takes the next bytes of the file.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def add(self, record: bytes) -> None:
        """Writes a record."""
        self._write(record_header(len(record)))
        self._write(record)
        self._write(checksum(record))


def framed_bytes(record_bytes: int) -> int:
    """Returns what a record of so many bytes takes in a file."""
    return FRAME_SIZE + record_bytes
