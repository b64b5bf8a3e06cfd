"""Lives of whole processes, run as scripts: `scenarios.py FUNCTION ARGUMENTS...` prints the result as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import torch.distributed
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, ParserTfds, World, errors

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

from torch_data.reading import LEDGER, rows_of

BATCH_SIZE = 8


def training_parser(root: str | Path) -> ParserTfds:
    """The parser of these scenarios."""
    return ParserTfds(root, "photos", is_training=True, batch_size=BATCH_SIZE)


def train_with_workers(root: str) -> dict[str, Any]:
    """A training process with two workers."""
    dataset = ImageDataset(training_parser(root), fields=LEDGER)
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=2)
    result: dict[str, Any] = {"names": dataset.filenames(), "len": len(loader), "rows": rows_of(loader)}
    result["tensorflow"] = "tensorflow" in sys.modules
    # The resource tracker is Python's own, and watches the epoch counter's semaphore.
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    result["children"] = [command for command in commands if "resource_tracker" not in command]
    return result


def meet_errors(root: str, *damaged_roots: str) -> dict[str, list[str]]:
    """A process whose workers fail in several ways; returns type and message of what arrived.

    It runs by itself, as torch takes five seconds to release a failed worker, unless the process ends.
    """
    parsers = {damaged: training_parser(damaged) for damaged in damaged_roots}
    parsers["no batch_size"] = ParserTfds(root, "photos")
    found, iterators = {}, []
    for name, parser in parsers.items():
        loader = DataLoader(ImageDataset(parser, fields=LEDGER), BATCH_SIZE, num_workers=2)
        iterators.append(iter(loader))
        try:
            rows_of(iterators[-1])
        except errors.TfdsTorchError as error:
            found[name] = [type(error).__name__, str(error)]
    found["tensorflow"] = [str("tensorflow" in sys.modules)]
    return found


def use_notebook(root: str, *steps: str) -> list[Any]:
    """One process and one dataset; returns a result for every step.

    A step is a number of workers (under fork), `break` (an epoch of two workers, broken off), `run tf` or `import tf`.
    """
    dataset = ImageDataset(training_parser(root), fields=LEDGER)

    def load(num_workers: int) -> DataLoader[Any]:
        return DataLoader(
            dataset, BATCH_SIZE, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
        )

    def take(step: str) -> Any:
        if step == "import tf":
            import tensorflow as tf

            return tf.__version__
        if step == "run tf":
            import tensorflow as tf

            doubled = tf.data.Dataset.range(8).map(lambda x: x * 2, num_parallel_calls=2)
            return sum(doubled.as_numpy_iterator()).item()
        return rows_of([next(iter(load(2)))] if step == "break" else load(int(step)))

    return [take(step) for step in steps]


def train_with_forkserver(root: str) -> list[Any]:
    """Two epochs of persistent workers, and one of others, of a fork server."""
    dataset = ImageDataset(training_parser(root), fields=LEDGER)
    loader = DataLoader(
        dataset, BATCH_SIZE, num_workers=2, multiprocessing_context="forkserver", persistent_workers=True
    )
    epochs = [rows_of(loader), rows_of(loader)]
    dataset.set_epoch(2)
    other = DataLoader(dataset, BATCH_SIZE, num_workers=2, multiprocessing_context="forkserver")
    return [*epochs, rows_of(other)]


def train_as_rank(root: str, rank: str, num_replicas: str, store: str, method: str) -> dict[str, Any]:
    """One rank of a training under torch.distributed, started by hand: the environment names no rank."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(num_replicas)
    )
    dataset = ImageDataset(training_parser(root), fields=LEDGER)
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=2, multiprocessing_context=method)
    alone = ImageDataset(training_parser(root), fields=LEDGER, world=World())
    result = {"len": len(loader), "rows": rows_of(loader), "len alone": len(DataLoader(alone, BATCH_SIZE))}
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return result


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
