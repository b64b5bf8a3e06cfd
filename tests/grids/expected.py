"""What must come, by arithmetic of its own: nothing here knows the package's plan.

N examples, R ranks, W workers, batches of B, global batches of G = R * B. The slots of an epoch are numbered 0, 1, ...;
slot g * G + r * B + i is place i of batch g of rank r. Slots from N on are fill.
"""

from collections.abc import Iterator
from itertools import count

from grids.cell import TRAIN_FILES, Cell
from grids.splits import Truth


def num_batches(cell: Cell, num_examples: int) -> int:
    """Of every rank: the last one is filled, or stays short."""
    return -(-num_examples // cell.global_batch)


def keeps_short_batch(cell: Cell) -> bool:
    """Whether the last batch stays short: evaluation of a single rank."""
    return not cell.is_training and cell.num_replicas == 1


def slots_of_batch(cell: Cell, num_examples: int, rank: int, batch: int) -> range:
    """The slots of a rank's batch."""
    first = batch * cell.global_batch + rank * cell.batch_size
    slots = range(first, first + cell.batch_size)
    return range(first, min(slots.stop, num_examples)) if keeps_short_batch(cell) else slots


def batches_of_worker(cell: Cell, num_examples: int, worker: int) -> range:
    """A DataLoader collects from its workers in turn."""
    return range(worker, num_batches(cell, num_examples), cell.workers)


def quota(cell: Cell, num_examples: int, rank: int, worker: int) -> tuple[int, int]:
    """How many slots of a pipeline are examples of the epoch, and how many are fill."""
    batches = batches_of_worker(cell, num_examples, worker)
    slots = [slot for batch in batches for slot in slots_of_batch(cell, num_examples, rank, batch)]
    num_valid = sum(slot < num_examples for slot in slots)
    return num_valid, len(slots) - num_valid


def unshuffled_streams(cell: Cell, truth: Truth) -> dict[tuple[int, int], list[int]]:
    """(rank, worker) -> the indices that a pipeline reads one after the other when nothing is shuffled."""
    if cell.task == TRAIN_FILES:
        return dict(zip(cell.pipelines, _streams_of_files(cell, truth), strict=True))
    if cell.is_by_index:
        return {place: _slots_of_pipeline(cell, truth, *place) for place in cell.pipelines}
    streams, first_valid, first_fill = {}, 0, 0
    for place in cell.pipelines:
        num_valid, num_fill = quota(cell, len(truth), *place)
        fill = [slot % len(truth) for slot in range(first_fill, first_fill + num_fill)]
        streams[place] = [*range(first_valid, first_valid + num_valid), *fill]
        first_valid += num_valid
        first_fill += num_fill
    return streams


def _slots_of_pipeline(cell: Cell, truth: Truth, rank: int, worker: int) -> list[int]:
    """By index the whole epoch is one row, of which every batch takes its slots."""
    batches = batches_of_worker(cell, len(truth), worker)
    slots = [slot for batch in batches for slot in slots_of_batch(cell, len(truth), rank, batch)]
    return [truth.choice.numbers[slot % len(truth)] for slot in slots]


def _streams_of_files(cell: Cell, truth: Truth) -> Iterator[list[int]]:
    """Every P-th file belongs to a pipeline, from the first one on, and again until it has enough."""
    starts = [sum(truth.file_lengths[:file]) for file in range(len(truth.file_lengths))]
    for pipeline, place in enumerate(cell.pipelines):
        wanted, stream = sum(quota(cell, len(truth), *place)), []
        files = range(pipeline, len(starts), cell.num_pipelines)
        for turn in count():
            file = files[turn % len(files)]
            if len(stream) >= wanted:
                break
            stream += range(starts[file], starts[file] + truth.file_lengths[file])
        yield stream[:wanted]
