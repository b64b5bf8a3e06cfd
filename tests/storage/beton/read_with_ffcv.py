"""Reads all fields of a file with the real FFCV, and keeps them. Run as a script, where FFCV is installed.

`python read_with_ffcv.py FILE RESULT OS_CACHE`
"""

import sys

import numpy as np


def main() -> None:
    from ffcv.fields import JSONField
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader

    path, result, os_cache = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
    names = Reader(path).field_names
    loader = Loader(path, batch_size=3, num_workers=1, order=OrderOption.SEQUENTIAL, os_cache=os_cache, drop_last=False)
    columns: dict[str, list[object]] = {name: [] for name in names}
    for batch in loader:
        for name, values in zip(names, batch, strict=True):
            values = np.asarray(values).copy()
            texts = JSONField.unpack(values) if name == "facts" else None
            columns[name] += list(values) if texts is None else texts
    stacked = {
        name: np.array([repr(value) for value in values]) if name == "facts" else np.stack(values)  # type: ignore[arg-type]
        for name, values in columns.items()
    }
    np.savez(result, **stacked)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
