"""DevicePrefetcher on CUDA: every batch once, in order, whole, whatever else the device does meanwhile."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEP_S = 0.1


class Times:
    """Metrics that keep what it is told."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def add(self, stage: str, seconds: float) -> None:
        assert stage == "device_copy"
        self.seconds.append(seconds)


def batches(num_batches: int, batch_size: int = 8, size: int = 32) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
    """Yields batches whose images and labels all are the batch's number."""
    for number in range(num_batches):
        image = torch.full((batch_size, 3, size, size), number % 256, dtype=torch.uint8)
        label = torch.full((batch_size,), number)
        yield image.contiguous(memory_format=torch.channels_last), label, [str(number)] * batch_size


def normalized(number: int) -> Tensor:
    """Returns the channels of a normalised image."""
    return (torch.tensor(number % 256) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)


def busy(device: torch.device, seconds: float) -> Callable[[], None]:
    """Returns a function that keeps the current stream busy for about so many seconds, and returns at once."""
    matrix = torch.randn(4096, 4096, device=device)
    for _ in range(3):
        matrix @ matrix
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(20):
        matrix @ matrix
    torch.cuda.synchronize(device)
    num_products = max(1, round(seconds / ((time.perf_counter() - began) / 20)))

    def work() -> None:
        for _ in range(num_products):
            matrix @ matrix

    return work


@pytest.mark.parametrize("prefetch_batches", [0, 1, 2, 5])
@pytest.mark.parametrize("num_batches", [0, 1, 2, 3, 9])
def test_every_batch_comes_once_and_in_order_the_last_one_too(
    cuda: torch.device, num_batches: int, prefetch_batches: int
) -> None:
    source = list(batches(num_batches))
    prefetcher = DevicePrefetcher(source, cuda, mean=MEAN, std=STD, prefetch_batches=prefetch_batches)
    assert len(prefetcher) == num_batches
    for _ in range(2):
        taken = list(prefetcher)
        assert [int(label[0]) for _, label, _ in taken] == list(range(num_batches))
        for number, (image, label, names) in enumerate(taken):
            assert image.device == label.device == cuda
            assert image.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(image.cpu()[0, :, 0, 0], normalized(number), rtol=0, atol=1e-5)
            assert names == [str(number)] * 8


@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_an_error_in_flight_comes_after_the_batches_before_it(cuda: torch.device, prefetch_batches: int) -> None:
    def source() -> Iterator[Any]:
        yield from batches(4)
        raise OSError("the disk is gone")

    taken: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        taken.extend(
            int(label[0]) for _, label, _ in DevicePrefetcher(source(), cuda, prefetch_batches=prefetch_batches)
        )
    assert taken == [0, 1, 2, 3]


def test_a_batch_without_images_is_an_error_in_its_place(cuda: torch.device) -> None:
    taken: list[int] = []
    with pytest.raises(ConfigError, match="no uint8 tensor"):
        taken.extend(int(batch[1][0]) for batch in DevicePrefetcher([*batches(3), (torch.zeros(2),)], cuda, mean=MEAN))
    assert taken == [0, 1, 2]


def test_an_iteration_broken_off_ends_its_source(cuda: torch.device) -> None:
    ended = []

    def source() -> Iterator[Any]:
        try:
            yield from batches(100)
        finally:
            ended.append(True)

    for _ in DevicePrefetcher(source(), cuda):
        break
    assert ended == [True]


def test_batches_stay_whole_under_heavy_work_that_reuses_their_memory(cuda: torch.device) -> None:
    """The loop drops each batch while kernels that read it still wait in their stream: no copy may reuse its memory."""
    work = busy(cuda, 0.02)
    results = []
    for _round in range(3):
        prefetcher = DevicePrefetcher(batches(40, 32, 64), cuda, mean=MEAN, std=STD, prefetch_batches=3)
        for image, _label, _names in prefetcher:
            work()
            results.append((image.amin((0, 2, 3)), image.amax((0, 2, 3))))
            del image
    torch.cuda.synchronize(cuda)
    for number, (low, high) in enumerate(results):
        torch.testing.assert_close(low.cpu(), normalized(number % 40), rtol=0, atol=1e-5)
        torch.testing.assert_close(high.cpu(), normalized(number % 40), rtol=0, atol=1e-5)


def test_a_source_may_reuse_the_memory_of_its_batches(cuda: torch.device) -> None:
    buffer = torch.empty(32, 3, 64, 64, dtype=torch.uint8)

    def source() -> Iterator[Tensor]:
        for number in range(50):
            buffer.fill_(number)
            yield buffer

    work, totals = busy(cuda, 0.01), []
    for image in DevicePrefetcher(source(), cuda, prefetch_batches=3):
        work()
        totals.append(image.long().sum())
    assert [int(total) // buffer.numel() for total in totals] == list(range(50))


def test_a_batch_may_be_used_on_the_stream_that_is_current_when_it_comes(cuda: torch.device) -> None:
    work, stream, totals = busy(cuda, 0.01), torch.cuda.Stream(cuda), []  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for image, _, _ in DevicePrefetcher(batches(30), cuda, dtype=torch.float32):
            work()
            totals.append(image.mean())
    stream.synchronize()  # They are read on another stream.
    assert [round(float(mean)) for mean in totals] == list(range(30))


def test_what_lies_on_the_device_already_is_taken_after_the_work_that_makes_it(cuda: torch.device) -> None:
    work = busy(cuda, 0.01)

    def source() -> Iterator[Tensor]:
        for number in range(20):
            work()
            yield torch.full((4, 3, 32, 32), number, dtype=torch.uint8, device=cuda)

    means = [image.mean() for image in DevicePrefetcher(source(), cuda, dtype=torch.float32)]
    assert [round(float(mean)) for mean in means] == list(range(20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_numbers_are_those_of_the_cpu(cuda: torch.device, dtype: torch.dtype) -> None:
    image = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    (there,) = DevicePrefetcher([image], cuda, mean=MEAN, std=STD, dtype=dtype)
    (here,) = DevicePrefetcher([image], "cpu", mean=MEAN, std=STD, dtype=dtype)
    assert there.dtype == here.dtype == dtype
    torch.testing.assert_close(there.cpu(), here)


def test_normalising_is_one_kernel(cuda: torch.device) -> None:
    image = next(batches(1))[0].to(cuda)
    prefetcher = DevicePrefetcher([image], cuda, mean=MEAN, std=STD, dtype=torch.float16)
    list(prefetcher)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Of some versions, that a profile is kept for one cycle.
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            list(prefetcher)
            torch.cuda.synchronize(cuda)
    on_device = [event.name for event in profile.events() if event.device_type == DeviceType.CUDA]
    kernels = [name for name in on_device if not name.startswith("Mem")]  # Memcpy, Memset.
    assert len(kernels) == 1, on_device


def test_the_clock_is_told_about_copies(cuda: torch.device) -> None:
    metrics = Times()
    for _ in DevicePrefetcher(batches(10), cuda, metrics=metrics):
        torch.cuda.synchronize(cuda)
    assert len(metrics.seconds) == 10
    assert all(seconds > 0 for seconds in metrics.seconds)


@pytest.mark.parametrize("index", [99])
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(cuda: torch.device, index: int) -> None:
    with pytest.raises(ConfigError, match=rf"^device='cuda:{index}' is not .* Here are cpu, cuda:0"):
        DevicePrefetcher([], f"cuda:{index}")


def test_copies_hide_behind_a_step(cuda: torch.device) -> None:
    """Prints how much of the copies of 256 images of 224 x 224 hides behind steps of 100 ms that are waited for."""
    num_steps = 30
    source = [next(batches(1, 256, 224)) for _ in range(4)] * (num_steps // 4 + 1)
    work = busy(cuda, STEP_S)

    def seconds(steps: Iterator[Any]) -> float:
        """Returns what the steps take after the first two, in which pinned memory is made."""
        next(steps), next(steps)
        torch.cuda.synchronize(cuda)
        began = time.perf_counter()
        for _ in steps:
            work()
            torch.cuda.synchronize(cuda)
        return time.perf_counter() - began

    def copied_at_once() -> Iterator[Any]:
        for image, _label, _names in source[:num_steps]:
            copied = image.pin_memory().to(cuda)
            torch.cuda.synchronize(cuda)
            yield copied

    alone = seconds(iter(range(num_steps)))
    one_by_one = seconds(copied_at_once())
    ahead = seconds(iter(DevicePrefetcher(source[:num_steps], cuda, mean=MEAN, std=STD, dtype=torch.float16)))
    hidden = 1 - (ahead - alone) / (one_by_one - alone)
    per_step = 1000 / (num_steps - 2)
    print(
        f"\n{torch.cuda.get_device_name(cuda)}: steps of {alone * per_step:.2f} ms; with copies one by one "
        f"{one_by_one * per_step:.2f} ms, ahead {ahead * per_step:.2f} ms: {hidden:.1%} of the copies hidden."
    )
    assert ahead < 1.2 * alone  # A copy that is not beside the steps, and all that goes with it, costs more.
