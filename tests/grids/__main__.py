"""`python -m grids`: grids of real ranks and workers in which every triple of what can differ comes together.

Run it in `tests`. `--data NAME` and `--method NAME` (repeated) take a part of it.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tfds_fixtures import prepare_datasets

from grids.campaign import DATA, all_cells
from grids.counts import GridCounts, run_cells
from grids.fleet import Fleet
from grids.splits import list_splits, make_splits


def main() -> int:
    """Runs the grids, prints what broke and the count, and returns 1 when anything did."""
    options = argparse.ArgumentParser(prog="python -m grids", description="Grids of ranks and workers.")
    options.add_argument("--data", action="append", choices=DATA, help="only these splits")
    options.add_argument("--method", action="append", help="only these start methods")
    chosen = options.parse_args()
    counts, started = GridCounts(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for name in ("data", "splits", "ranks"):
            (base / name).mkdir()
        splits = make_splits(prepare_datasets(base / "data"), base / "splits")
        with Fleet(base / "ranks") as fleet:
            (truths,) = fleet.call(list_splits, splits, reads=True)
            for data in chosen.data or DATA:
                of_data = [cell for cell in all_cells() if cell.data == data]
                cells = [cell for cell in of_data if not chosen.method or cell.method in chosen.method]
                for sentence in run_cells(fleet, cells, splits, truths, counts):
                    print(sentence, flush=True)
                print(f"{data}: {len(cells)} grids, {time.monotonic() - started:.0f} s", flush=True)
    print("\n".join(counts.lines()))
    return 1 if any(verdict.broken for _, verdict in counts.verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
