"""Loader over a dataset with damaged images: full batches come, and stats() counts what was replaced."""

import json
from typing import Any

import pytest
from grids.fleet import Fleet, Place
from picture_fixtures import save, write_pictures
from PIL import Image

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, create_loader
from tfds_torch.engines.options import ReadOptions

NUM_EXAMPLES, DAMAGED = 16, (3, 4, 11)
TAKEN = [index for index in range(NUM_EXAMPLES) if index not in DAMAGED] + [5, 5, 12]


@pytest.fixture(scope="module")
def damaged_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    whole = save(Image.new("RGB", (20, 16), (200, 100, 50)), "PNG")
    images = [b"no image" if index in DAMAGED else whole for index in range(NUM_EXAMPLES)]
    return str(write_pictures(tmp_path_factory.mktemp("damaged"), images, shards=(7, 9)))


def read_epochs(_: Place, root: str, num_workers: int, is_persistent: bool) -> dict[str, Any]:
    """Returns the sizes of the batches of two epochs, the examples of the first one, and what stats() says."""
    read = ReadOptions(mode="index", num_threads=1, on_error="replace")
    preprocess = TrainPreprocess(size=8)
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=4, preprocess=preprocess, read=read)
    dataset = ImageDataset(parser, fields=("image", "index"))
    arguments: dict[str, Any] = (
        {"persistent_workers": is_persistent, "multiprocessing_context": "fork"} if num_workers else {}
    )
    with create_loader(dataset, num_workers, **arguments) as loader:
        epochs = [[index.tolist() for _, index in loader] for _ in range(2)]
        counts = [loader.stats().replaced]
        text = str(loader.stats())
    counts.append(loader.stats().replaced)
    return {
        "sizes": [[len(batch) for batch in epoch] for epoch in epochs],
        "first": sorted(index for batch in epochs[0] for index in batch),
        "counts": counts,
        "text": text,
        "json": json.loads(json.dumps(loader.stats().to_dict()))["replaced"],
    }


@pytest.mark.parametrize(
    ("num_workers", "is_persistent"), [(0, False), (2, True), pytest.param(2, False, marks=pytest.mark.slow)]
)
def test_stats_count_damaged_examples_whose_places_were_taken(
    num_workers: int, is_persistent: bool, fleet: Fleet, damaged_root: str
) -> None:
    (found,) = fleet.call(read_epochs, damaged_root, num_workers, is_persistent, deadline_s=120)
    assert found["sizes"] == [[4] * 4] * 2
    assert found["first"] == sorted(TAKEN)
    assert found["counts"] == [2 * len(DAMAGED)] * 2
    assert found["json"] == 2 * len(DAMAGED)
    assert "6 damaged examples replaced" in found["text"]
