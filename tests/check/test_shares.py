"""check_shares tells a function that ignores its World from one that deals its items out."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from loaders import sources
from loaders.sources import NUM_ITEMS

from tfds_torch import Batch, World
from tfds_torch.check.shares import check_shares as check_any_shares
from tfds_torch.errors import ConfigError, WorkerError

slow = pytest.mark.slow
check_shares = partial(check_any_shares, timeout_s=60.0)


def dealt(world: World) -> Iterator[dict[str, Any]]:
    """Items for workers and ranks, each of one content."""
    for number in range(world.pipeline, NUM_ITEMS, world.num_pipelines):
        yield {"id": f"id {number}", "image": np.full((2, 2), number)}


def ignoring(world: World) -> Iterator[dict[str, Any]]:
    yield from dealt(World())


def in_another_order(world: World) -> Iterator[dict[str, Any]]:
    items = list(dealt(World()))
    yield from items[world.worker :] + items[: world.worker]


def ignoring_its_rank(world: World) -> Iterator[dict[str, Any]]:
    yield from dealt(World(0, 1, world.worker, world.num_workers))


def overlapping(world: World) -> Iterator[int]:
    """The last item of each worker is the first of the next one."""
    yield from range(3 * world.worker, 3 * world.worker + 4)


def batches(is_dealt: bool, world: World) -> Iterator[Batch]:
    first = 4 * world.worker if is_dealt else 0
    index = np.arange(first, first + 4)
    valid = np.array([True, True, True, False])
    ids = [f"id {number}" for number in index[:3]] + ["id 0"]
    yield Batch(None, np.full(4, world.worker), valid, index, ids)


def ids_of(item: dict[str, Any]) -> list[str]:
    return [item["id"]]


def test_shares_without_a_common_item_are_counted() -> None:
    assert check_shares(dealt, 5) == {World(0, 1, worker, 5): 3 if worker < 2 else 2 for worker in range(5)}
    assert list(check_shares(dealt, 2, num_replicas=2, find_ids=ids_of).values()) == [3, 3, 3, 3]
    assert list(check_shares(dealt, NUM_ITEMS + 1).values()) == [1] * NUM_ITEMS + [0]


@pytest.mark.parametrize("source", [ignoring, in_another_order])
def test_a_function_that_ignores_its_world_is_named_with_items_and_workers(source: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_shares(source, 2, find_ids=ids_of)
    said = str(caught.value)
    assert said.startswith(f"check_shares: {source.__name__} gives 12 of its 12 items to more than one worker, such as")
    assert "'id 1' (worker 0 of rank 0, worker 1 of rank 0)" in said
    assert said.endswith("for example items[world.pipeline :: world.num_pipelines].")
    with pytest.raises(ConfigError, match=r"gives 12 of its 12 items to more than one worker, such as \{'id': 'id "):
        check_shares(source, 2)


def test_a_function_that_ignores_its_rank_is_found_by_the_second_rank() -> None:
    check_shares(ignoring_its_rank, 2)
    with pytest.raises(ConfigError, match=r"'id 0' \(worker 0 of rank 0, worker 0 of rank 1\)"):
        check_shares(ignoring_its_rank, 2, num_replicas=2, find_ids=ids_of)


def test_a_single_common_item_is_found() -> None:
    with pytest.raises(ConfigError, match=r"gives 1 of its 7 items .* such as 3 \(worker 0 of rank 0, worker 1 of ra"):
        check_shares(overlapping, 2)
    check_shares(overlapping, 2, most_items=3)


def test_what_comes_twice_from_one_worker_is_no_error() -> None:
    assert list(check_shares(lambda world: [world.worker] * 3, 2).values()) == [3, 3]


def test_batches_are_known_by_the_ids_of_their_valid_examples() -> None:
    check_shares(partial(batches, True), 2)  # Both have `id 0` as padding.
    with pytest.raises(ConfigError, match=r"gives 3 of its 3 items .* such as 'id 0' \("):
        check_shares(partial(batches, False), 2)


@pytest.mark.parametrize(
    "items",
    [
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([[1, 2]]), np.array([[1], [2]])),
        (np.array([1, 2], np.int32), np.array([1, 2], np.float32).view(np.uint32)),
        (np.zeros(4, np.uint8), np.zeros(4, np.int8)),
        ([1, 2], [2, 1]),
        (b"1", "1"),
    ],
    ids=["content", "shape", "dtype of equal size", "dtype of equal bytes", "order", "kind"],
)
def test_items_without_ids_are_known_by_their_content(items: tuple[Any, Any]) -> None:
    check_shares(lambda world: iter([items[world.worker]]), 2)
    with pytest.raises(ConfigError, match=r"gives 1 of its 1 items to more than one worker"):
        check_shares(lambda world: iter([items[0]]), 2)


def test_an_endless_source_is_read_as_far_as_asked() -> None:
    assert list(check_shares(sources.endless, 2, most_items=5).values()) == [5, 5]


def test_whatever_else_is_wrong_is_told_as_a_multi_loader_tells_it() -> None:
    with pytest.raises(KeyError, match="no such thing"):
        check_shares(sources.failing, 2)
    with pytest.raises(ValueError, match=r"^item\['bad'\]\[0\] is a builtins.set"):
        check_shares(sources.with_a_set, 1)
    with pytest.raises(WorkerError, match=r"^Worker 1 .* was killed by SIGKILL .* while it read Harmed"):
        check_shares(sources.Harmed("kill"), 2)
    with pytest.raises(ConfigError, match=r"<lambda>\(World\(.*\) returned 3, which cannot be iterated"):
        check_shares(lambda world: 3, 1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("source", "arguments", "said"),
    [
        ([1, 2], {}, "source is list. It must be a function that takes a World"),
        (7, {}, "source is 7"),
        (dealt, {"num_workers": 0}, "num_workers=0"),
        (dealt, {"num_replicas": 0}, "check_shares: num_replicas=0"),
        (dealt, {"most_items": 0}, "check_shares: most_items=0"),
        (dealt, {"find_ids": "id"}, "check_shares: find_ids='id' must be a function"),
        (dealt, {"find_ids": lambda item: item["id"]}, "find_ids returned 'id 0': it must return a list"),
        (dealt, {"find_ids": lambda item: [item["image"]]}, "find_ids returned .*: it must return a list"),
    ],
)
def test_bad_arguments_are_refused(source: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_shares(source, **arguments)


@slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_reads_with_workers_that_are_not_forked(method: str) -> None:
    check_shares(dealt, 2, start_method=method, find_ids=ids_of)


def test_it_imports_neither_torch_nor_tensorflow(run_python: Callable[..., Any]) -> None:
    code = "import sys, tfds_torch.check.shares; print({'torch', 'tensorflow', 'numpy'} & set(sys.modules))"
    done = run_python("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("{'numpy'}", "")
