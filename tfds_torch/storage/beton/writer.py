"""BetonWriter: writes a `.beton` file, which appears when it is complete, or not at all."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.runtime.atomic_file import AtomicFile
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonField, payload_fields
from tfds_torch.storage.beton.format import (
    DEFAULT_PAGE,
    LARGEST_PAGE,
    SMALLEST_PAGE,
    Layout,
    is_page_size,
    make_row_type,
)
from tfds_torch.storage.beton.head import check_fields, encode_head
from tfds_torch.storage.beton.manifest import TAIL_BYTES, Facts, checksum, encode_body, encode_ids, encode_tail
from tfds_torch.storage.beton.pages import PageWriter, WrittenPart


def check_target(path: str | os.PathLike[str], page_size: int, overwrite: bool) -> None:
    """Raise ConfigError where no file can be written, or no pages of such a size; before any work is done for it."""
    path = Path(path)
    if not is_page_size(check_integer("page_size", page_size, 1)):
        raise ConfigError(
            f"page_size={page_size} must be a power of two, from {SMALLEST_PAGE:,} to {LARGEST_PAGE:,} bytes."
        )
    try:
        path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # The path has a loop of links, or a null character.
        raise ConfigError(f"{quoted(str(path))} is not a path of a file: {error}.") from None
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name the file in it.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is a device, a pipe or a socket, which stays as it is: choose another path.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"The folder of {path} does not exist: make it first.")
    if not overwrite and path.exists():
        raise ConfigError(f"{path} is there already: use overwrite=True to replace it, or another path.")


_MOST_LISTED = 5


class BetonWriter(AbstractContextManager["BetonWriter"]):
    """Writes samples into a `.beton` file that FFCV 1.0.2 and this package read.

    As a context manager it puts the file in its place at the end of the block, and leaves the place as it was where the
    block raises an exception. It is for one process and one thread; `page_writer` is for several processes.

    Args:
        path: the file to write.
        fields: name -> how its values are stored, in FFCV's order of fields. FFCV expects image and label first.
        num_samples: number of samples that will be added.
        page_size: size of a page in bytes: a power of two, 2 MiB to 2 GiB. A sample must fit into one page.
        name: name of the dataset, for readers of the file.
        fingerprint: fingerprint of the data that the samples are made from.
        class_names: field -> names of its labels, by number.
        overwrite: whether an existing file may be replaced.
        take_page: function that returns 0, 1, 2, ...: each number once, whichever process asks; None: only this process
            writes pages.
        follows_link: whether a link at `path` is followed; see `AtomicFile`.

    Raises:
        ConfigError: an argument cannot work, or the file exists already.
        ExportError: nothing can be written there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, BetonField],
        num_samples: int,
        *,
        page_size: int = DEFAULT_PAGE,
        name: str = "",
        fingerprint: str = "",
        class_names: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        take_page: Callable[[], int] | None = None,
        follows_link: bool = True,
    ) -> None:
        check_target(path, page_size, overwrite)
        self.fields = dict(fields)
        check_fields(self.fields)
        check_integer("num_samples", num_samples, 0)
        self.class_names = {key: list(names) for key, names in (class_names or {}).items()}
        for key in self.class_names:
            if key not in self.fields:
                raise ConfigError(
                    f"class_names names {quoted(key)}, which is not a field.{did_you_mean(key, self.fields)}"
                )
        row_type = make_row_type([field.row_type for field in self.fields.values()])
        self.layout = Layout(num_samples, len(self.fields), row_type, page_size)
        self.name, self.fingerprint = name, fingerprint
        self.path = Path(path)
        self._is_written = np.zeros(num_samples, np.bool_)
        self._take_page = take_page or count().__next__
        self._parts: list[WrittenPart] = []
        self._num_added = 0
        self._file = self._guarded(lambda: AtomicFile(self.path, follows_link=follows_link))
        self._pages = self.page_writer()
        self._is_open = True

    def add(self, sample: Mapping[str, Any] | Sequence[Any], number: int | None = None, id: str | None = None) -> None:
        """Write one sample.

        Args:
            sample: field name -> value, or the values in the order of the fields.
            number: number of the sample, 0 <= number < num_samples; None: the number after the latest one.
            id: id by which the sample is found, of any form; either all samples have one, or none has.

        Raises:
            ConfigError: there are more or fewer values than fields, a value cannot be stored, the sample is larger than
                a page, or its number is taken or out of range. Nothing of the sample is written.
            ExportError: the disk is full, or cannot be written to.
        """
        self._check_open()
        values = self._values_of(sample)
        number = self._num_added if number is None else check_integer("number", number, 0)
        if number >= self.layout.num_samples:
            raise ConfigError(
                f"There is no sample {number}: num_samples={self.layout.num_samples}, counted from 0. Give the right "
                f"number when the writer is made: the file has a row for each sample in front of them all."
            )
        if self._is_written[number]:
            raise ConfigError(f"Sample {number} was written already: each number is written once.")
        if id is not None and not isinstance(id, str):
            raise ConfigError(f"id={quoted(id)} must be a text.")
        self._guarded(lambda: self._pages.add(values, number, id))
        self._is_written[number] = True
        self._num_added = number + 1

    def page_writer(self) -> PageWriter:
        """Return a writer of further pages of this file, for a forked process; `include` takes over its samples.

        Several processes must share one `take_page`.
        """
        return PageWriter(self.fields, self.layout, self._file.write, self._take_page)

    def include(self, part: WrittenPart) -> None:
        """Take over the samples that a page writer of another process has written.

        Args:
            part: as that writer returned it.

        Raises:
            ConfigError: a sample's number is outside 0 <= number < num_samples, or was written before.
        """
        outside = (part.numbers < 0) | (part.numbers >= self.layout.num_samples)
        if outside.any():
            raise ConfigError(f"There is no sample {part.numbers[outside][0]}: num_samples={self.layout.num_samples}.")
        again = np.bincount(part.numbers, minlength=self.layout.num_samples) + self._is_written > 1
        if again.any():
            raise ConfigError(f"Sample {np.flatnonzero(again)[0]} was written twice: each number is written once.")
        self._is_written[part.numbers] = True
        self._parts.append(part)

    def close(self) -> Facts:
        """Complete the file and put it in its place; the header is written last.

        Returns:
            The content of its manifest.

        Raises:
            ExportError: a sample is missing, or the disk is full; the place is as it was.
            ConfigError: the writer was closed or discarded before.
        """
        self._check_open()
        self._is_open = False
        try:
            missing = np.flatnonzero(~self._is_written)
            if len(missing):
                raise ExportError(
                    f"{self.path}: {len(missing)} of {self.layout.num_samples} samples were not written: "
                    f"{_listed(missing)}. Nothing was changed. Write every number once, or give the right num_samples."
                )
            facts: Facts = self._guarded(self._complete)
            return facts
        finally:
            self._file.discard()

    def discard(self) -> None:
        """Stop writing, and leave the place as it was; may be called twice, and after `close`."""
        self._is_open = False
        self._file.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif self._is_open:  # The block may have called `close` itself, for its result.
            self.close()

    def _values_of(self, sample: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        names = list(self.fields)
        if isinstance(sample, Mapping):
            lacking, unknown = [name for name in names if name not in sample], sorted(set(sample) - set(names))
            if lacking or unknown:
                raise ConfigError(
                    f"The sample has {f'no {lacking}' if lacking else f'also {unknown}'}, and the file the fields "
                    f"{names}: give each of them a value, and nothing else."
                )
            return [sample[name] for name in names]
        if isinstance(sample, str | bytes) or not isinstance(sample, Sequence) or len(sample) != len(names):
            found = f"{len(sample)} values" if isinstance(sample, tuple | list) else type(sample).__name__
            raise ConfigError(f"The sample is {found}, and the file has {len(names)} fields: {names}.")
        return list(sample)

    def _complete(self) -> Facts:
        layout, parts = self.layout, [self._pages.close(), *self._parts]
        rows = np.zeros(layout.num_samples, layout.row_type)
        num_pages = sum(part.num_pages for part in parts)
        checksums = np.zeros((len(payload_fields(self.fields)), layout.num_samples), "<u4")
        ids: list[str | None] = [None] * layout.num_samples
        for part in parts:
            rows[part.numbers] = part.rows
            checksums[:, part.numbers] = part.checksums.T
            for number, id in zip(part.numbers.tolist(), part.ids, strict=True):
                ids[number] = id
        table = np.concatenate([part.allocations for part in parts])
        table = table[np.argsort(table["pointer"], kind="stable")]
        metadata, allocations, payload_checksums = rows.tobytes(), table.tobytes(), checksums.tobytes()
        encoded_ids = encode_ids(_check_ids(ids, self.path))
        id_stops, id_bytes = encoded_ids or (b"", b"")
        facts = Facts(
            name=self.name,
            fingerprint=self.fingerprint,
            class_names=self.class_names,
            fields={name: repr(field) for name, field in self.fields.items()},
            num_samples=layout.num_samples,
            num_pages=num_pages,
            num_reencoded=sum(part.num_reencoded for part in parts),
            metadata=checksum(metadata),
            table=checksum(allocations),
            id_stops=checksum(id_stops) if encoded_ids else None,
            ids=checksum(id_bytes) if encoded_ids else None,
            checksums=checksum(payload_checksums),
        )
        body, tail = encode_body(facts, id_stops, id_bytes, payload_checksums)
        manifest_at = layout.pages_end(num_pages)
        table_at = manifest_at + tail.num_bytes
        head = encode_head(self.fields, layout, table_at)
        self._file.write(metadata, layout.metadata_at)
        self._file.write(body, manifest_at)
        self._file.write(encode_tail(tail._replace(head_crc=checksum(head)[1])) + allocations, table_at - TAIL_BYTES)
        self._file.write(head, 0)
        self._file.commit()
        return facts

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(f"The writer of {self.path} was closed, or gave up: make another one.")

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """Run a function that writes; where the system refuses to write, raise ExportError and end the writing."""
        try:
            return act()
        except OSError as error:
            num_pages = self._pages.num_pages if hasattr(self, "_pages") else 0
            raise self.cannot_write(error, int(self._is_written.sum()), num_pages) from error

    def cannot_write(self, error: OSError, num_done: int, num_pages: int) -> ExportError:
        """Stop writing, and return the error for a refused write.

        Args:
            error: of the file system.
            num_done: samples that were written.
            num_pages: pages that were written.
        """
        if hasattr(self, "_file"):
            self.discard()  # The space that the file took is free again.
        return ExportError(f"{self._describe(error, num_done, num_pages)} What was there before is untouched.")

    def _describe(self, error: OSError, num_done: int, num_pages: int) -> str:
        what = f"{self.path} cannot be written: {error.strerror or error}."
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return what
        written = self.layout.pages_end(num_pages)
        all_bytes = written * self.layout.num_samples // num_done if num_done else written
        what = (
            f"{what} About {all_bytes:,} bytes are needed ({written:,} for {num_done:,} of "
            f"{self.layout.num_samples:,} samples)"
        )
        if error.errno == errno.EFBIG:
            return (
                f"{what}, and no file may be as large, by a limit (ulimit -f) or the file system: raise the limit, or "
                f"write elsewhere."
            )
        try:
            status = os.statvfs(self.path.absolute().parent)
            free = f"{status.f_bavail * status.f_frsize:,}"
        except OSError:
            free = "an unknown number of"
        return f"{what}, and {free} are free: make room, or write elsewhere."


def _check_ids(ids: list[str | None], path: Path) -> list[str] | None:
    present = [id for id in ids if id is not None]
    if present and len(present) < len(ids):
        raise ExportError(
            f"{path}: sample {ids.index(None)} has no id, and {len(present)} others have one. Give every sample an id, "
            f"or none. Nothing was changed."
        )
    return present or None


def _listed(numbers: NDArray[np.int64]) -> str:
    more = ", ..." if len(numbers) > _MOST_LISTED else ""
    return ", ".join(map(str, numbers[:_MOST_LISTED].tolist())) + more
