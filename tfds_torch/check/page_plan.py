"""The picture of the plan: which examples and which shards every worker of every rank reads in epoch 0."""

import os
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.check.expectation import Expectation, pipeline_shares
from tfds_torch.check.figures import plural
from tfds_torch.check.findings import Findings
from tfds_torch.check.reference import CheckedParser
from tfds_torch.check.report import describe_plan
from tfds_torch.check.svg import draw_parts, draw_shades

_MOST_ROWS, _MOST_SHARDS_DRAWN, _MOST_READERS = 24, 64, 6
_NUM_CELLS = 100


def show_plan(parser: CheckedParser, expected: Expectation, findings: Findings) -> dict[str, Any]:
    """Returns a row for each pipeline and for each shard."""
    names = [_name(counts.rank, counts.worker, findings.num_workers) for counts in findings.pipelines]
    num_examples = expected.plan.num_examples
    cells = np.arange(_NUM_CELLS + 1) * num_examples // _NUM_CELLS
    if num_examples < _NUM_CELLS:
        cells = np.arange(num_examples + 1)
    firsts = np.array([run.first_index for run in parser.files] + [num_examples])
    shares = [one.index[one.valid] for one in pipeline_shares(parser, expected)]
    by_cell, by_shard = (np.array([_count(index, borders) for index in shares]) for borders in (cells, firsts))
    in_cell = np.maximum(np.diff(cells) * expected.plan.num_passes, 1)
    rows = [
        (counts, name, draw_shades(share / in_cell, f"examples that {name} reads, by index"))
        for counts, name, share in zip(findings.pipelines[:_MOST_ROWS], names, by_cell, strict=False)
    ]
    lengths = [run.take for run in parser.files]
    kind = "shard" if parser.source.has_shards else "file"
    is_drawn = parser.source.has_shards and 1 < len(lengths) <= _MOST_SHARDS_DRAWN
    return {
        "line": describe_plan(expected),
        "rows": rows,
        "num_more": max(0, len(names) - _MOST_ROWS),
        "num_examples": num_examples,
        "parts": draw_parts(lengths, plural(len(lengths), kind)) if is_drawn else None,
        "shards": [
            (os.path.basename(run.path), run.take, _readers(counts, names))
            for run, counts in zip(islice(parser.files, _MOST_ROWS), by_shard.T, strict=False)
        ],
        "num_more_shards": max(0, len(lengths) - _MOST_ROWS),
        "is_by_file": expected.mode == "files",
    }


def _count(index: NDArray[np.int64], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how many indices lie between each border and the next, int64 [number of borders - 1]."""
    # Of equal borders the last one counts: between the others there is nothing.
    places = np.searchsorted(borders, index, side="right") - 1
    return np.bincount(places, minlength=len(borders) - 1)


def _readers(counts: NDArray[np.int64], names: Sequence[str]) -> str:
    """Returns who reads how many examples of a shard."""
    there = [(name, int(number)) for name, number in zip(names, counts, strict=True) if number]
    if not there:
        return "nobody in this epoch"
    if len(there) == len(names) > _MOST_READERS:
        return f"all {len(names)}: {min(n for _, n in there):,} to {max(n for _, n in there):,} examples each"
    listed = ", ".join(f"{name}: {number:,}" for name, number in there[:_MOST_READERS])
    return listed + (f" and {len(there) - _MOST_READERS} more" if len(there) > _MOST_READERS else "")


def _name(rank: int, worker: int, num_workers: int) -> str:
    return f"rank {rank}" if num_workers == 0 else f"rank {rank}, worker {worker}"
