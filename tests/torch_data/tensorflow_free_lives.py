"""All ways of reading, in processes that cannot import tensorflow: `tensorflow_free_lives.py FUNCTION ARGUMENTS...`.

test_without_tensorflow.py runs it as a script; it prints the result as JSON.
"""

import json
import os
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserTfds,
    TrainPreprocess,
    World,
    create_loader,
)

SPLIT, NUM_EXAMPLES, BATCH_SIZE = "train[:40]", 40, 8
NAMES = ("digits", "photos")


def read_everything(root: str, method: str) -> dict[str, list[int]]:
    """Returns way of reading -> the indices that came, in order.

    Args:
        root: the data dir.
        method: how workers are started; `none`: there are none.
    """
    workers: dict[str, Any] = {"num_workers": 0}
    if method != "none":
        workers = {"num_workers": 2 if method == "fork" else 1, "multiprocessing_context": method}
    found = {}
    for way in (train, evaluate, read_samples, read_by_sampler, resume, read_batched):
        names = NAMES if way is not read_batched else NAMES[:1]  # Whose images are of one size.
        # Workers decode as this process does: one dataset tells. A spawned one takes two seconds to import torch.
        for name in names if method == "none" else names[-1:]:
            found[f"{way.__name__} {name}"] = way(root, name, workers)
    return found


def open_split(root: str, name: str, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, name, SPLIT, batch_size=BATCH_SIZE, **arguments)


def train(root: str, name: str, workers: dict[str, Any]) -> list[int]:
    parser = open_split(root, name, is_training=True, preprocess=TrainPreprocess(16))
    with create_loader(ImageDataset(parser, fields=("image", "index")), **workers) as loader:
        return [at for images, index in loader if images.shape[1:] == (3, 16, 16) for at in index.tolist()]


def evaluate(root: str, name: str, workers: dict[str, Any]) -> list[int]:
    parser = open_split(root, name, preprocess=EvalPreprocess(16, interpolation="bicubic"))
    loader = DataLoader(ImageDataset(parser, fields=("image", "label", "index")), batch_size=None, **workers)
    return [at for *_, index in loader for at in index.tolist()]


def read_samples(root: str, name: str, workers: dict[str, Any]) -> list[int]:
    fields = ("index", "image", "id", *(["file_name"] if name == "photos" else []))
    dataset = ImageDataset(open_split(root, name), np.asarray, fields=fields)
    return [row[0] for rows in DataLoader(dataset, BATCH_SIZE, collate_fn=list, **workers) for row in rows]


def read_batched(root: str, name: str, workers: dict[str, Any]) -> list[int]:
    dataset = ImageDataset(open_split(root, name), fields=("image", "index"), batched=True)
    return [at for _, index in DataLoader(dataset, batch_size=None, **workers) for at in index.tolist()]


def read_by_sampler(root: str, name: str, workers: dict[str, Any]) -> list[int]:
    dataset = IndexedImageDataset(open_split(root, name), np.asarray, fields=("image", "index"))
    return [row[1] for rows in DataLoader(dataset, BATCH_SIZE, collate_fn=list, **workers) for row in rows]


def resume(root: str, name: str, workers: dict[str, Any]) -> list[int]:
    """Two batches, and the rest by another loader that goes on from a state."""
    parser = open_split(root, name, is_training=True, preprocess=TrainPreprocess(8))
    found = []
    with create_loader(ImageDataset(parser, fields=("index",)), **workers) as loader:
        for (index,) in islice(loader, 2):
            found += index.tolist()
        state = json.loads(json.dumps(loader.state_dict()))
    with create_loader(ImageDataset(parser, fields=("index",)), **workers) as loader:
        loader.load_state_dict(state)
        return found + [at for (index,) in loader for at in index.tolist()]


def look_at_examples(root: str) -> dict[str, list[int]]:
    """Returns the indices of examples that are asked for one by one."""
    found = {}
    for name in NAMES:
        parser = ParserTfds(root, name, SPLIT, image_mode=None)
        examples = [parser[3], parser[-1], parser[parser[3].id], *parser[5:8]]
        assert all(example.image.dtype == np.uint8 for example in examples)
        found[name] = [example.index for example in examples]
        assert len(parser.filenames()) == NUM_EXAMPLES
    return found


def check(root: str, folder: str) -> dict[str, Any]:
    """Returns what the parts of `python -m tfds_torch.check` see, but for TFDS's own reader."""
    from tfds_torch.check.delivery import choose_delivery, read_sizes
    from tfds_torch.check.expected import expect
    from tfds_torch.check.ledger import EpochEnd, Ledger, Received
    from tfds_torch.check.pictures import save_contact_sheet
    from tfds_torch.check.promises import judge, judge_index
    from tfds_torch.check.reader import choose_points, kept_batches
    from tfds_torch.check.reading import HowRead, read_other_world, read_rank
    from tfds_torch.parsers.recipes import Config

    config = Config(name="photos", split=SPLIT, batch_size=BATCH_SIZE, is_training=True, num_workers=2)
    parser = config.make_parser(root)
    sizes = read_sizes(parser, [0, 5])
    delivery, batched = choose_delivery(parser, None, None, num_workers=2, is_plain=False, is_single=False)
    found: dict[str, Any] = {"broken": [], "num_promises": [], "is_batched": delivery.is_batched, "sizes": len(sizes)}
    for read, num_replicas, num_workers in ((batched, 2, 2), (parser, 1, 0)):
        expected = expect(read, num_replicas, num_workers, 1)
        kept = kept_batches(choose_points(expected.plan, 1), expected.plan.num_batches, 1)
        ledger, readings, how = Ledger(expected, kept=kept), [], HowRead(num_workers, 1)
        for rank in range(num_replicas):
            for step in read_rank(read, how, World(rank, num_replicas)):
                if isinstance(step, Received):
                    ledger.add(rank, 0, step)
                elif isinstance(step, EpochEnd):
                    ledger.end(rank, 0, step)
                else:
                    readings.append(step)
        other = read_other_world(read, expected, how, readings[0].resumed)
        promises = [*judge(ledger), *judge_index(ledger, readings, other)]
        found["broken"] += [promise.name for promise in promises if not promise.kept]
        found["num_promises"].append(len(promises))
    save_contact_sheet(parser, Path(folder, "sheet.png"), "photos")
    return found | {"sheet": os.path.getsize(Path(folder, "sheet.png")) > 0}


@dataclass(frozen=True)
class Inverted(EvalPreprocess):
    """Inverts images by tensorflow."""

    def augment(self, images: Any, random: Any) -> None:
        import tensorflow as tf

        images[:] = 255 - tf.constant(images)


def use_tensorflow(root: str, method: str) -> dict[str, Any]:
    """Returns what comes of an augment that imports tensorflow, and this process."""
    parser = open_split(root, "digits", preprocess=Inverted(8))
    workers: dict[str, Any] = {} if method == "none" else {"num_workers": 1, "multiprocessing_context": method}
    try:
        with create_loader(ImageDataset(parser), **workers) as loader:
            list(loader)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}", "pid": os.getpid()}
    return {"error": "", "pid": os.getpid()}


if __name__ == "__main__":
    result = globals()[sys.argv[1]](*sys.argv[2:])
    assert "tensorflow" not in sys.modules
    print(json.dumps(result))
