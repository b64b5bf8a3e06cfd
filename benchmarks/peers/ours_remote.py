"""This package: photographs from a server, through a cache folder on this machine; or local ones, where no server is.

Configured: whole batches through `create_loader`, as in the suite `jpeg`: `is_training`, batch size, workers, and
`TrainPreprocess`. Encoded images come by `decode={"image": False}`, with the number of each. `RemoteOptions` gets the
cache folder (the option `cache_dir`; none: files are local). All else is a default. Several ranks (`rank`, `num_ranks`)
wait for each other in `meeting_dir`. An epoch is resumed at `first_batch`, and left after `most_batches`.
"""

import itertools
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.protocol import ENCODED, Task, serve

_MEET_S = 120.0
_LOOK_EVERY_S = 0.002


class Photos:
    """The function epoch -> batches of images: torch uint8 [B, 3, H, W], or lists of bytes."""

    def __init__(self, task: Task) -> None:
        from tfds_torch import ImageDataset, World, create_loader

        self._options, self._is_encoded = task.options, task.work == ENCODED
        fields = ("image", "index") if self._is_encoded else ("image",)
        rank, num_ranks = task.options.get("rank", 0), task.options.get("num_ranks", 1)

        def dataset_of(parser: Any) -> Any:
            return ImageDataset(parser, batched=True, fields=fields, world=World(rank, num_ranks))

        dataset = dataset_of(make_parser(task))
        self._loader = create_loader(dataset, num_workers=task.num_workers)
        if first_batch := task.options.get("first_batch", 0):
            self._loader.load_state_dict(dataset_of(dataset.parser).state_dict(batches_delivered=first_batch))
        self._report: dict[str, Any] = {}
        if num_ranks > 1:
            meet(Path(task.options["meeting_dir"]), rank, num_ranks)

    def __call__(self, epoch: int) -> Iterator[Any]:
        """Yields the batches of an epoch."""
        numbers = list[list[int]]()
        report: dict[str, Any] = {"began_at": time.monotonic()}
        most_batches = self._options.get("most_batches")
        for batch in itertools.islice(iter(self._loader), most_batches):
            if most_batches == 1 and "ledger" in self._options:
                with urllib.request.urlopen(self._options["ledger"]) as answer:  # noqa: S310 (a server of our own)
                    report["bytes_before"] = sum(line["bytes"] for line in json.load(answer)["requests"])
            if self._is_encoded:
                numbers.append(batch[1].tolist())
            yield batch[0]
        self._report = {**report, "ended_at": time.monotonic(), "numbers": numbers}

    def report(self) -> dict[str, Any]:
        """Returns what is known of the last epoch.

        `began_at` and `ended_at`, of the clock of `time.monotonic`; where only one batch is read, `bytes_before`: what
        the server had sent when it came; of encoded images, `numbers`: those of each batch.
        """
        return self._report


def make_parser(task: Task) -> Any:
    """Returns the parser of a task's photographs."""
    from tfds_torch import ParserTfds, TrainPreprocess

    options: dict[str, Any] = {"decode": {"image": False}}
    if task.work != ENCODED:
        options = {"preprocess": TrainPreprocess(size=task.size)}
    if "cache_dir" in task.options:
        from tfds_torch import RemoteOptions

        options["remote"] = RemoteOptions(cache_dir=task.options["cache_dir"])
    return ParserTfds(task.data_dir, task.dataset, is_training=True, batch_size=task.batch_size, **options)


def meet(folder: Path, rank: int, num_ranks: int) -> None:
    """Waits until all ranks have come here.

    Raises:
        TimeoutError: one has not.
    """
    (folder / str(rank)).touch()
    deadline = time.monotonic() + _MEET_S
    while len(list(folder.iterdir())) < num_ranks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {num_ranks} ranks, only {len(list(folder.iterdir()))} have started")
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    serve(Photos, ("tfds-torch", "torch", "obstore"))
