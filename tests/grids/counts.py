"""The count of a run: how many grids under which start methods, and what came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grids import promises
from grids.cell import NO_WORKERS, Cell, RankLedger, Split
from grids.fleet import TORCHRUN, Failure, Fleet, Task
from grids.promises import Verdict
from grids.rank import read_cell
from grids.splits import Truth

_SPAWN_DEADLINE_S = 180.0


@dataclass
class GridCounts:
    """Cells that ran, and what they broke.

    Attributes:
        verdicts: of every cell.
        sequences: (cell without its start method and persistence, epoch) -> what every rank saw, and under which cell;
            by index also without its ranks and workers (but for groups of blocks), and what all ranks saw together.
    """

    verdicts: list[tuple[Cell, Verdict]] = field(default_factory=list)
    sequences: dict[tuple[object, ...], tuple[Cell, list[list[int]]]] = field(default_factory=dict)

    def add(self, cell: Cell, truth: Truth, split: Split, result: "list[RankLedger] | Failure") -> Verdict:
        """Judges a cell, also against those that read the same in another way."""
        if isinstance(result, Failure):
            verdict = Verdict([result.text])
        else:
            verdict = promises.judge(cell, truth, split.shuffles, result)
            for at, epoch in enumerate(cell.epoch_numbers):
                ranks = [rank.epochs[at] for rank in result]
                key: tuple[object, ...]
                if cell.is_by_index:  # One pass has one order, however it is cut; then comes the fill.
                    came, key = [promises.row_of_all(ranks)[: len(truth)]], (cell.data, cell.task, epoch)
                    if split.groups > 1:  # Blocks are dealt to groups for a size of the global batch.
                        key += (cell.global_batch,)
                else:
                    came = promises.sequence(ranks)
                    key = (cell.data, cell.num_replicas, cell.workers, cell.task, cell.batch_size, epoch)
                first, sequence = self.sequences.setdefault(key, (cell, came))
                verdict.expect(came == sequence, f"epoch {epoch} is another sequence than under {first}")
        self.verdicts.append((cell, verdict))
        return verdict

    def lines(self) -> list[str]:
        """Returns a table: a line for every start method and persistence, and the sum."""
        names = ("grids", "broken", "epochs", "delivered", "padded", "wrapped", "left out", "missing", "twice")
        table = [f"{'workers started by':<28}" + "".join(f"{name:>11}" for name in names)]
        kinds = sorted({_kind(cell) for cell, _ in self.verdicts})
        for kind in [*kinds, "all"]:
            chosen = [(cell, verdict) for cell, verdict in self.verdicts if kind in ("all", _kind(cell))]
            figures = (
                len(chosen),
                sum(bool(verdict.broken) for _, verdict in chosen),
                sum(len(cell.epochs) for cell, _ in chosen),
                sum(verdict.num_delivered for _, verdict in chosen),
                sum(verdict.num_padded for _, verdict in chosen),
                sum(verdict.num_wrapped for _, verdict in chosen),
                sum(verdict.num_left_out for _, verdict in chosen),
                sum(len(verdict.missing) for _, verdict in chosen),
                sum(len(verdict.twice) for _, verdict in chosen),
            )
            table.append(f"{kind:<28}" + "".join(f"{figure:>11,}" for figure in figures))
        return table


def _kind(cell: Cell) -> str:
    if cell.method == NO_WORKERS:
        return "no workers"
    kept = "persistent" if cell.persistent else "new in every epoch"
    return f"MultiLoader, {kept}" if cell.without_torch else f"{cell.method}, {kept}"


def run_cells(
    fleet: Fleet, cells: Sequence[Cell], splits: Mapping[str, Split], truths: Mapping[str, Truth], counts: GridCounts
) -> list[str]:
    """Runs cells and returns, for each that broke a promise, what it was."""
    tasks = [
        Task(
            read_cell,
            (cell, splits[cell.data]),
            cell.num_replicas,
            reads=cell.method in ("none", "fork-after-tf"),
            environment={**TORCHRUN, **dict(splits[cell.data].variables)},
            deadline_s=_SPAWN_DEADLINE_S,
        )
        for cell in cells
    ]
    broken = []
    for number, result in fleet.run(tasks):
        cell = cells[number]
        verdict = counts.add(cell, truths[cell.data], splits[cell.data], result)
        broken += [f"{cell}: {sentence}" for sentence in verdict.broken[:10]]
    return broken
