"""A loader whose batches lie on a CUDA device: the CPU's examples, numbers and states, in memory that does not grow.

The photographs are built, and read, without tensorflow.
"""

import gc
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, create_loader, demo
from tfds_torch.torch_data.loader import Loader

pytestmark = pytest.mark.gpu

HOW = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
NUM_BATCHES = 8


@pytest.fixture(scope="module")
def photos() -> Path:
    return demo.prepare("photos", num_examples=16 * NUM_BATCHES, num_shards=4, progress=False)


def make_loader(root: Path, device: Any, num_workers: int = 2, **options: Any) -> Loader:
    parser = ParserTfds(root, "photos", is_training=True, batch_size=16, preprocess=TrainPreprocess(size=64))
    dataset = ImageDataset(parser, fields=("image", "label", "id"))
    return create_loader(dataset, num_workers=num_workers, device=device, **{**HOW, **options})


@pytest.mark.parametrize("num_workers", [0, 2, 4])
def test_batches_are_those_of_the_cpu(cuda: torch.device, photos: Path, num_workers: int) -> None:
    with make_loader(photos, cuda, num_workers) as there, make_loader(photos, "cpu", num_workers=0) as here:
        for _ in range(2):
            batches = list(zip(there, here, strict=True))
            assert len(batches) == NUM_BATCHES
            for (image, label, ids), (other_image, other_label, other_ids) in batches:
                assert image.device == label.device == cuda
                assert image.is_contiguous(memory_format=torch.channels_last)
                torch.testing.assert_close(image.cpu(), other_image)
                assert label.tolist() == other_label.tolist()
                assert list(ids) == list(other_ids)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_may_start_when_the_device_is_in_use(cuda: torch.device, photos: Path, method: str) -> None:
    torch.ones(8, device=cuda).sum().item()
    with make_loader(photos, cuda, multiprocessing_context=method) as loader:
        assert sum(len(label) for _, label, _ in loader) == 16 * NUM_BATCHES


@pytest.mark.parametrize("prefetch_batches", [1, 3])
def test_a_state_counts_what_was_yielded_and_not_what_is_ahead(
    cuda: torch.device, photos: Path, prefetch_batches: int
) -> None:
    with make_loader(photos, cuda, prefetch_batches=prefetch_batches) as loader:
        assert len(list(loader)) == NUM_BATCHES
        for number, _ in enumerate(loader, 1):
            if number == 3:
                break
        state = loader.state_dict()
    with make_loader(photos, cuda, 4, prefetch_batches=prefetch_batches) as again:
        again.load_state_dict(state)
        rest = [list(ids) for _, _, ids in again]
    with make_loader(photos, "cpu", 0) as here:
        here.set_epoch(1)
        expected = [list(ids) for _, _, ids in here]
    assert rest == expected[3:]


def test_memory_of_the_device_does_not_grow(cuda: torch.device, photos: Path) -> None:
    with make_loader(photos, cuda, dtype="bfloat16") as loader:
        allocated, pinned = [], []
        for _ in range(5):
            for image, _, _ in loader:
                image.mean()
            del image
            gc.collect()
            torch.cuda.synchronize(cuda)
            allocated.append(torch.cuda.memory_allocated(cuda))
            pinned.append(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    assert allocated[1:] == allocated[1:2] * 4, allocated
    assert pinned[-1] <= pinned[1], pinned


def test_an_epoch_that_is_left_ends_its_copies_and_its_workers(cuda: torch.device, photos: Path) -> None:
    before, others = torch.cuda.memory_allocated(cuda), psutil.Process().children()
    loader = make_loader(photos, cuda, 4, prefetch_batches=4)
    image, _, _ = next(iter(loader))
    workers = [one for one in psutil.Process().children() if one not in others]
    assert len(workers) >= 4
    loader.close()
    assert torch.isfinite(image).all()
    del image, loader
    gc.collect()
    torch.cuda.synchronize(cuda)
    assert torch.cuda.memory_allocated(cuda) == before
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not [one for one in alive if "resource_tracker" not in " ".join(one.cmdline())]


def test_training_steps_use_each_batch_once(cuda: torch.device, photos: Path) -> None:
    """Mixed precision and channels_last, as users train: a model that sums what it sees."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    model = model.to(cuda).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    with make_loader(photos, cuda, 2) as loader:
        for image, _, ids in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(image).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seen += ids
    assert torch.isfinite(loss)
    assert len(seen) == len(set(seen)) == 16 * NUM_BATCHES
