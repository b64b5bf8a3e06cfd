"""Forms: a shape or dtype that changes from example to example is named, with what to write."""

import re
from typing import Any

import numpy as np
import pytest

from tfds_torch.engines.forms import Forms
from tfds_torch.storage.source import FieldSpec

F = np.float32


@pytest.mark.parametrize(
    ("declared", "first", "second", "fault"),
    [
        (None, np.zeros((2, 4), F), np.zeros((5, 4), F), None),  # The stored field varies there.
        (None, np.zeros((2, 4), F), np.zeros((2, 5), F), r"is float32 \[2, 5\], and was float32 \[\?, 4\] in the"),
        (None, np.zeros((2, 4), F), np.zeros((2, 4)), "is float64"),
        (None, np.zeros(3), np.zeros(4), r"gives=\{'box': \(\(None,\), 'float64'\), ...\}"),
        (None, np.zeros((2, 4), F), [1.0], "is a list, and was float32"),
        (None, np.zeros(3), np.zeros((3, 1)), "as many axes in every example"),
        (None, "a", "bcd", None),
        (None, np.array(["a"]), np.array(["bcd", "e"]), None),
        (None, None, np.zeros(3), None),
        ((None, 4), np.zeros((2, 4), F), np.zeros((9, 4), F), None),
        ((3, 4), np.zeros((3, 4), F), np.zeros((2, 4), F), r"gives= declares float32 \[3, 4\]"),
        ((3, 4), np.zeros((3, 4), F), np.zeros((3, 4)), "is float64"),
    ],
)
def test_forms_that_change_are_named(declared: Any, first: Any, second: Any, fault: str | None) -> None:
    stored = {"box": FieldSpec((None, 4), F)}
    spec = None if declared is None else FieldSpec(declared, F)
    forms = Forms(stored.get)
    assert forms.find_fault(0, "box", first, spec, lambda: "one") is None
    assert forms.find_fault(1, "box", second, spec, lambda: "two") is None or spec is not None, "each transform's own"
    found = forms.find_fault(0, "box", second, spec, lambda: "two")
    if fault is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(fault, found), found
