"""The wire of MultiLoader: what was sent arrives, and nothing that is received can do harm."""

import json
import math
import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from loaders.sources import equal, every_kind
from tfds_torch.errors import ConfigError
from tfds_torch.loaders import wire_items
from tfds_torch.loaders.transport import ProtocolError
from tfds_torch.loaders.wire import Outgoing, read_header, view_buffer
from tfds_torch.loaders.wire_items import ItemReader, ItemWriter

DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(),
    npst.floating_dtypes(sizes=(16, 32, 64)),
    npst.complex_number_dtypes(sizes=(64, 128)),
)
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0)))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), ARRAYS)
ITEMS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=10),
        st.lists(inner, max_size=10).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=5),
    ),
    max_leaves=20,
)


def send(item: Any, content: str = "item") -> tuple[bytes, list[bytes]]:
    """Returns header and buffers as they travel."""
    writer = ItemWriter()
    tree = writer.write(item)
    header = Outgoing(content, tree, writer.parts).encode_header([None] * len(writer.parts))
    return header, [b"".join(np.ascontiguousarray(one).tobytes() for one in part.pieces) for part in writer.parts]


def receive(header: bytes, buffers: list[bytes]) -> Any:
    read = read_header(header)
    if len(read.buffers) != len(buffers):  # Each transport looks at that.
        raise ProtocolError("other buffers")
    arrays = [view_buffer(*pair) for pair in zip(buffers, read.buffers, strict=True)]
    return ItemReader(arrays).read(read.tree)


def is_same(one: Any, other: Any) -> bool:
    """As `equal`, where a NaN is equal to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    return equal(one, other)


@given(ITEMS)
def test_every_item_arrives_as_it_was_sent(item: Any) -> None:
    assert is_same(receive(*send(item)), item)


@pytest.mark.parametrize("number", range(len(every_kind())))
def test_every_kind_of_item_arrives_with_its_types(number: int) -> None:
    item = every_kind()[number]
    assert equal(receive(*send(item)), item)


def test_a_header_says_what_the_message_holds() -> None:
    header = read_header(send(np.zeros((2, 3), "<f4"), "batch")[0])
    assert (header.content, header.tree) == ("batch", ["a", 0])
    assert header.buffers == ((np.dtype("<f4"), (2, 3), 24),)


@given(ITEMS, st.data())
def test_a_message_that_was_changed_is_malformed_or_still_harmless(item: Any, data: st.DataObject) -> None:
    header, buffers = send(item)
    place = data.draw(st.integers(0, len(header) - 1))
    changed = header[:place] + bytes([data.draw(st.integers(0, 255))]) + header[place + 1 :]
    with suppress(ProtocolError):
        receive(changed, buffers)


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from("abdilnrstuBILT")
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=30,
)


@given(JSON)
def test_no_tree_can_do_more_than_be_malformed(tree: Any) -> None:
    buffers = [np.arange(3, dtype=np.int64), np.arange(6, dtype=np.uint8), np.ones((2, 2), np.int64)]
    with suppress(ProtocolError):
        ItemReader(buffers).read(tree)  # type: ignore[arg-type]


@given(st.lists(JSON, min_size=4, max_size=4) | JSON)
def test_no_header_can_do_more_than_be_malformed(fields: Any) -> None:
    with suppress(ProtocolError):
        read_header(json.dumps(fields).encode())


BROKEN_HEADERS = [
    b"",
    b"\x80\x04",
    pickle.dumps([1]),
    b"[" * 60_000,
    b"null",
    b"[]",
    b'["item",null,[],null,1]',
    b'["bomb",null,[],null]',
    b'[["item"],null,[],null]',
    b'["item",null,[["|O",[1]]],null]',
    b'["item",null,[["<f4",[-1]]],null]',
    b'["item",null,[["<f4",[true]]],null]',
    b'["item",null,[["<f4",{"a":1}]],null]',
    b'["item",null,[["<f4,<f4",[1]]],null]',
    b'["item",null,[["<f4",[1073741824]]],null]',
    b'["item",null,[["<f4",[0,1073741824,1073741824]]],null]',
    b'["item",null,[["<U999999",[1073741824]]],null]',
    json.dumps(["item", None, [["|u1", [wire_items.MOST_BYTES // 2 + 1]]] * 2, None]).encode(),
    json.dumps(["item", None, [["|u1", [1]]] * 257, None]).encode(),
    json.dumps(["item", "x" * (64 << 10), [], None]).encode(),
]


def is_refused(header: bytes) -> bool:
    try:
        read_header(header)
    except ProtocolError:
        return True
    return False


def test_a_header_that_breaks_a_rule_is_refused() -> None:
    wrong = [header[:80] for header in BROKEN_HEADERS if not is_refused(header)]
    assert not wrong, str(wrong)


def test_a_buffer_of_another_size_is_refused() -> None:
    header, _ = send(np.zeros(4, np.int32))
    with pytest.raises(ProtocolError, match=r"^a buffer of 16 bytes has 15$"):
        receive(header, [bytes(15)])


@pytest.mark.parametrize(
    "tree",
    [
        ["L", 0, 1],
        ["L", 3, 1],
        ["r", 4, 1],
        ["r", 0, 1],
        ["r", 2, 1],
        ["n", 1],
        ["a", 9],
        ["s", 0],
        ["t", 0],
        ["d", [[[1], 2]]],
        ["d", [["key"]]],
        ["x", 1],
    ],
)
def test_a_tree_that_does_not_fit_its_buffers_is_refused(tree: Any) -> None:
    buffers = [np.array([3, -1]), np.zeros(4, np.uint8), np.full((2, 2), 7), np.array([3]), np.array([[3]])]
    with pytest.raises(ProtocolError):
        ItemReader(buffers).read(tree)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"a": {1}}, r"^item\['a'\] is a builtins.set: a MultiLoader carries dicts, .* Convert it\.$"),
        ([np.array([None])], r"^item\[0\] is an array of dtype object"),
        ({(1, 2): 3}, r"^item has the key \(1, 2\)"),
        (np.zeros(2, "i4,f4"), "is an array of dtype"),
        (np.array([0], "datetime64[s]"), "is an array of dtype datetime64"),
    ],
)
def test_what_does_not_travel_is_named_with_its_place(item: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ItemWriter().write(item)


def test_a_named_tuple_is_not_turned_into_another_type() -> None:
    from collections import namedtuple

    with pytest.raises(ConfigError, match=r"Pair: a named tuple's type does not travel\. Yield `\._asdict\(\)` of it"):
        ItemWriter().write([namedtuple("Pair", "a b")(1, 2)])  # type: ignore[arg-type,call-arg]


def test_a_nest_without_end_is_refused() -> None:
    nest: list[Any] = []
    nest.append(nest)
    with pytest.raises(ConfigError, match="lies deeper than 32 levels"):
        ItemWriter().write(nest)


def test_messages_that_are_too_large_are_not_sent() -> None:
    def header(parts: list[wire_items.Part], tree: Any = None) -> bytes:
        return Outgoing("item", tree, parts).encode_header([])

    small = wire_items.Part(np.dtype("|u1"), (1,), ())
    with pytest.raises(ProtocolError, match="257 buffers, and a message may have 256"):
        header([small] * 257)
    with pytest.raises(ProtocolError, match="1,073,741,825 bytes, and a message may have 1,073,741,824"):
        header([wire_items.Part(np.dtype("|u1"), (wire_items.MOST_BYTES,), ()), small])
    with pytest.raises(ProtocolError, match="put its values into fewer, larger arrays"):
        header([], ["l", ["text" * 100] * 200])
    assert len(read_header(header([small] * 256)).buffers) == 256
