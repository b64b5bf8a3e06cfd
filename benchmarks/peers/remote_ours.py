"""This package: photographs from a server, through a cache folder on this machine; or local ones, where no server is.

Configured: whole batches through `create_loader`, as in the suite `jpeg`: `is_training`, batch size, workers, and
`TrainPreprocess`. Encoded images come by `decode={"image": False}`, with the number of each. `RemoteOptions` gets the
cache folder, and `max_bytes` where the folder is limited; `ReadOptions` those of the task. All else is a default.
"""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bucket import RemoteWork
from benchmarks.served_folder import ServerAddress
from benchmarks.task import ENCODED, IMAGE_SHAPE, Task

_MEET_S = 120.0
_LOOK_EVERY_S = 0.002


class Photos:
    """The function epoch -> batches of images: torch uint8 [B, 3, H, W], or lists of bytes.

    Args:
        task: the work.
    """

    def __init__(self, task: Task) -> None:
        from tfds_torch import ImageDataset, World, create_loader

        self._work = RemoteWork(**task.remote)
        self._is_encoded = task.work == ENCODED
        fields = ("image", "index") if self._is_encoded else ("image",)
        world = World(self._work.rank, self._work.num_ranks)
        dataset = ImageDataset(make_parser(task), batched=True, fields=fields, world=world)
        self._loader = create_loader(dataset, num_workers=task.num_workers)
        if self._work.first_batch:
            state = ImageDataset(dataset.parser, batched=True, fields=fields, world=world)
            self._loader.load_state_dict(state.state_dict(batches_delivered=self._work.first_batch))
        self._report: dict[str, Any] = {}
        if self._work.meeting_dir:
            meet(Path(self._work.meeting_dir), self._work.rank, self._work.num_ranks)

    def __call__(self, epoch: int) -> Iterator[Any]:
        """Yields the batches of an epoch."""
        num_bytes, numbers = 0, list[list[int]]()
        report: dict[str, Any] = {"began_at": time.monotonic()}
        batches = iter(self._loader)
        for batch in itertools.islice(batches, self._work.most_batches):
            if "first_at" not in report:
                report["first_at"] = time.monotonic()
                if self._work.url and self._work.most_batches == 1:
                    report["bytes_before"] = ServerAddress(self._work.url).ledger().num_bytes
            if self._is_encoded:
                num_bytes += sum(map(len, batch[0]))
                numbers.append(batch[1].tolist())
            yield batch[0]
        self._report = {**report, "ended_at": time.monotonic(), "num_bytes": num_bytes, "numbers": numbers}

    def report(self) -> dict[str, Any]:
        """Returns what is known of the last epoch.

        `began_at`, `first_at` (its first batch) and `ended_at`, of the clock of `time.monotonic`; where only one batch
        is read, `bytes_before`: what the server had sent when it came. Of encoded images: `num_bytes`, and `numbers`,
        those of each batch.
        """
        return self._report


def load(task: Task) -> Photos:
    """Returns the function epoch -> batches of images."""
    return Photos(task)


def make_parser(task: Task) -> Any:
    """Returns the parser of a task's photographs."""
    from tfds_torch import ParserTfds, ReadOptions, TrainPreprocess

    options: dict[str, Any] = {"decode": {"image": False}}
    if task.work != ENCODED:
        options = {"preprocess": TrainPreprocess(size=(task.image_shape or IMAGE_SHAPE)[-1])}
    work = RemoteWork(**task.remote)
    if work.url:
        from tfds_torch import RemoteOptions

        options["remote"] = RemoteOptions(cache_dir=work.cache_dir, max_bytes=work.max_bytes)
    return ParserTfds(
        task.data_dir,
        task.dataset,
        task.split,
        is_training=True,
        batch_size=task.batch_size,
        read=ReadOptions(**task.read),
        **options,
    )


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
