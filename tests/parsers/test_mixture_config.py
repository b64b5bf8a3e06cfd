"""load_config: the recipe of a mixture, and how it is refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from encoded_images import photograph, save
from storage.beton.made_files import write_images
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import write_numbered

from tfds_torch import ParserMixture, TrainPreprocess, World
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.config import Config, load_config
from tfds_torch.parsers.mixture_config import MemberConfig, MixtureConfig

EVERYTHING = """
is_training = true
batch_size = 64
seed = 7
image_mode = "L"
temperature = 2
epoch_size = 5_000
stop = "all_exhausted"

[[mixture]]
member = "bridge"
name = "bridge/big:1.0.0"
root = "/data/robots"
split = "train[:90%]"
weight = 0.7
image_key = "picture"
target_key = ["cat", "dog"]
class_map = { cat = 1, dog = 0 }
[mixture.read]
on_error = "replace"

[[mixture]]
name = "droid:2.0.0"
weight = 3

[[schedule]]
start = 2_000
weights = { bridge = 0.5, droid = 0.5 }

[[schedule]]
start = 3_000
weights = "sizes"

[read]
num_threads = 3

[loader]
num_workers = 6
"""
TWO = 'is_training = true\n[[mixture]]\nname = "a"\nweight = 1\n[[mixture]]\nname = "b"\nweight = 1\n'


def load(folder: Path, text: str) -> Config:
    path = folder / "mixture.toml"
    path.write_text(text)
    return load_config(path)


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    bridge = MemberConfig(
        *("bridge/big:1.0.0", "bridge", 0.7, "/data/robots", "train[:90%]", "picture", ("cat", "dog")),
        *({"cat": 1, "dog": 0}, ReadOptions(on_error="replace")),
    )
    schedule = ((2_000, {"bridge": 0.5, "droid": 0.5}), (3_000, "sizes"))
    mixture = MixtureConfig((bridge, MemberConfig("droid:2.0.0", weight=3)), None, schedule, 2, "all_exhausted")
    assert load(tmp_path, EVERYTHING) == Config(
        name="mixture",
        is_training=True,
        batch_size=64,
        seed=7,
        image_mode="L",
        read=ReadOptions(num_threads=3),
        num_workers=6,
        epoch_size=5_000,
        mixture=mixture,
    )
    assert mixture.arguments == {
        "weights": [(0, {"bridge": 0.7, "droid": 3}), *schedule],
        "temperature": 2,
        "stop": "all_exhausted",
    }


@pytest.mark.parametrize(
    ("name", "member"),
    [("cifar10", "cifar10"), ("voc/2007:4.0.0", "voc"), ("/data/a.beton", "a"), ("x/b-{000..009}.tar", "b")],
)
def test_a_member_without_a_name_has_that_of_its_dataset(name: str, member: str) -> None:
    assert MemberConfig(name).member_name == member


def test_without_weights_it_is_a_concatenation(tmp_path: Path) -> None:
    mixture = load(tmp_path, '[[mixture]]\nname = "a"\n[[mixture]]\nname = "b"\n').mixture
    assert mixture is not None
    assert mixture.arguments == {}
    sizes = load(
        tmp_path, 'is_training = true\nweights = "sizes"\n[[mixture]]\nname = "a"\n[[mixture]]\nname = "b"\n'
    ).mixture
    assert sizes is not None
    assert sizes.arguments["weights"] == "sizes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"\n' + TWO, "unknown key 'name'. It belongs to [[mixture]]."),
        ('split = "train"\n' + TWO, "unknown key 'split'. It belongs to [[mixture]]."),
        ('[[mixture]]\nnane = "a"', "unknown key 'nane' in [[mixture]]. Did you mean 'name'?"),
        (
            '[[mixture]]\nbatch_size = 3\nname = "a"',
            "unknown key 'batch_size' in [[mixture]]. It belongs to the",
        ),
        (
            '[[mixture]]\nmember = "a"',
            "[[mixture]] does not say which dataset it is: it needs a line name",
        ),
        ('[[mixture]]\nname = "a"\nweight = "much"', "[[mixture]] weight = 'much' must be a number."),
        ('[[mixture]]\nname = "a"\nweight = true', "[[mixture]] weight = true must be a number."),
        (
            TWO.replace('"b"', '"a"'),
            "2 entries [[mixture]] are called 'a': give each a name of its own",
        ),
        (TWO.replace("weight = 1\n", "", 1), "[[mixture]] 'a' has no weight, and others have one"),
        ('weights = "sizes"\n' + TWO, "weights = 'sizes' and weight = 1 of 'a' both give weights: leave one out."),
        ('temperature = 2\n[[mixture]]\nname = "a"', "temperature has no effect without weights"),
        ('[[mixture]]\nname = "a"\n[[schedule]]\nstart = 1\nweights = "sizes"', "[[schedule]] has no effect without"),
        ("epoch_size = 0\n" + TWO, "epoch_size = 0 must be in 1..4611686018427387904."),
        (TWO + "[[schedule]]\nstart = 1", "[[schedule]] needs weights: for example start = 2_000_000 and"),
        (TWO + "[[schedule]]\nstart = -1\nweights = 'sizes'", "[[schedule]] start = -1 must be in 1.."),
        (TWO + "[[schedule]]\nstart = 1\nweight = 'sizes'", "unknown key 'weight' in [[schedule]]. Did you mean"),
        (TWO + "[mixture.read]\nmade = 'index'", "unknown key 'made' in [mixture.read]. Did you mean 'mode'?"),
        ("mixture = []", "mixture = [] must be a list of tables: a line [[mixture]] before the keys of each."),
        ("[mixture]\nname = 'a'", "must be a list of tables: a line [[mixture]] before the keys of each."),
        (TWO.replace("true", "false"), "weights are those of training: give is_training = true, or leave out"),
        ('name = "a"\n[[schedule]]\nstart = 1', "[[schedule]] is that of a mixture: give its datasets"),
        ('name = "a"\nstop = "all_exhausted"', "unknown key 'stop'."),
        ('[[mixture]]\nname = "a"\nclass_map = "../x.txt"', "leads out of the config's folder"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith("The config ")
    assert "\n" not in str(caught.value)


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
    text = f'{epoch}[preprocess]\nkind = "train"\nsize = 4\n{tables}'
    parser = load(tmp_path, text).make_parser(tmp_path / "here")
    assert isinstance(parser, ParserMixture)
    assert parser.member_sizes == {"here": 7, "there": 2, "images": 5, "tars": 1}
    assert (parser.seed, parser.batch_size, parser.epoch_size, parser.preprocess) == (9, 2, 8, TrainPreprocess(4))
    assert parser.counts(8) == dict.fromkeys(parser.member_names, 2)
    evaluated = replace(load(tmp_path, text).for_evaluation(), preprocess=None).make_parser(tmp_path / "here")
    assert (evaluated.num_examples, len(list(evaluated.batches(World(), fields=("image",))))) == (15, 8)
