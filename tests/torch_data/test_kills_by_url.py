"""Training from a store whose ranks, workers and fetchers are killed delivers what a local copy delivers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from cached_content import CachedContent, compare_cache
from pytest_report import add_section

from torch_data.killing import VICTIMS, Campaign, Place, kill_and_compare

slow, campaign = pytest.mark.slow, pytest.mark.campaign
SMALL_CACHE = 200_000
"""Bytes on the disk, some 16 blocks of the split's 26: a block of two examples takes three pages."""

Killed = list[tuple[str, "Counter[str]", CachedContent]]
_KILLED: Killed = []


def add_killed(config: pytest.Config, source: str, killed: "Counter[str]", content: CachedContent) -> None:
    """Notes what was killed; a table is told at the end of the run."""
    _KILLED.append((source, killed, content))

    def lines() -> list[str]:
        names = [*VICTIMS, "blocks compared", "parts left"]
        table = [f"{'source':<20}" + "".join(f"{name:>17}" for name in names)]
        for source in sorted({source for source, *_ in _KILLED}):
            own = [(killed, content) for one, killed, content in _KILLED if one == source]
            figures = [sum(killed[victim] for killed, _ in own) for victim in VICTIMS]
            figures += [sum(content.num_blocks for _, content in own), sum(content.num_parts for _, content in own)]
            table.append(f"{source:<20}" + "".join(f"{figure:>17,}" for figure in figures))
        return table

    add_section(config, "SIGKILLs of trainings that read from a store, by what was killed", lines)


@pytest.mark.timeout(1800)  # A campaign of 40 kills on a busy machine.
@pytest.mark.parametrize(
    ("source", "is_small", "kills"),
    [
        pytest.param("s3", True, Campaign("Loader", "numbered", num_kills=4), marks=slow),
        pytest.param("nginx", False, Campaign("any", "numbered", num_kills=3), marks=slow),
        pytest.param("s3", False, Campaign("any", "numbered", num_kills=40), marks=campaign),
        pytest.param("s3", True, Campaign("any", "numbered", num_kills=40), marks=campaign),
        pytest.param("s3", True, Campaign("any", "numbered, chosen", "subset", num_kills=10), marks=campaign),
        pytest.param("s3", True, Campaign("StatefulDataLoader", "numbered", num_kills=10), marks=campaign),
        pytest.param("s3", False, Campaign("any", "windows", num_kills=10), marks=campaign),
        pytest.param("nginx", False, Campaign("any", "numbered", num_kills=20), marks=campaign),
        pytest.param("nginx", True, Campaign("any", "numbered", num_kills=20), marks=campaign),
        pytest.param("nginx", False, Campaign("any", "windows, chosen", "subset", num_kills=10), marks=campaign),
    ],
    ids=str,
)
def test_killed_training_from_a_store_loses_and_repeats_nothing(
    source: str,
    is_small: bool,
    kills: Campaign,
    publish: Callable[[str, Path | str], str],
    numbered_root: str,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    url, cache = publish(source, numbered_root), tmp_path / "cache"
    max_bytes = SMALL_CACHE if is_small else None
    killed = kill_and_compare(kills, Place(numbered_root, url, cache, max_bytes), tmp_path, pytestconfig)
    content = compare_cache(cache, url, numbered_root)
    assert content.num_blocks > 0
    assert max_bytes is None or content.num_bytes <= max_bytes
    add_killed(pytestconfig, f"{source}, {'small' if is_small else 'whole'} cache", killed, content)
