"""A CUDA device that is not there: its memory is the host's, its streams and events note what is asked of them."""

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

COPY_MS = 250.0


@dataclass(eq=False)
class FakeStream:
    """Remembers the events that it waited for, and who waited for it."""

    name: str
    waited: list["FakeEvent"] = field(default_factory=list)
    streams: list["FakeStream"] = field(default_factory=list)

    def wait_event(self, event: "FakeEvent") -> None:
        assert event.stream is not None, "waited for an event that was not recorded"
        self.waited.append(event)

    def wait_stream(self, stream: "FakeStream") -> None:
        self.streams.append(stream)


@dataclass(eq=False)
class FakeEvent:
    """Is through when its device says so."""

    cuda: "FakeCuda"
    enable_timing: bool
    stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def query(self) -> bool:
        if self.cuda.has_failed:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.cuda.is_through

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.enable_timing
        assert end.enable_timing
        return COPY_MS


@dataclass(eq=False)
class FakeCuda:
    """Stands for `torch.cuda`, and for what tensors do with it.

    Attributes:
        loop: the training loop's stream.
        is_through: whether the copies are through.
        has_failed: whether the device has.
        events: all of them.
        copies: shape of each tensor that was copied, and whether somebody waited for it.
        used: (address, stream's name) of each tensor that a stream was noted to use.
        threads: names of the threads that copied.
        residents: addresses of tensors that lie on the device from the beginning.
    """

    loop: FakeStream = field(default_factory=lambda: FakeStream("loop"))
    is_through: bool = True
    has_failed: bool = False
    events: list[FakeEvent] = field(default_factory=list)
    copies: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    used: list[tuple[int, str]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    residents: set[int] = field(default_factory=set)

    def make_event(self, enable_timing: bool = False) -> FakeEvent:
        self.events.append(FakeEvent(self, enable_timing))
        return self.events[-1]

    def make_context(self, stream: FakeStream) -> AbstractContextManager[None]:
        return nullcontext()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real_to = Tensor.to
        pinned: set[int] = set()

        def pin_memory(tensor: Tensor) -> Tensor:
            copied = tensor.clone(memory_format=torch.preserve_format)
            pinned.add(copied.data_ptr())
            return copied

        def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not (args and isinstance(args[0], torch.device) and args[0].type == "cuda"):
                return real_to(tensor, *args, **kwargs)
            if tensor.is_cuda:
                return tensor
            if kwargs.get("non_blocking"):
                assert not tensor.numel() or tensor.data_ptr() in pinned, (
                    "a copy that does not wait needs pinned memory"
                )
                self.copies.append((tuple(tensor.shape), bool(kwargs.get("non_blocking"))))
                self.threads.add(threading.current_thread().name)
            return tensor.clone(memory_format=torch.preserve_format)

        patch.setattr(Tensor, "is_cuda", property(lambda tensor: tensor.data_ptr() in self.residents))
        patch.setattr(Tensor, "to", to)
        patch.setattr(Tensor, "pin_memory", pin_memory)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: self.used.append((id(tensor), stream.name)))
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "current_device": lambda: 1,
            "Stream": lambda device: FakeStream(f"copies to {device}"),
            "Event": self.make_event,
            "stream": self.make_context,
            "current_stream": lambda device: self.loop,
        }.items():
            patch.setattr(torch.cuda, name, value)
