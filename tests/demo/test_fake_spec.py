import json
import re
from typing import Any

import pytest

from tfds_torch.demo.spec import DemoSpec
from tfds_torch.errors import ConfigError


def check(
    name: Any, num_examples: Any = 10, num_shards: Any = None, splits: Any = ("train",), seed: Any = 0
) -> DemoSpec:
    return DemoSpec.fake(name, num_examples, num_shards, splits, seed)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("cifar10", ("cifar10", None, None)),
        ("cifar10:3.0.2", ("cifar10", None, "3.0.2")),
        ("voc/2007", ("voc", "2007", None)),
        ("voc/2007:5.0.0", ("voc", "2007", "5.0.0")),
        ("glue/stsb", ("glue", "stsb", None)),
        ("imagenet2012_corrupted/gaussian_noise_1", ("imagenet2012_corrupted", "gaussian_noise_1", None)),
        ("a/v1.0+x-y", ("a", "v1.0+x-y", None)),
    ],
)
def test_a_name_may_have_a_config_and_a_version(name: str, parts: tuple[Any, ...]) -> None:
    spec = check(name)
    assert (spec.name, spec.config, spec.version) == parts
    assert spec.full_name == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "../x", "x/../y", "x/..", "a/b/c", "/etc", "x/", "x:", "x:1", "x:1.*.*", "x y", "x\n", "1x", "-x", "./x"),
        *("huggingface:mnist/a", "x/a=b", "kaggle:x", "münze", None, 3, b"x"),
    ],
)
def test_a_malformed_name_is_a_config_error(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check(name)
    assert str(caught.value) == (
        f"The dataset name {name!r} does not have the form name, name/config, name:x.y.z or name/config:x.y.z."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 0}, "num_examples=0 must be an integer >= 1."),
        ({"num_examples": -3}, "num_examples=-3 must be an integer >= 1."),
        ({"num_examples": 2.0}, "num_examples=2.0 must be an integer >= 1."),
        ({"num_examples": None}, "num_examples=None must be an integer >= 1."),
        ({"num_examples": True}, "num_examples=True must be an integer >= 1."),
        ({"num_shards": 0}, "num_shards=0 must be an integer >= 1."),
        ({"num_shards": -1}, "num_shards=-1 must be an integer >= 1."),
        ({"num_shards": "8"}, "num_shards='8' must be an integer >= 1."),
        ({"seed": -1}, "seed=-1 must be an integer >= 0."),
        (
            {"num_shards": 11},
            "num_shards=11 is more than num_examples=10 of 'mnist': TFDS writes no empty shards. "
            "Ask for at most 10 shards.",
        ),
        ({"splits": ()}, "splits=() must be a sequence of split names, such as ('train', 'test')."),
        ({"splits": "train"}, "splits='train' must be a sequence of split names, such as ('train', 'test')."),
        ({"splits": None}, "splits=None must be a sequence of split names, such as ('train', 'test')."),
        ({"splits": 3}, "splits=3 must be a sequence of split names, such as ('train', 'test')."),
        ({"splits": ("train", "train")}, "splits=('train', 'train') names a split twice."),
    ],
)
def test_a_parameter_that_cannot_be_is_a_config_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check("mnist", **arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "split", ["", "../train", "train[:10%]", "train+test", "all", "a b", "a/b", "train.", "tr\n", None, 3]
)
def test_a_split_that_is_no_plain_name_is_a_config_error(split: Any) -> None:
    message = f"The split {split!r} in splits={('test', split)!r} must be a plain name of letters, digits, '_' and '-'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        check("mnist", splits=("test", split))


def test_the_default_is_eight_shards_or_one_per_example() -> None:
    assert check("mnist", 5000).num_shards == 8
    assert check("mnist", 3).num_shards == 3
    assert check("mnist", splits=["train", "val-2", "test_b"]).splits == ("train", "val-2", "test_b")


def test_the_folder_name_holds_every_parameter() -> None:
    assert check("cifar10", 5000).folder_name == "fake-cifar10-5000x8-train-0"
    assert check("cifar10:3.0.2", 9, 2, ("a", "b"), 7).folder_name == "fake-cifar10-3.0.2-9x2-a+b-7"


def test_no_two_specs_share_a_folder_name() -> None:
    many = [f"split_{i}" for i in range(40)]
    specs = [
        *(check("voc/2007"), check("voc-2007".replace("-", "_")), check("voc/2007", seed=1), check("voc/2007:5.0.0")),
        *(check("x", splits=many), check("x", splits=many[::-1]), check("x", splits=many[:-1])),
    ]
    names = [spec.folder_name for spec in specs]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 100
    assert not any("/" in name for name in names)


def test_a_spec_survives_being_kept_as_json() -> None:
    spec = check("voc/2007", splits=("train", "test"))
    assert DemoSpec.from_dict(json.loads(json.dumps(spec.as_dict())), is_fake=True) == spec
    assert spec.as_dict()["splits"] == ["train", "test"]


def test_a_spec_says_what_was_asked_for() -> None:
    assert str(check("voc/2007", 20, 4, ("train", "test"), 3)) == (
        "'voc/2007' (fake) with num_examples=20, num_shards=4, splits=train+test, seed=3"
    )
