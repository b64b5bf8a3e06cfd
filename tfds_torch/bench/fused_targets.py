"""Our own targets in the suites of whole batches."""

from collections.abc import Sequence

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.targets import (
    Target,
    judge_first_batch,
    judge_memory_ratio,
    judge_outcomes,
    judge_tail,
    median_of,
)
from tfds_torch.bench.task import FFCV, GRAIN, LIMIT, OURS, OURS_IN_PROCESS, TIMM, WEBDATASET

LEAST_TIMM_RATIO = 5.0
LEAST_PEER_RATIO = 1.9
LEAST_FFCV_RATIO = 1.6
LEAST_LIMIT_RATIO = 0.75
LEAST_WORKER_RATIO = 0.9
LEAST_PNG_RATIO = 12.0
MOST_FIRST_BATCH_S = 0.3
MOST_TAIL_S = 0.05
MOST_START_S = 0.7
MOST_MEMORY_RATIO = 0.28
MOST_TRAINING_MB = 250.0
SUMMIT = 0.85
"""Of the limit: where nothing more can be expected. It is told, not judged."""


def judge_jpeg(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of the suite `jpeg`: ratios are medians of those of all turns."""
    return [
        _judge_speed(outcomes, LEAST_TIMM_RATIO, TIMM, "timm's"),
        _judge_better(outcomes, LEAST_PEER_RATIO),
        _judge_speed(outcomes, LEAST_FFCV_RATIO, FFCV, "FFCV's"),
        _judge_speed(outcomes, LEAST_LIMIT_RATIO, LIMIT, f"that of decode and crop alone ({SUMMIT:g} x: the summit)"),
        _judge_speed(outcomes, LEAST_WORKER_RATIO, OURS_IN_PROCESS, "that without workers"),
        judge_first_batch(outcomes, MOST_FIRST_BATCH_S, or_equal=True),
        judge_tail(outcomes, MOST_TAIL_S, or_equal=True),
    ]


def judge_png32(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the target of the suite `png32`."""
    return [_judge_speed(outcomes, LEAST_PNG_RATIO, TIMM, "timm's")]


def judge_memory(outcomes: Sequence[Outcome], import_s: Spread | None) -> list[Target]:
    """Returns the targets of the suite `memory`. As in every epoch, its first batch counts from `iter(loader)`.

    Args:
        outcomes: what contestants did.
        import_s: seconds of an import of tensorflow in the same run.
    """

    def beyond_import_s(ours: Outcome) -> float | None:
        first_batch = median_of(figures.first_epoch_batch_s(ours))
        return None if first_batch is None or import_s is None else first_batch - import_s.median

    return [
        judge_outcomes(
            "very first batch",
            f"at most {MOST_START_S:g} s more than an import of tensorflow",
            outcomes,
            (OURS,),
            beyond_import_s,
            lambda seconds: seconds <= MOST_START_S,
            "{:.2f} s more",
        ),
        judge_memory_ratio(outcomes, MOST_MEMORY_RATIO),
        judge_outcomes(
            "memory of the training process",
            f"at most {MOST_TRAINING_MB:g} MB",
            outcomes,
            (OURS,),
            lambda ours: None if ours.memory is None else ours.memory.training_bytes / 1e6,
            lambda megabytes: megabytes <= MOST_TRAINING_MB,
            "{:.0f} MB",
        ),
    ]


def _judge_speed(outcomes: Sequence[Outcome], least: float, other: str, whose: str) -> Target:
    return judge_outcomes(
        f"speed against {other}",
        f"at least {least:g} x {whose}",
        outcomes,
        (OURS, other),
        lambda ours, theirs: median_of(figures.speed_ratio(ours, theirs)),
        lambda ratio: ratio >= least,
        "{:.2f} x",
    )


def _judge_better(outcomes: Sequence[Outcome], least: float) -> Target:
    """Against the faster one of WebDataset and Grain."""

    def ratio_to_better(ours: Outcome, *others: Outcome) -> float | None:
        ratios = [median_of(figures.speed_ratio(ours, other)) for other in others]
        known = [ratio for ratio in ratios if ratio is not None]
        return min(known) if len(known) == len(ratios) else None

    return judge_outcomes(
        f"speed against {WEBDATASET} and {GRAIN}",
        f"at least {least:g} x that of the faster one",
        outcomes,
        (OURS, WEBDATASET, GRAIN),
        ratio_to_better,
        lambda ratio: ratio >= least,
        "{:.2f} x",
    )
