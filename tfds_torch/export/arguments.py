"""The flags of `python -m tfds_torch.export`; nothing that takes time is imported for them."""

import argparse
import re
import sys
from collections.abc import Sequence

_DESCRIPTION = """Writes a prepared TFDS dataset in another format: one .beton file, or a folder of shards (webdataset,
tfrecord, array_record). Each file is there whole or not at all, with the original bytes of its JPEG images, in the
order of its examples. The same command goes on with a folder of shards that was not completed. Without --root, the
names digits, photos and episodes stand for the embedded datasets, which are built at their first use; --fake builds
made-up content for any other name. Exit code: 0 written, 1 not written (or not verified), 2 wrong usage or no such
dataset, 130 interrupted."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the flags, None where one was not given; a misuse that argparse sees ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.export", description=_DESCRIPTION, allow_abbrev=False)
    what, how, output = map(parser.add_argument_group, ("what is read", "how it is stored", "what is written"))
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
    how.add_argument("--beam-runner", metavar="NAME", help="an Apache Beam runner that writes the shards")
    how.add_argument("--beam-options", metavar="'NAME=VALUE ...'", help="of its pipeline, in quotes")
    output.add_argument("--overwrite", action="store_true", help="of beton: replace a file that is there")
    output.add_argument("--verify", action="store_true", help="read all that was written again afterwards")
    output.add_argument("--json", action="store_true", help="print one report, for machines")
    output.add_argument("out", metavar="OUT", help="path of the file, or of the folder of shards")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--beam-options" in words[:-1]:
        at = words.index("--beam-options")
        own = re.findall(r"--[\w-]+", parser.format_usage())
        if words[at + 1].partition("=")[0] not in own:  # A single flag of Beam's looks like one of these to argparse.
            words[at : at + 2] = [f"--beam-options={words[at + 1]}"]
    return parser.parse_args(words)
