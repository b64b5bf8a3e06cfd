"""`tfds_torch.check` proves the promises of datasets by URLs; MultiLoader and recipes read them, too."""

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsers.tar_samples import sample_of
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples

from tfds_torch.check import command
from tfds_torch.engines.options import ReadOptions
from tfds_torch.export.api import export_dataset
from tfds_torch.loaders.multi_loader import MultiLoader
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.storage.remote.options import RemoteOptions

Serve = Callable[[Path | str], str]
BLOCKS = ReadOptions(block_records=4, shuffle_buffer=8)


@pytest.mark.parametrize("kind", ["numbered", "tars", "beton"])
def test_check_keeps_all_promises(
    serve: Serve, numbered_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (tmp_path / "made").mkdir()
    write_samples(tmp_path / "made" / "a.tar", map(sample_of, range(24)))
    write_images(tmp_path / "made" / "a.beton", 24, 8)
    arguments = {
        "numbered": ["--root", serve(numbered_root), "--name", "numbered:1.0.0", "--workers", "2"],
        "tars": ["--name", f"{serve(tmp_path / 'made')}/a.tar", "--workers", "0", "--replicas", "2"],
    }
    arguments["beton"] = ["--name", arguments["tars"][1].replace("a.tar", "a.beton"), "--workers", "0"]
    html, report = tmp_path / "r.html", tmp_path / "r.json"
    line = [*arguments[kind], "--batch-size", "4", "--html", str(html), "--json", str(report)]
    code, printed = command.main(line), capsys.readouterr()
    assert code == 0, printed
    assert "promises kept" in printed.out
    assert "The shards are remote" not in printed.out
    found = json.loads(report.read_text())
    assert "http" in found["dataset"]["data_dir"]
    network = found["network"]
    assert min(network["bytes_fetched"], network["bytes_delivered"], network["requests"]) > 0
    assert f"Network: {network['requests']} requests" in printed.out
    assert [row["epoch"] for row in network["epochs"]] == ["0", "1", "other"]
    page = html.read_text()
    assert f"{network['requests']} requests" in page
    assert ">Network<" in page
    reasons = {one["reason"] for one in found["not_judged"]}
    whys = {"numbered": "files of object stores", "tars": "these tars", "beton": ".beton files"}
    assert f"TFDS does not read {whys[kind]}" in reasons
    for rank in found["throughput"]:
        assert len(rank["networks"]) == len(rank["epochs"]) == 2


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_bar_has_a_line_about_the_network(
    serve: Serve, numbered_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["--root", serve(numbered_root), "--name", "numbered:1.0.0", "--workers", "0", "--batch-size", "4"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert command.main(line) == 0, terminal.getvalue()
    assert "rank 0" in terminal.getvalue()
    assert "network: " in terminal.getvalue()
    assert "MB fetched" in terminal.getvalue()


def test_multi_loader_and_mixtures_read_them(serve: Serve, numbered_root: str) -> None:
    def read(root: str) -> list[Any]:
        parser = ParserTfds(root, "numbered:1.0.0", is_training=True, batch_size=4, read=BLOCKS)
        with MultiLoader(parser, 2) as loader:
            alone = [(batch.index.tolist(), np.asarray(batch.label).tolist()) for batch in loader]
        mixture = ParserMixture(
            {"a": parser, "b": parser.subset(range(20))}, {"a": 0.7, "b": 0.3}, is_training=True, batch_size=4
        )
        return [alone, [batch.index.tolist() for batch in mixture.batches(fields=("label",))]]

    assert read(serve(numbered_root)) == read(numbered_root)


def test_a_recipe_takes_a_url_as_root(serve: Serve, numbered_root: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("name = 'numbered:1.0.0'\nbatch_size = 41\n[read]\nblock_records = 'auto'\n")
    remote = RemoteOptions(cache_dir=tmp_path / "given")
    (batch,) = load_config(recipe).make_parser(serve(numbered_root), remote=remote).batches(fields=("label",))
    assert (tmp_path / "given").is_dir()
    assert batch.index.tolist() == list(range(41))


@pytest.mark.parametrize("file_format", ["tfrecord", "webdataset"])
def test_exports_read_them(serve: Serve, numbered_root: str, tmp_path: Path, file_format: str) -> None:
    parser = ParserTfds(serve(numbered_root), "numbered:1.0.0", batch_size=41)
    export_dataset(parser, tmp_path / "out", format=file_format)
    copy: Any = (
        ParserTfds(tmp_path / "out", "numbered", batch_size=41)
        if file_format == "tfrecord"
        else ParserWebDataset(str(next((tmp_path / "out").rglob("*.tar"))), batch_size=41)
    )
    (theirs,), (ours,) = (list(one.batches(fields=("label",))) for one in (copy, parser))
    assert np.asarray(theirs.label).tolist() == np.asarray(ours.label).tolist()
