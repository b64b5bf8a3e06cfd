"""Recipes of a dataset of one's own: `source = "module:function"`."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from tfds_torch import ParserMapStyle, ParserMixture
from tfds_torch.check.opening import open_parser
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.recipe_file import load_config

MODULE = """
def make_rows():
    return [{"view": bytes([number]), "kind": number % 3} for number in range(20)]

def make_number():
    return 7

def fail():
    raise KeyError("no such file")

rows = make_rows()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rows_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def recipe(folder: Path, source: str, more: str = "") -> Path:
    path = folder / "own.toml"
    path.write_text(f'source = "{source}"\nbatch_size = 4\n{more}')
    return path


def refusal(folder: Path, source: str, more: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe(folder, source, more)).make_parser()
    return str(caught.value)


def test_the_function_gives_the_dataset_that_the_recipe_reads(folder: Path) -> None:
    more = 'is_training = true\nseed = 3\nimage_key = false\ntarget_key = "kind"\nepoch_size = 12\n'
    config = load_config(recipe(folder, "rows_of_mine:make_rows", more))
    parser = config.make_parser()
    assert isinstance(parser, ParserMapStyle)
    assert (parser.num_examples, parser.epoch_size, parser.seed, parser.dataset.image_key) == (20, 12, 3, None)
    (batch, *_) = parser.batches(fields=("label", "view"))
    assert batch.label.tolist() == [number % 3 for number in batch.index.tolist()]
    assert batch.features["view"] == [bytes([number]) for number in batch.index.tolist()]
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.for_evaluation().make_parser().num_examples == 20


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("rows_of_mine.make_rows", "", "source='rows_of_mine.make_rows' must be 'module:function', such as"),
        ("../rows:make_rows", "", "must be 'module:function'"),
        ("rows_of_mine:make_rows", 'name = "cifar10"\n', "it must name one dataset, by a line like name ="),
        ("rows_of_mine:make_rows", 'split = "train"\n', "or, without name and split, source = 'module:function'"),
        (
            "rows_of_nobody:make",
            "",
            "source='rows_of_nobody:make': the module 'rows_of_nobody' cannot be imported",
        ),
        ("rows_of_mine:make", "", "source='rows_of_mine:make': the module 'rows_of_mine' has no function 'make'."),
        ("rows_of_mine:rows", "", "source='rows_of_mine:rows': the module 'rows_of_mine' has no function 'rows'."),
        ("rows_of_mine:fail", "", "source='rows_of_mine:fail' raised KeyError: 'no such file'."),
        ("rows_of_mine:make_number", "", "source='rows_of_mine:make_number': ParserMapStyle: 7 has no items by number"),
        ("rows_of_mine:make_rows", 'target_key = ["a", "b"]\n', "the target of your own dataset is one field"),
        ("rows_of_mine:make_rows", 'image_key = "viev"\n', "has no field 'viev' (image_key): the fields of its items"),
        ("rows_of_mine:make_rows", '[[mixture]]\nname = "a"\n', "unknown key 'source'"),
    ],
)
def test_what_cannot_work_is_one_clear_error(folder: Path, source: str, more: str, message: str) -> None:
    assert message in refusal(folder, source, more)


@pytest.mark.parametrize("value", ["7", "true", '["a:b"]'])
def test_a_source_is_a_text(folder: Path, value: str) -> None:
    path = folder / "own.toml"
    path.write_text(f"source = {value}\n")
    with pytest.raises(ConfigError, match=r"source = .* is not valid: expected `str`"):
        load_config(path)


def test_a_recipe_without_name_and_source_names_both(folder: Path) -> None:
    path = folder / "own.toml"
    path.write_text("batch_size = 4\n")
    with pytest.raises(
        ConfigError, match="a line like name = 'cifar10', or, without name and split, source = 'module:function' for"
    ):
        load_config(path)


def test_nothing_is_imported_before_the_parser_is_made(folder: Path) -> None:
    config: Any = load_config(recipe(folder, "rows_of_nobody:make"))
    assert config.source == "rows_of_nobody:make"


def test_a_mixture_has_datasets_of_ones_own_among_its_members(folder: Path) -> None:
    path = folder / "mix.toml"
    member = 'image_key = false\ntarget_key = "kind"\n'
    path.write_text(
        f'[[mixture]]\nsource = "rows_of_mine:make_rows"\n{member}'
        f'[[mixture]]\nmember = "again"\nsource = "rows_of_mine:make_rows"\n{member}'
    )
    parser = load_config(path).make_parser()
    assert isinstance(parser, ParserMixture)
    assert parser.member_sizes == {"rows_of_mine": 20, "again": 20}
    assert isinstance(open_parser(load_config(path)), ParserMixture)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ('source = "rows:make"\nsplit = "train"\n', r"\[\[mixture\]\] must name one dataset"),
        ('source = "rows"\n', "Member 'rows' of the mixture: source='rows' must be 'module:function'"),
        ("weight = 1\n", r"\[\[mixture\]\] must name one dataset"),
        (
            'source = "rows_of_mine:fail"\n',
            "Member 'rows_of_mine' of the mixture: source='rows_of_mine:fail' raised",
        ),
    ],
)
def test_a_member_that_cannot_work_is_named(folder: Path, member: str, message: str) -> None:
    path = folder / "mix.toml"
    path.write_text(f"[[mixture]]\n{member}")
    with pytest.raises(ConfigError, match=message):
        load_config(path).make_parser()
