"""load_config: the windows of a recipe and of the members of its mixture, and how they are refused."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from parsers.robot_episodes import Robots
from tfds_torch import EvalPreprocess, ParserMixture, ParserTfds, TrainPreprocess, Windows
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.config import Config, load_config

EVERYTHING = """
name = "bridge_like"
is_training = true
batch_size = 8
fields = { image_primary = "observation/image_0" }

[windows]
sequence = "steps"
offsets = { image_primary = [-1, 0], action = "0:16" }
stride = 2
pad = "zero"
whole = true
texts = ["language_instruction"]
"""
MIXED = """
is_training = true
batch_size = 20

[windows]
offsets = { action = "0:4" }

[[mixture]]
name = "bridge_like"
weight = 0.6
fields = { done = "is_last" }

[[mixture]]
name = "libero_like"
weight = 0.4
fields = { done = "is_last" }
[mixture.windows]
offsets = { action = "0:4" }
stride = 3
"""


def load(folder: Path, text: str) -> Config:
    path = folder / "windows.toml"
    path.write_text(text)
    return load_config(path)


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    config = load(tmp_path, EVERYTHING)
    offsets = {"image_primary": [-1, 0], "action": range(16)}
    assert config.windows == Windows("steps", offsets, 2, "zero", True, ("language_instruction",))
    assert config.fields == {"image_primary": "observation/image_0"}


def test_a_recipe_opens_its_windows(tmp_path: Path, robots: Robots) -> None:
    parser = load(tmp_path, EVERYTHING.replace("whole = true", "whole = false")).make_parser(robots.root)
    assert isinstance(parser, ParserTfds)
    assert len(parser) == sum(-(-len(one["steps"]) // 2) for one in robots.episodes["bridge_like"])
    batch = next(parser.batches(fields=("image_primary", "action", "action_pad")))
    assert batch.features["image_primary"].shape == (8, 2, 3, 16, 16)
    assert batch.features["action"].shape == (8, 16, 7)


def test_members_of_a_mixture_have_the_windows_of_the_recipe_or_their_own(tmp_path: Path, robots: Robots) -> None:
    parser = load(tmp_path, MIXED).make_parser(robots.root)
    assert isinstance(parser, ParserMixture)
    batch = next(parser.batches(fields=("action", "done", "step", "member")))
    assert batch.features["action"].shape == (20, 4, 7)
    member, step = batch.features["member"], batch.features["step"]
    assert (member == 0).sum() == 12
    assert (step[member == 1] % 3 == 0).all()
    assert (step[member == 0] % 3).any()


CAMERAS = """
name = "bridge_like"
is_training = true
batch_size = 8
fields = { image = "observation/image_0", image_wrist = "observation/image_1" }

[windows]
offsets = { image_wrist = [-1, 0], action = "0:4" }

[preprocess.image]
kind = "train"
size = 6

[preprocess.image_wrist]
kind = "eval"
size = [8, 10]
crop_pct = 1.0

[[transform]]
function = "own_actions:halve"
reads = ["action"]

[[transform]]
function = "own_actions:norm_of"
reads = ["observation/state"]
gives = ["norm"]
"""

OWN_ACTIONS = """
import numpy as np

def halve(window):
    return {"action": window["action"] / 2}

def norm_of(window):
    return {"norm": np.linalg.norm(window["observation/state"])}

def double(window):
    return {"action": window["action"] * 2}
"""


@pytest.fixture
def own_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_actions.py").write_text(OWN_ACTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_actions", raising=False)


def test_a_recipe_has_a_preprocess_for_each_camera_and_transforms(
    tmp_path: Path, robots: Robots, own_actions: None
) -> None:
    config = load(tmp_path, CAMERAS)
    assert config.preprocess == TrainPreprocess(6)
    assert config.cameras == {"image_wrist": EvalPreprocess((8, 10), crop_pct=1.0)}
    fields = ("image", "image_wrist", "action", "norm", "observation/state")
    batch = next(config.make_parser(robots.root).batches(fields=fields))
    plain = load(tmp_path, CAMERAS.partition("[preprocess.image]")[0]).make_parser(robots.root)
    stored = next(plain.batches(fields=("action",)))
    assert batch.image.shape == (8, 6, 6, 3)
    assert batch.features["image_wrist"].shape == (8, 2, 3, 8, 10)
    np.testing.assert_array_equal(batch.features["action"], stored.features["action"] / 2)
    norms = np.linalg.norm(batch.features["observation/state"], axis=1)
    np.testing.assert_allclose(batch.features["norm"], norms, rtol=1e-5)


def test_members_have_the_cameras_and_transforms_of_the_recipe_or_their_own(
    tmp_path: Path, robots: Robots, own_actions: None
) -> None:
    names = {"bridge_like": "observation/image_0", "libero_like": "observation/image"}
    text = MIXED
    for member, key in names.items():
        own = f'name = "{member}"\nfields = {{ camera = "{key}" }}'
        text = re.sub(rf'name = "{member}"(.*\n.*)\nfields = .*', rf"{own}\1", text)
    text += '[[mixture.transform]]\nfunction = "own_actions:double"\nreads = ["action"]\n'
    text += '[[transform]]\nfunction = "own_actions:halve"\nreads = ["action"]\n'
    text += '[preprocess.camera]\nkind = "eval"\nsize = 8\n'
    parser = load(tmp_path, text).make_parser(robots.root)
    batch = next(parser.batches(fields=("action", "camera", "member")))
    plain = next(load(tmp_path, MIXED).make_parser(robots.root).batches(fields=("action",)))
    assert batch.features["camera"].shape == (20, 3, 8, 8)
    factors = np.array([0.5, 2.0], np.float32)[batch.features["member"]]
    np.testing.assert_array_equal(batch.features["action"], plain.features["action"] * factors[:, None, None])


def test_a_transform_that_cannot_be_imported_is_named(tmp_path: Path, robots: Robots, own_actions: None) -> None:
    config = load(tmp_path, CAMERAS.replace("own_actions:halve", "own_actions:havle"))
    with pytest.raises(ConfigError, match="the module 'own_actions' has no function 'havle'"):
        config.make_parser(robots.root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[preprocess.wrist]\nkind = "eval"\nsize = 8',
            "[preprocess.wrist] is for a camera of windows, and there are none: give a table [windows], or the keys of",
        ),
        ("[windows]\n[preprocess.wrist]\nsize = 8", "[preprocess.wrist] does not say what it is for"),
        (
            '[windows]\n[preprocess.wrist]\nkind = "eval"\nsiez = 8',
            "unknown key 'siez' in [preprocess.wrist]. Did you mean 'size'?",
        ),
        (
            '[windows]\n[preprocess.wrist]\nkind = "eval"\nsize = 8\nscale = [0.5, 1.0]',
            "[preprocess.wrist] kind = 'eval' has no 'scale': it belongs to kind = 'train'.",
        ),
        ('transform = "a:b"', "transform = 'a:b' must be a list of tables: a line [[transform]] before the keys of"),
        ('[[transform]]\nfunction = "a:b"', "[[transform]] needs a line reads = ['action', 'observation/state']."),
        ('[[transform]]\nreads = ["action"]', "[[transform]] needs a line function = 'my_robot:to_deltas'."),
        ('[[transform]]\nfunction = "a.b"\nreads = ["a"]', "function = 'a.b' must be 'module:function', such as"),
        ('[[transform]]\nfunction = "a:b"\nreads = "action"', "[[transform]] reads = 'action' must be a list of"),
        ('[[transform]]\nfuntcion = "a:b"', "unknown key 'funtcion' in [[transform]]. Did you mean 'function'?"),
    ],
)
def test_cameras_and_transforms_that_cannot_be_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f'name = "a"\nbatch_size = 2\n{text}')
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"\n[windows]\nstrid = 2', "unknown key 'strid' in [windows]. Did you mean 'stride'?"),
        ('name = "a"\nwindows = 3', "windows = 3 must be a table: a line [windows], and its keys below it."),
        ('name = "a"\n[windows]\nstride = 0', "[windows] Windows: stride=0 must be an integer in 1..2147483648."),
        ('name = "a"\n[windows]\npad = "mirror"', "[windows] Windows: pad='mirror'"),
        (
            'name = "a"\n[windows]\noffsets = { action = "16" }',
            "[windows] offsets of 'action' = '16' must be a list of steps, such as [-1, 0], or a text",
        ),
        ('name = "a"\n[windows]\noffsets = { action = "3:3" }', "[windows] Windows: the offsets of 'action' are empty"),
        ('name = "a"\n[windows]\noffsets = { action = [0.5] }', "[windows] Windows: an offset of 'action'=0.5"),
        ('name = "a"\n[windows]\noffsets = [1]', "[windows] Windows: offsets=[1] must be a dictionary"),
        (
            'name = "a"\nfields = { x = 1 }',
            "fields = {'x': 1} must be a table of features by the names of fields.",
        ),
        (
            '[[mixture]]\nname = "a"\n[mixture.windows]\npads = "edge"',
            "unknown key 'pads' in [mixture.windows]. Did you mean 'pad'?",
        ),
        ('[[mixture]]\nname = "a"\n[mixture.windows]\nstride = -1', "[mixture.windows] Windows: stride=-1"),
    ],
)
def test_windows_that_cannot_be_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("first", ['name = "a.beton"', 'name = "a-{000..009}.tar"', 'source = "my_data:make"'])
def test_only_datasets_of_tfds_have_windows(tmp_path: Path, first: str) -> None:
    with pytest.raises(ConfigError, match="has no windows: they are of datasets of TFDS whose records are episodes"):
        load(tmp_path, f"{first}\n[windows]\nstride = 2").make_parser(tmp_path)
