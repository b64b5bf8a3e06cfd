"""The table of suites: who takes part, and that every target finds what it judges."""

import pytest

from benchmarks import (
    cached_costs,
    comparisons,
    episode_costs,
    export_costs,
    index_costs,
    loader_costs,
    mixture_costs,
    remote_tables,
    resuming,
)
from benchmarks.suites import SUITES
from benchmarks.tables import COMPETITORS, Table
from benchmarks.targets import Target
from tfds_torch.engines.options import ReadOptions

TABLES = {
    "sample": [comparisons.SAMPLE.table],
    "start": [comparisons.STARTING.table],
    "index": [
        *(index_costs.BUILDING, index_costs.ORDER, index_costs.LOCALITY),
        *(comparison.table for comparison in (*comparisons.WARM_MODES, comparisons.COLD_MODES)),
    ],
    "state": [resuming.STATE, resuming.RESUMING],
    "jpeg": [comparisons.JPEG.table],
    "jpeg_eval": [comparisons.JPEG_EVAL.table],
    "png32": [comparisons.PNG32.table],
    "memory": [comparisons.STARTING.table, comparisons.IMPORTS, comparisons.BEYOND],
    "notebook": [comparison.table for comparison in comparisons.NOTEBOOK],
    "ready": [loader_costs.READY, loader_costs.LARGE],
    "multi": [loader_costs.ITEMS, loader_costs.PHOTOS, loader_costs.WORKERS],
    "feeder": [loader_costs.FEED, loader_costs.CUT],
    "scale": [comparisons.SCALE],
    "export": [
        *(*export_costs.BETON.values(), *export_costs.TARS.values()),
        *(export_costs.MEMORY, export_costs.READING.table, export_costs.INDEXING),
    ],
    "cached": [*(comparison.table for comparison in (*cached_costs.PIXELS, cached_costs.CACHE)), cached_costs.OPENING],
    "mixture": [
        *(comparison.table for comparison in (*mixture_costs.SPEEDS, mixture_costs.PROCESSES)),
        *(mixture_costs.TABLE, mixture_costs.SLICES, mixture_costs.LENGTHS, mixture_costs.DEVIATIONS),
    ],
    "episodes": [episode_costs.SPEEDS.table, episode_costs.MEMORIES, episode_costs.INDEXING, episode_costs.COLUMNS],
    "remote": [
        *(remote_tables.PIXELS, remote_tables.FIRST, remote_tables.MACHINES),
        *(remote_tables.BYTES, remote_tables.SMALL_CACHE, remote_tables.LONG),
    ],
}


def test_every_suite_is_there_once_and_says_what_it_measures() -> None:
    assert [suite.name for suite in SUITES] == list(TABLES)
    for suite in SUITES:
        assert suite.title
        assert "{" not in suite.method
        assert suite.method.endswith(".")


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_target_judges_a_column_that_its_suite_has(suite: object) -> None:
    tables: dict[str, Table] = {table.name: table for table in TABLES[suite.name]}
    targets: list[Target] = suite.targets
    names = [peer.name for peer in suite.peers]
    assert len({target.name for target in targets}) == len(targets)
    for target in targets:
        assert target.column in {column.key for column in tables[target.table].columns}, target.name
        if names and target.table == COMPETITORS:
            assert set(target.rows) <= set(names), target.name


def test_the_columns_of_a_table_differ() -> None:
    all_tables = [table for tables in TABLES.values() for table in tables]
    wrong = [one.name for one in all_tables if len({column.key for column in one.columns}) < len(one.columns)]
    assert not wrong, str(wrong)


def test_peers_of_the_suites_take_turns_after_us() -> None:
    names = {suite.name: [peer.name for peer in suite.peers] for suite in SUITES if suite.peers}
    others = ["ours_0", "timm", "webdataset", "grain", "dali", "ffcv", "limit"]
    assert names["sample"] == names["start"] == ["ours", "timm", "webdataset", "grain", "as_numpy"]
    assert names["jpeg"] == ["ours", "ours_simplejpeg", "baseline", "ours_0", "ours_0_simplejpeg", *others[1:]]
    assert names["jpeg_eval"] == ["ours", "ours_simplejpeg", *others]
    assert names["png32"] == ["ours", "ours_batched", *others]
    assert names["memory"] == ["ours", "ours_0", "ours_8", "timm", "ffcv"]


def test_a_resume_may_read_its_batch_those_decoded_ahead_and_one_that_is_fetched_meanwhile() -> None:
    (limit,) = (one.limit for suite in SUITES for one in suite.targets if one.column == "batches_read")
    assert limit == 2 + ReadOptions().prefetch_batches
