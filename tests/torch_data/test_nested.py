"""Nested batches keep their structure, their types and their order."""

from collections import ChainMap, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfds_torch.torch_data.nested import map_tensors, tensors

Point = namedtuple("Point", "x y")


class Stack(list[Any]):
    """A list of its own type."""


class Row(tuple[Any, ...]):
    """A tuple of its own type."""


ONE, TWO = torch.tensor(1), torch.tensor(2)


def plain(value: Any) -> Any:
    """Returns a batch with its tensors as numbers."""
    return map_tensors(value, lambda tensor: int(tensor))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ONE, 1),
        ([ONE, [TWO, "a"]], [1, [2, "a"]]),
        ((ONE, (TWO,), ()), (1, (2,), ())),
        ({"a": ONE, "b": {"c": (TWO, None)}}, {"a": 1, "b": {"c": (2, None)}}),
        (Point(ONE, [TWO]), Point(1, [2])),
        (Row((ONE, TWO)), Row((1, 2))),
        (Stack([ONE, 5]), Stack([1, 5])),
        (OrderedDict(b=ONE, a=TWO), OrderedDict(b=1, a=2)),
        (defaultdict(list, a=ONE), defaultdict(list, a=1)),  # type: ignore[arg-type]
        (UserDict(a=ONE), UserDict(a=1)),
        ("abc", "abc"),
        (b"abc", b"abc"),
        (None, None),
        (7, 7),
    ],
)
def test_structure_and_types_stay(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


def test_a_default_dictionary_keeps_its_default() -> None:
    found = plain(defaultdict(lambda: 9, a=ONE))
    assert found["b"] == 9


def test_a_mapping_that_cannot_be_changed_becomes_a_dictionary() -> None:
    found = plain(MappingProxyType({"a": ONE}))
    assert type(found) is dict
    assert found == {"a": 1}


def test_the_batch_itself_is_left_alone() -> None:
    batches: list[Any] = [[ONE], {"a": ONE}, Stack([ONE]), OrderedDict(a=ONE), UserDict(a=ONE), ChainMap({"a": ONE})]
    for batch in batches:
        plain(batch)
        (first,) = batch.values() if isinstance(batch, Mapping) else batch
        assert first is ONE


def test_other_values_than_tensors_stay_the_same_object() -> None:
    array, marker = np.arange(3), object()
    found = plain({"array": array, "marker": [marker]})
    assert found["array"] is array
    assert found["marker"][0] is marker


def test_tensors_come_in_the_order_in_which_they_are_mapped() -> None:
    batch = {"b": [torch.tensor(0), Point(torch.tensor(1), (torch.tensor(2),))], "a": torch.tensor(3), "c": "x"}
    mapped: list[Tensor] = []
    map_tensors(batch, mapped.append)
    assert [int(tensor) for tensor in mapped] == [0, 1, 2, 3]
    assert [id(tensor) for tensor in tensors(batch)] == [id(tensor) for tensor in mapped]
