"""The shares of a mixture's members: the ledger by member, and the promises of its weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mixed_numbers import mix_numbered

from check.played_ledger import broken, play_plan
from tfds_torch import ParserMixture, ParserTfds
from tfds_torch.check.expected import expect
from tfds_torch.check.ledger import Ledger, Received
from tfds_torch.check.promises import judge
from tfds_torch.check.sections import describe_shares
from tfds_torch.check.shares import draw_independently, expected_counts
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.weights import Segment

ONCE, SHARE = "every example once in each pass of its member", "every member has its share"

Edit = Callable[[Received], Received]


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize(
    ("batch_size", "arguments"),
    [
        (4, {}),
        (5, {"remainder": "drop"}),
        (3, {"repeats": 3}),
        (7, {"weights": {"a": 1, "b": 1, "c": 1}, "epoch_size": 5}),
        (4, {"weights": "sizes", "stop": "all_exhausted", "epoch_size": None, "shuffle": False}),
        (4, {"weights": None, "epoch_size": None}),
    ],
)
def test_a_good_reading_keeps_every_promise(
    numbered_root: str, num_replicas: int, batch_size: int, arguments: dict[str, Any]
) -> None:
    """Over eight epochs, whose ends are not those of the members' passes."""
    parser = mix_numbered(numbered_root, batch_size=batch_size, **arguments)
    expected = expect(parser, num_replicas, 2, 8)
    ledger = play_plan(expected)
    assert broken(judge(ledger)) == {}
    has_weights = parser.weights is not None
    assert (SHARE in [promise.name for promise in judge(ledger)]) is has_weights
    for epoch, count in ledger.counts.items():
        before, after = (parser.counts(at * expected.plan.num_own_slots) for at in (epoch, epoch + 1))
        if expected.plan.remainder != "drop":
            assert {one.name: one.num_valid for one in count.members} == {
                name: after[name] - before[name] for name in before
            }
        assert all((one.most_off is not None) is has_weights for one in count.members)


def one_more_of_a(batch: Received) -> Received:
    """Puts an example of the first member in the place of the first one of another."""
    place = int(np.flatnonzero(batch.member)[0])
    index, ids = batch.index.copy(), list(batch.id)
    index[place], ids[place] = 0, "a/numbered-train.tfrecord-00000-of-00009__0"
    return replace(batch, index=index, id=ids, member=np.where(np.arange(len(index)) == place, 0, batch.member))


def same_again(batch: Received) -> Received:
    """Puts an example in the place of another one of its member."""
    first, second = np.flatnonzero(batch.member == batch.member[0])[:2]
    index, ids = batch.index.copy(), list(batch.id)
    index[second], ids[second] = index[first], ids[first]
    return replace(batch, index=index, id=ids)


def of_another_member(batch: Received) -> Received:
    """Says of the first example that it is of another member."""
    return replace(batch, member=np.where(np.arange(len(batch)) == 0, batch.member[0] ^ 1, batch.member))


@pytest.mark.parametrize(
    ("edit", "name", "detail"),
    [
        (one_more_of_a, SHARE, "epoch 1, a: "),
        (same_again, ONCE, "twice: "),
        (of_another_member, "ids as promised", "numbered-train.tfrecord"),
    ],
)
def test_a_fault_breaks_its_promise(numbered_root: str, edit: Edit, name: str, detail: str) -> None:
    expected = expect(mix_numbered(numbered_root, batch_size=8), 2, 2, 4)
    found = broken(judge(play_plan(expected, edit, (1, 1, 0))))
    assert detail in next(said for promise, said in found.items() if promise.startswith(name))


def test_an_example_that_never_comes_is_missing_once_its_pass_has_ended(numbered_root: str) -> None:
    expected = expect(mix_numbered(numbered_root, batch_size=8, weights="sizes", epoch_size=41), 1, 1, 2)

    def lose(batch: Received) -> Received:
        return Received(batch.id[1:], batch.index[1:], batch.valid[1:], batch.label[1:], member=batch.member[1:])

    ledger = play_plan(expected, lose)
    assert [count.missing.number for count in ledger.counts.values()] == [1, 1]
    assert ledger.counts[0].missing.first == [expected.ids[int(expected.share(0, 0).index[0])]]


def test_shares_are_compared_within_an_epoch(numbered_root: str) -> None:
    """Members in the right numbers, but one after the other: only the windows tell."""
    expected = expect(mix_numbered(numbered_root, batch_size=6, weights={"a": 1, "b": 1, "c": 1}), 1, 1, 1)
    share = expected.share(0, 0)
    order = np.argsort(share.index, kind="stable")
    moved = replace(expected, share=lambda rank, epoch: replace(share, index=share.index[order]))
    found = broken(judge(play_plan(moved)))
    assert list(found) == [SHARE]
    assert "examples from n x weight" in found[SHARE]


def test_expected_counts_are_n_times_weight_in_each_part() -> None:
    members = (Member("a", 10), Member("b", 10))
    order = Mixed(members, (Segment(0, (3, 1)), Segment(100, (0, 1)), Segment(120, (1, 1))), 10)
    expected, num_parts = expected_counts(order, np.array([0, 40, 100, 110, 140]))
    assert expected.tolist() == [[0, 0], [30, 10], [75, 25], [75, 35], [85, 55]]
    assert num_parts.tolist() == [1, 1, 1, 2, 3]
    drawn = draw_independently(order, [40, 100, 110, 140], 0)
    assert drawn.sum(axis=1).tolist() == [40, 60, 10, 30]
    assert drawn[2].tolist() == [0, 10]


def test_of_an_interrupted_reading_the_whole_epochs_are_judged(numbered_root: str) -> None:
    expected = expect(mix_numbered(numbered_root, batch_size=8), 2, 1, 3)
    whole = play_plan(expected)
    ledger = Ledger(expected)
    ledger.ended = {key: summary for key, summary in whole.ended.items() if key < (1, 1)}
    assert ledger.members is not None
    for epoch in range(3):
        ledger.members.windows(epoch)[:] = whole.members.windows(epoch) if whole.members is not None else 0
    ledger.count(0)
    promises = judge(ledger, is_whole=False)
    assert all(promise.kept for promise in promises)
    assert {f"{ONCE}, and the wrapped few", SHARE} <= {promise.name for promise in promises}


def test_of_many_members_the_last_are_drawn_together(numbered_root: str) -> None:
    members = {f"m{n}": ParserTfds(numbered_root, "numbered", f"train[{n}:{n + 1}]") for n in range(30)}
    parser = ParserMixture(members, dict.fromkeys(members, 1.0), batch_size=16, is_training=True, epoch_size=60)
    ledger = play_plan(expect(parser, 1, 0, 1))
    section = describe_shares(ledger)
    assert section is not None
    assert [str(picture.drawing).count("<path") for picture in section.pictures] == [8, 8]
    assert [picture.title for picture in section.pictures] == ["This run", "Members drawn at random"]
    assert "Farthest from n x weight: 0." in section.pictures[0].caption
    assert [str(row["member"].html)[:20] for row in section.rows[:9]] == [
        f'<i class="chip m{min(n, 7)}"></i'[:20] for n in range(9)
    ]
