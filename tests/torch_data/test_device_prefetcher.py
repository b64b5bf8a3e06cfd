"""DevicePrefetcher: every batch once, in order, normalised; on the CPU, and on a CUDA device that is not there."""

import contextlib
import gc
import threading
import weakref
from collections import namedtuple
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfds_torch import Feeder, create_loader
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data import device_copy
from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher
from tfds_torch.torch_data.nested import tensors
from torch_data.fake_cuda import COPY_MS, FakeCuda

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Labelled = namedtuple("Labelled", "image label")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    fake.install(monkeypatch)
    device_copy._copy_stream.cache_clear()
    yield fake
    device_copy._copy_stream.cache_clear()


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return str(request.param)


class Source:
    """Yields `num_batches` batches (images, labels) of their number, and remembers what was taken and closed.

    Attributes:
        num_taken: batches, by all iterations together.
        num_closed: iterations that were ended before they were through.
    """

    def __init__(self, num_batches: int, error: Exception | None = None) -> None:
        self.num_batches, self.error = num_batches, error
        self.num_taken = self.num_closed = 0

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        try:
            for number in range(self.num_batches):
                self.num_taken += 1
                yield torch.full((2, 3, 4, 4), number, dtype=torch.uint8), torch.full((2,), number)
            if self.error is not None:
                raise self.error
        except GeneratorExit:
            self.num_closed += 1
            raise


class Times:
    """Metrics that keep what it is told."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def add(self, stage: str, seconds: float) -> None:
        assert stage == "device_copy"
        self.seconds.append(seconds)


def numbers(batches: Iterable[Any]) -> Iterator[int]:
    """Yields the number of each batch, of which all of it must be."""
    for image, label in batches:
        assert image.unique().tolist() == label.unique().tolist()
        yield int(label[0])


def image_of(numbers_of_channels: list[int]) -> Tensor:
    """Returns uint8 [2, 3, 4, 4]."""
    return torch.tensor(numbers_of_channels, dtype=torch.uint8).view(1, 3, 1, 1).repeat(2, 1, 4, 4)


# Every batch once, and in order.


@pytest.mark.parametrize("prefetch_batches", [0, 1, 2, 7])
@pytest.mark.parametrize("num_batches", [0, 1, 2, 3, 8])
def test_every_batch_comes_once_and_in_order_the_last_one_too(
    device: str, num_batches: int, prefetch_batches: int
) -> None:
    source = Source(num_batches)
    prefetcher = DevicePrefetcher(source, device, prefetch_batches=prefetch_batches)
    assert len(prefetcher) == num_batches
    for _ in range(3):
        assert list(numbers(prefetcher)) == list(range(num_batches))
    assert source.num_taken == 3 * num_batches


@pytest.mark.parametrize("prefetch_batches", [0, 1, 2, 7])
@pytest.mark.parametrize("num_batches", [0, 1, 4])
def test_an_error_of_the_source_comes_after_the_batches_before_it(
    device: str, num_batches: int, prefetch_batches: int
) -> None:
    error = OSError("the disk is gone")
    batches = iter(DevicePrefetcher(Source(num_batches, error), device, prefetch_batches=prefetch_batches))
    assert [int(next(batches)[1][0]) for _ in range(num_batches)] == list(range(num_batches))
    with pytest.raises(OSError, match="the disk is gone") as raised:
        next(batches)
    assert raised.value is error
    assert raised.traceback[-1].name == "__iter__"  # Where the source raised it.
    assert next(batches, None) is None


def test_an_error_of_iter_comes_from_iter(device: str) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Any]:
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        iter(DevicePrefetcher(Broken(), device))


def test_an_interrupt_comes_at_once_and_loses_nothing(device: str) -> None:
    class Interrupted(Iterator[tuple[Tensor, Tensor]]):
        def __init__(self) -> None:
            self.batches, self.calls = iter(Source(6)), 0

        def __next__(self) -> tuple[Tensor, Tensor]:
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return next(self.batches)

    batches, taken, num_interrupts = numbers(DevicePrefetcher(Interrupted(), device)), [], 0
    iteration = iter(DevicePrefetcher(Interrupted(), device))
    while True:
        try:
            taken.append(int(next(iteration)[1][0]))
        except KeyboardInterrupt:
            num_interrupts += 1
        except StopIteration:
            break
    assert taken == list(range(6))
    assert num_interrupts == 1
    with pytest.raises(KeyboardInterrupt):
        list(batches)


def test_the_source_is_iterated_when_iter_is_called_and_in_this_thread(device: str) -> None:
    called: list[str] = []

    class Threads:
        def __iter__(self) -> Iterator[Any]:
            called.append("iter")
            return self.items()

        def items(self) -> Iterator[Any]:
            for _ in range(5):
                called.append(threading.current_thread().name)
                yield torch.zeros(2)

    iteration = iter(DevicePrefetcher(Threads(), device))
    assert called == ["iter"]
    assert len(list(iteration)) == 5
    assert set(called[1:]) == {threading.current_thread().name}


def test_on_the_cpu_nothing_is_taken_ahead() -> None:
    source = Source(5)
    for number in numbers(DevicePrefetcher(source, "cpu", prefetch_batches=3)):
        assert source.num_taken == number + 1


def test_on_cuda_the_first_batch_comes_at_once_and_those_ahead_are_built_up(cuda: FakeCuda) -> None:
    source = Source(9)
    taken = [source.num_taken for _ in numbers(DevicePrefetcher(source, "cuda", prefetch_batches=3))]
    assert taken == [1, 3, 5, 7, 8, 9, 9, 9, 9]


def test_a_source_may_reuse_the_memory_of_its_batches(device: str) -> None:
    buffer = torch.empty(64, 3, 32, 32, dtype=torch.uint8)

    def source() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(30):
            yield buffer.fill_(number), torch.tensor([number])

    assert list(numbers(DevicePrefetcher(source(), device, prefetch_batches=4))) == list(range(30))


def test_two_iterations_do_not_meet(device: str) -> None:
    prefetcher = DevicePrefetcher(Source(4), device)
    assert [(int(one[1][0]), int(two[1][0])) for one, two in zip(prefetcher, prefetcher, strict=True)] == [
        (number, number) for number in range(4)
    ]


def test_a_source_without_a_length_has_none_here(device: str) -> None:
    with pytest.raises(TypeError, match=r"^generator has no len\(\), and so has no DevicePrefetcher over it\.$"):
        len(DevicePrefetcher(iter(Source(2)), device))


# The end of an iteration.


def test_an_iteration_broken_off_ends_its_source_and_its_thread(device: str) -> None:
    source, num_threads = Source(50), threading.active_count()
    for number in numbers(DevicePrefetcher(source, device)):
        if number == 3:
            break
    assert source.num_closed == 1
    assert threading.active_count() == num_threads


def test_an_iteration_that_is_dropped_ends_its_source(device: str) -> None:
    source = Source(50)
    iteration = iter(DevicePrefetcher(source, device))
    next(iteration)
    del iteration
    assert source.num_closed == 1


def test_an_iteration_dropped_before_its_error_came_ends_its_source(device: str) -> None:
    """The pending error must not keep the iteration, which keeps the source."""
    source = Source(2, OSError("later"))
    gc.disable()
    try:
        iteration = iter(DevicePrefetcher(source, device, prefetch_batches=2))
        next(iteration), next(iteration)
        kept = weakref.ref(iteration)
        del iteration
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [StopIteration, OSError])
def test_an_iteration_that_ended_leaves_nothing_for_the_garbage_collector(device: str, kind: type[Exception]) -> None:
    class Items(Iterator[Any]):
        num_items = 0

        def __next__(self) -> Tensor:
            self.num_items += 1
            if self.num_items > 3:
                raise kind
            return torch.zeros(1)

    items = Items()
    kept = weakref.ref(items)
    iteration = iter(DevicePrefetcher(items, device))
    del items
    gc.disable()
    try:
        with contextlib.suppress(OSError):
            for _ in iteration:
                pass
        del iteration
        assert kept() is None
    finally:
        gc.enable()


def test_close_ends_the_iterations_under_way_and_later_ones_begin_anew(device: str) -> None:
    source = Source(5)
    with DevicePrefetcher(source, device) as prefetcher:
        first, second = iter(prefetcher), iter(prefetcher)
        next(first), next(second)
    assert source.num_closed == 2
    assert list(first) == list(second) == []
    assert list(numbers(prefetcher)) == [0, 1, 2, 3, 4]
    prefetcher.close()
    prefetcher.close()


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_a_source_s_iterator_is_closed_once_where_it_ends_and_where_it_is_dropped(device: str, num_taken: int) -> None:
    closed = []

    class Items(Iterator[Any]):
        num_items = 2

        def __next__(self) -> Any:
            if self.num_items == 0:
                raise StopIteration
            self.num_items -= 1
            return torch.zeros(1)

        def close(self) -> None:
            closed.append(True)

    iteration = iter(DevicePrefetcher(Items(), device, prefetch_batches=0))
    for _ in range(num_taken):
        next(iteration, None)
    assert closed == [True] * (num_taken == 3)
    del iteration
    assert closed == [True]


# What is in a batch.


def test_nested_batches_keep_their_structure_and_other_values_than_tensors(device: str) -> None:
    marker = object()
    batch = Labelled({"image": image_of([0, 128, 255]), "ids": ["a", "b"]}, [torch.arange(2), (marker, None, 3)])
    (moved,) = DevicePrefetcher([batch], device, mean=(0, 0, 0), std=(1, 1, 1))
    assert type(moved) is Labelled
    assert list(moved.image) == ["image", "ids"]
    assert moved.image["ids"] == ["a", "b"]
    assert moved.image["image"][0, :, 0, 0].tolist() == pytest.approx([0, 128 / 255, 1])
    assert moved.label[0].tolist() == [0, 1]
    assert moved.label[1] == (marker, None, 3)
    assert batch.image["image"].dtype == torch.uint8  # The source's own batch is left alone.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, "bfloat16", None])
@pytest.mark.parametrize("channels_last", [True, False])
def test_images_are_normalised_by_the_formula(
    device: str, dtype: torch.dtype | str | None, channels_last: bool
) -> None:
    image = torch.arange(2 * 3 * 8 * 16).remainder(256).to(torch.uint8).view(2, 3, 8, 16)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    expected = (image.double() / 255 - mean) / std
    for given in (image, image.contiguous(memory_format=torch.channels_last)):
        (moved,) = DevicePrefetcher([given], device, mean=MEAN, std=STD, dtype=dtype, channels_last=channels_last)
        wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype or torch.float32
        assert moved.dtype == wanted
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert moved.is_contiguous(memory_format=layout)
        step = torch.finfo(wanted).eps
        torch.testing.assert_close(moved.double(), expected, rtol=step, atol=min(1e-6, 16 * step))


def test_a_dtype_alone_changes_the_type_only(device: str) -> None:
    (moved,) = DevicePrefetcher([image_of([0, 7, 255])], device, dtype=torch.float16)
    assert moved.dtype == torch.float16
    assert moved[1, :, 2, 3].tolist() == [0, 7, 255]
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_without_mean_std_and_dtype_images_stay_uint8(device: str) -> None:
    (moved,) = DevicePrefetcher([image_of([0, 7, 255])], device)
    assert moved.dtype == torch.uint8
    assert moved[1, :, 2, 3].tolist() == [0, 7, 255]
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_only_the_first_uint8_tensor_of_four_dimensions_is_an_image(device: str) -> None:
    floats, flat, image, mask = (
        torch.ones(2, 3, 4, 4),
        torch.ones(3, dtype=torch.uint8),
        image_of([1, 2, 3]),
        image_of([4, 5, 6]),
    )
    moved = next(iter(DevicePrefetcher([(floats, flat, image, mask)], device, mean=MEAN)))
    assert moved[0].equal(floats)
    assert moved[1].equal(flat)
    assert moved[2].dtype == torch.float32
    assert moved[3].equal(mask)


def test_all_views_in_a_list_are_images_and_a_mask_beside_them_is_not(device: str) -> None:
    views = [torch.full((2, 3, side, side), 51 * side, dtype=torch.uint8) for side in (1, 2, 3)]
    mask = torch.full((2, 1, 1, 1), 7, dtype=torch.uint8)
    (came,) = DevicePrefetcher([{"image": views, "mask": mask}], device, std=(1, 1, 1))
    assert [one.flatten().tolist()[0] for one in came["image"]] == pytest.approx([0.2, 0.4, 0.6])
    assert came["mask"].equal(mask)
    ((found, _),) = DevicePrefetcher([(views, mask)], device, std=(1, 1, 1))
    assert [one.dtype for one in found] == [torch.float32] * 3


GRAY, OTHER = (torch.full((2, 1, 4, 4), number, dtype=torch.uint8) for number in (1, 2))
COLOURS, FLOATS = image_of([1, 2, 3]), torch.full((2, 1, 4, 4), 0.5)
LARGE, SMALL = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(3, 2, 5, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("batch", "std", "wanted"),
    [
        ({"mask": GRAY, "images": OTHER}, 1, "images"),
        ({"images": GRAY, "pixel_values": OTHER}, 1, "pixel_values"),
        ({"pixel_values": GRAY, "image": OTHER}, 1, "image"),
        ({"pixel_values": GRAY, "image": [OTHER, OTHER]}, 1, "image"),
        ({"image": [LARGE], "mask": GRAY, "pixel_values": OTHER}, 1, "pixel_values"),
        ({"image": "1.png", "mask": GRAY, "other": OTHER}, 1, "mask"),
        ({"mask": GRAY, "image": FLOATS}, 1, "image"),
        ({"mask": GRAY, "image": OTHER}, None, "image"),
        ({"mask": GRAY, "image": FLOATS}, None, None),
        ({"mask": GRAY, "image": OTHER[None]}, None, "mask"),
        ({0: GRAY, 1: COLOURS, 2: COLOURS.clone()}, (1, 1, 1), 1),
        ({0: GRAY, 1: COLOURS}, None, 0),
        ({0: GRAY.permute(0, 2, 3, 1).numpy(), 1: COLOURS.permute(0, 2, 3, 1).numpy()}, (1, 1, 1), 1),
        ({0: GRAY, 1: OTHER}, 1, 0),
    ],
)
def test_the_images_are_told_from_masks_by_their_key_then_by_their_channels(
    device: str, batch: dict[Any, Any], std: Any, wanted: Any
) -> None:
    (moved,) = DevicePrefetcher([batch], device, std=std, dtype="float64")
    changed = [key for key in batch if any(one.dtype == torch.float64 for one in tensors(moved[key]))]
    assert changed == [key for key in batch if key == wanted]
    if isinstance(wanted, int):
        (fields,) = DevicePrefetcher([tuple(batch.values())], device, std=std, dtype="float64")
        assert [place for place, one in enumerate(fields) if one.dtype == torch.float64] == [wanted]


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"std": (1, 1, 1)}, {"std": 1}], ids=str)
@pytest.mark.parametrize(
    "batch",
    [
        {"mask": GRAY, "image": [LARGE, SMALL]},
        {"mask": [GRAY[0], OTHER[0]], "image": [LARGE.numpy(), SMALL.numpy()]},
        ([], "a", {"x": (LARGE, SMALL)}, torch.arange(2)),
    ],
    ids=["beside a mask", "arrays", "a tuple within"],
)
def test_images_in_a_list_are_an_error_that_tells_their_number_and_size(
    device: str, batch: Any, options: dict[str, Any]
) -> None:
    message = (
        r"(dtype=float16|mean=None, std=.*): the images of the batch are a list of 2, the first one uint8 \[3, 4, 4\], "
        r"and not one uint8 tensor \[B, C, H, W\]\. Leave (dtype|mean and std) out, or give the images one size"
    )
    with pytest.raises(ConfigError, match=message):
        list(DevicePrefetcher([batch], device, **options))
    (moved,) = DevicePrefetcher([batch], device)  # Nothing to be done to images.
    assert {tensor.dtype for tensor in tensors(moved)} <= {torch.uint8, torch.int64}


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(2, 9, dtype=torch.uint8), [torch.arange(3), torch.arange(5)]),
        {"depth": [torch.zeros(1, 4, 4), torch.zeros(1, 2, 5)], "mask": [LARGE[0], SMALL[0]], "ids": ["a", "b"]},
        [LARGE, SMALL],
    ],
    ids=["tokens", "other lists", "fields"],
)
def test_a_dtype_alone_leaves_a_batch_without_images_as_it_is(device: str, batch: Any) -> None:
    (moved,) = DevicePrefetcher([batch], device, dtype="float16")
    assert [one.dtype for one in tensors(moved)] == [one.dtype for one in tensors(batch)]


def test_a_batch_that_is_a_list_is_one_of_fields_and_its_first_images_are_the_images(device: str) -> None:
    views = [torch.zeros((2, 3, 4, 4), dtype=torch.uint8)] * 2
    (pair,) = DevicePrefetcher([[views[0], views[1].clone()]], device, std=(1, 1, 1))
    assert [one.dtype for one in pair] == [torch.float32, torch.uint8]


def test_batches_of_different_sizes_are_normalised_alike(device: str) -> None:
    sizes = [(0, 3, 4, 4), (5, 3, 2, 7), (1, 3, 9, 9)]
    images = [torch.full(size, 255, dtype=torch.uint8) for size in sizes]
    moved = list(DevicePrefetcher(images, device, std=(0.5, 0.5, 0.5)))
    assert [tuple(image.shape) for image in moved] == sizes
    assert all(bool((image == 2).all()) for image in moved)


# The metrics.


def test_on_the_cpu_metrics_get_the_time_of_every_batch() -> None:
    metrics = Times()
    list(DevicePrefetcher(Source(4), "cpu", metrics=metrics))
    assert len(metrics.seconds) == 4
    assert all(seconds >= 0 for seconds in metrics.seconds)


def test_on_cuda_metrics_get_the_time_of_finished_copies(cuda: FakeCuda) -> None:
    metrics, cuda.is_through = Times(), False
    iteration = iter(DevicePrefetcher(Source(4), "cuda", metrics=metrics))
    next(iteration), next(iteration)
    assert metrics.seconds == []
    cuda.is_through = True
    next(iteration)
    assert len(metrics.seconds) >= 3
    assert len(list(iteration)) == 1
    assert metrics.seconds == [COPY_MS / 1000] * 4


def test_on_cuda_copies_that_are_never_through_are_left_out(cuda: FakeCuda) -> None:
    metrics, cuda.is_through = Times(), False
    assert len(list(DevicePrefetcher(Source(4), "cuda", metrics=metrics))) == 4
    assert metrics.seconds == []


# CUDA


def test_the_loop_s_stream_waits_for_each_batch_and_is_noted_to_use_all_of_it(cuda: FakeCuda) -> None:
    for number, batch in enumerate(DevicePrefetcher(Source(4), "cuda")):
        assert len(cuda.loop.waited) == number + 1
        event = cuda.loop.waited[-1]
        assert event.stream is not None
        assert event.stream.name == "copies to cuda:1"  # The current device.
        assert not event.enable_timing
        assert cuda.used[-2:] == [(id(tensor), "loop") for tensor in batch]
    assert len(set(cuda.loop.waited)) == 4


def test_every_iteration_copies_on_the_same_stream_whose_freed_memory_the_next_one_uses(cuda: FakeCuda) -> None:
    for _ in range(3):
        list(DevicePrefetcher(Source(2), "cuda"))
    assert len({id(event.stream) for event in cuda.events}) == 1


def test_an_interrupt_while_a_batch_is_awaited_does_not_lose_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    iteration = iter(DevicePrefetcher(Source(3), "cuda"))

    def interrupt(event: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cuda.loop, "wait_event", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iteration)
    assert list(numbers(iteration)) == [0, 1, 2]


def test_copies_do_not_wait_and_run_in_one_thread_of_their_own(cuda: FakeCuda) -> None:
    list(DevicePrefetcher(Source(3), "cuda:0"))
    assert cuda.copies == [((2, 3, 4, 4), True), ((2,), True)] * 3
    (name,) = cuda.threads
    assert name.startswith("tfds_torch.device_copy")


def test_what_lies_on_the_device_already_is_used_after_the_loop_s_work_and_kept_until_then(cuda: FakeCuda) -> None:
    image, label = image_of([255, 255, 255]), torch.arange(2)
    cuda.residents.add(image.data_ptr())
    (moved,) = DevicePrefetcher([{"label": label, "image": image}], "cuda", std=(1, 1, 1))
    assert cuda.copies == [((2,), True)]
    assert (id(image), "copies to cuda:1") in cuda.used
    assert cuda.loop.waited[0].stream is not None
    assert cuda.loop.waited[0].stream.streams == [cuda.loop]
    assert bool((moved["image"] == 1).all())


def test_a_failed_device_does_not_fail_a_second_time_when_it_is_closed(cuda: FakeCuda) -> None:
    source = Source(9)
    iteration = iter(DevicePrefetcher(source, "cuda", metrics=Times()))
    cuda.is_through = False
    next(iteration)
    cuda.has_failed = True
    with pytest.raises(RuntimeError, match="device-side assert"):
        next(iteration)  # Which closes it too.
    assert source.num_closed == 1


# What cannot work.


@pytest.mark.parametrize("name", ["cuda", "cuda:9", "cuad", "mps", None, 7])
def test_a_missing_device_is_an_error_that_lists_those_that_exist(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    if name in ("mps", 7):  # Whatever this machine has.
        monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: (_ for _ in ()).throw(RuntimeError("not linked")))
    with pytest.raises(ConfigError) as raised:
        DevicePrefetcher([], name)
    assert str(raised.value) == (
        f"device={name!r} is not a device of this machine that torch {torch.__version__} can use. Here are cpu."
    )


def test_a_cuda_device_too_many_is_an_error_that_names_the_others(cuda: FakeCuda) -> None:
    DevicePrefetcher([], "cuda:1")
    with pytest.raises(ConfigError, match=r"^device='cuda:2' is not .* Here are cpu, cuda:0, cuda:1"):
        DevicePrefetcher([], "cuda:2")


BAD = {
    "mean of other length": (
        {"mean": (0.5,), "std": STD},
        r"^mean=\(0\.5,\) has 1 values and std=\(0\.229, 0\.224, 0\.225\) has 3: both need one per channel\.$",
    ),
    "mean of 255": (
        {"mean": (123.7, 116.3, 103.5)},
        r"^mean=\(123\.7, 116\.3, 103\.5\) must lie between 0 and 1, as .*255",
    ),
    "negative mean": ({"mean": (-0.5, 0, 0)}, "^mean=.* must lie between 0 and 1"),
    "mean that is none": ({"mean": (float("nan"), 0, 0)}, "^mean=.* must lie between 0 and 1"),
    "std 0": ({"std": (0.2, 0, 0.2)}, r"^std=\(0\.2, 0\.0, 0\.2\) must be above 0 in every channel"),
    "endless std": ({"std": (0.2, float("inf"), 0.2)}, "^std=.* must be above 0 in every channel"),
    "a flag": (
        {"mean": True},
        r"^mean=True must hold a number per channel, for example \(0\.5, 0\.5, 0\.5\), or 0\.5 for one channel",
    ),
    "a number above 1": ({"mean": 127.5}, r"^mean=\(127\.5,\) must lie between 0 and 1"),
    "numbers in rows": ({"mean": ((0.5,), (0.5,))}, "must hold a number per channel"),
    "no numbers": ({"std": ()}, r"^std=\(\) must hold a number per channel"),
    "a word": ({"mean": "123"}, "^mean='123' must hold a number per channel"),
    "words": ({"std": ("a", "b", "c")}, r"^std=\('a', 'b', 'c'\) must hold a number per channel"),
    "an integer dtype": (
        {"dtype": torch.int32},
        r"^dtype=torch\.int32 is not one of float32, float16, bfloat16, float64\.",
    ),
    "a wrong dtype": ({"dtype": "flaot16"}, "^dtype='flaot16' is not one of .* Did you mean 'float16'"),
    "no dtype": ({"dtype": 16}, "^dtype=16 is not one of float32"),
    "negative prefetch": ({"prefetch_batches": -1}, "^prefetch_batches=-1 must be an integer >= 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_arguments_that_cannot_work_are_refused_at_once(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        DevicePrefetcher([], "cpu", **arguments)  # type: ignore[arg-type]


def test_mean_and_std_may_be_arrays_and_tensors() -> None:
    tensor = torch.tensor(STD)
    (moved,) = DevicePrefetcher([image_of([0, 0, 0])], "cpu", mean=tensor.numpy(), std=tensor)
    torch.testing.assert_close(moved, torch.full((2, 3, 4, 4), -1.0))


@pytest.mark.parametrize("number", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), (0.5,)], ids=repr)
def test_a_number_alone_is_that_of_the_only_channel(number: Any) -> None:
    gray = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    (moved,) = DevicePrefetcher([gray], "cpu", mean=number, std=number)
    torch.testing.assert_close(moved, torch.full((2, 1, 4, 4), 1.0))
    (shifted,) = DevicePrefetcher([gray], "cpu", mean=0)
    torch.testing.assert_close(shifted, torch.full((2, 1, 4, 4), 1.0))
    with pytest.raises(ConfigError, match="1 values for images of 3 channels"):
        list(DevicePrefetcher([image_of([0, 0, 0])], "cpu", mean=number))


def test_a_batch_of_other_channels_is_an_error_after_those_before_it(device: str) -> None:
    gray = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    iteration = iter(DevicePrefetcher([image_of([1, 2, 3]), gray, gray], device, mean=MEAN, std=STD))
    next(iteration)
    with pytest.raises(
        ConfigError, match=r": 3 values for images of 1 channels, \[2, 1, 4, 4\] as \[B, C, H, W\]: give o"
    ):
        next(iteration)
    assert next(iteration, None) is None


@pytest.mark.parametrize(
    ("batch", "held"),
    [
        ((torch.zeros(2, 3), torch.ones(2, dtype=torch.long)), r"float32 \[2, 3\], int64 \[2\]\."),
        (["a"], r"no tensors\."),
    ],
)
def test_a_batch_without_images_cannot_be_normalised(device: str, batch: Any, held: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"the batch has no uint8 tensor \[B, C, H, W\] .* it holds {held} Leave mean"
    ):
        list(DevicePrefetcher([batch], device, mean=MEAN, std=STD))
    (moved,) = DevicePrefetcher([batch], device)  # Nothing to be done to images.
    assert len(moved) == len(batch)


def test_arrays_of_numbers_go_to_the_device_as_tensors_and_nothing_else_does() -> None:
    locked = np.arange(3, dtype=np.int64)
    locked.flags.writeable = False
    texts, objects = np.array(["a", "b"]), np.array([None, 1], object)
    batch = {"a": np.ones((2, 2), np.float32), "b": [locked, (np.bool_(True), 5)], "c": texts, "d": objects}
    (moved,) = DevicePrefetcher([batch], "cpu")
    assert torch.equal(moved["a"], torch.ones(2, 2))
    assert torch.equal(moved["b"][0], torch.arange(3))
    assert moved["b"][1] == (np.bool_(True), 5)
    assert moved["c"] is texts
    assert moved["d"] is objects


def test_images_that_come_as_an_array_are_normalised() -> None:
    (moved,) = DevicePrefetcher([np.full((2, 3, 4, 4), 255, np.uint8)], "cpu", mean=(0.5,) * 3, std=(0.5,) * 3)
    torch.testing.assert_close(moved, torch.ones(2, 3, 4, 4))


# Arrays of images, as a Feeder has them.


def normalised(nhwc: np.ndarray[Any, Any], mean: Any, std: Any) -> Tensor:
    """Returns what torch makes of images [B, H, W, C]: [B, C, H, W]."""
    image = torch.from_numpy(nhwc.astype(np.float64)).permute(0, 3, 1, 2) / (255 if nhwc.dtype == np.uint8 else 1)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return (image - mean) / std


@pytest.mark.parametrize("num_channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16, np.float64])
@pytest.mark.parametrize("is_last", [True, False])
def test_arrays_of_images_are_normalised_with_their_channels_last_or_first(
    device: str, num_channels: int, dtype: Any, is_last: bool
) -> None:
    mean, std = (0.5, 0.4, 0.3, 0.2)[:num_channels], (0.2, 0.3, 0.4, 0.5)[:num_channels]
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (2, 8, 6, num_channels)).astype(dtype)
    images = images if dtype == np.uint8 else images / dtype(255)
    given = images if is_last else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    kept = given.copy()
    batch = {"label": np.arange(2), "image": given, "name": ["a", "b"]}
    (moved,) = DevicePrefetcher([batch], device, mean=mean, std=std)
    assert (moved["image"].dtype, tuple(moved["image"].shape)) == (torch.float32, (2, num_channels, 8, 6))
    assert moved["image"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved["image"].double().cpu(), normalised(images, mean, std), rtol=1e-5, atol=1e-5)
    assert moved["label"].tolist() == [0, 1]
    np.testing.assert_array_equal(given, kept)


def test_the_batches_of_a_feeder_are_normalised(device: str) -> None:
    images = np.random.default_rng(6).integers(0, 256, (24, 8, 8, 3), np.uint8)
    with Feeder() as feeder:
        chunks = [(images[start : start + 6], np.arange(start, start + 6)) for start in range(0, 24, 6)]
        feeder.add_source("train", chunks, ["image", "label"], 8)
        feeder.start()
        moved = list(DevicePrefetcher(feeder.batches("train"), device, mean=MEAN, std=STD))
        found = torch.cat([batch["image"] for batch in moved])
    torch.testing.assert_close(found.double().cpu(), normalised(images, MEAN, STD), rtol=1e-5, atol=1e-5)
    assert torch.cat([batch["label"] for batch in moved]).tolist() == list(range(24))


def test_uint8_images_come_before_arrays_of_floats(device: str) -> None:
    floats, image = np.full((2, 4, 4, 3), 7.0, np.float32), image_of([0, 128, 255])
    (moved,) = DevicePrefetcher([(floats, image)], device, mean=(0, 0, 0), std=(1, 1, 1))
    assert moved[0].tolist() == floats.tolist()
    assert moved[1][0, :, 0, 0].tolist() == pytest.approx([0, 128 / 255, 1])
    with pytest.raises(ConfigError, match="3 values for images of 1 channels"):
        list(DevicePrefetcher([(floats, GRAY)], device, std=(1, 1, 1)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_normalises_batches_of_arrays_with_their_channels_last(num_workers: int) -> None:
    nhwc = np.random.default_rng(0).integers(0, 256, (4, 8, 6, 3), np.uint8)
    batches = [{"image": nhwc, "label": np.arange(4)}] * 2
    with create_loader(batches, num_workers, mean=MEAN, std=STD) as loader:
        for batch in loader:
            torch.testing.assert_close(batch["image"], normalised(nhwc, MEAN, STD).float())


def test_arrays_stay_as_they_are_where_nothing_is_to_be_normalised(device: str) -> None:
    (moved,) = DevicePrefetcher([np.zeros((2, 8, 6, 3), np.uint8)], device)
    assert tuple(moved.shape) == (2, 8, 6, 3)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 3, 8, 3), np.uint8), r"\[2, 3, 8, 3\], which may be \[B, H, W, C\] or .*permute\(0, 3, 1, 2\)"),
        (
            np.zeros((2, 8, 8, 4), np.uint8),
            r"\[2, 8, 8, 4\], which is neither \[B, H, W, 3\] nor \[B, 3, H, W\]: give a",
        ),
        (np.full((2, 8, 8, 3), 200.0), r"images of float64 must go from 0 to 1, and these go from 200 to 200"),
        (np.full((2, 8, 8, 3), -0.5, np.float32), r"must go from 0 to 1, and these go from -0\.5 .*normalised already"),
        (np.full((2, 8, 8, 3), np.nan, np.float32), r"must go from 0 to 1, and these go from nan to nan"),
        (torch.zeros(2, 8, 8, 4, dtype=torch.uint8), r"3 values for images of 8 channels, .*: give one for every"),
    ],
)
def test_images_that_cannot_be_meant_are_an_error_after_the_batches_before_them(
    device: str, images: Any, message: str
) -> None:
    iteration = iter(DevicePrefetcher([image_of([1, 2, 3]), images], device, mean=MEAN, std=STD))
    next(iteration)
    with pytest.raises(ConfigError, match=message):
        next(iteration)
    assert next(iteration, None) is None
