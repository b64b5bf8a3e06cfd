"""LazyIds: ids that are put together when they are looked at."""

import pickle

import numpy as np
import pytest

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.ids import LazyIds


class Names:
    """Says how many ids were put together."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, file: Int64Array, record: Int64Array) -> list[str]:
        self.count += len(file)
        return [f"{one}__{number}" for one, number in zip(file.tolist(), record.tolist(), strict=True)]

    def __reduce__(self) -> str:
        raise AssertionError("pickled")


NAMES = ["0__5", "1__6", "1__7", "0__8"]


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def ids(names: Names) -> LazyIds:
    return LazyIds(names, np.array([0, 1, 1, 0]), np.array([5, 6, 7, 8]))


def test_nothing_is_put_together_before_it_is_looked_at(ids: LazyIds, names: Names) -> None:
    assert len(ids) == 4
    part = ids[1:3]
    assert isinstance(part, LazyIds)
    assert names.count == 0
    assert ids[2] == "1__7"
    assert names.count == 1
    assert list(part) == ["1__6", "1__7"]
    assert names.count == 3


def test_they_are_like_the_list_of_them(ids: LazyIds) -> None:
    assert list(ids) == NAMES == [*ids]
    assert ids == NAMES
    assert ids == NAMES
    assert ids == tuple(NAMES)
    assert ids == ids[:]
    assert ids != NAMES[:-1]
    assert ids != NAMES[::-1]
    assert ids != "0__5"
    assert [ids[place] for place in (0, -1, np.int64(1))] == ["0__5", "0__8", "1__6"]
    assert ids[::-1] == NAMES[::-1]
    assert ids[np.int64(1) :] == NAMES[1:]
    assert "1__7" in ids
    assert "1__8" not in ids
    assert ids.index("1__7") == 2
    assert ids.count("0__5") == 1
    assert np.array(ids).tolist() == NAMES
    for place in (4, -5):
        with pytest.raises(IndexError):
            ids[place]
    with pytest.raises(TypeError):
        hash(ids)


def test_pickled_they_are_the_list_and_need_no_source(ids: LazyIds) -> None:
    copy = pickle.loads(pickle.dumps(ids))
    assert type(copy) is list
    assert copy == NAMES


def test_their_repr_is_short(ids: LazyIds) -> None:
    assert repr(ids) == "<4 ids, '0__5' first>"
    assert repr(ids[:0]) == "<0 ids>"
