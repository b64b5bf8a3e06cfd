"""prove: reads a parser as a training does, with every rank and real workers, and reports the result."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from tfds_torch.check import sections
from tfds_torch.check.advice import AdviceInput, advise
from tfds_torch.check.delivery import ImageSizes, choose_delivery, delivery_of, measure_images, read_sizes
from tfds_torch.check.expected import Expectation, count_pipelines, expect
from tfds_torch.check.ledger import EpochEnd, Ledger
from tfds_torch.check.pictures import OrderSample, has_images, picture_of, read_pictures
from tfds_torch.check.pixels import PIXELS_PROMISE, judge_pixels
from tfds_torch.check.promises import judge, judge_index
from tfds_torch.check.reader import choose_points, kept_batches
from tfds_torch.check.reading import HowRead, RankReading, Step, read_other_world, read_rank, read_ranks
from tfds_torch.check.reference import choose_compared, find_why_no_pixels, judge_tfds, read_sample
from tfds_torch.check.report import NotJudged, Promise, Report, Section
from tfds_torch.check.transforms import judge_transforms
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.cache import DecodedCache
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import available_bytes, choose_workers, num_cores, usable_cores
from tfds_torch.storage.network import NetworkStats, total_stats
from tfds_torch.storage.remote.urls import LISTED_SCHEMES
from tfds_torch.storage.source import is_local

_LARGE_PART = 0.5

Note = Callable[[int, Step], None]
"""Called with each item that a rank received."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How a parser is read.

    Attributes:
        num_replicas: ranks, >= 1.
        num_workers: loader processes of a rank, >= 0; 0 reads in the rank itself.
        num_epochs: epochs, >= 1.
        is_torchrun: whether ranks are processes of torch.distributed that read at the same time.
        is_plain: whether torch's DataLoader reads; else `create_loader`.
        as_made: whether the parser is read as it was made; else with a preprocess, as the next two say.
        preprocess: the preprocess of the images; None for the usual one.
        is_single: whether single examples are read, though there are images.
        has_pictures: whether the report gets pictures of images and of the order.
        is_built_here: whether the dataset is embedded or made up, for advice.
    """

    num_replicas: int = 1
    num_workers: int = 2
    num_epochs: int = 2
    is_torchrun: bool = False
    is_plain: bool = False
    as_made: bool = True
    preprocess: Preprocess | None = None
    is_single: bool = False
    has_pictures: bool = False
    is_built_here: bool = False


class Watch:
    """Looks on while a parser is proven. This one does nothing."""

    def planned(self, report: Report) -> None:
        """Note that the sections of the dataset and of the plan are there; reading begins."""

    def reading(self, parser: DatasetParser, num_batches: int) -> AbstractContextManager[Note]:
        """Return a context for the reading of all ranks and epochs; its value is called with each item that comes."""
        return nullcontext(lambda rank, step: None)

    def comparing(self, what: str) -> AbstractContextManager[None]:
        """Return a context for the time in which `what` reads a few examples again."""
        return nullcontext()


def prove(
    parser: DatasetParser, how: How = How(), *, report: Report | None = None, watch: Watch | None = None
) -> Report:
    """Read a parser as a training does, with every rank and real workers, and report the result.

    Args:
        parser: any of this package.
        how: with which ranks, workers and loader.
        report: is filled; after an error or Ctrl-C it has the results until then, judged. None for a new one.
        watch: is told the progress of the reading; None for nobody.

    Raises:
        ConfigError: the parser cannot be read so.
        ShardError, CorruptRecordError, WorkerError, StallError: reading failed.
    """
    report, watch = report or Report(), watch or Watch()
    report.is_torchrun = how.is_torchrun
    report.put(sections.describe_dataset(parser))
    if (catalogue := sections.describe_catalogue(parser)) is not None:
        report.put(catalogue)
    expected = expect(parser, how.num_replicas, how.num_workers, how.num_epochs)
    report.num_planned_batches = expected.plan.num_batches * how.num_replicas * how.num_epochs
    report.put(sections.describe_plan(parser, expected, count_pipelines(parser, expected), how.num_workers))
    watch.planned(report)
    proof = _Proof(parser, how, expected)
    try:
        with watch.reading(parser, report.num_planned_batches) as note:
            proof.read(note)
        with watch.comparing("another reader, Pillow" + ", another number of workers" * proof.is_index):
            proof.compare()
    except KeyboardInterrupt:
        report.is_interrupted = True
        proof.interrupt()
        raise
    finally:
        proof.describe(report)
    if how.has_pictures and has_images(parser):
        pictures = [picture_of(one) for one in read_pictures(parser)]
        note_of_them = f"The first {len(pictures)} images of epoch 0, as they are decoded, before they are cropped."
        report.put(Section("sheet", "Contact sheet", note_of_them, pictures=pictures, is_printed=False))
    return report


class _Proof:
    """A proof under way: the expected result, and all that is known of the received examples."""

    def __init__(self, parser: DatasetParser, how: How, expected: Expectation) -> None:
        self.parser, self.how, self.expected = parser, how, expected
        self.is_index = expected.mode == "index"
        points = choose_points(expected.plan, how.num_epochs) if self.is_index else []
        kept = kept_batches(points, expected.plan.num_batches, how.num_epochs)
        self.ledger = Ledger(expected, parser.class_names, kept)
        self.order = OrderSample(expected.plan) if how.has_pictures else None
        self.compared = choose_compared(parser)
        self.reading_parser = parser
        self.delivery = delivery_of(parser, is_plain=how.is_plain) if how.as_made else None
        self.how_read = HowRead(how.num_workers, how.num_epochs, how.is_plain, frozenset(self.compared))
        self.why_no_pixels: str | None = None
        self.unindexed_url: str | None = None
        self.sizes: ImageSizes | None = None
        self.readings: list[RankReading] = []
        self.promises: list[Promise] = []
        self.not_judged: list[NotJudged] = []
        self.advice: list[str] = []

    def read(self, note: Note) -> None:
        """Read all ranks and epochs, and judge the result."""
        parser, how = self.parser, self.how
        networks = parser.source.networks
        before = total_stats(networks)
        self.sizes = measure_images(read_sizes(parser, self.compared))
        self.unindexed_url = self._find_unindexed(before)
        if not how.as_made:
            self.delivery, self.reading_parser = choose_delivery(
                parser,
                how.preprocess,
                self.sizes,
                num_workers=how.num_workers,
                is_plain=how.is_plain,
                is_single=how.is_single,
            )
        self.why_no_pixels = find_why_no_pixels(self.reading_parser, self.compared)
        self.how_read = replace(self.how_read, has_pixels=self.why_no_pixels is None, networks=networks)
        readings, epochs = {}, dict.fromkeys(range(how.num_replicas), 0)
        for rank, step in self._steps():
            if isinstance(step, RankReading):
                readings[rank] = step
            elif isinstance(step, EpochEnd):
                self.ledger.end(rank, epochs[rank], step)
                epochs[rank] += 1
            else:
                self.ledger.add(rank, epochs[rank], step)
                if self.order is not None and epochs[rank] == 0:
                    self.order.add(rank, step.index)
            note(rank, step)
        self.readings = [reading for _, reading in sorted(readings.items())]
        self.promises = judge(self.ledger)
        self.advice = advise(self._facts())

    def _steps(self) -> Iterator[tuple[int, Step]]:
        if self.how.is_torchrun:
            yield from read_ranks(self.reading_parser, self.how_read, self.how.num_replicas)
            return
        for world in World.grid(self.how.num_replicas, 1):
            for step in read_rank(self.reading_parser, self.how_read, world):
                yield world.rank, step

    def compare(self) -> None:
        """Compare some examples with another reader, with Pillow, and with another number of workers."""
        expected, ledger, judged = self.expected, self.ledger, list[Promise | NotJudged]()
        sample = []
        if self.is_index or self.parser.dataset.has_field("image"):
            sample = read_sample(self.parser, expected.ids, self.compared, by_index=self.is_index)
        if self.is_index:
            states = self.readings[0].resumed if self.readings else ()
            other = read_other_world(self.reading_parser, expected, self.how_read, states)
            judged += judge_index(ledger, self.readings, other)
            judged.append(judge_tfds(self.parser, expected.ids, sample))
        repeated = judge_transforms(self.parser, self.compared)
        if repeated is not None:
            judged.append(repeated)
        if self.why_no_pixels is not None:
            judged.append(NotJudged(PIXELS_PROMISE, self.why_no_pixels))
        else:
            encoded = {one.index: one.theirs.image for one in sample if one.theirs.image is not None}
            names = {index: expected.ids[index] for index in encoded}
            preprocess = self.reading_parser.preprocess
            judged.append(judge_pixels(ledger.pixels, encoded, names, preprocess, expected.plan, ledger.passes))
        self.promises += [one for one in judged if isinstance(one, Promise)]
        self.not_judged = [one for one in judged if isinstance(one, NotJudged)]

    def interrupt(self) -> None:
        """Judge the examples that came until now, unless they were judged already."""
        if not self.promises:
            self.promises = judge(self.ledger, is_whole=False)

    def describe(self, report: Report) -> None:
        """Put all that is known into a report."""
        parser, ledger, is_together = self.parser, self.ledger, self.how.is_torchrun
        report.promises, report.not_judged = self.promises, self.not_judged
        report.counts, report.num_batches = ledger.counts, ledger.num_batches
        labels, network = ledger.labels.counts(), total_stats(parser.source.networks)
        found = [
            sections.describe_dataset(parser, self.sizes),
            sections.describe_promises(self.promises) if self.promises else None,
            sections.describe_not_judged(self.not_judged) if self.not_judged else None,
            sections.describe_ledger(parser, self.expected, ledger.counts) if ledger.counts else None,
            sections.describe_shares(ledger),
            sections.describe_labels(labels) if labels else None,
            sections.describe_delivery(self.delivery, self.sizes) if self.delivery is not None else None,
        ]
        if self.readings:
            found += [
                sections.describe_speed(self.readings, is_together=is_together),
                sections.describe_stages(self.readings[0]),
                sections.describe_memory(self.readings, is_together=is_together),
                sections.describe_network(parser, network, self.readings) if network is not None else None,
            ]
        found += [
            sections.describe_advice(self.advice) if self.advice else None,
            sections.describe_order(self.order, self.expected) if self.order is not None else None,
        ]
        for section in found:
            if section is not None:
                report.put(section)

    def _facts(self) -> AdviceInput:
        parser, expected, how = self.parser, self.expected, self.how
        num_channels = CHANNELS[parser.dataset.image_mode] or 3
        is_crowded = how.is_torchrun and how.num_replicas > 1
        is_batched = self.delivery is not None and self.delivery.is_batched
        free_bytes = available_bytes()
        return AdviceInput(
            dataset=parser.dataset_name,
            split=parser.split,
            plan=expected.plan,
            mode=expected.mode,
            read=parser.read,
            is_built_here=how.is_built_here,
            num_files=parser.num_shards,
            # Parsers in mode `index` have a cache on this machine.
            is_remote=not self.is_index and not all(is_local(run.path) for run in parser.files),
            mean_example_bytes=parser.mean_example_bytes,
            mean_image_bytes=self.sizes.mean_pixels * num_channels if self.sizes else None,
            available_bytes=free_bytes,
            free_disk_bytes=_free_disk_bytes(parser),
            num_cores=num_cores(),
            num_loader_workers=how.num_workers,
            # Ranks at the same time had less of the machine than one alone.
            throughput=self.readings[0] if is_batched and not is_crowded else None,
            usual_workers=choose_workers(usable_cores(), how.num_replicas, free_bytes) if is_batched else None,
            unindexed_url=self.unindexed_url,
        )

    def _find_unindexed(self, before: NetworkStats | None) -> str | None:
        """Return the URL of shards that were fetched whole to read a few examples: they have no index.

        None where they have one, and of a web server, where no index can be written.
        """
        parser = self.parser
        after = total_stats(parser.source.networks)
        place = parser.provenance().place
        if before is None or after is None or not isinstance(place, str):
            return None
        if not place.startswith(tuple(f"{one}://" for one in LISTED_SCHEMES)):
            return None
        split_bytes = len(parser.source) * parser.mean_example_bytes
        return place if (after - before).bytes_fetched > _LARGE_PART * split_bytes else None


def _free_disk_bytes(parser: DatasetParser) -> int | None:
    """Return how much room there is for a decoded cache; None where the parser cannot have one."""
    if not parser.provenance().can_be_cached:
        return None
    folder = DecodedCache().path
    try:
        return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except OSError:
        return None
