"""Reads a `.beton` file by the table of its format alone: no code of the package, nothing vectorised, no checks."""

import json
import struct
from typing import Any

import numpy as np


def read_plainly(data: bytes) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Returns type by field, and the samples; an image is (mode, width, height, payload)."""
    version, num_fields, _, num_samples, table_at = struct.unpack_from("<HHIQQ", data)
    assert version == 2
    sizes = {}
    for at in range(table_at, len(data), 24):
        number, pointer, size = struct.unpack_from("<QQQ", data, at)
        assert pointer not in sizes
        sizes[pointer] = (number, size)
    types, arguments = {}, []
    for field in range(num_fields):
        at = 24 + 1041 * field
        name = data[at + 1 : at + 17].split(b"\0")[0].decode("ascii")
        types[name] = data[at]
        arguments.append(data[at + 17 : at + 1041])
    # numpy's alignment: plain numbers lie at multiples of eight, rows of several numbers anywhere.
    offsets, at = [], 0
    for kind in types.values():
        at = at if kind in (2, 3, 5) else -(-at // 8) * 8
        offsets.append(at)
        at += {0: 8, 1: 8, 2: 13, 3: 16, 4: 8, 5: 16, 6: 8}[kind]
    is_packed = set(types.values()) <= {2, 3, 5}
    row_bytes = at if is_packed else -(-at // 8) * 8
    samples = []
    for number in range(num_samples):
        row = 24 + 1041 * num_fields + number * row_bytes
        sample: dict[str, Any] = {}
        for (name, kind), offset, more in zip(types.items(), offsets, arguments, strict=True):
            at = row + offset

            def payload(pointer: int, number: int = number) -> bytes:
                owner, size = sizes[pointer]
                assert owner == number
                return data[pointer : pointer + size]

            if kind == 0:
                sample[name] = struct.unpack_from("<d", data, at)[0]
            elif kind == 1:
                sample[name] = struct.unpack_from("<q", data, at)[0]
            elif kind == 2:
                mode, width, height, pointer = struct.unpack_from("<BHHQ", data, at)
                sample[name] = (mode, width, height, payload(pointer))
            elif kind in (3, 5):
                pointer, size = struct.unpack_from("<QQ", data, at)
                content = payload(pointer)
                assert len(content) == size
                sample[name] = content if kind == 3 else json.loads(content[:-1])
                assert kind == 3 or content.endswith(b"\0")
            else:
                shape = [side for side in struct.unpack_from("<32Q", more) if side]
                (length,) = struct.unpack_from("<Q", more, 256)
                ((_, dtype),) = json.loads(more[264 : 264 + length])
                content = payload(struct.unpack_from("<Q", data, at)[0])
                sample[name] = np.frombuffer(content, dtype).reshape(shape)
        samples.append(sample)
    return types, samples
