"""A recipe reads by URL, through the cache that it names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tfds_torch import RemoteOptions
from tfds_torch.parsers.recipe_file import load_config

HEAD = "is_training = true\nbatch_size = 8\n"
ONE = f"name = 'numbered:1.0.0'\n{HEAD}"
MIXTURE = """
[[mixture]]
name = "numbered:1.0.0"
[[mixture]]
name = "numbered:1.0.0"
member = "again"
split = "train[:10]"
"""


@pytest.mark.parametrize(("head", "mixture"), [(ONE, ""), (HEAD, MIXTURE)], ids=["one", "mixture"])
def test_its_cache_is_used_unless_another_one_is_given(
    head: str, mixture: str, publish: Callable[[str, Path | str], str], numbered_root: str, tmp_path: Path
) -> None:
    url, own, recipe = publish("s3", numbered_root), tmp_path / "own", tmp_path / "recipe.toml"
    recipe.write_text(f"{head}[remote]\ncache_dir = '{own}'\nmax_bytes = 40_000_000\nconnections = 2\n{mixture}")
    config = load_config(recipe)
    assert len(list(config.make_parser(url).examples_by_index([0, 5]))) == 2
    assert list(own.glob("objects/*/*"))
    other = RemoteOptions(cache_dir=tmp_path / "other")
    assert len(list(config.make_parser(url, remote=other).examples_by_index([3]))) == 1
    assert list((tmp_path / "other").glob("objects/*/*"))
