"""Our own targets in the suites of whole batches: the arithmetic, and that nothing passes for want of figures."""

import pytest
from bench.made_up import IMPORT_S, outcome

from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.fused_targets import judge_jpeg, judge_memory, judge_png32
from tfds_torch.bench.targets import Target

OTHERS = {"ours_0": 1100.0, "timm": 200.0, "webdataset": 400.0, "grain": 520.0, "ffcv": 620.0, "limit": 1300.0}


def jpeg(ours: float = 1000.0, *, missing: str = "", **seconds: float) -> list[Outcome]:
    """Three turns of contestants of the speeds above, and of ours."""
    others = [outcome(name, (speed,) * 3) for name, speed in OTHERS.items() if name != missing]
    gone = [outcome(missing, missing="No module")] if missing else []
    return [outcome("ours", (ours,) * 3, first_batch_s=0.3, tail_s=0.05, **seconds), *others, *gone]


def find(targets: list[Target], part: str) -> Target:
    (target,) = (target for target in targets if part in target.name)
    return target


def test_all_of_jpeg_is_kept_at_its_limits() -> None:
    assert [target.found for target in judge_jpeg(jpeg())] == [
        *("5.00 x", "1.92 x", "1.61 x", "0.77 x", "0.91 x", "0.30 s", "0.050 s")
    ]
    assert all(target.kept for target in judge_jpeg(jpeg()))


@pytest.mark.parametrize(
    ("ours", "part", "found"),
    [
        (999.5, "timm", "5.00 x"),
        (987, "webdataset and grain", "1.90 x"),
        (991, "ffcv", "1.60 x"),
        (974, "limit", "0.75 x"),
        (989, "ours_0", "0.90 x"),
    ],
)
def test_every_ratio_of_jpeg_is_judged_before_it_is_rounded(ours: float, part: str, found: str) -> None:
    target = find(judge_jpeg(jpeg(ours)), part)
    assert (target.found, target.kept) == (found, False)


def test_the_faster_one_of_webdataset_and_grain_counts() -> None:
    slow, fast = outcome("webdataset", (100.0,) * 3), outcome("grain", (500.0,) * 3)
    for others in ([slow, fast], [fast, slow]):
        assert find(judge_jpeg([outcome("ours", (950.0,) * 3), *others]), "grain").found == "1.90 x"


def test_ratios_are_those_of_turns() -> None:
    ours, timm = outcome("ours", (500.0, 1000.0, 3000.0)), outcome("timm", (100.0, 500.0, 500.0))
    assert find(judge_jpeg([ours, timm]), "timm").found == "5.00 x"


@pytest.mark.parametrize("missing", OTHERS)
def test_a_missing_peer_misses_the_target_that_needs_it(missing: str) -> None:
    missed = [target for target in judge_jpeg(jpeg(missing=missing)) if not target.kept]
    assert [target.found for target in missed] == [f"cannot be judged: {missing} is missing: No module"]


def test_without_us_nothing_is_kept() -> None:
    assert not any(target.kept for target in judge_jpeg(jpeg()[1:]))


@pytest.mark.parametrize(("first_batch_s", "tail_s", "kept"), [(0.3, 0.05, True), (0.301, 0.0501, False)])
def test_beginning_and_tail_are_judged(first_batch_s: float, tail_s: float, kept: bool) -> None:
    targets = judge_jpeg([outcome("ours", first_batch_s=first_batch_s, tail_s=tail_s)])
    assert [find(targets, part).kept for part in ("first batch", "tail")] == [kept, kept]
    assert [find(targets, part).wanted for part in ("first batch", "tail")] == ["at most 0.3 s", "at most 0.05 s"]


@pytest.mark.parametrize(("ours", "kept"), [(2400.0, True), (2399.0, False)])
def test_small_images_are_judged(ours: float, kept: bool) -> None:
    (target,) = judge_png32([outcome("ours", (ours,)), outcome("timm", (200.0,))])
    assert (target.wanted, target.kept) == ("at least 12 x timm's", kept)


def memory(parent_mb: int, rest_mb: int, timm_mb: int = 1000) -> list[Outcome]:
    mega = 1_000_000
    ours = outcome("ours", memory_bytes=(parent_mb * mega, rest_mb * mega))
    return [ours, outcome("timm", memory_bytes=(timm_mb * mega,))]


@pytest.mark.parametrize(("parent", "rest", "kept"), [(250, 30, [True, True]), (251, 30, [False, False])])
def test_memory_is_judged(parent: int, rest: int, kept: list[bool]) -> None:
    _, total, training = judge_memory(memory(parent, rest), IMPORT_S)
    assert [total.kept, training.kept] == kept
    assert (total.wanted, training.wanted) == ("at most 0.28 x timm's", "at most 250 MB")


def test_the_very_first_batch_is_judged_beyond_an_import() -> None:
    start = judge_memory(memory(1, 1), IMPORT_S)[0]
    assert (start.found, start.kept) == ("0.20 s more", True)  # 0.5 s, and 0.3 s of import.
    assert start.wanted == "at most 0.7 s more than an import of tensorflow"
    unknown = judge_memory(memory(1, 1), None)[0]
    assert (unknown.found, unknown.kept) == ("cannot be judged: there is no figure on this system", False)
