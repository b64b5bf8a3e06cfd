"""Our own targets in the suites of whole batches."""

from collections.abc import Sequence

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.targets import (
    Target,
    judge_first_batch,
    judge_memory_ratio,
    judge_outcomes,
    judge_seconds,
    judge_speed,
    judge_tail,
    median_of,
)
from tfds_torch.bench.task import (
    BASELINE,
    DALI,
    FFCV,
    GRAIN,
    LIMIT,
    OURS,
    OURS_8,
    OURS_BATCHED,
    OURS_IN_PROCESS,
    TIMM,
    WEBDATASET,
)

LEAST_BASELINE_RATIO = 0.95
LEAST_TIMM_RATIO = 5.0
LEAST_PEER_RATIO = 2.0
LEAST_FFCV_RATIO = 1.5
LEAST_DALI_RATIO = 1.5
LEAST_LIMIT_RATIO = 0.75
LEAST_WORKER_RATIO = 0.9
LEAST_PNG_RATIO = 14.0
MOST_PNG_DIFFERENCE = 0.05
MOST_FIRST_BATCH_S = 0.15
MOST_TAIL_S = 0.05
MOST_VERY_FIRST_BATCH_S = {OURS_IN_PROCESS: 0.2, OURS: 0.4, OURS_8: 0.9}
MOST_START_S = 1.2
MOST_MEMORY_RATIO = 0.07
MOST_TRAINING_MB = 250.0
MOST_WORKER_MB = 115.0
SUMMIT = 0.85
"""Of the limit: where nothing more can be expected. It is told, not judged."""

_BATCHES_OF_A_WORKER = 2
"""What a worker holds: `create_loader` has it read two batches ahead."""


def judge_jpeg(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of the suite `jpeg`: ratios are medians of those of all turns."""
    return [
        judge_speed(outcomes, LEAST_BASELINE_RATIO, BASELINE, "the baseline's"),
        judge_speed(outcomes, LEAST_TIMM_RATIO, TIMM, "timm's"),
        _judge_better(outcomes, LEAST_PEER_RATIO),
        judge_speed(outcomes, LEAST_FFCV_RATIO, FFCV, "FFCV's"),
        judge_speed(outcomes, LEAST_DALI_RATIO, DALI, "DALI's"),
        judge_speed(outcomes, LEAST_LIMIT_RATIO, LIMIT, f"that of decode and crop alone ({SUMMIT:g} x: the summit)"),
        judge_speed(outcomes, LEAST_WORKER_RATIO, OURS_IN_PROCESS, "that without workers"),
        judge_first_batch(outcomes, MOST_FIRST_BATCH_S, or_equal=True),
        judge_tail(outcomes, MOST_TAIL_S, or_equal=True),
    ]


def judge_png32(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of the suite `png32`: with a preprocess and with `batched=True` alike."""
    return [
        judge_speed(outcomes, LEAST_PNG_RATIO, TIMM, "timm's"),
        judge_speed(outcomes, LEAST_PNG_RATIO, TIMM, "timm's", ours=OURS_BATCHED),
        judge_outcomes(
            "speed of batched=True against that with a preprocess",
            f"within {MOST_PNG_DIFFERENCE:.0%}",
            outcomes,
            (OURS_BATCHED, OURS),
            lambda batched, ours: median_of(figures.speed_ratio(batched, ours)),
            lambda ratio: abs(ratio - 1) <= MOST_PNG_DIFFERENCE,
            "{:.2f} x",
        ),
    ]


def judge_memory(
    outcomes: Sequence[Outcome], import_s: Spread | None, num_workers: int, batch_bytes: int
) -> list[Target]:
    """Returns the targets of the suite `memory`. As in every epoch, its first batch counts from `iter(loader)`.

    Args:
        outcomes: what contestants did.
        import_s: seconds of an import of torch in the same run.
        num_workers: of `ours`.
        batch_bytes: pixels of a batch.
    """

    def beyond_import_s(ours: Outcome) -> float | None:
        start = median_of(figures.start_s(ours))
        return None if start is None or import_s is None else start - import_s.median

    def further_worker_mb(few: Outcome, eight: Outcome) -> float | None:
        if few.memory is None or eight.memory is None or num_workers >= 8:
            return None
        further_bytes = (eight.memory.total_bytes - few.memory.total_bytes) / (8 - num_workers)
        return (further_bytes - _BATCHES_OF_A_WORKER * batch_bytes) / 1e6

    return [
        *(
            judge_seconds(
                f"very first batch of {name}",
                outcomes,
                figures.first_epoch_batch_s,
                "{:.2f} s",
                most_s,
                or_equal=True,
                peer=name,
            )
            for name, most_s in MOST_VERY_FIRST_BATCH_S.items()
        ),
        judge_outcomes(
            "very first batch from the start of the process",
            f"at most {MOST_START_S:g} s more than an import of torch",
            outcomes,
            (OURS,),
            beyond_import_s,
            lambda seconds: seconds <= MOST_START_S,
            "{:.2f} s more",
        ),
        judge_first_batch(outcomes, MOST_FIRST_BATCH_S, or_equal=True),
        judge_memory_ratio(outcomes, MOST_MEMORY_RATIO),
        judge_outcomes(
            "memory of a further worker, up to 8",
            f"at most {MOST_WORKER_MB:g} MB beyond its {_BATCHES_OF_A_WORKER} batches",
            outcomes,
            (OURS, OURS_8),
            further_worker_mb,
            lambda megabytes: megabytes <= MOST_WORKER_MB,
            "{:.0f} MB",
        ),
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
