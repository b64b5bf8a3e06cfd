"""The flags of `python -m tfds_torch.remote`."""

import argparse
from collections.abc import Sequence

_DESCRIPTION = """Lists or removes what is cached of object stores (s3://, gs://, az://, https://). clear removes blocks
of objects only, whatever else lies in the folder; what is being fetched at this moment stays, and processes that read
go on. Exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""

_OF_INDEX = """Fetches the shards of a dataset once, finds where their records lie, and writes that beside each shard:
.tfds_torch/<shard>.index; of episodes also where their steps lie, for windows of them. Where nothing can be written, it
stays in the user's cache folder. Whoever reads these shards then fetches blocks from the first epoch on, and any record
at once. Exit code: 0 done, 1 failed, 2 wrong usage."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the flags; a misuse that argparse sees ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.remote", description=_DESCRIPTION, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | clear | index")
    for name, what in (("list", "what is cached"), ("clear", "remove what is cached")):
        action = actions.add_parser(name, help=what, description=_DESCRIPTION, allow_abbrev=False)
        action.add_argument("url", nargs="?", metavar="URL", help="only objects at or below it (all)")
        action.add_argument("--cache-dir", metavar="F", help="the cache folder (the user's own)")
        action.add_argument("--json", action="store_true", help="print JSON, for machines")
    index = actions.add_parser("index", help="write the indices of shards beside them", description=_OF_INDEX)
    index.add_argument("url", metavar="URL", help="a version directory of TFDS, or tars: https://host/{000..099}.tar")
    index.add_argument("--cache-dir", metavar="F", help="the cache folder (the user's own)")
    index.add_argument("--json", action="store_true", help="print JSON, for machines")
    return parser.parse_args(arguments)
