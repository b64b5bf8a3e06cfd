"""What the check prints: the dataset's card, the plan, the ledger, the promises."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfds_torch.check.ledger import Expectation, Promise, RankEpoch, count_epoch
from tfds_torch.parsers.parser import LEDGER_FIELDS
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.plan.world import World

_MOST_ROWS = 24
_MOST_CLASSES = 10


def plain(text: str) -> Text:
    """Returns text from a dataset or a user as it is: no markup, no emoji codes, control characters made visible."""
    return Text("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text))


def print_card(console: Console, parser: ParserTfds) -> None:
    """Prints what the dataset is."""
    table = _grid(2)
    shards = _plural(len({run.path for run in parser.files}), "shard")
    table.add_row("split", plain(f"{parser.split}: {_plural(parser.num_examples, 'example')} in {shards}"))
    table.add_row("directory", plain(str(parser.data_dir)))
    names = parser.class_names
    if names:
        more = f" ... ({len(names)} classes)" if len(names) > _MOST_CLASSES else f" ({len(names)} classes)"
        table.add_row("classes", plain(", ".join(names[:_MOST_CLASSES]) + more))
    features = [
        f"{key} {_describe(spec)}" for key, spec in parser.element_spec.fields.items() if key not in LEDGER_FIELDS
    ]
    table.add_row("features", plain("\n".join(features)))
    console.print(Panel(table, title=plain(parser.dataset_name), title_align="left", expand=False))


def print_plan(console: Console, parser: ParserTfds, num_replicas: int, num_workers: int, mode: str) -> None:
    """Prints what each pipeline is to read in epoch 0."""
    plan = parser.plan(World(0, num_replicas))
    kind = "Training" if plan.is_training else "Evaluation"
    ranks = "one rank" if num_replicas == 1 else f"each of {num_replicas} ranks"
    pipelines = max(1, num_workers)
    console.print(
        f"{kind}: {_plural(plan.num_batches, 'batch')} of {plan.batch_size} on {ranks}, "
        f"remainder {plan.remainder.value!r}, read mode {mode!r}"
    )
    table = Table()
    headings = ("rank", "worker", "batches", "examples", "fill") + (("in its files",) if mode == "files" else ())
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    grid = World.grid(num_replicas, pipelines)
    for world in grid[:_MOST_ROWS]:
        share = parser.share(world)
        numbers = (len(parser.plan(world).worker_batches()), share.num_valid, share.num_fill, share.num_available)
        worker = "-" if num_workers == 0 else str(world.worker)
        row = (str(world.rank), worker, *(f"{number:,}" for number in numbers))
        table.add_row(*row[: len(headings)])
    if len(grid) > _MOST_ROWS:
        table.caption = f"and {len(grid) - _MOST_ROWS} more pipelines"
    console.print(table)


def print_ledger(console: Console, expected: Expectation, received: Sequence[RankEpoch]) -> None:
    """Prints what came, epoch by epoch."""
    console.print(f"Ledger: dataset_info.json promises {_plural(len(expected.ids), 'example')} per pass")
    table = Table()
    for heading in ("epoch", "batches", "valid", "padded", "missing", "twice", "unknown"):
        table.add_column(heading, justify="right", overflow="fold")
    for epoch in sorted({rank.epoch for rank in received}):
        counts = count_epoch(expected, [rank for rank in received if rank.epoch == epoch])
        lengths = [len(ids) for ids in (counts.missing, counts.twice, counts.unknown)]
        numbers = (counts.num_valid, counts.num_padded, *lengths)
        table.add_row(str(epoch), _per_rank(counts.batches), *(f"{number:,}" for number in numbers))
    console.print(table)


def print_promises(console: Console, promises: Sequence[Promise]) -> None:
    """Prints which promises were kept."""
    table = _grid(3)
    for promise in promises:
        mark = "[green]kept[/]" if promise.kept else "[bold red]BROKEN[/]"
        table.add_row(mark, plain(promise.name), plain(promise.detail))
    console.print(Panel(table, title="Promises", title_align="left", expand=False))


def _grid(num_columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(num_columns):
        table.add_column(overflow="fold")  # A path or a reason is printed whole, however narrow the terminal.
    return table


def _per_rank(batches: Sequence[int]) -> str:
    if len(set(batches)) == 1:
        return f"{batches[0]} on each of {len(batches)}" if len(batches) > 1 else str(batches[0])
    return " ".join(map(str, batches))


def _plural(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


def _describe(spec: Any) -> str:
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key} {_describe(inner)}" for key, inner in spec.items()) + "}"
    shape = ", ".join("?" if size is None else str(size) for size in spec.shape)
    kind = "str" if spec.dtype in (object, str, bytes) else getattr(spec.dtype, "__name__", str(spec.dtype))
    return f"{kind}[{shape}]" if spec.shape else kind
