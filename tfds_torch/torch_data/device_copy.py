"""Batches on their way to a device: at once, or ahead of the training loop on a separate stream."""

import functools
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import torch
from torch import Tensor

from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.nested import map_tensors, tensors
from tfds_torch.torch_data.normalization import Normalization
from tfds_torch.torch_data.profiling import stage

STAGE = "device_copy"


class StageTimes(Protocol):
    """Receives the time of each copy, from any thread."""

    def add(self, stage: str, seconds: float) -> None:
        """Add the seconds that a stage took."""


def find_device(device: Any) -> torch.device:
    """Return a device that exists here, or raise ConfigError."""
    try:
        found = torch.device(device)
        if found.type == "cuda":
            is_here = torch.cuda.is_available() and (found.index or 0) < torch.cuda.device_count()
        else:
            torch.empty(0, device=found)
            is_here = True
    except (RuntimeError, TypeError, AssertionError, ImportError):  # Each backend is absent in its own way.
        is_here = False
    if not is_here:
        raise ConfigError(
            f"device={device!r} is not a device of this machine that torch {torch.__version__} can use. Here are "
            f"{', '.join(_devices())}."
        )
    return found


class DeviceCopy:
    """Sends batches to a device, and returns them in the order in which they were sent; one for each iteration.

    This class copies and normalises a batch when it is asked for; nothing is ahead. `metrics` gets each batch's time.
    """

    num_ahead = 0
    """Batches to be sent beyond the one that is received next."""

    def __init__(self, device: torch.device, normalization: Normalization, metrics: StageTimes | None) -> None:
        self._device, self._normalization, self._metrics = device, normalization, metrics
        self._normalize = normalization.on(device)

    def send(self, batch: Any) -> Any:
        """Begin to copy a batch, and return the argument for `receive`."""
        began_at = time.monotonic()
        images = set(map(id, self._normalization.find_images(batch)))

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(self._device)
            return self._normalize(moved) if id(tensor) in images else moved

        with stage(STAGE):
            moved = map_tensors(batch, move)
        if self._metrics is not None:
            self._metrics.add(STAGE, time.monotonic() - began_at)
        return moved

    def settle(self, sent: Any) -> None:
        """Wait until the memory that a batch came in is no longer read: its source may then reuse it."""

    def receive(self, sent: Any) -> Any:
        """Return a batch that the caller's work on the device may use."""
        return sent

    def close(self) -> None:
        """Drop the batches that were sent and not received."""


class CudaCopy(DeviceCopy):
    """Copies and normalises batches on a stream for copies only, from its own thread, `num_ahead` batches ahead.

    The thread writes a batch into pinned memory, from which the copy runs beside the model's kernels. torch reuses such
    memory once a copy is done: a few buffers serve all batches. The receiver's current stream waits for a batch, its
    thread does not; the batch's memory is not reused before that stream is done with it. `metrics` gets the time that
    each copy took on the device once it is done, without a wait.
    """

    def __init__(
        self, device: torch.device, normalization: Normalization, metrics: StageTimes | None, num_ahead: int
    ) -> None:
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._stream = _copy_stream(device)
        with torch.cuda.stream(self._stream):  # Which then has the constants before it uses them.
            super().__init__(device, normalization, metrics)
        self.num_ahead = num_ahead
        self._times: deque[tuple[Any, Any]] = deque()  # Events before and after each copy not reported yet.
        self._receiver = threading.get_ident()
        self._executor = ThreadPoolExecutor(1, "tfds_torch.device_copy")

    def send(self, batch: Any) -> "Future[tuple[Any, Any]]":
        """Begin to copy a batch; return the batch, with the event after which it is complete."""
        if any(tensor.is_cuda for tensor in tensors(batch)):  # Made by work that may still run.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return self._executor.submit(self._copy, batch)

    def settle(self, sent: "Future[tuple[Any, Any]]") -> None:
        """Wait until a batch lies in pinned memory."""
        wait([sent])

    def receive(self, sent: "Future[tuple[Any, Any]]") -> Any:
        """Return a batch that work on the current stream may use."""
        batch, is_ready = sent.result()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(is_ready)
        for tensor in tensors(batch):
            tensor.record_stream(stream)
        self._report()
        return batch

    def close(self) -> None:
        """End the thread, after the copy that is under way."""
        # A later fork must not meet the thread in the middle of a copy. Collected by it, we cannot wait for it.
        self._executor.shutdown(wait=threading.get_ident() == self._receiver, cancel_futures=True)
        try:
            self._report()
        except RuntimeError:  # The device failed: that is for the training loop to meet.
            self._times.clear()

    def _copy(self, batch: Any) -> tuple[Any, Any]:
        images = set(map(id, self._normalization.find_images(batch)))
        with stage("pin"):
            pinned = {id(tensor): self._pin(tensor) for tensor in tensors(batch)}
        with torch.cuda.stream(self._stream):
            before, after, is_ready = _event(is_timed=True), _event(is_timed=True), _event()
            before.record(self._stream)
            copied = {key: tensor.to(self._device, non_blocking=True) for key, tensor in pinned.items()}
            after.record(self._stream)
            for image in images:
                copied[image] = self._normalize(copied[image])
            is_ready.record(self._stream)
        if self._metrics is not None:
            self._times.append((before, after))
        return map_tensors(batch, lambda tensor: copied[id(tensor)]), is_ready

    def _pin(self, tensor: Tensor) -> Tensor:
        """Return a tensor in memory that the device reads by itself; a tensor on a device stays there."""
        if tensor.is_cuda:
            tensor.record_stream(self._stream)
            return tensor
        return tensor.pin_memory() if tensor.layout == torch.strided and not tensor.is_nested else tensor

    def _report(self) -> None:
        """Report the copies that are done."""
        while self._metrics is not None and self._times and self._times[0][1].query():
            before, after = self._times.popleft()
            self._metrics.add(STAGE, before.elapsed_time(after) / 1000)


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all copies to a device: torch keeps memory that was freed for the stream it was made on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event(is_timed: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]


def _devices() -> list[str]:
    """Return the names of the devices that are here."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
