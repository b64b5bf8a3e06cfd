"""check_ranks: a difference between the ranks is an error on each of them, and never a wait without end."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mixed_numbers import mix_numbered

from tfds_torch import ImageDataset, Transform, World
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.rank_check import _describe, find_differences
from torch_data import scenarios

EXPECTED = {
    "equal": "nothing",
    "seed": "ConfigError: The ranks do not read the same thing: seed is 0 on rank 0, 1 on rank 1.",
    "batch size": "ConfigError: The ranks do not read the same thing: batch_size is 8 on rank 0, 16 on rank 1.",
    "split": r"ConfigError: .*split is 'train\[:60\]' on rank 0, 'train\[:59\]' on rank 1; "
    r"num_examples is 60 on rank 0, 59 on rank 1\.",
    "dataset": "ConfigError: .*dataset is 'photos:1.0.0' on rank 0, 'digits:1.0.0' on rank 1; .*",
    "remainder": "ConfigError: .*: remainder is 'drop' on rank 0, 'wrap' on rank 1.",
    "a plan that fails on rank 1": "ConfigError: .*rank 1: .*remainder='drop' leaves no batch.*batch_size is 8 on .*",
    "one world for both": r"ConfigError: .*of 2 shares, no rank reads \[1\] .*read \[0, 0\]\).",
    "worlds of other sizes": "ConfigError: .*num_replicas is 1 on rank 0, 2 on rank 1.",
    "each by itself": "nothing",
    "preprocess": r"ConfigError: .*: preprocess is TrainPreprocess\(size=8, .*\) on rank 0, "
    r"TrainPreprocess\(size=16, .*\) on rank 1\.",
    "own preprocess": r"ConfigError: .*: preprocess is Shade\(size=8, .*most=8\) on rank 0, .*most=16\) on rank 1\.",
    "groups of blocks": r"ConfigError: .*: block_groups is 2 on rank 0, 4 on rank 1\.",
    "jpeg decoder": r"ConfigError: .*: jpeg_decoder is 'simplejpeg .*' on rank 0, pillow .* on rank 1 \(install .*",
    "epoch": r"ConfigError: .*: epoch is 0 on rank 0, 1 on rank 1 \(call set_epoch with the same number .*\)\.",
    "state": r"ConfigError: .*: start_batch is 0 on rank 0, 2 on rank 1 \(load the same state on every rank\)\.",
    "another environment": "ConfigError: .*rank 1: torch.distributed reports rank 1 of 2, .*environment has RANK=0.*",
}


def test_every_rank_hears_of_every_difference(data_root: Path, run_ranks: Callable[..., list[Any]]) -> None:
    results = run_ranks(scenarios.compare_ranks, 2, data_root)
    for said in results:
        assert [way for way, pattern in EXPECTED.items() if not re.fullmatch(pattern, said[way])] == [], said
    alone = results[0]["rank 1 does not come"]
    assert re.match(r"StallError: check_ranks: not all 2 ranks came within 0.5 s; this is rank 0.*torch reports", alone)


def facts(**changes: object) -> dict[str, object]:
    return {"dataset": "photos:1.0.0", "seed": 42, "num_replicas": 2, "rank": 0} | changes


def test_values_are_reported_with_all_their_ranks() -> None:
    ranks = [facts(seed=seed, rank=rank) for rank, seed in enumerate((1, 2, 1))]
    assert find_differences(ranks) == ["seed is 1 on ranks 0, 2, 2 on rank 1"]


def test_mixtures_of_other_weights_or_epoch_sizes_are_told_apart(numbered_root: str) -> None:
    parsers = [mix_numbered(numbered_root, batch_size=4, epoch_size=size) for size in (42, 42, 40)]
    ranks = [_describe(parser, partial(World, rank, 3)) for rank, parser in enumerate(parsers)]
    assert find_differences(ranks) == ["epoch_size is 42 on ranks 0, 1, 40 on rank 2"]
    ranks[1] = _describe(mix_numbered(numbered_root, batch_size=4, weights="sizes"), partial(World, 1, 3))
    assert find_differences(ranks[:2])[0].startswith("fingerprint is '")


def test_transforms_in_another_order_are_told_apart(data_root: Path) -> None:
    parser = scenarios.training_parser(data_root)
    orders = [Transform(dict), Transform(len, version="2")], [Transform(len, version="2"), Transform(dict)]
    ranks = [_describe(parser.with_transform(one), partial(World, rank, 2)) for rank, one in enumerate(orders)]
    (found,) = find_differences(ranks)
    assert found.startswith("transforms is 'builtins:dict, builtins:len version=2' on rank 0")


def test_several_processes_may_share_a_rank_of_the_data() -> None:
    assert find_differences([facts(rank=rank) for rank in (0, 0, 1, 1)]) == []


def test_an_error_on_every_rank_is_reported_for_every_rank() -> None:
    assert find_differences([{"error": "no"}, {"error": "no"}]) == ["rank 0: no", "rank 1: no"]


def test_one_rank_has_nothing_to_compare(data_root: Path) -> None:
    ImageDataset(scenarios.training_parser(data_root)).check_ranks()


def test_ranks_that_cannot_talk_are_refused(data_root: Path) -> None:
    dataset = ImageDataset(scenarios.training_parser(data_root), world=World(1, 2))
    with pytest.raises(ConfigError, match=r"rank 1 of 2, .* is not initialised.*init_process_group"):
        dataset.check_ranks()


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), "60"])
def test_no_time_is_refused(timeout_s: Any, data_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"timeout_s=.* must be a number of seconds > 0"):
        ImageDataset(scenarios.training_parser(data_root)).check_ranks(timeout_s)
