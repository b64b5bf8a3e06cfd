"""A state saved at any step over URLs gives the uninterrupted tail, in any world, here and on a local copy.

Parsers of a store share its fetcher, which ends with the last of them: each test keeps one of them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conformance import check_resumes
from loaders.resuming import Ranks
from parsers.resuming import Grid, ParserLoader
from torch_data.resuming import KINDS, Setup

from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.tfds.parser import ParserTfds

SLOW = pytest.mark.slow
Serve = Callable[[Path | str], str]
BLOCKS = ReadOptions(block_records=4, shuffle_buffer=12)
ARGUMENTS: dict[str, Any] = {"name": "numbered:1.0.0", "is_training": True, "read": BLOCKS}


@pytest.mark.parametrize(
    ("grid", "other", "arguments"),
    [
        ((1, 2), (1, 3), {}),
        pytest.param((2, 1), (1, 2), {"is_training": False, "remainder": "pad", "shuffle": True}, marks=SLOW),
        pytest.param((1, 1), (3, 1), {"read": ReadOptions(block_records=None)}, marks=SLOW),
    ],
    ids=["more workers", "evaluation on one rank", "the global order on three ranks"],
)
def test_pipelines_go_on_anywhere(
    serve: Serve, numbered_root: str, grid: Grid, other: Grid, arguments: dict[str, Any]
) -> None:
    make_far, make_near = (
        partial(ParserTfds, root, **{**ARGUMENTS, **arguments}) for root in (serve(numbered_root), numbered_root)
    )
    _kept = make_far(batch_size=12)
    assert check_resumes(partial(ParserLoader, make_far, grid, 12), partial(ParserLoader, make_near, other, 12)) > 8
    assert check_resumes(
        partial(ParserLoader, make_near, other, 12), partial(ParserLoader, make_far, grid, 12), num_epochs=1
    )


@SLOW
@pytest.mark.parametrize(
    "changes", [{"num_workers": 2}, {"num_replicas": 2, "num_workers": 1}], ids=["workers", "ranks"]
)
def test_loaders_go_on_on_a_local_copy(serve: Serve, numbered_root: str, changes: dict[str, Any]) -> None:
    far = Setup({"root": serve(numbered_root), **ARGUMENTS}, 12)
    near = replace(far, arguments={"root": numbered_root, **ARGUMENTS}, **changes)
    _kept = far.make_parser()
    make, make_other = partial(KINDS["loader"], far), partial(KINDS["loader"], near)
    assert check_resumes(make, make_other, num_epochs=1) > 4


@SLOW
@pytest.mark.parametrize("source", ["s3", pytest.param("nginx", marks=pytest.mark.campaign)])
def test_the_loader_without_torch_goes_on_on_a_local_copy_and_back(
    source: str, publish: Callable[[str, Path | str], str], own_cache: Path, numbered_root: str
) -> None:
    how: dict[str, Any] = {"name": "numbered:1.0.0", "read": BLOCKS, "num_workers": 2}
    make_far, make_near = (
        partial(Ranks, root, 24, **{**how, **changes})
        for root, changes in (
            (publish(source, numbered_root), {}),
            (numbered_root, {"num_replicas": 2, "num_workers": 1}),
        )
    )
    _kept = make_far()
    assert check_resumes(make_far, make_near, num_epochs=1) == 8
    assert check_resumes(make_near, make_far, num_epochs=1) == 8
