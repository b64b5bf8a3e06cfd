"""DevicePrefetcher: batches on their device before the training loop asks for them."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import Parser
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.one_thread import close_iterator
from tfds_torch.torch_data.batches import dataset_call
from tfds_torch.torch_data.device_copy import CudaCopy, DeviceCopy, StageTimes, find_device
from tfds_torch.torch_data.loader_options import LoaderOptions, find_image_place
from tfds_torch.torch_data.nested import with_tensors
from tfds_torch.torch_data.normalization import Normalization


@explain_keywords
class DevicePrefetcher(Iterable[Any]):
    """Yields each batch of a source once, in order, on a device, its images normalised there.

    All tensors of a batch are moved, and numpy arrays of numbers as tensors, in nested dictionaries, lists, tuples and
    named tuples; everything else stays as it is. Its images are a tensor that is uint8 with four dimensions,
    [B, C, H, W]: with `mean` and `std` they become `(image / 255 - mean) / std`, with a `dtype` alone only their type
    changes. For `mean` and `std` the images may also be a numpy array, like a Feeder's: [B, H, W, C] or [B, C, H, W],
    by which axis has as many channels as there are values; and floats from 0 to 1, where nothing is uint8. They come as
    a tensor [B, C, H, W].

    Where a batch has several such tensors, as masks are, one is the images: the field `image` of an ImageDataset or
    IndexedImageDataset, also behind a loader without a `collate_fn`; in other dictionaries that of the key "image",
    else "pixel_values", else "images"; else the first one with a channel for every value of `mean` and `std`; else the
    first one.

    On CUDA, `prefetch_batches` batches are taken from the source and copied ahead of the one that the loop has, on a
    separate stream. Work on the stream that is current when a batch is yielded may use the batch. On other devices
    nothing is ahead: a batch is taken from the source, moved and normalised when it is asked for.

    An error of the source is raised after the batches before it. Interrupts come at once. An iteration that is broken
    off, dropped or closed closes the source's iterator and drops the batches that it had ahead: only batches that were
    yielded count as delivered.

    The source is iterated in the thread that takes the batches; take them in one thread. It may reuse the memory of its
    batches unless that is pinned. Every `iter()` begins a separate iteration, at once.

    Args:
        batches: the source: a loader, or any iterable.
        device: `cpu`, `cuda` (the current one), `cuda:1`, `mps`, ... or a torch.device.
        mean: a number for each channel, or one number for images of one channel, where images go from 0 to 1; None with
            a std: 0.
        std: a number for each channel, likewise; None with a mean: 1.
        dtype: of the images: float32, float16, bfloat16 or float64, or its name; None: float32 with mean or std, else
            uint8.
        channels_last: whether the images lie in channels_last memory; else they are contiguous.
        prefetch_batches: batches ahead, on CUDA; >= 0.
        metrics: its `add("device_copy", seconds)` is called for every batch, at the latest when the iteration ends: on
            CUDA with the time of the copy, without a wait for it, else with the time of moving and normalising. A CUDA
            copy that is not done when the iteration ends is left out.

    Raises:
        ConfigError: a parser instead of batches, a device that is not here, mean or std that cannot be meant, another
            dtype, or a negative prefetch_batches. A batch without images of so many channels, or whose images are a
            list of tensors of several sizes, is reported when it comes.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        device: str | torch.device,
        *,
        mean: float | Iterable[float] | None = None,
        std: float | Iterable[float] | None = None,
        dtype: torch.dtype | str | None = None,
        channels_last: bool = True,
        prefetch_batches: int = 2,
        metrics: StageTimes | None = None,
    ) -> None:
        if isinstance(batches, Parser):
            raise ConfigError(
                f"DevicePrefetcher: {batches!r} is a parser, and not an iterable of batches of tensors. Use "
                f"create_loader({dataset_call(batches)}, device=...)."
            )
        self.batches = batches
        self.device = find_device(device)
        self.prefetch_batches = check_integer("prefetch_batches", prefetch_batches, 0)
        self._normalization = Normalization.of(mean, std, dtype, channels_last, _find_image_place(batches))
        self._metrics = metrics
        self._running: weakref.WeakSet[_Iteration] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Any]:
        return self._begin(iter(self.batches), is_tagged=False)

    def iterate(self, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Begin an iteration over batches with tags; yield each batch on the device with its tag.

        Args:
            batches: pairs of a batch and its tag, which stays as it is. Closed with the iteration.
        """
        return self._begin(batches, is_tagged=True)

    def _begin(self, batches: Iterator[Any], *, is_tagged: bool) -> "_Iteration":
        if self.device.type == "cuda":
            copy: DeviceCopy = CudaCopy(self.device, self._normalization, self._metrics, self.prefetch_batches)
        else:
            copy = DeviceCopy(self.device, self._normalization, self._metrics)
        iteration = _Iteration(copy, batches, self._normalization.arrange, is_tagged)
        self._running.add(iteration)
        return iteration

    def __len__(self) -> int:
        """Batches of the source.

        Raises:
            TypeError: the source has no length.
        """
        if not isinstance(self.batches, Sized):
            raise TypeError(f"{type(self.batches).__name__} has no len(), and so has no DevicePrefetcher over it.")
        return len(self.batches)

    def close(self) -> None:
        """End the iterations under way. The source stays open: it belongs to its maker."""
        for iteration in list(self._running):
            iteration.close()

    def __enter__(self) -> "DevicePrefetcher":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _find_image_place(batches: Any) -> int | str | None:
    """Return where the batches of a loader, or of a dataset, have the field `image`; None: it is unknown."""
    options = getattr(batches, "options", None)
    if isinstance(options, LoaderOptions):
        return options.image_place
    if isinstance(batches, DataLoader):
        is_ours_kept = batches.collate_fn in (default_collate, default_convert)
        return find_image_place(batches.dataset) if is_ours_kept else None
    return find_image_place(batches)


class _Iteration(Iterator[Any]):
    """One iteration: the batches that were sent and not yet received, and the source's error."""

    def __init__(self, copy: DeviceCopy, source: Iterator[Any], arrange: Callable[[Any], Any], is_tagged: bool) -> None:
        self._copy, self._arrange, self._is_tagged = copy, arrange, is_tagged
        self._source: Iterator[Any] | None = source
        self._num_ahead = 0
        self._sent: deque[tuple[Any, Any]] = deque()  # Each with its tag.
        self._error: Exception | None = None

    def __next__(self) -> Any:
        try:
            while self._source is not None and self._error is None and len(self._sent) <= self._num_ahead:
                self._send_next(self._source)
            if self._sent:
                batch = self._copy.receive(self._sent[0][0])
                _, tag = self._sent.popleft()
                # The first batch comes as soon as it is read; the ones ahead of it are built up one by one.
                self._num_ahead = min(self._num_ahead + 1, self._copy.num_ahead)
                return (batch, tag) if self._is_tagged else batch
        except Exception:
            self.close()
            raise
        error = self._error or StopIteration()
        self.close()
        try:
            raise error
        finally:
            del error  # It refers to this frame.

    def _send_next(self, source: Iterator[Any]) -> None:
        try:
            if self._sent:  # This hardly ever waits: the latest batch was sent before the loop's latest step.
                self._copy.settle(self._sent[-1][0])
            batch, tag = next(source) if self._is_tagged else (next(source), None)
            self._sent.append((self._copy.send(with_tensors(self._arrange(batch))), tag))
        except StopIteration:
            self._close_source()
        except Exception as error:  # Comes after the batches before it.
            # Without this frame, so that this object is not kept by its own error.
            self._error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)

    def close(self) -> None:
        """Drop the source and the batches ahead; the iteration has then ended."""
        self._error = None
        self._sent.clear()
        self._copy.close()
        self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        close_iterator(source)

    def __del__(self) -> None:
        self.close()
