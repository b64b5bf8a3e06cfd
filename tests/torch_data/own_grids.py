"""What ranks do in the grids over a dataset of one's own: each is a function for `Fleet.call`."""

from typing import Any

from grids.fleet import Place

from tfds_torch import ImageDataset, MultiLoader, ParserMapStyle, create_loader
from torch_data.resuming import Rows

GLOBAL_BATCH, NUM_EPOCHS = 12, 2
WORKERS = (0, 1, 2, 3)
Batches = list[tuple[list[int], list[bool]]]
"""The examples of each batch, and which of them are not padding."""


def own_parser(num_replicas: int, is_training: bool, num_items: int) -> ParserMapStyle:
    remainder = None if is_training else "pad"
    return ParserMapStyle(
        Rows(num_items), is_training=is_training, batch_size=GLOBAL_BATCH // num_replicas, remainder=remainder
    )


def read_parsers(place: Place, is_training: bool, num_items: int) -> dict[str, list[Batches]]:
    """Returns what a rank, which only its environment names, reads of every epoch: with a Loader, and without torch."""
    parser, found = own_parser(place.num_replicas, is_training, num_items), {}
    for num_workers in WORKERS:
        dataset = ImageDataset(parser, fields=("index", "valid", "label"), batched=True)
        with create_loader(dataset, num_workers, check_ranks=False) as loader:
            found[f"{num_workers} workers"] = [[_checked(*batch) for batch in loader] for _ in range(NUM_EPOCHS)]
            assert all(len(batches) == len(loader) for batches in found[f"{num_workers} workers"])
    with MultiLoader(parser, 2, fields=("label",)) as arrays:
        found["without torch"] = [
            [_checked(batch.index, batch.valid, batch.label) for batch in arrays] for _ in range(NUM_EPOCHS)
        ]
    return found


def read_rows(place: Place, num_items: int) -> dict[str, list[Batches]]:
    """Returns what a rank reads by `create_loader(rows, batch_size=...)`."""
    found = {}
    for num_workers in WORKERS:
        rows, size = Rows(num_items), GLOBAL_BATCH // place.num_replicas
        with create_loader(rows, num_workers, batch_size=size, shuffle=True, seed=42) as loader:
            labels = [[batch["label"].tolist() for batch in loader] for _ in range(NUM_EPOCHS)]
        found[f"{num_workers} workers"] = [[(one, [True] * len(one)) for one in epoch] for epoch in labels]
    return found


def _checked(index: Any, valid: Any, label: Any) -> tuple[list[int], list[bool]]:
    """Returns index and valid, once the items have proved to be the right ones."""
    found = index.tolist(), valid.tolist(), label.tolist()
    assert found[2] == [number if is_valid else -100 for number, is_valid in zip(*found[:2], strict=True)]
    return found[0], found[1]
