"""Chains: which transforms run, and what is decoded for them, as if all ran over all fields."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.engines.transform_chain import Step, plan_steps
from tfds_torch.engines.transforms import Transform

STORED, NEW = ["a", "b", "c", "w/d"], ["x", "y", "w/z"]
NAMES = STORED + NEW


def made_of(number: int, reads: Sequence[str] | None, gives: Sequence[str]) -> Callable[[dict[str, int]], Any]:
    """Return a function whose results tell who gave them, and of what they were made."""

    def function(example: dict[str, int]) -> dict[str, int]:
        read = sum(value for name, value in example.items() if reads is None or name in reads)
        return {name: 31 * read + 7 * number + NAMES.index(name) for name in gives}

    return function


@st.composite
def chains(draw: st.DrawFn) -> list[Transform]:
    """Draw transforms that read what is there, and say what they give, or do not."""
    there, found = set(STORED), []
    for number in range(draw(st.integers(1, 4))):
        reads = draw(st.lists(st.sampled_from(sorted(there)), min_size=1, max_size=3, unique=True))
        gives = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        said = draw(st.sampled_from([gives, [*gives, "w/*"], None]))
        found.append(Transform(made_of(number, reads, gives), reads, said))
        there |= set(gives)
    return found


def run(steps: Sequence[Step], fields: Sequence[str]) -> dict[str, int]:
    """Return all fields of an example that has gone through steps, one after the other."""
    example = {name: 1000 * (1 + STORED.index(name)) for name in fields}
    for step in steps:
        found = step.transform({name: example[name] for name in step.reads}, None)
        example |= {name: value for name, value in found.items() if name in step.keeps}
    return example


@given(chains(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_what_is_asked_for_is_as_if_all_ran_over_all(transforms: list[Transform], asked: list[str]) -> None:
    every, _ = plan_steps(transforms, NAMES, STORED.__contains__)
    whole = run(every, STORED)
    steps, inner = plan_steps(transforms, asked, STORED.__contains__)
    assert set(inner) <= set(STORED)
    found = run(steps, inner)
    assert {name: found.get(name) for name in asked} == {name: whole.get(name) for name in asked}
    assert {step.number for step in steps} <= {step.number for step in every}, "numbers are those of the whole list"


def test_what_nobody_needs_is_neither_run_nor_decoded() -> None:
    area = Transform(len, ["a"], ["x"])
    twice = Transform(len, ["x", "b"], ["y"])
    steps, inner = plan_steps([area, twice], ["c"], STORED.__contains__)
    assert (steps, inner) == ((), ("c",))
    steps, inner = plan_steps([area, twice], ["x"], STORED.__contains__)
    assert ([step.transform for step in steps], inner) == ([area], ("a",))
    steps, inner = plan_steps([area, twice], ["y"], STORED.__contains__, first_number=5)
    assert (len(steps), set(inner), steps[1].number - steps[0].number) == (2, {"a", "b"}, 1)
    (plain,), inner = plan_steps([Transform(len)], ["c", "x"], STORED.__contains__)
    assert (plain.reads, inner) == (("c",), ("c",)), "x is what it may give"
