"""BetonReader: reads the values of samples by number, from a mapped file whose pointers were checked before."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError, ExampleNotFoundError
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.storage.beton.allocations import check_allocations
from tfds_torch.storage.beton.fields import BetonArray, BetonCustom, BetonField, BetonJson
from tfds_torch.storage.beton.format import JPEG, RAW
from tfds_torch.storage.beton.head import Head, damaged
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.manifest import is_whole
from tfds_torch.storage.beton.payload_checks import Compared, PayloadChecks, checksums_of, payload_checks
from tfds_torch.storage.beton.sample_blocks import SampleBlocks
from tfds_torch.storage.open_files import FileState
from tfds_torch.storage.shard_files import schedule_of
from tfds_torch.storage.stored_pixels import StoredPixels


class BetonReader:
    """Reads samples of one file. Threads may share a reader; a forked process continues to use it.

    Opening a file checks all its pointers, vectorised, and, where there is a manifest, the checksums of metadata, of
    the table, and of the checksums themselves. Payloads are compared with their checksums when they are read: payloads
    that are copied are compared every time, payloads that stay in mapped memory only the first time. A file that was
    written to since then is checked and compared again at the next read, whatever its modification time is.

    Args:
        head: the head of the file.
        verify_checksums: whether payloads are compared with their checksums.
        compared: payloads that readers of the same file compared before; None: no payload was compared.
        blocks: blocks in which a remote file is fetched; None: the blocks of the head's grid.

    Raises:
        ShardError: the file is missing, changed, or cannot be read.
        CorruptRecordError: a pointer, size or count makes no sense, or a checksum is not right.
    """

    def __init__(
        self,
        head: Head,
        *,
        verify_checksums: bool = True,
        compared: Compared | None = None,
        blocks: SampleBlocks | None = None,
    ) -> None:
        self.head, self._blocks = head, blocks
        self.mapped = self._mapped = head.map(None if blocks is None else blocks.cuts)
        self._verify = verify_checksums
        self._members = dict(zip(head.fields, head.layout.row_type.names or (), strict=True))
        self._check(self._mapped.check(), compared)

    def _check(self, state: FileState, compared: Compared | None) -> None:
        """Check the parts of the file in a given state; comparisons made in another state are forgotten."""
        head, layout = self.head, self.head.layout
        rows = self._mapped.part(layout.metadata_at, layout.metadata_end)
        table = self._mapped.part(head.table_at, head.stamp[0])
        if head.manifest is not None:
            for part, content, what in (
                (head.manifest.facts.metadata, rows, "metadata"),
                (head.manifest.facts.table, table, "allocation table"),
                (head.manifest.facts.checksums, checksums_of(head, self._mapped).view(np.uint8), "list of checksums"),
            ):
                if not is_whole(part, content):
                    raise damaged(head.path, f"its {what} does not have its checksum")
        self.rows: NDArray[np.void] = rows.view(layout.row_type)
        self._sizes = check_allocations(head, self.rows, self._mapped)
        self._raw_shapes = {name: self._raw_shape(name) for name in head.fields}
        if compared is None or compared.state != state:
            compared = Compared.nothing(head, state)
        self._checks = payload_checks(head, self._mapped, self._sizes, compared) if self._verify else PayloadChecks()
        self._state = state
        self._mapped.give_back()

    def _check_file(self) -> None:
        """Raise ShardError where the file was cut; check it again where it was written to."""
        state = self._mapped.check()
        if state != self._state:
            self._check(state, None)

    def read(self, name: str, index: Int64Array) -> Any:
        """Return n values of a field: an array [n, ...], StoredPixels, or a list.

        Images are bytes (JPEG) or uint8 [h, w, 3]; JSON is text as bytes.

        Raises:
            ExampleNotFoundError: an index outside the file.
            ShardError: the file was cut.
            CorruptRecordError: a payload does not have its checksum, or the file was written to and is damaged.
        """
        self._check_file()
        self.check_index(index)
        try:
            return self._read(name, index)
        except CorruptRecordError:
            if not self._discard(name, index):
                raise
            return self._read(name, index)

    def _read(self, name: str, index: Int64Array) -> Any:
        field, member = self.head.fields[name], self.rows[self._members[name]]
        if isinstance(field, BetonCustom):
            return field.decode(member[index], self._payloads(name, field, index))
        if field.pointer_at is None:
            return member[index]
        if isinstance(field, BetonArray):
            return self._arrays(name, field, index)
        if isinstance(field, BetonImage):
            return self._images(name, index)
        payloads = self._payloads(name, field, index) or []
        return [payload.removesuffix(b"\0") for payload in payloads] if isinstance(field, BetonJson) else payloads

    def _discard(self, name: str, index: Int64Array) -> bool:
        """Remove damaged payloads from the cache, once; return whether reading again may find whole ones."""
        pointers, sizes = self._sizes.pointers(name, index), self._sizes.sizes(name, index)
        starts, stops = pointers.tolist(), (pointers + sizes).tolist()
        found = [self._mapped.discard(start, stop) for start, stop in zip(starts, stops, strict=True)]
        return any(found)

    def check_index(self, index: Int64Array) -> None:
        """Raise ExampleNotFoundError where index, int64 [n], has a number that no sample has."""
        outside = index.view(np.uint64) >= len(self.rows)  # As unsigned numbers, negative ones are huge.
        if outside.any():
            raise ExampleNotFoundError(
                f"{self.head.path} has no sample {index[outside][0]}: it has {len(self.rows)}, counted from 0."
            )

    def compare(self, name: str, index: Int64Array) -> None:
        """Compare payloads of a field with their checksums; see PayloadChecks.compare_mapped."""
        if self.head.fields[name].pointer_at is not None:
            self._check_file()
            self._checks.compare_mapped(name, index)

    def announce(self, names: Sequence[str], index: Int64Array) -> None:
        """Ask for the payloads of fields ahead, except payloads that are copied out of mapped memory."""
        is_local = self.head.files.are_local
        own = [name for name in self.with_payloads(names) if not (is_local and self._raw_shapes[name] is not None)]
        if own:
            pointers = [self._sizes.pointers(name, index) for name in own]
            self._mapped.advise(
                np.concatenate(pointers), np.concatenate([self._sizes.sizes(name, index) for name in own])
            )

    def follow(self, names: Sequence[str], windows: Iterable[ExampleRanges]) -> None:
        """Fetch the blocks of an order's next windows ahead, as far as they hold values of fields."""
        blocks = self._blocks
        if blocks is not None:
            own, sizes = self.with_payloads(names), self._sizes
            self._mapped.follow(schedule_of(windows, lambda start, stop: blocks.holding(own, sizes, start, stop)))

    def with_payloads(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the given fields whose values lie in the pages."""
        return tuple(name for name in names if self.head.fields[name].pointer_at is not None)

    def rows_of(self, name: str) -> NDArray[Any]:
        """Return the samples' rows of a field, [n] of its row_type."""
        rows: NDArray[Any] = self.rows[self._members[name]]
        return rows

    def copy_rows(self) -> NDArray[np.void]:
        """Return a copy of the rows of all samples, [n] of the layout's row_type, compared with their checksum."""
        self._check_file()
        layout, manifest = self.head.layout, self.head.manifest
        rows_and_gaps = self._mapped.part(layout.metadata_at, layout.metadata_end)
        content = rows_and_gaps.copy()
        if manifest is not None and not is_whole(manifest.facts.metadata, content):
            raise damaged(self.head.path, "its metadata does not have its checksum")
        rows: NDArray[np.void] = content.view(layout.row_type)
        return rows

    def has_jpeg(self, name: str) -> bool:
        """Return whether an image of a field is stored as JPEG."""
        return bool((self.rows_of(name)["mode"] == JPEG).any())

    def count_raw(self, name: str) -> int:
        """Return how many images of a field are stored as pixels."""
        return int((self.rows_of(name)["mode"] == RAW).sum())

    def _payloads(self, name: str, field: BetonField, index: Int64Array) -> list[bytes] | None:
        if field.pointer_at is None:
            return None
        pointers, sizes = self._sizes.pointers(name, index), self._sizes.sizes(name, index)
        payloads = [
            self._mapped.read(pointer, size) if size else b""
            for pointer, size in zip(pointers.tolist(), sizes.tolist(), strict=True)
        ]
        self._checks.compare_read(name, index, payloads)
        return payloads

    def _gathered(self, name: str, index: Int64Array, num_bytes: int) -> tuple[NDArray[np.uint8], Int64Array]:
        """Return memory that holds the payloads of a field, all of one size, and where each payload begins in it."""
        pointers = self._sizes.pointers(name, index)
        if self.head.files.are_local:
            self._checks.compare_mapped(name, index)
            return self._mapped.gathered(pointers, num_bytes)
        memory, starts = self._mapped.gathered(pointers, num_bytes)
        payloads = (memory[start : start + num_bytes].tobytes() for start in starts.tolist())
        self._checks.compare_read(name, index, payloads)
        return memory, starts

    def _arrays(self, name: str, field: BetonArray, index: Int64Array) -> NDArray[Any]:
        memory, starts = self._gathered(name, index, field.num_bytes)
        flat = StoredPixels(memory, starts, (1, 1, field.num_bytes), check=self._mapped.check).copy()
        arrays: NDArray[Any] = flat.reshape(len(index), field.num_bytes).view(field.dtype)
        return arrays.reshape(len(index), *field.shape)

    def _images(self, name: str, index: Int64Array) -> Any:
        shape = self._raw_shapes[name]
        if shape is not None:
            return StoredPixels(*self._gathered(name, index, math.prod(shape)), shape, self._mapped.check)
        rows = self.rows[self._members[name]][index]
        found: list[Any] = []
        payloads = self._payloads(name, self.head.fields[name], index) or []
        for payload, (mode, width, height, _) in zip(payloads, rows.tolist(), strict=True):
            is_raw = mode == RAW
            found.append(np.array(np.frombuffer(payload, np.uint8)).reshape(height, width, 3) if is_raw else payload)
        return found

    def _raw_shape(self, name: str) -> tuple[int, int, int] | None:
        """Return [H, W, 3] of images that are all stored as pixels of one size."""
        rows = self.rows[self._members[name]]
        if not isinstance(self.head.fields[name], BetonImage) or not len(rows):
            return None
        mode, width, height, _ = rows[0].tolist()
        is_one = mode == RAW and all((rows[key] == rows[0][key]).all() for key in ("mode", "width", "height"))
        return (height, width, 3) if is_one else None
