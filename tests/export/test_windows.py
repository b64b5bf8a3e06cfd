"""Exports of windows of episodes: each is a sample; records, which are whole episodes, are not copied."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsers.robot_episodes import Robots

from tfds_torch import EvalPreprocess, ParserBeton, ParserTfds, ParserWebDataset, Transform, Windows
from tfds_torch.errors import ConfigError
from tfds_torch.export import command
from tfds_torch.export.api import export_dataset

OFFSETS = {"action": range(4), "wrist": [-1, 0]}
NAMES = {"image": "observation/image", "wrist": "observation/wrist_image", "state": "observation/state"}
FIELDS = ("wrist", "wrist_pad", "state", "action", "action_pad", "episode", "step")
RECIPE = """
name = "libero_like"
batch_size = 2
fields = { image = "observation/image", state = "observation/state" }

[windows]
offsets = { action = "0:4" }
stride = 5
"""


def negate(window: dict[str, Any]) -> dict[str, Any]:
    return {"action": -window["action"]}


def open_windows(robots: Robots, **arguments: Any) -> ParserTfds:
    values = {"windows": Windows("steps", OFFSETS), "fields": NAMES, "batch_size": 4, **arguments}
    return ParserTfds(robots.root, "libero_like", **values)


def check_equal(there: Any, parser: ParserTfds, **names: str) -> None:
    """Compares the windows of an export with those of the parser that was exported; `names` are other ones there."""
    assert there.num_examples == parser.num_examples
    own = [names.get(name, name) for name in FIELDS]
    pairs = zip(
        there.examples_by_index(range(len(there)), ["image", *own]),
        parser.examples_by_index(range(len(parser)), ["image", *FIELDS]),
        strict=True,
    )
    for found, expected in pairs:
        np.testing.assert_array_equal(found.image, expected.image)
        for name, other in zip(FIELDS, own, strict=True):
            np.testing.assert_array_equal(found.features[other], expected.features[name], err_msg=name)


@pytest.mark.parametrize("transform", [None, Transform(negate, ["action"])])
def test_windows_are_samples_of_tars(tmp_path: Path, robots: Robots, transform: Transform | None) -> None:
    parser = open_windows(robots, transform=transform)
    export_dataset(parser, tmp_path / "tars", format="webdataset", num_shards=2, num_workers=2)
    there = ParserWebDataset(sorted((tmp_path / "tars").glob("*.tar")))
    check_equal(there, parser, **{name: f"{name}.npy" for name in FIELDS})


def test_windows_are_samples_of_a_beton_file(tmp_path: Path, robots: Robots) -> None:
    parser = open_windows(robots)
    fields: dict[str, str | None] = {name: None for name in parser.dataset.encoded_names() if len(name) > 16}
    fields["image"] = "raw"  # It is a PNG.
    export_dataset(parser, tmp_path / "windows.beton", format="beton", fields=fields, num_workers=1)
    there = ParserBeton(tmp_path / "windows.beton", target_key=None)
    check_equal(there, parser)
    assert there.ids(np.arange(2)) == parser.ids(np.arange(2))
    with pytest.raises(ConfigError, match=r"'language_instruction' .*not 16 printable ASCII(.|\n)*rename={name: new}"):
        export_dataset(parser, tmp_path / "long.beton", format="beton", num_workers=1)


def test_images_are_exported_as_they_are_stored_whatever_the_preprocess(tmp_path: Path, robots: Robots) -> None:
    cut = {"wrist": EvalPreprocess(4), "image": EvalPreprocess(6)}
    export_dataset(open_windows(robots, preprocess=cut), tmp_path / "tars", format="webdataset", num_workers=1)
    there = ParserWebDataset(sorted((tmp_path / "tars").glob("*.tar")))
    check_equal(there, open_windows(robots), **{name: f"{name}.npy" for name in FIELDS})


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_records_of_windows_are_not_copied(tmp_path: Path, robots: Robots, file_format: str) -> None:
    with pytest.raises(ConfigError, match=r"whole episodes, and this parser has windows of them\. Leave out windows="):
        export_dataset(open_windows(robots), tmp_path / "records", format=file_format)
    assert not (tmp_path / "records").exists()
    export_dataset(
        ParserTfds(robots.root, "libero_like", image_key=None, target_key=None),
        tmp_path / "1.0.0",
        format=file_format,
        num_workers=1,
    )
    copied = ParserTfds(tmp_path / "1.0.0", "libero_like", windows=Windows("steps", OFFSETS), fields=NAMES)
    check_equal(copied, open_windows(robots))


def test_the_command_exports_the_windows_of_a_recipe(
    tmp_path: Path, robots: Robots, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "windows.toml").write_text(RECIPE)
    out, recipe = str(tmp_path / "tars"), str(tmp_path / "windows.toml")
    arguments = ["--config", recipe, "--root", str(robots.root), "--format", "webdataset", "--workers", "1", out]
    assert command.main(arguments) == 0, capsys.readouterr().err
    there = ParserWebDataset(sorted(Path(out).glob("*.tar")))
    lengths = [len(episode["steps"]) for episode in robots.episodes["libero_like"]]
    assert there.num_examples == sum(-(-length // 5) for length in lengths)
    (first,) = there.examples_by_index([1], ["action.npy", "step.npy"])
    assert first.features["action.npy"].shape == (4, 7)
    assert first.features["step.npy"] == 5
