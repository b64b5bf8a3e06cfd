"""Comparison of payloads with their checksums, before values are used."""

import mmap
from collections.abc import Iterable

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.allocations import PayloadSizes
from tfds_torch.storage.beton.fields import payload_fields
from tfds_torch.storage.beton.head import Head
from tfds_torch.storage.beton.ids import BetonIds
from tfds_torch.storage.open_files import FileState
from tfds_torch.storage.shard_files import Mapped


class Compared:
    """Records which payloads of a file were found to have their checksums: a byte for each.

    The memory is shared with processes that are forked later, so that the workers of all epochs compare a payload once.
    Payloads that were never compared take no memory. An unpickled copy knows of no compared payload.

    Attributes:
        flags: bool [n], of payloads.
        state: state of the file; comparisons made in another state do not count.
    """

    def __init__(self, number: int, state: FileState) -> None:
        self.flags: NDArray[np.bool_] = np.frombuffer(mmap.mmap(-1, max(1, number)), np.bool_)[:number]
        self.state = state

    def __reduce__(self) -> tuple[object, ...]:
        return Compared, (len(self.flags), self.state)

    @classmethod
    def nothing(cls, head: Head, state: FileState) -> "Compared":
        """Return flags of which none is set, for a file in this state."""
        return cls(0 if head.manifest is None else head.manifest.facts.checksums[0] // 4, state)


class PayloadChecks:
    """Compares payloads of one file with their checksums. Threads and forked processes may share it.

    This base class compares nothing: it serves files without checksums, and readers that do not verify them.
    """

    def compare_read(self, name: str, index: Int64Array, payloads: Iterable[bytes]) -> None:
        """Compare payloads that were read, every time.

        Args:
            name: name of the field.
            index: int64 [n], numbers of the samples.
            payloads: n payloads.

        Raises:
            CorruptRecordError: a payload does not have its checksum.
        """

    def compare_mapped(self, name: str, index: Int64Array) -> None:
        """Compare payloads in mapped memory that were not compared before; the arguments are those of `compare_read`.

        Raises:
            CorruptRecordError: a payload does not have its checksum.
        """


def payload_checks(head: Head, mapped: Mapped, sizes: PayloadSizes, compared: Compared) -> PayloadChecks:
    """Return the checks that the file's manifest allows; payloads that `compared` has noted are not compared again."""
    return PayloadChecks() if head.manifest is None else OwnChecksums(head, mapped, sizes, compared)


class OwnChecksums(PayloadChecks):
    """Compares each payload with its own checksum."""

    def __init__(self, head: Head, mapped: Mapped, sizes: PayloadSizes, compared: Compared) -> None:
        self._head, self._mapped, self._sizes = head, mapped, sizes
        num_samples, names = head.layout.num_samples, payload_fields(head.fields)
        expected = checksums_of(head, mapped).reshape(len(names), num_samples)
        flags = compared.flags.reshape(len(names), num_samples)
        self._expected = dict(zip(names, expected, strict=True))
        self._is_compared = dict(zip(names, flags, strict=True))

    def compare_read(self, name: str, index: Int64Array, payloads: Iterable[bytes]) -> None:  # noqa: D102
        self._refuse(name, index, np.fromiter(map(google_crc32c.value, payloads), np.uint32, len(index)))

    def compare_mapped(self, name: str, index: Int64Array) -> None:  # noqa: D102
        is_compared = self._is_compared[name]
        new = index[~is_compared[index]]
        if not len(new):
            return
        pointers, sizes = self._sizes.pointers(name, new), self._sizes.sizes(name, new)
        found = (
            google_crc32c.value(self._mapped.read(pointer, size))
            for pointer, size in zip(pointers.tolist(), sizes.tolist(), strict=True)
        )
        self._refuse(name, new, np.fromiter(found, np.uint32, len(new)))
        is_compared[new] = True

    def _refuse(self, name: str, index: Int64Array, found: NDArray[np.uint32]) -> None:
        is_bad = found != self._expected[name][index]
        if is_bad.any():
            self._mapped.check()  # Raises an error where the file was cut.
            sample = index[is_bad][:1]
            raise _damaged_payload(self._head, self._sizes, name, sample)


def checksums_of(head: Head, mapped: Mapped) -> NDArray[np.uint32]:
    """Return the checksums of the payloads of a file that has checksums, uint32 [n]."""
    manifest = head.manifest
    if manifest is None:
        return np.empty(0, np.uint32)
    stop = manifest.checksums_at + manifest.facts.checksums[0]
    return mapped.part(manifest.checksums_at, stop).view("<u4")


def _damaged_payload(head: Head, sizes: PayloadSizes, name: str, sample: Int64Array) -> CorruptRecordError:
    """Return the error for a payload without its checksum; sample int64 [1]."""
    (pointer,), (size,) = sizes.pointers(name, sample).tolist(), sizes.sizes(name, sample).tolist()
    try:
        id = f" (id {BetonIds(head).names(sample)[0]})"
    except ShardError:  # The ids are damaged as well.
        id = ""
    return CorruptRecordError(
        f"{head.path}: sample {sample[0]}{id}: the {size} bytes of its field {quoted(name)} at offset {pointer} "
        f"do not have their checksum: the file is corrupt. Write it again from its dataset."
    )
