"""The part of a worker's arguments that cannot be pickled is found, and nothing else is blamed."""

import pickle
import threading
from typing import Any

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.pickling import check_functions, unpicklable


def error_of(value: Any) -> Exception:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
        pickle.dumps(value)
    return caught.value


def test_the_innermost_part_is_named_with_what_it_is() -> None:
    lock = threading.Lock()
    value = {"a": 1, "b": [int, ("text", {"c": lock})]}
    error = unpicklable({"other": print, "value": value}, error_of(value), "'spawn'")
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "value['b'][1][1]['c'] = a lock cannot be pickled (TypeError: cannot pickle '_thread.lock' object), and "
        "workers that are started by 'spawn' get it pickled. Use what a module defines at its top level, not a "
        "lambda, a function or class within a function, or an open file; or start workers by fork."
    )


def test_parts_that_refer_to_each_other_come_to_an_end() -> None:
    value: list[Any] = [threading.Lock()]
    value.insert(0, value)
    assert unpicklable({"value": value}, error_of(value), "'spawn'") is not None


def test_an_error_of_something_else_is_not_explained() -> None:
    assert unpicklable({"value": threading.Lock()}, OSError("no more processes"), "'spawn'") is None
    assert unpicklable({"value": 3}, TypeError("cannot pickle"), "'spawn'") is None


def test_functions_are_not_looked_at_while_no_process_is_started() -> None:
    check_functions({"transform": lambda value: value})
