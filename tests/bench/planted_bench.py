"""Runs `benchmarks` with planted competitors in the place of the real ones.

    planted_bench.py NAMES ARGUMENTS...

NAMES: functions of planted_competitors.py, separated by commas; `ours=steady` gives one the name of a peer. The
photographs are not made: the data dir, where competitors tell their pids, is the current folder.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench import planted_competitors as planted

from benchmarks import command
from tfds_torch import demo


def main(names: str, *arguments: str) -> int:
    peers = []
    for item in names.split(","):
        name, _, function = item.rpartition("=")
        peers.append(planted.peer(getattr(planted, function), name or None))

    def prepare(*args: Any, **kwargs: Any) -> Path:
        return Path.cwd()

    suites = tuple(replace(suite, peers=tuple(peers)) if suite.peers else suite for suite in command.SUITES)
    with (
        mock.patch.object(command, "SUITES", suites),
        mock.patch.object(demo, "prepare", prepare),
        mock.patch.object(demo, "prepare_fake", prepare),
    ):
        return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
