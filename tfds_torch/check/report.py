"""What the check prints: the dataset's card, the plan, then what was found."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfds_torch.check.content import ImageSizes, LabelCount, choose_shown
from tfds_torch.check.expectation import Expectation, PipelineCounts
from tfds_torch.check.figures import Rows, count_rows, describe_members, plural
from tfds_torch.check.findings import Findings
from tfds_torch.check.ledger import EpochCounts
from tfds_torch.check.network_report import describe_network, network_rows
from tfds_torch.check.reference import CheckedParser, num_skipped_files, place_of, promised_by
from tfds_torch.check.throughput import RankReading
from tfds_torch.check.verdict import Promise
from tfds_torch.images.decoders import jpeg
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.own import ParserMapStyle
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.plan.drawn import Drawn
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.mixed import Mixed
from tfds_torch.runtime.printable import printable

_MOST_ROWS = 24
_MOST_CLASSES = 10
_LABEL_WIDTH = 32
_BAR_WIDTH = 40


def plain(text: str) -> Text:
    """Returns text from a dataset or a user as it is: no markup or emoji codes, control characters made visible."""
    return Text(printable(text))


def print_card(console: Console, parser: CheckedParser, is_fake: bool) -> None:
    """Prints what the dataset is."""
    table = _grid(2)
    if is_fake:
        table.add_row("content", Text("made up: its form is the dataset's, its images and labels mean nothing"))
    table.add_row("split", plain(describe_split(parser)))
    if isinstance(parser, ParserMixture):
        members = describe_members(parser)
        others = [f"and {len(members) - _MOST_ROWS} more"] if len(members) > _MOST_ROWS else []
        table.add_row("members", plain("\n".join([*members[:_MOST_ROWS], *others])))
    elif (place := place_of(parser)) is not None:
        kind = "URL" if isinstance(place, str) else "file" if place.is_file() else "directory"
        table.add_row(kind, plain(str(place)))
    skipped = num_skipped_files(parser)
    if skipped:
        table.add_row("skipped", f"{plural(skipped, 'file')} of no sample, such as tar tools leave them")
    names = parser.class_names
    if names:
        more = f" ... ({len(names)} classes)" if len(names) > _MOST_CLASSES else f" ({len(names)} classes)"
        table.add_row("classes", plain(", ".join(names[:_MOST_CLASSES]) + more))
    features = [f"{key} {form}" for key, form in describe_features(parser)]
    table.add_row("features", plain("\n".join(features)))
    if parser.dataset.image_key is not None:
        table.add_row("JPEG by", plain(jpeg.describe(parser.read.jpeg_decoder)))
    console.print(Panel(table, title=plain(parser.dataset_name), title_align="left", expand=False))


def describe_split(parser: CheckedParser) -> str:
    """Returns how many examples the split has, and in how many files; nobody knows the files of one's own dataset."""
    found = f"{parser.split}: {plural(parser.num_examples, 'example')}"
    if isinstance(parser, ParserMapStyle):
        return found
    return f"{found} in {plural(parser.num_shards, 'shard' if parser.source.has_shards else 'file')}"


def print_plan(console: Console, expected: Expectation, pipelines: Sequence[PipelineCounts], num_workers: int) -> None:
    """Prints what each pipeline is to read in epoch 0."""
    console.print(describe_plan(expected))
    console.print(_table(*plan_rows(expected, pipelines, num_workers), "pipelines"))


def plan_rows(expected: Expectation, pipelines: Sequence[PipelineCounts], num_workers: int) -> Rows:
    """Returns the table of what each pipeline is to read."""
    headings = ["rank", "worker", "batches", "examples", "fill", *(["in its files"] * (expected.mode == "files"))]
    rows = []
    for counts in pipelines:
        numbers = (counts.num_batches, counts.num_examples, counts.num_fill, counts.num_available)
        worker = "-" if num_workers == 0 else str(counts.worker)
        rows.append([str(counts.rank), worker, *(f"{number:,}" for number in numbers)][: len(headings)])
    return headings, rows


def describe_plan(expected: Expectation) -> str:
    """Returns how an epoch is read, in a line."""
    plan = expected.plan
    kind = "Training" if plan.is_training else "Evaluation"
    ranks = "one rank" if expected.num_replicas == 1 else f"each of {expected.num_replicas} ranks"
    return (
        f"{kind}: {plural(plan.num_batches, 'batch')} of {plan.batch_size} on {ranks}, "
        f"remainder {plan.remainder.value!r}, read mode {expected.mode!r}"
    )


def print_judged(console: Console, findings: Findings) -> None:
    """Prints what came, and which promises that keeps."""
    if findings.parser is not None and findings.expected is not None:
        console.print("Ledger:", plain(_describe_promised(findings.parser, findings.expected.plan)))
    console.print(_ledger(findings.counts))
    if any(count.members for count in findings.counts.values()):
        order = None if findings.expected is None else findings.expected.plan.order
        is_balanced = isinstance(order, Mixed) and order.whose == "class"
        one, all_of_them = ("class", "classes") if is_balanced else ("member", "members")
        console.print(_table(*count_rows(findings.counts, one), f"{all_of_them} and epochs"))
    console.print(_promises(findings.promises))
    for skipped in findings.not_judged:
        console.print("Not judged:", plain(f"{skipped.name}: {skipped.reason}"), soft_wrap=True)


def print_findings(console: Console, findings: Findings) -> None:
    """Prints everything that was found out by reading."""
    print_judged(console, findings)
    if findings.labels:
        console.print(_labels(findings.labels, console.width))
    if findings.delivery is not None:
        console.print("Read by", plain(str(findings.delivery)), soft_wrap=True)
    together = findings.is_torchrun
    console.print(f"Throughput: {describe_ranks(findings)}")
    console.print(_table(*speed_rows(findings.readings), "ranks"))
    memory = _memory(findings.readings, together)
    total = _total_speed(findings.readings) if together else ""
    lines = (
        total,
        describe_sizes(findings.image_sizes),
        memory,
        _stages(findings.readings),
        describe_network(findings),
    )
    for line in lines:
        if line:
            console.print(line)
    if rows := network_rows(findings):
        console.print(_table(*rows, "epochs"))
    if findings.advice:
        console.print(Panel(_advice(findings.advice), title="Advice", title_align="left", expand=False))


def print_verdict(console: Console, promises: Sequence[Promise]) -> None:
    """Prints how many promises were kept."""
    broken = sum(not promise.kept for promise in promises)
    if broken:
        console.print(f"[bold red]{broken} of {len(promises)} promises broken.[/]")
    else:
        console.print(f"[bold green]All {len(promises)} promises kept.[/]")


def summarize_interrupted(findings: Findings) -> str:
    """Returns how far an interrupted reading came, and what is known of it; nothing where it had not begun."""
    if findings.expected is None or not findings.num_batches:
        return ""
    plan = findings.expected.plan
    total = plan.num_batches * plan.world.num_replicas * findings.expected.num_epochs
    broken = sum(not promise.kept for promise in findings.promises)
    known = f"{broken} of {len(findings.promises)} promises broken" if broken else "no promise broken"
    whole = plural(len(findings.counts), "whole epoch")
    return f"{findings.num_batches:,} of {plural(total, 'batch')} had come, {whole}; {known} until then."


def _describe_promised(parser: CheckedParser, plan: EpochPlan) -> str:
    """Returns how many examples must come, and what says so."""
    if isinstance(plan.order, Drawn):
        drawn = plural(plan.num_own_slots, "example")
        return f"the weights draw {drawn} of {plan.num_examples:,} in an epoch, in an order of their own"
    return f"{promised_by(parser)} promises {plural(plan.order.promise().pass_size, 'example')} per pass"


def _ledger(epochs: Mapping[int, EpochCounts]) -> Table:
    rows = []
    for number, counts in sorted(epochs.items()):
        lengths = [ids.number for ids in (counts.missing, counts.twice, counts.unknown)]
        numbers = (counts.num_valid, counts.num_padded, *lengths)
        rows.append([str(number), describe_batches(counts.batches), *(f"{figure:,}" for figure in numbers)])
    return _table(["epoch", "batches", "valid", "padded", "missing", "twice", "unknown"], rows, "epochs")


def _promises(promises: Sequence[Promise]) -> Panel:
    table = _grid(3)
    for promise in promises:
        mark = "[green]kept[/]" if promise.kept else "[bold red]BROKEN[/]"
        table.add_row(mark, plain(promise.name), plain(promise.detail))
    return Panel(table, title="Promises", title_align="left", expand=False)


def _labels(labels: Sequence[LabelCount], width: int) -> Panel:
    """A bar for each label; of many labels the most frequent and the rarest."""
    most = max(count.num_examples for count in labels)
    shown, note = choose_shown(labels)
    name_width = min(_LABEL_WIDTH, max(cell_len(printable(count.name)) for count in shown))
    bar_width = max(1, min(_BAR_WIDTH, width - name_width - len(f"{most:,}") - 10))
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", max_width=_LABEL_WIDTH)
    table.add_column(justify="right")
    table.add_column()
    for count in shown:
        length = round(bar_width * count.num_examples / max(1, most))
        bar = "█" * length or ("▏" if count.num_examples else "")
        table.add_row(plain(count.name), f"{count.num_examples:,}", Text(bar, style="cyan"))
    return Panel(Group(table, Text(note)) if note else table, title="Labels", title_align="left", expand=False)


def speed_rows(ranks: Sequence[RankReading]) -> Rows:
    """Returns the table of how fast each rank read."""
    rows = []
    for rank in ranks:
        later = "-" if rank.later_first_batch_s is None else f"{rank.later_first_batch_s:.2f}"
        speed = f"{rank.examples_per_s:,.0f}"
        rows.append([str(rank.rank), f"{rank.first_batch_s:.2f}", later, speed, f"{rank.tail_s:.3f}"])
    return ["rank", "first batch s", "later first batch s", "examples/s", "tail s"], rows


def describe_ranks(findings: Findings) -> str:
    """Returns what the ranks had of the machine while their speed was measured."""
    num_ranks, together = len(findings.readings), findings.is_torchrun
    ranks = f"{plural(num_ranks, 'rank')} of torch.distributed" if together else "each rank"
    return f"{ranks} {'at the same time' if together and num_ranks > 1 else 'alone'} on this machine"


def describe_sizes(sizes: ImageSizes | None) -> str:
    """Returns a line about the sizes of images; nothing where they are not known."""
    if sizes is None:
        return ""
    smallest, median, largest = (f"{width}x{height}" for width, height in (sizes.smallest, sizes.median, sizes.largest))
    found = f"all {median}" if smallest == largest else f"{smallest} to {largest}, median {median}"
    return f"Images: {found} ({plural(sizes.num_images, 'image')} looked at)"


def _total_speed(ranks: Sequence[RankReading]) -> str:
    return f"All ranks together: {sum(rank.examples_per_s for rank in ranks):,.0f} examples/s" if len(ranks) > 1 else ""


def find_heaviest(ranks: Sequence[RankReading]) -> RankReading:
    """Returns the rank whose processes took the most memory."""
    return max(ranks, key=lambda rank: sum(rank.memory.values()))


def _memory(ranks: Sequence[RankReading], together: bool) -> str:
    """The processes of the rank that took most; of ranks at the same time also the sum of all."""
    heaviest = find_heaviest(ranks)
    if not heaviest.memory:
        return ""
    parent, *children = heaviest.memory.values()
    listed = " + ".join(f"{size / 1e6:,.0f}" for size in sorted(children, reverse=True))
    whose = f"rank {heaviest.rank}" if together else "this process"
    line = f"Memory (PSS, MB): {whose} {parent / 1e6:,.0f}" + (f", its children {listed}" if children else "")
    total = sum(sum(rank.memory.values()) for rank in ranks)
    return line + (f"; all ranks {total / 1e6:,.0f}" if together and len(ranks) > 1 else "")


def _stages(ranks: Sequence[RankReading]) -> str:
    speed = ranks[0]
    if not speed.stages:
        return ""
    batches = plural(speed.num_batches, "batch")
    line = f"Stages of {batches} of rank 0 in {speed.timed_s:.2f} s, seconds of all workers: {_list(speed.stages)}"
    if speed.first_stages:
        line += f"\nStages of its first epoch in {speed.times[0].whole_s:.2f} s: {_list(speed.first_stages)}"
    return line


def _list(stages: Mapping[str, float]) -> str:
    return ", ".join(f"{stage.replace('_', '-')} {seconds:.2f}" for stage, seconds in stages.items())


def _advice(sentences: Sequence[str]) -> Table:
    table = _grid(2)
    for sentence in sentences:
        table.add_row("-", plain(sentence))
    return table


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*map(plain, row))
    if len(rows) > _MOST_ROWS:
        table.caption = f"and {len(rows) - _MOST_ROWS} more {kind}"
    return table


def _grid(num_columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(num_columns):
        table.add_column(overflow="fold")  # A path or a reason is printed whole, however narrow the terminal.
    return table


def describe_batches(batches: Sequence[int]) -> str:
    """Returns how many batches each rank had: `45`, `23 on each of 2`, `23 22`."""
    if len(set(batches)) == 1:
        return f"{batches[0]} on each of {len(batches)}" if len(batches) > 1 else str(batches[0])
    return " ".join(map(str, batches))


def describe_features(parser: CheckedParser) -> list[tuple[str, str]]:
    """Returns (name, dtype and shape) of every feature of the dataset, as in `image`, `uint8[8, 8, 1]`."""
    fields = parser.element_spec.fields
    return [(key, _describe(spec)) for key, spec in fields.items() if key not in METADATA_FIELDS]


def _describe(spec: Any) -> str:
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key} {_describe(inner)}" for key, inner in spec.items()) + "}"
    shape = ", ".join("?" if size is None else str(size) for size in spec.shape)
    kind = "str" if spec.dtype in (object, str, bytes) else getattr(spec.dtype, "__name__", str(spec.dtype))
    return f"{kind}[{shape}]" if spec.shape else kind
