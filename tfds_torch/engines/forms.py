"""Forms: shape and dtype of the values that users' functions return, compared from example to example."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec

Form = tuple[tuple[int | None, ...], np.dtype[Any] | str]
"""Shape, with None for a side that varies, and dtype; "str" for texts; the type's name for other values."""

_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Forms:
    """The form of each field that transforms give: as declared, or else that of the first example in this process.

    Attributes:
        stored: field -> its spec in the dataset: sides that vary there may vary in the values that transforms return.
        learnt: number of a transform, field -> its form, and the id of the example that showed it.
    """

    stored: Callable[[str], FieldSpec | None]
    learnt: dict[tuple[int, str], tuple[Form, str]] = field(default_factory=dict)

    def find_fault(
        self, number: int, name: str, value: Any, declared: FieldSpec | None, find_id: Callable[[], str]
    ) -> str | None:
        """Return the fault of a value that a transform returned, a sentence and the remedy; None: it has none.

        Args:
            number: number of the transform.
            name: name of the field.
            value: the value, as numpy has it; None, of an optional field, has any form.
            declared: how the transform declares the field; None: it does not.
            find_id: returns the id of the example; it takes longer than everything else here.
        """
        if value is None:
            return None
        form = form_of(value)
        if declared is not None:
            wanted = np.dtype(declared.dtype)
            if _fits(declared.shape, form[0]) and wanted in (_OBJECT, form[1]):
                return None
            fault = f"{quoted(name)} is {show_form(form)}, and gives= declares {show_form((declared.shape, wanted))}."
            is_list = isinstance(value, list | tuple)
            return f"{fault} Return np.array(..., {quoted(wanted.name)})." if is_list and wanted != _OBJECT else fault
        known = self.learnt.get((number, name))
        if known is None:
            self.learnt[number, name] = (self._general(name, form), find_id())
            return None
        if known[0] == form or (known[0][1] == form[1] and _fits(known[0][0], form[0])):
            return None
        return _describe_change(name, form, *known)

    def _general(self, name: str, form: Form) -> Form:
        """Return the form that all values must have, where this is the form of the first value."""
        shape, dtype = form
        if dtype in ("str", _OBJECT):  # Lists in every batch, of whatever length.
            return (None,) * len(shape), dtype
        spec = self.stored(name)
        if spec is not None and np.dtype(spec.dtype) == _OBJECT:  # Lists are stored: their lengths are not known.
            return (None,) * len(shape), dtype
        if spec is None or len(spec.shape) != len(shape):
            return form
        return tuple(None if side is None else own for side, own in zip(spec.shape, shape, strict=True)), dtype


def form_of(value: Any) -> Form:
    """Return the form of a value."""
    if isinstance(value, np.ndarray):
        return value.shape, "str" if value.dtype.kind in "US" else value.dtype
    return (), type(value).__name__


def show_form(form: Form) -> str:
    """Return a form as messages show it, like `float32 [?, 4]`."""
    shape, dtype = form
    return f"a {dtype}" if isinstance(dtype, str) and not shape else f"{dtype} {_show_shape(shape)}"


def _fits(wanted: tuple[int | None, ...], shape: tuple[int | None, ...]) -> bool:
    return len(wanted) == len(shape) and all(one in (None, own) for one, own in zip(wanted, shape, strict=True))


def _describe_change(name: str, form: Form, known: Form, example: str) -> str:
    said = f"{quoted(name)} is {show_form(form)}, and was {show_form(known)} in the example {quoted(example)}."
    if form[1] != known[1]:
        return f"{said} Return arrays of one dtype, such as np.float32(...) or np.array(..., np.int64)."
    if len(form[0]) != len(known[0]):
        return f"{said} Return arrays with as many axes in every example."
    sides = tuple(old if old == new else None for old, new in zip(known[0], form[0], strict=True))
    return (
        f"{said} Where a side varies, say so: Transform(function, gives={{{quoted(name)}: ({sides}, "
        f"{str(form[1])!r}), ...}})."
    )


def _show_shape(shape: Iterable[int | None]) -> str:
    return f"[{', '.join('?' if side is None else str(side) for side in shape)}]"
