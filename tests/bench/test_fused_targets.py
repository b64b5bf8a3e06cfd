"""Our own targets in the suites of whole batches: the arithmetic, and that nothing passes for want of figures."""

import pytest
from bench.made_up import IMPORT_S, outcome

from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.fused_targets import judge_jpeg, judge_memory, judge_png32
from tfds_torch.bench.targets import Target

OTHERS = {
    "baseline": 1050.0,
    "ours_0": 1100.0,
    "timm": 200.0,
    "webdataset": 400.0,
    "grain": 500.0,
    "dali": 660.0,
    "ffcv": 650.0,
    "limit": 1300.0,
}


def jpeg(ours: float = 1000.0, *, missing: str = "", **seconds: float) -> list[Outcome]:
    """Three turns of contestants of the speeds above, and of ours."""
    others = [outcome(name, (speed,) * 3) for name, speed in OTHERS.items() if name != missing]
    gone = [outcome(missing, missing="No module")] if missing else []
    return [outcome("ours", (ours,) * 3, first_batch_s=0.15, tail_s=0.05, **seconds), *others, *gone]


def find(targets: list[Target], part: str) -> Target:
    (target,) = (target for target in targets if part in target.name)
    return target


def test_all_of_jpeg_is_kept_at_its_limits() -> None:
    assert [target.found for target in judge_jpeg(jpeg())] == [
        *("0.95 x", "5.00 x", "2.00 x", "1.54 x", "1.52 x", "0.77 x", "0.91 x", "0.15 s", "0.050 s")
    ]
    assert all(target.kept for target in judge_jpeg(jpeg()))


@pytest.mark.parametrize(
    ("ours", "part", "found"),
    [
        (997, "baseline", "0.95 x"),
        (999.5, "timm", "5.00 x"),
        (999, "webdataset and grain", "2.00 x"),
        (974, "ffcv", "1.50 x"),
        (989, "dali", "1.50 x"),
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


@pytest.mark.parametrize(("first_batch_s", "tail_s", "kept"), [(0.15, 0.05, True), (0.151, 0.0501, False)])
def test_beginning_and_tail_are_judged(first_batch_s: float, tail_s: float, kept: bool) -> None:
    targets = judge_jpeg([outcome("ours", first_batch_s=first_batch_s, tail_s=tail_s)])
    assert [find(targets, part).kept for part in ("first batch", "tail")] == [kept, kept]
    assert [find(targets, part).wanted for part in ("first batch", "tail")] == ["at most 0.15 s", "at most 0.05 s"]


@pytest.mark.parametrize(
    ("ours", "batched", "kept"),
    [
        (2800.0, 2800.0, [True, True, True]),
        (2799.0, 2939.0, [False, True, False]),
        (2941.0, 2800.0, [True, True, True]),
        (3000.0, 2799.0, [True, False, False]),
    ],
)
def test_small_images_are_judged_with_a_preprocess_and_batched_alike(
    ours: float, batched: float, kept: list[bool]
) -> None:
    targets = judge_png32(
        [outcome("ours", (ours,)), outcome("ours_batched", (batched,)), outcome("timm", (200.0,))],
    )
    assert [target.wanted for target in targets] == ["at least 14 x timm's", "at least 14 x timm's", "within 5%"]
    assert [target.name for target in targets[:2]] == ["speed against timm", "speed of ours_batched against timm"]
    assert [target.kept for target in targets] == kept


MEGA, BATCH_BYTES = 1_000_000, 20_000_000


def judged(*outcomes: Outcome, import_s: Spread | None = IMPORT_S, num_workers: int = 2) -> dict[str, Target]:
    return {target.name: target for target in judge_memory(outcomes, import_s, num_workers, BATCH_BYTES)}


def memory(name: str, *megabytes: int) -> Outcome:
    return outcome(name, memory_bytes=tuple(MEGA * one for one in megabytes))


@pytest.mark.parametrize(
    ("training", "rest", "timm", "kept"), [(250, 30, 4000, [True, True]), (251, 30, 4000, [False, False])]
)
def test_memory_is_judged(training: int, rest: int, timm: int, kept: list[bool]) -> None:
    found = judged(memory("ours", training, rest), memory("timm", timm))
    total, own = found["memory of all processes"], found["memory of the training process"]
    assert [total.kept, own.kept] == kept
    assert (total.wanted, own.wanted) == ("at most 0.07 x timm's", "at most 250 MB")


@pytest.mark.parametrize(("of_eight", "found", "kept"), [(1400, "115 MB", True), (1407, "116 MB", False)])
def test_a_further_worker_is_judged_without_the_batches_that_it_holds(of_eight: int, found: str, kept: bool) -> None:
    few, eight = memory("ours", 200, 270), memory("ours_8", 200, of_eight - 200)
    target = judged(few, eight)["memory of a further worker, up to 8"]
    assert (target.found, target.kept) == (found, kept)  # A sixth of what is more, less 40 MB.
    assert target.wanted == "at most 115 MB beyond its 2 batches"


def test_with_8_workers_there_is_no_further_one() -> None:
    found = judged(memory("ours", 1, 2), memory("ours_8", 1, 2), num_workers=8)
    assert found["memory of a further worker, up to 8"].found.startswith("cannot be judged: there is no figure")


@pytest.mark.parametrize(("name", "most_s"), [("ours_0", 0.2), ("ours", 0.4), ("ours_8", 0.9)])
def test_the_very_first_batch_is_judged_by_the_number_of_workers(name: str, most_s: float) -> None:
    for seconds, kept in ((most_s, True), (most_s + 0.001, False)):
        target = judged(outcome(name, very_first_batch_s=seconds))[f"very first batch of {name}"]
        assert (target.wanted, target.kept) == (f"at most {most_s:g} s", kept)


def test_the_start_of_the_process_is_judged_beyond_an_import() -> None:
    name = "very first batch from the start of the process"
    start = judged(outcome("ours", start_s=(1.5, 1.5)))[name]
    assert (start.found, start.kept) == ("1.20 s more", True)  # And 0.3 s of import.
    assert start.wanted == "at most 1.2 s more than an import of torch"
    assert not judged(outcome("ours", start_s=(1.51, 1.51)))[name].kept
    unknown = judged(outcome("ours"), import_s=None)[name]
    assert (unknown.found, unknown.kept) == ("cannot be judged: there is no figure on this system", False)


@pytest.mark.parametrize(("first_batch_s", "kept"), [(0.15, True), (0.151, False)])
def test_the_first_batch_of_later_epochs_is_judged(first_batch_s: float, kept: bool) -> None:
    assert judged(outcome("ours", first_batch_s=first_batch_s))["first batch of later epochs"].kept is kept
