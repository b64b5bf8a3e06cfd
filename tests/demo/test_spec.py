import json
from typing import Any

import pytest
from refused import said_of

from tfds_torch.demo import DEMO_NAMES
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.errors import ConfigError, DatasetNotFoundError

embedded = DemoSpec.embedded


def fake(name: Any, num_examples: Any = 10, *arguments: Any, **options: Any) -> DemoSpec:
    return DemoSpec.fake(name, num_examples, *arguments, **options)


def test_none_means_the_defaults() -> None:
    assert embedded("digits") == DemoSpec("digits", 1437, 1, ("train", "test"), 0, version="1.0.0")
    assert embedded("photos") == DemoSpec("photos", 512, 8, ("train",), 0, version="1.0.0")
    assert embedded("photos", 3).num_shards == 3
    assert embedded("episodes") == DemoSpec("episodes", 64, 8, ("train",), 0, config="bridge", version="1.0.0")
    assert embedded("episodes/bridge") == embedded("episodes")
    assert embedded("episodes/droid", 3).config == "droid"
    assert DEMO_NAMES == ("digits", "photos", "episodes")
    assert fake("mnist", 5000).num_shards == 8
    assert fake("mnist", 3).num_shards == 3
    assert fake("mnist", 3).splits is None
    assert fake("mnist", splits=["train", "val-2", "test_b"]).splits == ("train", "val-2", "test_b")


SPECS = {
    "photos-512x8-0": embedded("photos"),
    "photos-4096x16-7": embedded("photos", 4096, 16, 7),
    "digits-1437x3-5": embedded("digits", None, 3, 5),
    "episodes-bridge-64x8-0": embedded("episodes"),
    "episodes-libero-5x5-0": embedded("episodes/libero", 5),
    "fake-cifar10-5000x8-all-0": fake("cifar10", 5000),
    "fake-cifar10-5000x8-train-0": fake("cifar10", 5000, splits=("train",)),
    "fake-cifar10-3.0.2-9x2-a+b-7": fake("cifar10:3.0.2", 9, 2, ("a", "b"), 7),
}
EMBEDDED_KEYS = ["name", "num_examples", "num_shards", "seed"]
FAKE_KEYS = ["name", "num_examples", "num_shards", "splits", "seed", "config", "version"]


@pytest.mark.parametrize("folder_name", SPECS)
def test_a_spec_names_its_folder_and_survives_being_kept_as_json(folder_name: str) -> None:
    spec = SPECS[folder_name]
    assert spec.folder_name == folder_name
    kept = json.loads(json.dumps(spec.as_dict()))
    assert list(kept) == (FAKE_KEYS if spec.is_fake else EMBEDDED_KEYS)
    assert DemoSpec.from_dict(kept, is_fake=spec.is_fake) == spec


def test_no_two_specs_share_a_folder_name() -> None:
    many = [f"split_{i}" for i in range(40)]
    specs = [fake("voc/2007"), fake("voc_2007"), fake("voc/2007", seed=1), fake("voc/2007:5.0.0")]
    specs += [fake("x", splits=splits) for splits in (many, many[::-1], many[:-1])]
    names = [spec.folder_name for spec in specs]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 100
    assert not any("/" in name for name in names)


def test_a_spec_says_what_was_asked_for() -> None:
    assert str(fake("mnist", 20)) == "'mnist' (fake) with num_examples=20, num_shards=8, splits=all, seed=0"
    assert str(embedded("episodes", 5)) == "'episodes/bridge' with num_examples=5, num_shards=5, seed=0"
    assert str(fake("voc/2007", 20, 4, ("train", "test"), 3)) == (
        "'voc/2007' (fake) with num_examples=20, num_shards=4, splits=train+test, seed=3"
    )


COUNTS: list[tuple[dict[str, Any], str]] = [
    ({"num_examples": 0}, "num_examples=0 must be an integer >= 1."),
    ({"num_examples": -3}, "num_examples=-3 must be an integer >= 1."),
    ({"num_examples": 2.0}, "num_examples=2.0 must be an integer >= 1."),
    ({"num_examples": True}, "num_examples=True must be an integer >= 1."),
    ({"num_shards": 0}, "num_shards=0 must be an integer >= 1."),
    ({"num_shards": -1}, "num_shards=-1 must be an integer >= 1."),
    ({"num_shards": "8"}, "num_shards='8' must be an integer >= 1."),
    ({"seed": -1}, "seed=-1 must be an integer >= 0."),
    ({"seed": None}, "seed=None must be an integer >= 0."),
    (
        {"num_examples": 10, "num_shards": 11},
        "num_shards=11 is more than num_examples=10 of 'photos': TFDS writes no empty shards. "
        "Ask for at most 10 shards.",
    ),
]
EMBEDDED_ONLY = "num_examples=100 cannot be chosen for 'digits': it always has 1437 training and 360 test examples. "
EMBEDDED_ONLY += "Leave num_examples out, or take 'photos'."
FAKE_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"num_examples": None}, "num_examples=None must be an integer >= 1."),
    *(
        ({"splits": splits}, f"splits={splits!r} must be a sequence of split names, such as ('train', 'test').")
        for splits in ((), "train", 3)
    ),
    ({"splits": ("train", "train")}, "splits=('train', 'train') names a split twice."),
]


def test_a_parameter_that_cannot_be_is_a_config_error() -> None:
    cases: list[tuple[Any, str, dict[str, Any], str]] = [
        *((make, "photos", arguments, message) for make in (embedded, fake) for arguments, message in COUNTS),
        (embedded, "digits", {"num_examples": 100}, EMBEDDED_ONLY),
        *((fake, "photos", arguments, message) for arguments, message in FAKE_ONLY),
    ]
    found = [(message, said_of(ConfigError, make, name, **arguments)) for make, name, arguments, message in cases]
    wrong = [(message, said) for message, said in found if said != message]
    assert not wrong, str(wrong)


UNKNOWN = {
    "digit": " Did you mean 'digits'?",
    "Photo": " Did you mean 'photos'?",
    "episodes/drooid": " Did you mean 'episodes/droid'?",
    "digits/bridge": " Did you mean 'episodes/bridge'?",
    "imagenet2012": "",
}


def test_an_unknown_name_says_the_nearest() -> None:
    there = "There are 'digits', 'photos', 'episodes/bridge', 'episodes/droid' and 'episodes/libero'"
    others = "prepare_fake, or --fake N, makes up the content of any other."
    for name, hint in UNKNOWN.items():
        said = said_of(DatasetNotFoundError, embedded, name)
        assert said == f"There is no demo dataset {name!r}.{hint} {there}; {others}"


def test_a_name_may_have_a_config_and_a_version() -> None:
    for config in (None, "2007", "gaussian_noise_1", "v1.0+x-y"):
        for version in (None, "3.0.2"):
            name = "cifar10" + (f"/{config}" if config else "") + (f":{version}" if version else "")
            spec = fake(name)
            assert (spec.name, spec.config, spec.version, spec.full_name) == ("cifar10", config, version, name)


MALFORMED = [
    *("", "../x", "x/../y", "x/..", "a/b/c", "/etc", "x/", "x:", "x:1", "x:1.*.*", "x y", "x\n", "1x", "-x", "./x"),
    *("huggingface:mnist/a", "x/a=b", "kaggle:x", "münze", None, 3, b"x"),
]


def test_a_malformed_name_is_a_config_error() -> None:
    forms = "name, name/config, name:x.y.z or name/config:x.y.z"
    for name in MALFORMED:
        assert said_of(ConfigError, fake, name) == f"The dataset name {name!r} does not have the form {forms}."


def test_a_split_that_is_not_a_plain_name_is_a_config_error() -> None:
    for split in ("", "../train", "train[:10%]", "train+test", "all", "a b", "a/b", "train.", "tr\n", None, 3):
        said = said_of(ConfigError, fake, "mnist", splits=("test", split))
        beginning = f"The split {split!r} in splits={('test', split)!r} must be a plain name of letters, digits,"
        assert said.startswith(beginning)
