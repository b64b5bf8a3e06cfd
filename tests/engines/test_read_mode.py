"""find_read_mode: options that have no effect in the mode asked for are refused, by name and with the remedy."""

import re
from typing import Any

import pytest

from engines.made_source import MadeSource, request_of
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.read_mode import find_read_mode
from tfds_torch.errors import ConfigError


def mode_of(options: ReadOptions, **changes: Any) -> str:
    source = MadeSource(**changes)
    return find_read_mode(source, "train", request_of(source).plan, options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "option"),
    [
        ("index", {"cycle_length": 4}),
        ("index", {"read_buffer_bytes": 4096}),
        ("index", {"ram_budget_bytes": 10**6}),
        ("index", {"shuffle_buffer": 100}),
        ("examples", {"verify_checksums": False}),
        ("examples", {"block_records": 64}),
        ("examples", {"block_groups": 4}),
        ("index", {"block_groups": 4}),
        ("examples", {"on_error": "replace"}),
    ],
)
def test_an_option_without_an_effect_is_refused_where_its_mode_was_asked_for(mode: str, option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(ConfigError, match=re.escape(f"{name}={value!r}")):
        mode_of(ReadOptions(mode=mode, **option))


@pytest.mark.parametrize("option", [{"cycle_length": 4}, {"shuffle_buffer": 100}, {"verify_checksums": False}])
def test_auto_takes_options_of_both_engines(option: dict[str, Any]) -> None:
    assert mode_of(ReadOptions(**option)) == "index"
    assert mode_of(ReadOptions(**option), obstacle="gs://x is remote") == "files"


def test_a_block_order_uses_the_shuffle_buffer_in_mode_index() -> None:
    assert mode_of(ReadOptions(mode="index", block_records=10, shuffle_buffer=100)) == "index"
