"""Everything that a check found out, as it comes to know it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.check.contact_sheet import Picture
from tfds_torch.check.content import ImageSizes, LabelCount
from tfds_torch.check.delivery import Delivery
from tfds_torch.check.expectation import Expectation, PipelineCounts
from tfds_torch.check.ledger import EpochCounts, Ledger
from tfds_torch.check.order_sample import OrderSample
from tfds_torch.check.promises import judge
from tfds_torch.check.reference import CheckedParser
from tfds_torch.check.throughput import RankReading
from tfds_torch.check.verdict import NotJudged, Promise
from tfds_torch.storage.network import NetworkStats


@dataclass
class Findings:
    """What is known of a dataset and its reading; what a check did not get to know is None or empty.

    Attributes:
        is_torchrun: whether the ranks were processes of torch.distributed that read at the same time.
        pipelines: what each pipeline is to read in epoch 0.
        not_judged: promises that this dataset cannot be asked for, and why.
        sizes: (width, height) of some images, pixels.
        order: in which order examples came; None: it was not asked for.
        pictures: some images; empty where they were not asked for.
        images_path: the contact sheet that was written.
        network: what was asked of object stores; None: all files are of this machine.
        error: what ended the check before its time.
        is_interrupted: whether Ctrl-C did.
    """

    parser: CheckedParser | None = None
    is_fake: bool = False
    is_torchrun: bool = False
    expected: Expectation | None = None
    pipelines: Sequence[PipelineCounts] = ()
    num_workers: int = 0
    delivery: Delivery | None = None
    ledger: Ledger | None = None
    readings: Sequence[RankReading] = ()
    promises: Sequence[Promise] = ()
    not_judged: Sequence[NotJudged] = ()
    sizes: Sequence[tuple[int, int]] = ()
    image_sizes: ImageSizes | None = None
    order: OrderSample | None = None
    pictures: Sequence[Picture] = ()
    advice: Sequence[str] = ()
    images_path: Path | None = None
    network: NetworkStats | None = None
    error: Exception | None = None
    is_interrupted: bool = False

    def interrupt(self) -> None:
        """Judges what was read until now, unless it was judged already."""
        self.is_interrupted = True
        if self.ledger is not None and not self.promises:
            self.promises = judge(self.ledger, is_whole=False)

    @property
    def counts(self) -> dict[int, EpochCounts]:
        """The ledger of those epochs that every rank has read, by epoch."""
        return {} if self.ledger is None else self.ledger.counts

    @property
    def num_batches(self) -> int:
        """Batches that came, of all ranks and epochs."""
        return 0 if self.ledger is None else self.ledger.num_batches

    @property
    def labels(self) -> list[LabelCount]:
        """How often each label came in epoch 0."""
        return [] if self.ledger is None else self.ledger.labels.counts()

    @property
    def is_kept(self) -> bool:
        """Whether every promise was judged and kept."""
        return self.error is None and not self.is_interrupted and bool(self.promises) and not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether a promise was judged and found broken."""
        return not all(promise.kept for promise in self.promises)
