"""What is promised of chosen examples is counted right: whatever is lost or comes twice is found."""

import numbered_episodes
import pytest
from chosen import NUM_NUMBERED, PROMISES, SUBSET, WEIGHTS, class_of, classes_of, count_passes
from numbered_episodes import check_windows, member_ranges


def test_passes_that_are_whole_lose_nothing() -> None:
    assert count_passes([0, 1, 2, 2, 0, 1, 1], range(3)) == (0, 0)
    assert count_passes([], range(3)) == (0, 0)


def test_an_example_in_the_place_of_another_is_lost_and_twice() -> None:
    assert count_passes([0, 1, 1, 2, 0, 1], range(3)) == (1, 1)
    assert count_passes([0, 1, 2, 2, 2], range(3)) == (0, 1)  # The last pass may still bring what is missing.


def test_classes_are_uneven_and_scattered() -> None:
    assert [len(members) for members in classes_of(range(NUM_NUMBERED))] == [1, 6, 11, 23]
    assert sum(class_of(n) != class_of(n + 1) for n in range(NUM_NUMBERED - 1)) > 15


def test_every_wrong_row_is_found() -> None:
    subset, classes, weighted = (PROMISES[name] for name in ("subset", "classes", "weighted"))
    assert subset.count([*SUBSET, *reversed(SUBSET)]) == (0, 0)
    assert subset.count([0, *SUBSET]) == (0, 1)
    assert subset.count([*SUBSET[:-1], SUBSET[0]]) == (1, 1)
    (one,), six = (members for members in classes.groups if len(members) in (1, 6))
    assert classes.count([one, *six, one, *six, one, one]) == (0, 0)
    assert classes.count([one, *six[:-1], six[0]]) == (1, 1)
    assert weighted.count([1, 1, 40]) == (0, 0)
    assert not WEIGHTS[0]
    assert weighted.count([1, 0]) == (0, 1)


def test_a_group_that_is_far_from_its_share_is_found() -> None:
    mixture = PROMISES["by weights"]
    z, a, k = mixture.groups
    assert mixture.distance([z[0], a[0], z[1], k[0], z[2]]) < 1
    assert mixture.distance([a[0], z[0], a[1], k[0], a[2]]) > 1
    assert PROMISES["all"].distance(range(41)) == 0


def test_windows_that_hold_other_steps_are_found() -> None:
    (row, *_) = numbered_episodes.MEMBERS["a"].steps()
    assert row == (4, 1)
    good = {"number": [15], "name": [["step 14!!", "step 15", "step 17!!"]], "name_pad": [[False] * 3]}
    window = member_ranges()[1].start
    check_windows("mixture", [window], {**good, "episode": [1], "step": [1]})
    for changes in ({"number": [16]}, {"episode": [4]}, {"step": [0]}, {"name_pad": [[True, False, False]]}):
        with pytest.raises(AssertionError, match=f"window {window} is"):
            check_windows("mixture", [window], {**good, "episode": [1], "step": [1], **changes})
    with pytest.raises(AssertionError, match=f"window {window + 1} is"):
        check_windows("mixture", [window + 1], {**good, "episode": [1], "step": [1]})
