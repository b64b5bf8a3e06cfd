"""The types of fields: what they refuse, and what their descriptors say."""

from typing import Any

import numpy as np
import pytest
import torch

from tfds_torch.errors import ConfigError
from tfds_torch.storage.beton.fields import BetonArray, BetonInt, BetonTensor, field_of


@pytest.mark.parametrize("kind", [torch.int16, "int16", np.int16, "torch.int16"])
def test_a_tensors_type_may_be_torchs_or_numpys(kind: Any) -> None:
    field = BetonTensor(kind, (3,))
    assert field.dtype == np.int16
    assert (
        field.encode(torch.tensor([1, 2, 3], dtype=torch.int16), 0).payload == np.array([1, 2, 3], np.int16).tobytes()
    )


def test_a_tensor_that_needs_a_gradient_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot be made an array: .*detach"):
        BetonTensor(torch.float32, (1,)).encode(torch.ones(1, requires_grad=True), 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BetonArray("float32", ()),
            r"no arrays of the shape \(\): .* Use BetonInt or BetonFloat for one number",
        ),
        (lambda: BetonArray("float32", (2, 0)), r"no arrays of the shape \(2, 0\)"),
        (lambda: BetonArray("float32", (1,) * 33), r"1 to 32 sides"),
        (lambda: BetonArray("float32", 3), "The shape 3 is not a sequence"),  # type: ignore[arg-type]
        (lambda: BetonArray(object, (3,)), "Arrays of object cannot be stored"),
        (lambda: BetonArray(">f4", (3,)), "Arrays of >f4 cannot be stored"),
        (lambda: BetonArray("U3", (3,)), "cannot be stored"),
        (lambda: BetonArray("nothing", (3,)), "'nothing' is not a type that numpy knows"),
        (lambda: BetonTensor("uint16", (3,)), "There are no tensors of type uint16: choose one of bool"),
        (lambda: BetonTensor(torch.bfloat16, (3,)), "bfloat16'? (is not a type that numpy knows|cannot be stored)"),
    ],
)
def test_types_and_shapes_that_the_format_cannot_hold_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("field", [BetonArray("float32", (2, 3)), BetonTensor("int64", (1,)), BetonInt()])
def test_a_descriptor_gives_the_field_back(field: Any) -> None:
    assert field_of(field.type_id, field.binary().ljust(1024, b"\0")) == field


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, b""),
        (2**63, b""),
        (761, b""),
        (5, b"[[1]]"),
        (4, b"null"),
        (12, b'[["", "O8"]]'),
        (11, b'[["", "<f"]'),
        (3, b"\xff\xff\xff"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(length: int, text: bytes) -> None:
    arguments = np.array([2] + [0] * 31 + [length], "<u8").tobytes() + text
    with pytest.raises(ValueError, match=r"type|stored"):
        field_of(4, arguments.ljust(1024, b"\0"))


def test_an_array_without_sides_is_refused() -> None:
    arguments = np.array([0] * 32 + [13], "<u8").tobytes() + b'[["", "<f4"]]'
    with pytest.raises(ValueError, match="no arrays of the shape"):
        field_of(4, arguments.ljust(1024, b"\0"))
