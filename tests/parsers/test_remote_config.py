"""load_config: how a recipe says that objects are fetched and cached, and what it must not say."""

import re
from pathlib import Path

import pytest

from tfds_torch import RemoteOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.config import Config, load_config

RECIPE = """
name = "numbered:1.0.0"
is_training = true
batch_size = 8
"""
REMOTE = """
[remote]
cache_dir = "~/scratch"
max_bytes = 200_000_000
connections = 8
timeout_s = 5
storage_options = { endpoint = "http://127.0.0.1:9000", region = "us-east-1", skip_signature = true }
"""


def load(folder: Path, content: str) -> Config:
    path = folder / "recipe.toml"
    path.write_text(content)
    return load_config(path)


def test_a_recipe_says_where_objects_are_cached_and_how_they_are_asked_for(tmp_path: Path) -> None:
    found = load(tmp_path, RECIPE + REMOTE).remote
    options = {"endpoint": "http://127.0.0.1:9000", "region": "us-east-1", "skip_signature": True}
    assert found == RemoteOptions("~/scratch", 200_000_000, None, None, 8, 5)
    assert found is not None
    assert found.storage_options == options
    assert load(tmp_path, RECIPE).remote is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("cache = '/tmp'", r"unknown key 'cache' in \[remote\].*cache_dir"),
        ("max_bytes = '9 GB'", r"\[remote\] RemoteOptions: max_bytes='9 GB'"),
        ("max_bytes = 0", r"\[remote\] RemoteOptions: max_bytes=0"),
        ("cache_dir = 's3://bucket'", r"must be the path of a folder of this machine"),
        ("timeout_s = -1", r"\[remote\] RemoteOptions: timeout_s"),
        ("storage_options = 'anon'", r"storage_options must be a mapping"),
        ("storage_options = { regoin = 'eu' }", r"unknown storage option 'regoin'.*region"),
        ("storage_options = { endpoint = 'host:9000' }", r"must be a URL with http"),
    ],
)
def test_mistakes_are_named(table: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, f"{RECIPE}[remote]\n{table}\n")


@pytest.mark.parametrize(
    "option",
    ["secret = 'xyzzy'", "aws_access_key_id = 'xyzzy'", "token = 'xyzzy'", "headers = { Authorization = 'xyzzy' }"],
)
def test_secrets_are_refused_and_not_shown(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a secret, or may hold one.*environment") as found:
        load(tmp_path, f"{RECIPE}[remote]\nstorage_options = {{ {option} }}\n")
    assert not re.search("xyzzy", str(found.value))


def test_an_account_is_no_secret(tmp_path: Path) -> None:
    content = f"{RECIPE}[remote]\nstorage_options = {{ azure_storage_account_name = 'photos' }}\n"
    assert load(tmp_path, content).remote == RemoteOptions()


def test_a_dataset_of_ones_own_has_no_objects(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[remote\] has no effect on a dataset of your own"):
        load(tmp_path, "source = 'module:function'\n[remote]\nmax_bytes = 10\n")
