"""Recipes open the parsers that they describe: datasets, windows of episodes, mixtures."""

import re
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from encoded_images import photograph, save
from msgspec.structs import replace
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import write_numbered
from zygote import forked_instead_of_fresh

from parsers.robot_episodes import Robots
from tfds_torch import EvalPreprocess, ParserMixture, ParserTfds, TrainPreprocess, World, demo
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.parsers.recipes import Config

WINDOWS = """
name = "bridge_like"
is_training = true
batch_size = 8
fields = { image_primary = "observation/image_0" }

[windows]
offsets = { image_primary = [-1, 0], action = "0:16" }
stride = 2
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


@pytest.fixture(scope="session")
def demo_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the embedded digits."""
    with forked_instead_of_fresh():
        return demo.prepare("digits", root=tmp_path_factory.mktemp("digits"), progress=False)


def test_what_a_file_leaves_out_has_the_defaults_of_the_parser(tmp_path: Path, demo_digits: Path) -> None:
    parser, plain = load(tmp_path, "name = 'digits'").make_parser(demo_digits), ParserTfds(demo_digits, "digits")
    names = [
        *("split", "is_training", "shuffle", "batch_size", "repeats", "seed", "remainder", "read", "class_to_idx"),
        *("preprocess", "dataset.image_key", "dataset.target_key", "dataset.image_mode"),
    ]
    assert attrgetter(*names)(parser) == attrgetter(*names)(plain)


def test_the_parser_is_the_one_that_the_file_describes(tmp_path: Path, demo_digits: Path) -> None:
    text = """name = "digits"\nsplit = "test[:100]"\nis_training = true\nbatch_size = 10\nseed = 3\nremainder = "drop"
shuffle = false\nimage_mode = "L"\n[read]\nshuffle_buffer = 50\n[preprocess]\nkind = "eval"\nsize = [6, 8]"""
    parser = load(tmp_path, text).make_parser(demo_digits)
    assert (parser.split, parser.is_training, parser.batch_size, parser.seed) == ("test[:100]", True, 10, 3)
    assert (parser.remainder, parser.shuffle, parser.dataset.image_mode) == ("drop", False, "L")
    assert (parser.num_examples, parser.read.shuffle_buffer) == (100, 50)
    assert parser.preprocess == EvalPreprocess((6, 8))


def test_a_class_map_is_a_table_or_looked_up_in_the_folder_of_the_recipe(tmp_path: Path, demo_digits: Path) -> None:
    even = {str(digit): digit % 2 for digit in range(10)}
    table = ", ".join(f"{name} = {label}" for name, label in even.items())
    parser = load(tmp_path, f"name = 'digits'\nclass_map = {{ {table} }}").make_parser(demo_digits)
    assert parser.class_to_idx == even
    (tmp_path / "maps").mkdir()
    file = tmp_path / "maps" / "reversed.txt"
    file.write_text("\n".join(map(str, range(9, -1, -1))))
    for path in ("maps/reversed.txt", file):
        parser = load(tmp_path, f"name = 'digits'\nclass_map = '{path}'").make_parser(demo_digits)
        assert parser.class_names == list("9876543210")


def test_a_recipe_opens_its_mixture(tmp_path: Path) -> None:
    """Of TFDS's files in two places, a `.beton` file and tars."""
    for folder, lengths in (("here", (3, 4)), ("there", (2,))):
        write_numbered(tmp_path / folder, {"train": lengths})
    write_images(tmp_path / "images.beton", 5)
    sample = {"__key__": "0", "jpg": save(photograph((40, 30)), "JPEG"), "cls": b"1"}
    write_samples(tmp_path / "images.tar", [sample])
    entries = [
        'name = "numbered"\nmember = "here"',
        f'name = "numbered"\nmember = "there"\nroot = "{tmp_path}/there"\ntarget_key = false',
        f'name = "{tmp_path}/images.beton"',
        f'name = "{tmp_path}/images.tar"\nmember = "tars"',
    ]
    tables = "".join(f"[[mixture]]\n{entry}\nweight = 1\n" for entry in entries)
    epoch = "is_training = true\nbatch_size = 2\nseed = 9\nepoch_size = 8\n"
    config = load(tmp_path, f'{epoch}{tables}[preprocess]\nkind = "train"\nsize = 4\n')
    parser = config.make_parser(tmp_path / "here")
    assert isinstance(parser, ParserMixture)
    assert parser.member_sizes == {"here": 7, "there": 2, "images": 5, "tars": 1}
    assert (parser.seed, parser.batch_size, parser.epoch_size, parser.preprocess) == (9, 2, 8, TrainPreprocess(4))
    assert parser.counts(8) == dict.fromkeys(parser.member_names, 2)
    evaluated = replace(config.for_evaluation(), preprocess=None).make_parser(tmp_path / "here")
    assert (evaluated.num_examples, len(list(evaluated.batches(World(), fields=("image",))))) == (15, 8)


CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def test_the_recipes_are_there() -> None:
    assert [path.stem for path in CONFIGS] == [
        *("cifar10", "digits", "digits_mixture", "episodes_mixture", "imagenet2012_eval", "imagenet2012_train")
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recipe_can_be_read_and_its_header_tells_command_and_outcome(path: Path) -> None:
    config = load_config(path)
    datasets = [config.name] if config.mixture is None else [one.name for one in config.mixture]
    assert all(path.stem.startswith(name.partition("/")[0]) for name in datasets)
    assert config.batch_size is not None
    header = path.read_text().partition("\n\n")[0]
    command = f"# Command:   python -m tfds_torch.check --config configs/{path.name}"
    for line in (command, "# Expected:  exit code 0, all promises kept"):
        assert line in header
    assert "examples/s" not in header, "a figure that no report holds"
    kind = TrainPreprocess if config.is_training else EvalPreprocess
    assert isinstance(config.preprocess, kind) or path.stem.startswith(("digits", "episodes"))


# Windows of episodes


def test_a_recipe_opens_its_windows(tmp_path: Path, robots: Robots) -> None:
    parser = load(tmp_path, WINDOWS).make_parser(robots.root)
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


@pytest.mark.parametrize("first", ['name = "a.beton"', 'name = "a-{000..009}.tar"', 'source = "my_data:make"'])
def test_only_datasets_of_tfds_have_windows(tmp_path: Path, first: str) -> None:
    with pytest.raises(ConfigError, match="has no windows: they are of datasets of TFDS whose records are episodes"):
        load(tmp_path, f"{first}\n[windows]\nstride = 2").make_parser(tmp_path)


# Weights times sizes


def test_weights_beside_sizes_are_factors_of_the_numbers_of_examples(tmp_path: Path) -> None:
    """The shares are factor x size / sum, exactly, though 0.06 * 30 is 1.7999999999999998."""
    factors, sizes = {"large": 0.06, "small": 1.1}, {"large": 30, "small": 3}
    for name, size in sizes.items():
        write_numbered(tmp_path / name, {"train": (size,)})
    tables = "".join(
        f'[[mixture]]\nname = "numbered"\nmember = "{name}"\nroot = "{tmp_path}/{name}"\nweight = {factor}\n'
        "target_key = false\n"
        for name, factor in factors.items()
    )
    top = 'is_training = true\nbatch_size = 2\nweights = "sizes"\n'
    parser = load(tmp_path, f"{top}{tables}").make_parser()
    assert isinstance(parser, ParserMixture)
    assert parser.weights == [(0, {"large": 18 / 51, "small": 33 / 51})]
    weights = {name: factors[name] * len(one) for name, one in parser.members.items()}
    assert ParserMixture(parser.members, weights, is_training=True, batch_size=2).weights == parser.weights
    part = '[[schedule]]\nstart = 100\nweights = "sizes"\n'
    parser = load(tmp_path, f"{top}{tables}{part}").make_parser()
    assert isinstance(parser, ParserMixture)
    assert parser.weights == [(0, {"large": 18 / 51, "small": 33 / 51}), (100, {"large": 30 / 33, "small": 3 / 33})]
    with pytest.raises(ConfigError, match=r"weights='size' must be a mapping .*, or 'sizes'. Did you mean 'sizes'"):
        load(tmp_path, f"{top.replace('sizes', 'size')}{tables}").make_parser()
