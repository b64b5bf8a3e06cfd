"""Roots and names that a dataset cannot be opened by: the error names the mistake, and the way that works."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets

from tfds_torch import demo
from tfds_torch.check.command import main as check
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.export.command import main as export
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.parsers.remote_store import open_dataset_store
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.remote.store import ObjectStore


@pytest.fixture(scope="module")
def root() -> Path:
    return Path(demo.prepare("digits"))


@pytest.fixture
def configured(tmp_path: Path, root: Path) -> Path:
    """Returns a root with the dataset digits/small, of two versions."""
    for version in ("1.0.0", "1.1.0"):
        folder = tmp_path / "data" / "digits" / "small" / version
        folder.mkdir(parents=True)
        for file in (root / "digits" / "1.0.0").iterdir():
            (folder / file.name).symlink_to(file)
    return tmp_path / "data"


def refused(root: Any, name: str, **arguments: Any) -> str:
    with pytest.raises((ConfigError, DatasetNotFoundError)) as caught:
        ParserTfds(root, name, **arguments)
    return str(caught.value)


# Folders too deep


@pytest.mark.parametrize("name", ["digits", "digits:1.0.0", "digits:9.9.9", "mnist", "Digits"])
@pytest.mark.parametrize("download", [False, True])
def test_a_dataset_s_own_folder_as_root_is_named_with_the_root_to_give(root: Path, name: str, download: bool) -> None:
    message = refused(root / "digits", name, download=download)
    assert f"The root {root / 'digits'} of dataset {name!r} is the own folder of a dataset" in message
    assert message.endswith(f"Give root={str(root)!r}.")
    assert not (root / "digits" / "mnist").exists(), "nothing is prepared in there"


def test_a_config_s_folder_as_root_is_named_with_the_root_to_give(configured: Path) -> None:
    for name in ("digits", "digits/small", "digits/small:1.1.0"):
        message = refused(configured / "digits" / "small", name)
        assert "is a config's folder of a dataset" in message
        assert message.endswith(f"Give root={str(configured)!r}.")
    assert refused(configured / "digits", "digits/small").endswith(f"Give root={str(configured)!r}.")


def test_the_root_that_the_message_gives_works(root: Path) -> None:
    given = re.search(r"root='(.*)'", refused(root / "digits", "digits"))
    assert given is not None
    assert len(ParserTfds(given[1], "digits")) == len(ParserTfds(root / "digits" / "1.0.0", "digits")) == 1437


# Names


def test_capitals_that_tfds_does_not_take_lead_to_its_own_name(root: Path, tmp_path: Path) -> None:
    message = refused(root, "CIFAR10")
    assert "There is no dataset 'CIFAR10'" in message
    assert "its name is 'cifar10'" in message
    assert f"tfds.builder('cifar10', data_dir={str(root)!r}).download_and_prepare()" in message
    (tmp_path / "cifar10" / "3.0.2").mkdir(parents=True)
    for name in ("dataset_info.json", "features.json"):
        (tmp_path / "cifar10" / "3.0.2" / name).touch()
    prepared = refused(tmp_path, "CIFAR10")
    assert prepared.endswith("its name is 'cifar10'. Prepared there: cifar10:3.0.2."), "no line is needed"


def test_a_name_with_other_characters_gets_the_nearest_names(root: Path) -> None:
    assert "The nearest names are: cifar10" in refused(root, "cifar-10")


@pytest.mark.parametrize(
    ("name", "advised", "reason"),
    [
        ("mnist:3.0.1", "mnist:3.0.1", ""),
        ("mnist:9.0.0", "mnist", "TFDS does not build the version '9.0.0'; it builds: 3.0.1."),
        ("glue/cola:2.0.0", "glue/cola:2.0.0", ""),
        ("glue/colaa", "glue", "TFDS has no config 'colaa' of it; it has: cola, sst2"),
        ("mnist:3.*.*", "mnist", "TFDS does not build the version '3.*.*'"),
    ],
)
def test_only_configs_and_versions_that_tfds_builds_are_advised(
    root: Path, name: str, advised: str, reason: str
) -> None:
    message = refused(root, name)
    assert f"tfds.builder({advised!r}, " in message
    assert reason in message


def test_the_line_that_prepares_a_dataset_is_python_that_tfds_takes(root: Path) -> None:
    given = re.search(r"Prepare it with: (.*)\.download_and_prepare\(\) ", refused(root, "glue/cola:2.0.0"))
    assert given is not None
    builder = eval(given[1], {"tfds": tensorflow_datasets})
    assert (builder.info.full_name, Path(builder.data_path)) == ("glue/cola/2.0.0", root / "glue" / "cola" / "2.0.0")


@pytest.mark.slow
def test_tfds_takes_every_command_that_a_message_advises() -> None:
    """Holds the commands of all our messages against TFDS's own parser of its command line.

    That parser cannot be imported without Apache Beam and mlcroissant, of which it needs only the names here.
    """
    commands = [
        "tfds convert_format --dataset_version_dir=/data/a/1.0.0 --out_file_format=tfrecord --out_dir=/data/b",
    ]
    advised = Path(sys.modules["tfds_torch"].__file__ or "").parent
    flags = {
        flag
        for module in advised.rglob("*.py")
        if "bench" not in module.parts
        for text in re.findall(r"tfds convert_format(?:[^\n]*\n?[^\n]*)", module.read_text())
        for flag in re.findall(r"--[a-z_]+(?==|\b)", text)
    }
    assert flags <= set(re.findall(r"--[a-z_]+", " ".join(commands))), "name it in commands"
    script = (
        "import importlib.util, sys, unittest.mock\n"
        "for name in ('apache_beam', 'mlcroissant'):\n"
        "    if importlib.util.find_spec(name) is None: sys.modules[name] = unittest.mock.MagicMock()\n"
        "from tensorflow_datasets.scripts.cli import main\n"
        "for line in sys.argv[1:]: main._parse_flags(line.split())\n"
        "try: main._parse_flags(['tfds', 'build', 'x', '--no_such_flag=1'])\n"
        "except SystemExit: print('refuses')"
    )
    run = subprocess.run([sys.executable, "-c", script, *commands], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.strip()) == (0, "refuses"), run.stderr[-1000:]


# URLs

URLS = {
    "abfs://container/tfds": "az storage blob",
    "HTTP://host/tfds": "http:// in small letters",
    "hf://datasets/a/b": "hf download",
    "nosuch://bucket": "mount it as a local folder",
    "file:///data": "without 'file://'",
    "GS://bucket": "gs:// in small letters",
    "s3://": "has no bucket: write s3://BUCKET/PATH",
    "s3:/bucket/tfds": "write s3:// with two slashes",
    "https:\\\\host": "write https:// with two slashes",
    "http://host:port/tfds": "the port behind the host must be a number",
}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"contacts {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(("url", "step"), URLS.items())
def test_a_url_that_is_not_read_is_refused_at_once_with_the_next_step(
    url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = "tensorflow" in sys.modules
    begun: list[ObjectStore] = []
    monkeypatch.setattr(ObjectStore, "begin", begun.append)
    for argument, given in {"root": (url, "digits"), "name": (None, url)}.items():
        message = refused(*given)
        assert f"{argument}={url!r}" in message
        assert step in message
    assert ("tensorflow" in sys.modules) == before, "tensorflow contacts servers when it opens a URL"
    assert not begun, "a fetcher starts"


@pytest.mark.usefixtures("no_network")
def test_each_of_several_roots_is_looked_at() -> None:
    assert open_dataset_store(["/data", "relative"], "digits") is None
    with pytest.raises(ConfigError, match=r"root='hf://bucket'.*hf download"):
        open_dataset_store(["/data", "hf://bucket"], "digits")


@pytest.mark.usefixtures("no_network")
def test_recipes_and_commands_refuse_such_urls_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("name = 'digits'\n")
    with pytest.raises(ConfigError, match="root='hf://bucket'"):
        load_config(recipe).make_parser("hf://bucket")
    for run, arguments in [
        (check, ["--name", "digits", "--root", "hf://bucket"]),
        (export, ["--name", "digits", "--root", "hf://bucket", "--format", "beton", str(tmp_path / "a.beton")]),
    ]:
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(run(arguments))
        assert ended.value.code
        said = capsys.readouterr()
        assert "hf download" in " ".join((said.err + said.out).split())
