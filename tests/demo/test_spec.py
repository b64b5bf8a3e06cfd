import json
import re
from typing import Any

import pytest

from tfds_torch.demo import DEMO_NAMES
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.errors import ConfigError, DatasetNotFoundError


def check(name: str, num_examples: Any = None, num_shards: Any = None, seed: Any = 0) -> DemoSpec:
    return DemoSpec.embedded(name, num_examples, num_shards, seed)


def test_none_means_the_defaults() -> None:
    assert check("digits") == DemoSpec("digits", 1437, 1, ("train", "test"), 0, version="1.0.0")
    assert check("photos") == DemoSpec("photos", 512, 8, ("train",), 0, version="1.0.0")
    assert check("photos", 3).num_shards == 3
    assert DEMO_NAMES == ("digits", "photos")


def test_the_folder_name_holds_every_parameter() -> None:
    assert check("photos").folder_name == "photos-512x8-0"
    assert check("photos", 4096, 16, 7).folder_name == "photos-4096x16-7"


@pytest.mark.parametrize("spec", [check("digits", None, 3, 5), check("photos", 20, 2, 1)])
def test_a_spec_survives_being_kept_as_json(spec: DemoSpec) -> None:
    kept = json.loads(json.dumps(spec.as_dict()))
    assert list(kept) == ["name", "num_examples", "num_shards", "seed"]
    assert DemoSpec.from_dict(kept, is_fake=False) == spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("photos", 0), "num_examples=0 must be an integer >= 1."),
        (("photos", 2.0), "num_examples=2.0 must be an integer >= 1."),
        (("photos", True), "num_examples=True must be an integer >= 1."),
        (("photos", None, 0), "num_shards=0 must be an integer >= 1."),
        (("photos", None, "8"), "num_shards='8' must be an integer >= 1."),
        (("photos", None, None, -1), "seed=-1 must be an integer >= 0."),
        (("photos", None, None, None), "seed=None must be an integer >= 0."),
        (
            ("photos", 4, 5),
            "num_shards=5 is more than num_examples=4 of 'photos': TFDS writes no empty shards. "
            "Ask for at most 4 shards.",
        ),
        (
            ("digits", 100),
            "num_examples=100 cannot be chosen for 'digits': it always has 1437 training and 360 test examples. "
            "Leave num_examples out, or take 'photos'.",
        ),
    ],
)
def test_a_number_that_cannot_be_is_a_config_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(*arguments)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "There is no demo dataset 'digit'. Did you mean 'digits'? There are 'digits' and 'photos'."),
        ("Photo", "There is no demo dataset 'Photo'. Did you mean 'photos'? There are 'digits' and 'photos'."),
        ("imagenet2012", "There is no demo dataset 'imagenet2012'. There are 'digits' and 'photos'."),
    ],
)
def test_an_unknown_name_says_the_nearest(name: str, message: str) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        check(name)
    others = "; prepare_fake, or --fake N, makes up the content of any other."
    assert str(caught.value) == message.removesuffix(".") + others
