"""Suite `start`: how an epoch begins and ends, and what it costs in memory.

    python -m tfds_torch.bench

reads the embedded photographs (2,048 JPEGs of about 500x375 in 8 shards) in sample mode, through a DataLoader with
persistent workers, and prints for every epoch: seconds to the first batch, seconds from the last batch to the end of
the loop, and examples per second of the whole epoch, both included. Memory is the proportional set size (PSS) in the
middle of the last epoch. The transform only asks for the image's size: the figures are those of reading and decoding.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tfds_torch import demo
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.pipeline.tensorflow_runtime import QUIET_ENVIRON
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.plain_loader import image_size, make_plain_loader

_NUM_PHOTOS, _NUM_SHARDS = 2048, 8
_PACKAGES = ("tensorflow-cpu", "tensorflow-datasets", "torch")


class EpochFigures(NamedTuple):
    """Times of one epoch, seconds."""

    first_batch_s: float
    tail_s: float
    whole_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.bench", description="Measures the suite `start`.")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6, help="epoch 0 starts the workers and is listed apart")
    options = parser.parse_args(arguments)
    os.environ.update(QUIET_ENVIRON | os.environ)
    root = demo.prepare("photos", num_examples=_NUM_PHOTOS, num_shards=_NUM_SHARDS)
    source = ParserTfds(root, "photos", is_training=True, batch_size=options.batch_size)
    dataset = ImageDataset(source, transform=image_size, fields=("image", "label"))
    figures, memory = _measure(make_plain_loader(dataset, options.workers, collate_fn=len), options.epochs)
    _print(options, figures, memory, len(dataset))
    return 0


def _measure(loader: Any, num_epochs: int) -> tuple[list[EpochFigures], dict[str, float]]:
    figures, memory = [], {}
    for _ in range(num_epochs):
        started = time.perf_counter()
        first = last = 0.0
        for number, _ in enumerate(loader, start=1):
            last = time.perf_counter()
            first = first or last
            if number == len(loader) // 2:
                memory = _memory_megabytes()
        ended = time.perf_counter()
        figures.append(EpochFigures(first - started, ended - last, ended - started))
    return figures, memory


def _print(
    options: argparse.Namespace, figures: Sequence[EpochFigures], memory: dict[str, float], num_examples: int
) -> None:
    title = f"start: {num_examples} photos, batch_size {options.batch_size}, {options.workers} workers"
    table = Table(title=title, title_justify="left")
    for heading in ("epoch", "first batch s", "tail s", "examples/s"):
        table.add_column(heading, justify="right")
    for number, epoch in enumerate(figures):
        table.add_row(str(number), *_columns(epoch, num_examples))
    later = figures[1:] or figures
    median = EpochFigures(*(statistics.median(column) for column in zip(*later, strict=True)))
    table.add_section()
    table.add_row("median of 1..", *_columns(median, num_examples))
    console = Console()
    console.print(table)
    listed = ", ".join(f"{who} {megabytes:.0f}" for who, megabytes in memory.items())
    console.print(f"PSS in MB: {listed or 'not known on this system'}")
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}")


def _columns(epoch: EpochFigures, num_examples: int) -> tuple[str, str, str]:
    return f"{epoch.first_batch_s:.2f}", f"{epoch.tail_s:.3f}", f"{num_examples / epoch.whole_s:,.0f}"


def _memory_megabytes() -> dict[str, float]:
    """Returns the PSS of this process and of its children; empty where the system does not tell."""
    own = os.getpid()
    try:
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return {"parent": _pss_megabytes(own)} | {f"child {pid}": _pss_megabytes(int(pid)) for pid in children}
    except OSError:
        return {}


def _pss_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
