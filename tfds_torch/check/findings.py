"""Everything that a check found out, as it comes to know it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.check.content import ImageSizes, LabelCount
from tfds_torch.check.fused import FusedMeasure
from tfds_torch.check.ledger import EpochCounts, Expectation, NotJudged, Promise
from tfds_torch.check.pipelines import PipelineCounts
from tfds_torch.check.reading import RankReading
from tfds_torch.check.throughput import Throughput
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds


@dataclass
class Findings:
    """What is known of a dataset and its reading; what a check did not get to know is None or empty.

    Attributes:
        parser: what is read.
        is_fake: whether the content is made up.
        is_torchrun: whether the ranks were processes of torch.distributed that read at the same time; else they read
            one after the other.
        expected: what must come.
        pipelines: what each pipeline is to read in epoch 0.
        num_workers: loader processes of a rank.
        readings: what came, rank by rank.
        counts: the ledger, epoch by epoch.
        promises: which promises were kept.
        not_judged: promises that this dataset cannot be asked for, and why.
        labels: how often each label came.
        image_sizes: sizes of the images that came.
        throughputs: how fast each rank read.
        fused: how fast whole batches came; None where there are no images.
        advice: what could be done better.
        images_path: the contact sheet that was written.
        error: what ended the check before its time.
    """

    parser: ParserTfds | None = None
    is_fake: bool = False
    is_torchrun: bool = False
    expected: Expectation | None = None
    pipelines: Sequence[PipelineCounts] = ()
    num_workers: int = 0
    readings: Sequence[RankReading] = ()
    counts: Sequence[EpochCounts] = ()
    promises: Sequence[Promise] = ()
    not_judged: Sequence[NotJudged] = ()
    labels: Sequence[LabelCount] = ()
    image_sizes: ImageSizes | None = None
    throughputs: Sequence[Throughput] = ()
    fused: FusedMeasure | None = None
    advice: Sequence[str] = ()
    images_path: Path | None = None
    error: Exception | None = None

    @property
    def is_kept(self) -> bool:
        """Whether every promise was judged and kept."""
        return self.error is None and bool(self.promises) and not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether a promise was judged and found broken."""
        return not all(promise.kept for promise in self.promises)
