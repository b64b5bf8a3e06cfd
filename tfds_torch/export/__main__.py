"""Entry point of `python -m tfds_torch.export`: the flags and the signals, before anything that takes time."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_INTERRUPTED = 130
_DESCRIPTION = """Writes a prepared TFDS dataset in another format: one .beton file, or a folder of shards (webdataset,
tfrecord, array_record). Each file is there whole or not at all, with the original bytes of its JPEG images, in the
order of its examples. The same command goes on with a folder of shards that was not completed. Without --root, the
names digits, photos and episodes stand for the embedded datasets, which are built at their first use; --fake builds
made-up content for any other name. Exit code: 0 written, 1 not written (or not verified), 2 wrong usage or no such
dataset, 130 interrupted."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags, None where one was not given; a misuse that argparse sees ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.export", description=_DESCRIPTION, allow_abbrev=False)
    what = parser.add_argument_group("what is read")
    how = parser.add_argument_group("how it is stored")
    output = parser.add_argument_group("what is written")
    what.add_argument("--name", help="dataset: name, name/config, name:version; a .beton file; tars: a-{000..099}.tar")
    what.add_argument("--root", help="TFDS data directory, or a version directory (TFDS's default)")
    what.add_argument("--split", help="TFDS split expression, such as train[:10%%] (train)")
    what.add_argument("--config", metavar="FILE.toml", help="a recipe, such as those in configs/; flags beat it")
    what.add_argument("--fake", type=int, metavar="N", help="build the dataset with N made-up examples per split")
    what.add_argument("--shuffle-seed", type=int, metavar="S", help="shuffle the examples (they stay in order)")
    how.add_argument(
        "--format", required=True, help="beton (FFCV's, one file), webdataset, tfrecord or array_record (of shards)"
    )
    how.add_argument("--shards", type=int, metavar="N", help="number of shards (of 256 MiB)")
    how.add_argument("--max-count", type=int, metavar="N", help="examples of a shard, at most")
    how.add_argument("--max-bytes", type=int, metavar="BYTES", help="of a shard's file, at most (reads all twice)")
    how.add_argument("--key", metavar="number|id", help="what webdataset's members are called by (number)")
    how.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=HOW",
        help="of beton: passthrough, raw, jpg, smart, proportion (images), int, float, bytes, json; of beton and "
        "webdataset: skip; the fields that are not named are stored by their type",
    )
    how.add_argument("--rename", action="append", default=[], metavar="NAME=NEW", help="another name in the file")
    how.add_argument("--page-size", type=int, metavar="BYTES", help="of beton: a power of two (8 MiB)")
    how.add_argument("--workers", type=int, default=0, metavar="W", help="processes (all cores)")
    how.add_argument("--part", metavar="K/N", help="of shards: write the K-th of N parts, each a process of its own")
    output.add_argument("--overwrite", action="store_true", help="of beton: replace a file that is there")
    output.add_argument("--verify", action="store_true", help="read all that was written again afterwards")
    output.add_argument("--json", action="store_true", help="print one report, for machines")
    output.add_argument("out", metavar="OUT", help="path of the file, or of the folder of shards")
    return parser.parse_args(arguments)


def _main() -> int:
    flags = parse_arguments(None)
    ending = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _end) for number in ending}
    try:
        from tfds_torch.export.command import run  # Only now: TFDS takes a second.

        for number, handler in before.items():
            signal.signal(number, handler)
        return run(flags)
    except KeyboardInterrupt:  # One more, while the first one was reported.
        return _INTERRUPTED
    finally:
        for number in ending:  # Only the end of Python is left.
            signal.signal(number, signal.SIG_IGN)
        # Where Ctrl-C met an `exec`, as when a dataclass is made, Python would end by the signal: this resets that.
        exec("")  # noqa: S102 (of nothing)


def _end(number: int, frame: FrameType | None) -> None:
    """End this process, which has done nothing yet."""
    try:
        os.write(2, b"Interrupted.\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(_main())
