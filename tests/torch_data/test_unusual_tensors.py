"""Tensors of every kind come out of workers as they went in, or are refused with what to do."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tfds_torch import DevicePrefetcher, create_loader
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.shared_slots import SlotPacking
from tfds_torch.torch_data.tensor_codec import pack

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}:UserWarning")  # Of torch, wherever one is made.
    for text in ("The PyTorch API of nested tensors", "Sparse", "torch.quantize_per_tensor", "TypedStorage")
]
METHODS = ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))]
ROWS = [torch.arange(3.0), torch.arange(5.0)]
LARGE = 100_000


class Marked(Tensor):
    """A subclass, as users have them."""


def nested(layout: torch.layout = torch.strided, rows: list[Tensor] = ROWS) -> Tensor:
    return torch.nested.nested_tensor(rows, layout=layout)


KINDS: dict[str, Callable[[], Any]] = {
    "nested": nested,
    "nested jagged": lambda: nested(torch.jagged),
    "nested, large": lambda: nested(rows=[torch.arange(LARGE * 1.0), torch.zeros(2)]),
    "nested jagged, large": lambda: nested(torch.jagged, rows=[torch.arange(LARGE * 1.0), torch.zeros(2)]),
    "nested, of images": lambda: nested(rows=[torch.ones(3, 8, 9), torch.zeros(3, 7, 2)]),
    "nested, in a batch": lambda: {"x": nested(), "more": [nested(torch.jagged), torch.ones(3)]},
    "sparse COO": lambda: torch.eye(4).to_sparse(),
    "sparse COO, not coalesced": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)),  # type: ignore[arg-type]
    "sparse CSR": lambda: torch.eye(4).to_sparse_csr(),
    "sparse CSC": lambda: torch.eye(4).to_sparse_csc(),
    "sparse BSR": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "conjugated": lambda: torch.full((3,), 1 + 2j).conj(),
    "conjugated, large": lambda: torch.full((LARGE,), 1 + 2j).conj(),
    "negated": lambda: torch.full((3,), 1 + 2j).conj().imag,
    "negated, large": lambda: torch.full((LARGE,), 1 + 2j).conj().imag,
    "one number": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 4),
    "empty, channels last": lambda: torch.empty(0, 3, 8, 8).to(memory_format=torch.channels_last),
    "empty, of a mask": lambda: torch.as_tensor(np.arange(4)[np.zeros(4, bool)]),  # numpy says stride 0.
    "one number, expanded": lambda: torch.tensor(3).expand(1),
    "meta": lambda: torch.empty(3, device="meta"),
    "requires_grad": lambda: torch.ones(3, requires_grad=True),
    "requires_grad, large": lambda: torch.ones(LARGE, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "subclass": lambda: torch.ones(3).as_subclass(Marked),
    "subclass, large": lambda: torch.ones(LARGE).as_subclass(Marked),
    "expanded": lambda: torch.ones(1, 3).expand(LARGE, 3),
    "overlapping": lambda: torch.arange(LARGE + 2.0).as_strided((LARGE, 3), (1, 1)),
    "8 bits": lambda: torch.ones(LARGE).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.ones(LARGE, dtype=torch.uint16),
}
CONJUGATED_BY_TORCH = {name for name in KINDS if "conjugated" in name or "negated" in name}
"""What torch's own DataLoader delivers with other values: it loses the bit."""


class Unusual(Dataset[Any]):
    """An item of each kind."""

    def __len__(self) -> int:
        return len(KINDS)

    def __getitem__(self, index: int) -> Any:
        return list(KINDS.values())[index]()


class Refused(Dataset[Any]):
    """An item that cannot leave its worker.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return {"x": self.make()}


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    for name in ("layout", "dtype", "device", "is_nested", "requires_grad"):
        assert getattr(found, name) == getattr(expected, name), name
    if expected.is_nested:
        found, expected = found.unbind(), expected.unbind()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        return
    assert found.shape == expected.shape
    if expected.layout != torch.strided:
        found, expected = found.to_dense(), expected.to_dense()
    elif expected.dtype == torch.float8_e4m3fn:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    if expected.device.type != "meta":
        assert torch.equal(found, expected)


@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_tensor_arrives_as_it_was(method: str) -> None:
    with create_loader(Unusual(), 1, multiprocessing_context=method, timeout_s=100) as loader:
        arrived = list(loader)
    assert len(arrived) == len(KINDS)
    for made, found in zip(KINDS.values(), arrived, strict=True):
        assert_same(found, made())


NUMBERS = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64, torch.float8_e5m2]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, -1),
    "expanded": lambda x: x[:1].expand(3 if len(x) else 0, *x.shape[1:]),
    "in steps": lambda x: x[::2],
    "without rows": lambda x: x[:0],
    "stride 0": lambda x: x.as_strided((min(1, x.numel()),), (0,)),
    "conjugated": torch.conj,
    "negated": lambda x: torch._neg_view(x) if x.dtype.is_complex else x,
}


@given(
    dtype=st.sampled_from(NUMBERS),
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    views=st.lists(st.sampled_from(sorted(VIEWS)), max_size=3),
)
def test_every_dense_tensor_travels(dtype: torch.dtype, shape: list[int], views: list[str]) -> None:
    made = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    for name in views:
        made = VIEWS[name](made)
    buffers: list[pickle.PickleBuffer] = []
    message = pack(made, SlotPacking(None), buffers)
    found = pickle.loads(message, buffers=[buffer.raw() for buffer in buffers])
    assert (found.dtype, found.shape) == (made.dtype, made.shape)
    assert found.tolist() == made.tolist()


def test_torchs_own_loader_agrees_but_where_it_loses_a_bit() -> None:
    theirs = DataLoader(Unusual(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    for (name, made), found in zip(KINDS.items(), theirs, strict=True):
        if name in CONJUGATED_BY_TORCH:
            assert not torch.equal(found, made()), "torch was mended: the table above can go"
        else:
            assert_same(found, made())


def test_a_collate_function_makes_nested_batches() -> None:
    rows = [torch.arange(number + 1.0) for number in range(8)]
    with create_loader(rows, 2, batch_size=4, collate_fn=lambda found: nested(torch.strided, found)) as loader:
        batches = list(loader)
        assert loader.stats().examples == 8
    assert [[len(row) for row in batch.unbind()] for batch in batches] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_nested_images_are_not_taken_for_a_batch_of_one_size() -> None:
    images = nested(rows=[torch.ones(3, 8, 9, dtype=torch.uint8), torch.ones(3, 7, 2, dtype=torch.uint8)])
    (moved,) = DevicePrefetcher([images], "cpu")
    assert_same(moved, images)
    with pytest.raises(ConfigError, match=r"it holds uint8 of several sizes\."):
        list(DevicePrefetcher([images], "cpu", mean=(0.5,) * 3, std=(0.5,) * 3))
    with pytest.raises(ConfigError, match=r"^dtype=float16: .*; it holds uint8 of several sizes\. Leave dtype out"):
        list(DevicePrefetcher([images], "cpu", dtype="float16"))


def test_nested_tensors_pass_the_device_stage() -> None:
    batch = {"x": nested(), "image": torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)}
    (moved,) = DevicePrefetcher([batch], "cpu", mean=(0.5,) * 3, std=(0.5,) * 3)
    assert_same(moved["x"], nested())
    torch.testing.assert_close(moved["image"], torch.ones(2, 3, 4, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(3, requires_grad=True) * 2, r"a history of autograd .*Call \.detach\(\) on it"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 3, torch.quint8), r"without its scale\. Yield \.dequan"),
        (lambda: torch.ones(3).to_mkldnn(), r"layout torch\._mkldnn, .*Call \.to_dense\(\) on it"),
    ],
)
def test_a_tensor_that_cannot_leave_its_worker_is_refused_with_what_to_do(
    make: Callable[[], Tensor], message: str
) -> None:
    loader = create_loader(Refused(make), 1, multiprocessing_context="fork", timeout_s=100)
    with loader, pytest.raises(ConfigError, match=message):
        list(loader)
