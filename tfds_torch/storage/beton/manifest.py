"""The manifest: the part that this package adds to FFCV's format, between the last page and the allocation table.

FFCV finds the table by its pointer and looks at nothing before it. The manifest is, in this order: a magic word; where
each id ends, uint64 [n]; the ids; checksums, CRC32C as uint32; facts as JSON; a tail of fixed size, by which it is
found from the table backwards.

There is a checksum of each payload, [number of fields with payloads, number of samples]; readers compare payloads with
them. Manifests of version 1 (tfds_torch 0.2.0) are not read.
"""

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfds_torch.runtime.printable import quoted

HEAD_MAGIC, TAIL_MAGIC = b"tfds_torch.beton", b"beton.tfds_torch"
VERSION = 2
# Magic, version, size of the JSON, size of the manifest; CRC32C of the JSON, of header and descriptors, of all these.
_TAIL = struct.Struct("<16sIIQIII")
TAIL_BYTES = _TAIL.size
LARGEST_FACTS = 2**28
"""Bytes of the JSON: a larger one is not read."""

Part = tuple[int, int]
"""Size in bytes, and CRC32C."""


@dataclass(frozen=True)
class Facts:
    """The content of a manifest.

    Attributes:
        name: name of the dataset; "": the dataset has the name of the file.
        fingerprint: fingerprint of the data that the samples were made from; "": unknown.
        class_names: field -> names of its labels, by number.
        fields: field -> how its values were encoded, in words.
        num_reencoded: number of images that could not keep their bytes.
        metadata: size and CRC32C of the samples' rows; the next attributes are those of the allocation table, of the
            places where ids end, of the ids (None: the file stores no ids), and of the checksums.
    """

    name: str
    fingerprint: str
    class_names: Mapping[str, Sequence[str]]
    fields: Mapping[str, str]
    num_samples: int
    num_pages: int
    num_reencoded: int
    metadata: Part
    table: Part
    id_stops: Part | None
    ids: Part | None
    checksums: Part


@dataclass(frozen=True)
class Manifest:
    """A manifest in a file: its facts, and where it begins."""

    facts: Facts = field(repr=False)
    at: int

    @property
    def id_stops_at(self) -> int:
        """Offset of the array that says where each id ends."""
        return self.at + len(HEAD_MAGIC)

    @property
    def ids_at(self) -> int:
        """Offset of the ids."""
        return self.id_stops_at + _size(self.facts.id_stops)

    @property
    def checksums_at(self) -> int:
        """Offset of the CRC32C of payloads."""
        return self.ids_at + _size(self.facts.ids)


def checksum(content: bytes) -> Part:
    """Return the number of bytes, and their CRC32C."""
    return len(content), google_crc32c.value(content)


def encode_ids(ids: Sequence[str] | None) -> tuple[bytes, bytes] | None:
    """Return where each id ends, uint64 [n], and the ids end to end, as UTF-8; None: samples have no ids."""
    if ids is None:
        return None
    encoded = [id.encode("utf-8", "surrogateescape") for id in ids]
    return np.cumsum([len(id) for id in encoded], dtype="<u8").tobytes(), b"".join(encoded)


class Tail(NamedTuple):
    """The end of a manifest, in the order in which it is written; `text` is the facts."""

    version: int
    text_bytes: int
    num_bytes: int
    text_crc: int
    head_crc: int


def encode_body(facts: Facts, id_stops: bytes, ids: bytes, checksums: bytes) -> tuple[bytes, Tail]:
    """Return the bytes of a manifest without its tail, and the tail, in which the CRC32C of the head is still 0."""
    text = json.dumps(asdict(facts)).encode()
    body = b"".join([HEAD_MAGIC, id_stops, ids, checksums, text])
    return body, Tail(VERSION, len(text), len(body) + TAIL_BYTES, google_crc32c.value(text), 0)


def encode_tail(tail: Tail) -> bytes:
    """Return a tail as it is written."""
    return _TAIL.pack(TAIL_MAGIC, *tail, google_crc32c.value(_TAIL.pack(TAIL_MAGIC, *tail, 0)))


def read_tail(tail: bytes) -> Tail | None:
    """Return the tail in the bytes before the table; None: they are not one."""
    if len(tail) < TAIL_BYTES or not tail.startswith(TAIL_MAGIC):
        return None
    magic, *numbers, crc = _TAIL.unpack(tail)
    if crc != google_crc32c.value(_TAIL.pack(magic, *numbers, 0)):
        raise ValueError("the manifest's tail does not have its checksum")
    found = Tail(*numbers)
    if found.version > VERSION:
        raise ValueError(
            f"its manifest is of version {found.version}, and this package reads version {VERSION} (a later one may "
            f"read it)"
        )
    if found.text_bytes > min(LARGEST_FACTS, found.num_bytes - TAIL_BYTES - len(HEAD_MAGIC)):
        raise ValueError(f"its manifest cannot hold {found.text_bytes} bytes of facts")
    return found


def read_facts(text: bytes, tail: Tail) -> Facts:
    """Return the facts of a manifest."""
    if google_crc32c.value(text) != tail.text_crc:
        raise ValueError("the manifest's facts do not have their checksum")
    try:
        return _check_facts(json.loads(text))
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"the manifest's facts make no sense ({error})") from None


def is_whole(part: Part, content: NDArray[np.uint8]) -> bool:
    """Return whether content, uint8 [n], has the size and the CRC32C that were noted for the part."""
    return len(content) == part[0] and checksum_of_array(content) == part[1]


def checksum_of_array(content: NDArray[np.uint8]) -> int:
    """Return the CRC32C of uint8 [n], without a copy of all of it."""
    crc, step = 0, 2**20
    for at in range(0, len(content), step):
        crc = google_crc32c.extend(crc, content[at : at + step].tobytes())
    return crc


def _size(part: Part | None) -> int:
    return 0 if part is None else part[0]


def _check_facts(values: Any) -> Facts:
    """Return the facts in a JSON object; raise TypeError, KeyError or ValueError for types that are never written."""
    found = {name: values[name] for name in Facts.__dataclass_fields__}
    for name in ("metadata", "table", "id_stops", "ids", "checksums"):
        if found[name] is not None or name not in ("id_stops", "ids"):
            size, crc = found[name]
            found[name] = _check_count(size), _check_count(crc)
    for name in ("num_samples", "num_pages", "num_reencoded"):
        _check_count(found[name])
    found["class_names"] = class_names = {key: list(names) for key, names in dict(found["class_names"]).items()}
    found["fields"] = fields = dict(found["fields"])
    texts = [found["name"], found["fingerprint"], *class_names, *fields, *fields.values()]
    if not all(isinstance(one, str) for one in itertools.chain(texts, *class_names.values())):
        raise TypeError("a name is not a text")
    if (found["id_stops"] is None) != (found["ids"] is None):
        raise ValueError("ids")
    return Facts(**found)


def _check_count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{quoted(value)} is not a count")
    return value
