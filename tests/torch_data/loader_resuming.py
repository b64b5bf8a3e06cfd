"""What ranks do in the tests of a Loader's state: each is a function for `Fleet.call`."""

import os
import random
import signal
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from conformance import Step
from grids.fleet import Place

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, create_loader
from tfds_torch.errors import TfdsTorchError, WorkerError
from torch_data.resuming import Setup, columns_of, make_loader, steps_of


def kill_and_go_on(_: Place, setup: Setup, after: int) -> dict[str, Any]:
    """Returns what came of an epoch in which a worker was killed after some batches, and of its end."""
    with make_loader(setup) as loader:
        whole = list(steps_of(loader))
        loader.set_epoch(0)
        came: list[Step] = []
        message = ""
        try:
            for step in steps_of(loader):
                came.append(step)
                if len(came) == after:
                    os.kill(loader.worker_pids[1], signal.SIGKILL)
        except WorkerError as error:
            message = str(error)
        state = loader.state_dict()
        loader.load_state_dict(state)
        same = list(steps_of(loader))
    with make_loader(replace(setup, num_workers=1)) as fresh:
        fresh.load_state_dict(state)
        other = list(steps_of(fresh))
    return {"whole": whole, "came": came, "message": message, "same": same, "other": other}


def live_with_epochs(_: Place, setup: Setup) -> dict[str, list[tuple[int, int]]]:
    """Returns (epoch, batch) of the steps of iterations of one loader, in order."""

    def places(steps: Iterable[Step]) -> list[tuple[int, int]]:
        return [(step.epoch, step.batch) for step in steps]

    found = {}
    with make_loader(setup) as loader:
        found["first"] = places(steps_of(loader))
        found["broken off"] = places(step for step, _ in zip(steps_of(loader), range(1), strict=False))
        found["after a break"] = places(steps_of(loader))
        loader.set_epoch(7)
        found["set"] = places(steps_of(loader))
        loader.dataset.set_epoch(4)
        found["set by the dataset"] = places(steps_of(loader))
        loader.load_state_dict(loader.state_dict())
        found["an ended epoch"] = places(steps_of(loader))
        found["the next one"] = places(steps_of(loader))
    return found


def misuse(_: Place, setup: Setup) -> dict[str, str]:
    """Returns what is said to calls that cannot work."""
    loader = make_loader(setup)
    iteration = iter(loader)
    next(iteration)
    calls = {
        "dataset": lambda: loader.dataset.state_dict(batches_delivered=1),
        "position": lambda: loader.load_state_dict({"began_at": {}}),
        "damaged": lambda: loader.load_state_dict({**loader.state_dict(), "epoch": 3}),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = ""
        except TfdsTorchError as error:
            said[name] = f"{type(error).__name__}: {error}"
    loader.close()
    return said


class Draw:
    """A transform that is three random numbers; picklable."""

    def __call__(self, image: Any) -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), torch.rand(()).item()


def draw(_: Place, setup: Setup, seed: int | None, epochs: list[int]) -> list[Any]:
    """Returns what a transform draws in the workers in some epochs, read by one loader."""
    dataset = ImageDataset(setup.dataset().parser, Draw(), fields=("image",), seed_transforms=False)
    found = []
    with create_loader(dataset, collate_fn=list, seed=seed, **setup.of_workers) as loader:
        for epoch in epochs:
            loader.set_epoch(epoch)
            found.append([example[0] for batch in loader for example in batch])
    return found


def read_whole_batches(_: Place, setup: Setup, size: int) -> dict[str, Any]:
    """Returns what is special of whole batches: their images, and that a state goes on behind a prefetcher."""
    parser = ParserTfds(**setup.arguments, batch_size=setup.batch_size, preprocess=TrainPreprocess(size=size))
    dataset = ImageDataset(parser, fields=("image", "label", "valid", "index", "id"))
    with create_loader(dataset, device="cpu", mean=(0.5,) * 3, std=(0.25,) * 3, **setup.of_workers) as loader:
        whole = [(image, index.tolist()) for image, _, _, index, _ in loader]
        loader.set_epoch(0)
        for number, _batch in enumerate(loader, 1):
            if number == 3:
                break
        loader.load_state_dict(loader.state_dict())
        rest = [(image, index.tolist()) for image, _, _, index, _ in loader]
        stats = loader.stats()
    images = [image for image, _ in whole]
    return {
        "shapes": [tuple(image.shape) for image in images],
        "dtypes": {str(image.dtype) for image in images},
        "channels_last": all(image.is_contiguous(memory_format=torch.channels_last) for image in images),
        "indices": [index for _, index in whole],
        "rest": [index for _, index in rest],
        "same pixels": all(torch.equal(ours, theirs) for (ours, _), (theirs, _) in zip(rest, whole[3:], strict=True)),
        "len": len(loader),
        "examples": stats.examples,
        "was decoded": stats.decode_s > 0 and stats.read_s > 0,
    }


def compare_ranks(place: Place, setup: Setup, differ: bool) -> str:
    """Returns what a rank is told before its first batch, where the ranks have different numbers of workers, or not."""
    torch.distributed.init_process_group("gloo")
    try:
        with create_loader(setup.dataset(None), place.rank + 1 if differ else 1, collate_fn=columns_of) as loader:
            return f"{len(list(loader))} batches"
    except TfdsTorchError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.distributed.destroy_process_group()
