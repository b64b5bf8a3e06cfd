"""`python -m tfds_torch.remote index`: write the indices of shards beside them."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.remote.indexing import IndexedShards, index_shards
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.terminal import make_console, prepare_output
from tfds_torch.storage.remote.options import RemoteOptions

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130

_OF_INDEX = """Fetches the shards of a dataset once, finds where their records lie, and writes that beside each shard:
.tfds_torch/<shard>.index; of episodes also where their steps lie, for windows of them. Where nothing can be written, it
stays in the user's cache folder. Whoever reads these shards then fetches blocks from the first epoch on, and any record
at once. Exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""


def run(argv: Sequence[str]) -> int:
    """Run the command with the words that follow `tfds_torch.remote`; return its exit code."""
    try:
        flags = _parse_arguments(argv)
    except SystemExit as end:  # argparse has printed the reason.
        return int(end.code or 0)
    prepare_output()
    errors, console = Console(stderr=True, emoji=False, highlight=False), make_console()
    try:
        found = index_shards(flags.url, RemoteOptions(cache_dir=flags.cache_dir, trust_size=flags.trust_size))
        text = json.dumps(asdict(found), indent=2) if flags.json else printable(_report(found))
        console.print(Text(text), soft_wrap=True)
    except KeyboardInterrupt:
        errors.print("Interrupted. What was fetched stays in the cache: the same command goes on.", soft_wrap=True)
        return _INTERRUPTED
    except TfdsTorchError as error:
        errors.print("[bold red]error:[/]", Text(printable(str(error))), soft_wrap=True)
        return _USAGE if isinstance(error, ConfigError) else _FAILED
    except OSError as error:
        console.on_broken_pipe()  # Python would try to write once more when it ends.
        errors.print(f"[bold red]error:[/] this cannot be done: {error.strerror}.", soft_wrap=True)
        return _FAILED
    return _OK


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.remote", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="index")
    what = "write the indices of shards beside them"
    index = actions.add_parser("index", help=what, description=_OF_INDEX, allow_abbrev=False)
    index.add_argument("url", metavar="URL", help="a version directory of TFDS, or tars: https://host/{000..099}.tar")
    index.add_argument("--cache-dir", metavar="F", help="the cache folder (the user's own)")
    what = "of a server that sends neither an ETag nor a Last-Modified: objects are never replaced"
    index.add_argument("--trust-size", action="store_true", help=what)
    index.add_argument("--json", action="store_true", help="print JSON, for machines")
    return parser.parse_args(argv)


def _report(found: IndexedShards) -> str:
    steps = f", and the steps of {', '.join(found.sequences)}" if found.sequences else ""
    report = f"Indexed {found.num_shards:,} shards of {found.dataset}: {found.num_examples:,} examples{steps}."
    if found.refusal is None:
        return f"{report} Their indices lie beside them, {decimal(found.num_bytes)}."
    return (
        f"{report} Their indices are kept in {found.folder}; beside the shards nothing can be written: {found.refusal}"
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
