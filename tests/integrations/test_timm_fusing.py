"""timm's loader over our examples: transforms whose beginning is fused, and batches that are not copied."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_build
from people_transforms import JITTER, PIL_TO_TENSOR, center_crop, compose, crop

from tfds_torch.integrations.timm.fusing import CollateRows, DoneByReader, fuse_reader
from tfds_torch.integrations.timm.reader import TfdsReader
from tfds_torch.torch_data.batch_rows import find_batch

SCRIPT = Path(__file__).with_name("timm_fused.py")


@pytest.fixture(scope="module")
def found(root: Path, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What timm_fused.py found."""
    folder = tmp_path_factory.mktemp("timm")
    torchvision_build.write_startup(folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(data_root)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


FUSED, WHOLE = ["CollateRows", "DoneByReader"], ["function", "Compose"]


@pytest.mark.slow
def test_timms_loader_has_the_same_examples_fused_and_not(found: dict[str, Any]) -> None:
    for name in ("evaluation", "training"):
        assert found[f"{name}: equal targets"]
        assert found[f"{name}: ways"] == {"fused": FUSED, "whole": WHOLE}
    assert found["evaluation: apart"] < 0.01
    assert found["training: spread"] < 8 < found["training: apart"]
    assert found["an epoch again is equal"]
    assert found["another epoch is not"]
    assert found["without workers it is equal"]


@pytest.mark.slow
def test_batches_are_handed_on_but_for_mixup_and_for_what_the_script_sets_later(found: dict[str, Any]) -> None:
    assert found["batches are not copied"] == [True] * 8
    assert found["with jitter"] == [FUSED, [64, 3, 48, 48]]
    assert found["mixup"] == [["FastCollateMixup", "DoneByReader"], [8, 3, 48, 48], [8, 2]]
    assert found["set again"] == [[8, 3, 4, 4], True]


# Collation


def collate(examples: list[Any]) -> Any:
    return torch.stack([image for image, _ in examples]), torch.tensor([target for _, target in examples])


def rows(count: int = 4) -> torch.Tensor:
    return torch.arange(count * 5 * 6 * 3, dtype=torch.uint8).view(count, 5, 6, 3).permute(0, 3, 1, 2)


def test_rows_of_one_batch_are_handed_on_as_they_lie() -> None:
    batch = rows()
    images, targets = pickle.loads(pickle.dumps(CollateRows(collate)))(
        [(row, number) for number, row in enumerate(batch)]
    )
    assert images.data_ptr() == batch.data_ptr()
    assert torch.equal(images, batch)
    assert targets.tolist() == [0, 1, 2, 3]
    part = find_batch(list(batch[1:3]))
    assert part is not None
    assert part.data_ptr() == batch[1].data_ptr()


@pytest.mark.parametrize(
    "images",
    [
        [rows()[number] for number in (1, 0, 2)],
        [rows()[number] for number in (0, 2)],
        [rows()[0], *rows()[1:]],
        list(rows().float()),
        [*rows()[:2], rows()[2].clone()],
        list(rows()[:, :, 1:]),
        list(rows().permute(0, 1, 3, 2)),
        [rows()[0]],
    ],
)
def test_other_tensors_are_collated_as_before(images: list[torch.Tensor]) -> None:
    assert find_batch(images) is None
    found, _ = CollateRows(collate)([(image, 0) for image in images])
    assert torch.equal(found, torch.stack(images))
    assert found.is_contiguous()


# The reader


class Owner:
    """As timm's dataset: holds a reader and a transform."""

    def __init__(self, reader: TfdsReader, transform: Any) -> None:
        self.reader, self.transform = reader, transform

    def __iter__(self) -> Iterator[Any]:
        return ((self.transform(image), target) for image, target in self.reader)


def open_reader(data_root: Path) -> TfdsReader:
    return TfdsReader("photos", str(data_root), is_training=True, batch_size=8)


def test_a_reader_does_the_transform_of_the_dataset_around_it_until_another_one_is_set(data_root: Path) -> None:
    reader, transform = open_reader(data_root), compose(crop(), PIL_TO_TENSOR)
    owner = Owner(reader, transform)
    fuse_reader(owner, reader)
    assert isinstance(owner.transform, DoneByReader)
    assert repr(owner.transform) == repr(transform)
    image, _ = next(iter(pickle.loads(pickle.dumps(owner))))
    assert image.shape == (3, 8, 8)
    owner.transform = lambda image: image.size
    assert next(iter(owner))[0] > (8, 8)


def test_what_cannot_begin_in_the_decoder_stays_with_timms_dataset(data_root: Path) -> None:
    reader, transform = open_reader(data_root), compose(JITTER, center_crop())
    owner = Owner(reader, transform)
    fuse_reader(owner, reader)
    assert owner.transform is transform
    assert reader.dataset.transform is None
