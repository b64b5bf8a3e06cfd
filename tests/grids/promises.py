"""What a cell's ledgers must show. Pure: no processes; every broken promise is a sentence with the ids."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby

from grids import expected
from grids.cell import TRAIN_FILES, Cell, RankLedger, Row
from grids.splits import Truth

PAD_LABEL = -100
_FEWEST_TO_DIFFER = 20  # Fewer examples may have the same shuffled order, or the same shares, twice by chance.
_NUM_SHOWN = 5

Epoch = list[list[list[Row]]]
"""rank -> batch -> rows."""


@dataclass
class Verdict:
    """Which promises a cell broke, and what came in all of its epochs.

    Attributes:
        broken: sentences.
        num_delivered: valid examples.
        num_padded: examples that fill a batch and are not valid.
        num_wrapped: examples beyond one pass, as planned.
        num_left_out: examples that mode `files` left out since files are uneven, as planned.
        missing: ids that were promised and did not come.
        twice: ids that came more often than promised.
    """

    broken: list[str] = field(default_factory=list)
    num_delivered: int = 0
    num_padded: int = 0
    num_wrapped: int = 0
    num_left_out: int = 0
    missing: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)

    def expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.broken.append(sentence)


def judge(cell: Cell, truth: Truth, split_shuffles: bool, ranks: Sequence[RankLedger]) -> Verdict:
    """Returns what a cell's ranks kept of DESIGN's guarantees."""
    verdict = Verdict()
    verdict.expect(len({rank.pid for rank in ranks}) == cell.num_replicas, "ranks share a process")
    _judge_lengths(verdict, cell, truth, ranks)
    shuffles = cell.is_training and split_shuffles
    epochs: list[Epoch] = [[rank.epochs[at] for rank in ranks] for at in range(len(cell.epochs))]
    for at, epoch in enumerate(epochs):
        before = len(verdict.broken)
        _judge_rows(verdict, cell, truth, epoch)
        if len(verdict.broken) == before:  # Else the counts below mean nothing.
            _judge_counts(verdict, cell, truth, epoch)
            if shuffles and cell.task == TRAIN_FILES:
                _judge_files(verdict, cell, truth, epoch)
            elif not shuffles:
                _judge_order(verdict, cell, truth, epoch)
        verdict.broken[before:] = [f"iteration {at}: {sentence}" for sentence in verdict.broken[before:]]
    if truth.choice.epoch_size is not None and not verdict.broken:
        _judge_row(verdict, cell, truth, epochs)
    _judge_epochs(verdict, cell, truth, shuffles, epochs)
    if not cell.is_training:
        refusals = [rank.refusal or "" for rank in ranks]
        verdict.expect(
            all("mode" in text and "'files'" in text for text in refusals), f"'files' in evaluation: {refusals}"
        )
    return verdict


def sequence(epoch: Epoch) -> list[list[int]]:
    """The indices that each rank saw, in order."""
    return [[row.index for batch in rank for row in batch] for rank in epoch]


def row_of_all(epoch: Epoch) -> list[int]:
    """The indices that all ranks saw together, global batch by global batch."""
    return [row.index for batches in zip(*epoch, strict=True) for batch in batches for row in batch]


def shares(cell: Cell, epoch: Epoch) -> dict[tuple[int, int], list[Row]]:
    """(rank, worker) -> the rows that the pipeline delivered, in order."""
    return {
        (rank, worker): [row for batch in epoch[rank][worker :: cell.workers] for row in batch]
        for rank, worker in cell.pipelines
    }


def _judge_lengths(verdict: Verdict, cell: Cell, truth: Truth, ranks: Sequence[RankLedger]) -> None:
    batches = expected.num_batches(cell, len(truth))
    examples = len(truth) if expected.keeps_short_batch(cell) else batches * cell.batch_size
    for number, rank in enumerate(ranks):
        announced = rank.len_loader, rank.len_dataset
        verdict.expect(
            announced == (batches, examples),
            f"rank {number}: len(loader), len(dataset) are {announced}, not {(batches, examples)}",
        )
        verdict.expect(len(rank.epochs) == len(cell.epochs), f"rank {number}: {len(rank.epochs)} iterations")
        for at, epoch in enumerate(rank.epochs):
            came = len(epoch), sum(map(len, epoch))
            verdict.expect(
                came == (batches, examples),
                f"iteration {at}, rank {number}: {came} batches and examples came, not {(batches, examples)}",
            )


def _judge_rows(verdict: Verdict, cell: Cell, truth: Truth, epoch: Epoch) -> None:
    """Batches are full, padding is where it is planned, and every row is what it says it is."""
    for rank, batches in enumerate(epoch):
        for number, rows in enumerate(batches):
            where = f"rank {rank}, batch {number}"
            slots = expected.slots_of_batch(cell, len(truth), rank, number)
            verdict.expect(len(rows) == len(slots), f"{where} has {len(rows)} examples, not {len(slots)}")
            valid = [cell.is_training or slot < len(truth) for slot in slots]
            came = [row.valid for row in rows]
            verdict.expect(came == valid, f"{where}: valid is {came}, planned {valid}")
            for row in rows:
                wrong = _what_is_wrong(cell, truth, row)
                verdict.expect(not wrong, f"{where}: {row} {wrong}")


def _what_is_wrong(cell: Cell, truth: Truth, row: Row) -> str:
    if not 0 <= row.index < len(truth.ids):
        return "is no example of the split"
    if row.index not in truth.chosen:
        return "was not chosen"
    if row.id != truth.ids[row.index]:
        return f"has the id of another example: TFDS says {truth.ids[row.index]}"
    if row.content != truth.contents[row.index]:
        return f"holds another record's content: TFDS says {truth.contents[row.index]}"
    if row.label != (truth.labels[row.index] if row.valid or not truth.masks_labels else PAD_LABEL):
        return f"has a wrong label: TFDS says {truth.labels[row.index]}"
    if cell.shows_images and row.image_size != truth.image_sizes[row.index]:
        return f"has another picture: TFDS says {truth.image_sizes[row.index]}"
    return ""


def _judge_counts(verdict: Verdict, cell: Cell, truth: Truth, epoch: Epoch) -> None:
    """Every example exactly once; in training further ones only where they fill the last global batch."""
    rows = [row for rank in epoch for batch in rank for row in batch]
    counts = Counter(row.index for row in rows if row.valid)
    num_valid = counts.total()
    verdict.num_delivered += num_valid
    verdict.num_padded += len(rows) - num_valid
    if truth.choice.epoch_size is not None:  # What comes in passes goes beyond epochs: see _judge_row.
        verdict.num_wrapped += num_valid - len(truth)
        return
    if cell.task == TRAIN_FILES:
        verdict.num_left_out += sum(index not in counts for index in range(len(truth)))
        verdict.num_wrapped += num_valid - len(counts)
        return
    # Of the fill, every example comes once before one comes again.
    most = 1 if not cell.is_training else -(-num_valid // len(truth))
    missing = [truth.ids[index] for index in truth.choice.numbers if not counts[index]]
    twice = [truth.ids[index] for index, times in sorted(counts.items()) if times > most]
    whole = num_valid // len(truth)
    seldom = [truth.ids[index] for index, times in sorted(counts.items()) if times < whole]
    verdict.expect(not missing, f"{len(missing)} missing: {_few(missing)}")
    verdict.expect(not twice, f"{len(twice)} too often (more than {most} times): {_few(twice)}")
    verdict.expect(not seldom, f"{len(seldom)} too seldom (less than {whole} times): {_few(seldom)}")
    verdict.missing += missing
    verdict.twice += twice
    if cell.is_training:
        verdict.num_wrapped += num_valid - len(truth)
        early = Counter(row.index for rank in epoch for batch in rank[:-1] for row in batch)
        repeated = [truth.ids[index] for index, times in early.items() if times > 1]
        verdict.expect(not repeated, f"twice before the last batch: {_few(repeated)}")
    fill = [row.index for rank in epoch for row in rank[-1] if not row.valid]
    uneven = Counter(fill)
    verdict.expect(
        not fill or max(uneven.values()) <= -(-len(fill) // len(truth)), f"padding repeats itself: {_few(fill)}"
    )


def _judge_row(verdict: Verdict, cell: Cell, truth: Truth, epochs: Sequence[Epoch]) -> None:
    """Epochs are parts of an endless row, in which every class has its share, and goes through passes of its own."""
    rows = {number: row_of_all(epoch) for number, epoch in zip(cell.epoch_numbers, epochs, strict=True)}
    for number in range(len(rows) - 1):
        fill, following = rows[number][len(truth) :], rows[number + 1]
        verdict.expect(fill == following[: len(fill)], f"the fill of epoch {number} is not what comes next")
    row = [index for number in range(len(rows)) for index in rows[number][: len(truth)]]
    classes = truth.choice.classes
    shares = truth.choice.shares or [1 / len(classes) for _ in classes]
    for label, (members, share) in enumerate(zip(classes, shares, strict=True)):
        came = [index in members for index in row]
        num_came, far = 0, 0.0
        for slot, is_member in enumerate(came, 1):
            num_came += is_member
            far = max(far, abs(num_came - slot * share))
        verdict.expect(far < 1, f"class {label} is {far:.2f} examples from its share")
        stream = [index for index in row if index in members]
        for start in range(0, len(stream), len(members)):
            one_pass = Counter(stream[start : start + len(members)])
            twice = [truth.ids[index] for index, times in one_pass.items() if times > 1]
            is_whole = one_pass.total() == len(members)
            missing = [truth.ids[index] for index in members if is_whole and not one_pass[index]]
            verdict.expect(not twice, f"twice in a pass of class {label}: {_few(twice)}")
            verdict.expect(not missing, f"missing in a pass of class {label}: {_few(missing)}")
            verdict.twice += twice
            verdict.missing += missing


def _judge_files(verdict: Verdict, cell: Cell, truth: Truth, epoch: Epoch) -> None:
    """Shuffled `files`: whole files, each for one pipeline; only of its last one a pipeline reads a part."""
    files = [file for file, length in enumerate(truth.file_lengths) for _ in range(length)]
    readers: Counter[int] = Counter()
    for pipeline, (place, rows) in enumerate(shares(cell, epoch).items()):
        counts = Counter(row.index for row in rows)
        num_dealt = len(range(pipeline, len(truth.file_lengths), cell.num_pipelines))
        parts = []
        for file, group in groupby(range(len(truth)), files.__getitem__):
            times = [counts[index] for index in group]
            if len(set(times)) > 1:
                parts.append(file)
                verdict.expect(
                    max(times) - min(times) == 1 and _is_window([n > min(times) for n in times]),
                    f"pipeline {place} reads no consecutive part of file {file}: {times}",
                )
        touched = {files[index] for index in counts}
        verdict.expect(len(parts) <= 1, f"pipeline {place} reads parts of several files: {parts}")
        if len(touched) <= num_dealt and max(counts.values()) == 1 and (parts or len(touched) < num_dealt):
            readers.update(touched)  # It did not get beyond the files of this pass.
    shared = [file for file, times in readers.items() if times > 1]
    verdict.expect(not shared, f"files read by several pipelines: {shared}")


def _is_window(marks: Sequence[bool]) -> bool:
    """Whether the true ones lie next to each other on a ring."""
    return sum(marks[at] != marks[at - 1] for at in range(len(marks))) <= 2


def _judge_order(verdict: Verdict, cell: Cell, truth: Truth, epoch: Epoch) -> None:
    """Without shuffling every pipeline reads its cut in the order of the files."""
    streams = expected.unshuffled_streams(cell, truth)
    for place, rows in shares(cell, epoch).items():
        came = [row.index for row in rows]
        verdict.expect(
            came == streams[place],
            f"pipeline {place}: not in the order of the files: {_differences(came, streams[place])}",
        )


def _judge_epochs(verdict: Verdict, cell: Cell, truth: Truth, shuffles: bool, epochs: Sequence[Epoch]) -> None:
    """The same epoch is the same sequence; another epoch, when shuffled, is another one, and deals anew."""
    numbers = cell.epoch_numbers
    sequences = [sequence(epoch) for epoch in epochs]
    for one, other in combinations(range(len(epochs)), 2):
        what = f"iterations {one} (epoch {numbers[one]}) and {other} (epoch {numbers[other]})"
        if numbers[one] == numbers[other] or not shuffles:
            verdict.expect(sequences[one] == sequences[other], f"{what} differ")
        elif len(truth) >= _FEWEST_TO_DIFFER:
            verdict.expect(sequences[one] != sequences[other], f"{what} are the same sequence")
            if cell.num_pipelines > 1:
                dealt = [
                    {p: {row.id for row in rows} for p, rows in shares(cell, epochs[at]).items()} for at in (one, other)
                ]
                verdict.expect(dealt[0] != dealt[1], f"{what} give every pipeline the same examples")


def _few(items: Iterable[object]) -> str:
    shown = list(items)
    return ", ".join(map(str, shown[:_NUM_SHOWN])) + (", ..." if len(shown) > _NUM_SHOWN else "")


def _differences(came: Sequence[int], wanted: Sequence[int]) -> str:
    pairs = [(at, one, other) for at, (one, other) in enumerate(zip(came, wanted, strict=False)) if one != other]
    where = "; ".join(f"place {at}: {one}, not {other}" for at, one, other in pairs[:_NUM_SHOWN])
    return f"{len(came)} of {len(wanted)} came; {where}"
