"""Writes the photographs in the formats of Streaming and litData, with their own writers, from tar files.

Configured: a column of bytes, which are the encoded image as it is, and the label; shards and chunks of 64 MB, which is
Streaming's default and litData's advice. It runs as a script in the environment that has these packages:
`python -m benchmarks.peers.stream_writers mds TARS TARGET`.
"""

import contextlib
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 26


def write_mds(source: str, target: str) -> None:
    """Writes a folder of tar files as MDS, with `streaming.MDSWriter`."""
    from benchmarks.peers.remote_streams import declare_operators

    declare_operators()
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=target, columns=columns, size_limit=CHUNK_BYTES) as writer:
        for shard in _shards(source):
            for example in read_examples(shard):
                writer.write(example)


def write_litdata(source: str, target: str) -> None:
    """Writes a folder of tar files as litData's chunks, with `litdata.optimize`."""
    import litdata

    litdata.optimize(
        fn=read_examples,
        inputs=_shards(source),
        output_dir=target,
        num_workers=1,
        chunk_bytes=CHUNK_BYTES,
        verbose=False,
    )


def read_examples(shard: str) -> Iterator[dict[str, Any]]:
    """Yields the encoded image and the label of every example of a tar file of ours."""
    with tarfile.open(shard) as tar:
        members = iter(tar)
        for image, label in zip(members, members, strict=True):
            yield {"image": _content(tar, image), "label": int(_content(tar, label))}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _shards(source: str) -> list[str]:
    return sorted(map(str, Path(source).glob("*.tar")))


WRITERS = {"mds": write_mds, "litdata": write_litdata}


def main(file_format: str, source: str, target: str) -> None:
    """Writes one format."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        WRITERS[file_format](source, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
