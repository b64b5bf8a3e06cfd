"""How fields of windows are decoded: steps outside of an episode become zeros, images of many steps one array."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import SAMPLES, FieldDecoder, OneKeyField, Samples
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.decoding import BadImageError, OtherSizeError
from tfds_torch.images.preprocess import Preprocess, PreprocessError
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.runtime.tensor_type import is_numeric
from tfds_torch.storage.source import Columns


@dataclass(frozen=True)
class WindowField:
    """A field of windows; uint8 images have their own class, `WindowImageField`.

    Attributes:
        inner: decodes it; every step that is asked for is there.
        padding: the stored field that says which steps become zeros, or empty texts; None where none do.
        is_text: whether bytes become texts.
        is_image: whether values are images [H, W, C], which become [C, H, W].
    """

    inner: FieldDecoder
    padding: str | None = None
    is_text: bool = False
    is_image: bool = False

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return self.inner.keys if self.padding is None else (*self.inner.keys, self.padding)

    def decode(self, columns: Columns) -> Any:  # noqa: D102
        values = self.inner.decode(columns)
        if self.is_image:
            values = [np.moveaxis(value, -1, -3) if isinstance(value, np.ndarray) else value for value in values]
        values = as_one_array(values)
        if self.padding is not None:
            values = _with_zeros(values, columns[self.padding])
        return [_text_of(value) for value in values] if self.is_text else values


@dataclass(frozen=True)
class OtherColumns:
    """A field whose columns have longer names: windows have its feature several times, with other steps each.

    Attributes:
        inner: decodes it.
        suffix: the text behind the keys of `inner`.
    """

    inner: FieldDecoder
    suffix: str

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return tuple(key + self.suffix for key in self.inner.keys)

    def decode(self, columns: Columns) -> Any:  # noqa: D102
        return self.inner.decode({**columns, **{key: columns[key + self.suffix] for key in self.inner.keys}})


@dataclass(frozen=True)
class WindowImageField(OneKeyField):
    """Encoded uint8 images of windows, channels first: uint8 [n, T, C, H, W], in memory channels last.

    They are [n, C, H, W] where a window has only its own step. Where their sizes differ, they are a list of n arrays,
    or of n lists of T arrays.

    All images of a window get the same random numbers, and so the same crop and flip where they are of one size; each
    camera has its own random numbers, which all names of its feature share.

    Attributes:
        has_time: whether each window has T images, rather than one.
        mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        padding: the stored field that says which images become zeros; None where none do.
        preprocess: cuts and resizes them; with None they stay as they are.
        jpeg_decoder: as in `ImageDecoder`.
        feature: name of the camera's feature; None: it is the name of its column.
    """

    has_time: bool
    mode: str | None
    padding: str | None = None
    preprocess: Preprocess | None = None
    jpeg_decoder: str = "auto"
    feature: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,) if self.padding is None else (self.key, self.padding)

    def row_shape(self, columns: Columns, position: int) -> tuple[int, int, int, int]:
        """Return how many images a window has, and [H, W, C] of the window at a position; raise BadImageError."""
        images = self._images(columns[self.key][position : position + 1])
        return (len(images), *self._transform(columns[SAMPLES]).row_shape(images))

    def write(self, columns: Columns, rows: Sequence[BufferRows]) -> None:
        """Decode the images of n windows into as many rows as there are images; see `CameraField`."""
        images, samples = self._images(columns[self.key]), columns[SAMPLES]
        num_steps = len(images) // len(samples.keys)
        with self._naming_windows(num_steps):
            self._transform(samples).write(images, np.repeat(samples.keys, num_steps), rows)
        if self.padding is not None and (is_outside := columns[self.padding]).any():
            start, is_outside = 0, is_outside.reshape(-1)
            for part in rows:
                part.pixels[is_outside[start : start + len(part)]] = 0
                start += len(part)

    def decode(self, columns: Columns) -> Any:
        """Return the images of n windows; raise BadImageError or PreprocessError with the window's position."""
        windows = columns[self.key]
        if not len(windows):
            return []
        try:
            num_steps, height, width, num_channels = self.row_shape(columns, 0)
            buffer = ArrayBuffer((len(windows) * num_steps, height, width, num_channels))
            self.write(columns, [BufferRows(buffer, 0, len(buffer.pixels))])
            return buffer.channels_first(num_steps if self.has_time else None)
        except OtherSizeError:
            pass
        images = self._images(windows)
        num_steps = len(images) // len(windows)
        with self._naming_windows(num_steps):
            decoded = [np.moveaxis(one, -1, 0) for one in self._transform(columns[SAMPLES]).decode(images)]
        pixels = _in_windows(decoded, num_steps) if self.has_time else decoded
        return pixels if self.padding is None else _with_zeros(pixels, columns[self.padding])

    def _images(self, windows: Sequence[Any]) -> list[bytes]:
        """Return the images of windows, one behind the other."""
        return [image for window in windows for image in window] if self.has_time else list(windows)

    @contextmanager
    def _naming_windows(self, num_steps: int) -> Iterator[None]:
        """Turn errors of images into errors of their windows."""
        try:
            yield
        except OtherSizeError:
            raise
        except BadImageError as error:
            name = self.feature or self.key
            step = f"Image {error.position % num_steps} of the {num_steps} of {name!r}: " if self.has_time else ""
            raise BadImageError(error.position // num_steps, f"{step}{error.reason}") from None
        except PreprocessError as error:
            raise PreprocessError(error.position // num_steps, error.reason) from error.__cause__

    def _transform(self, samples: Samples) -> ImageTransform:
        if self.preprocess is None or samples.are_whole:
            return ImageTransform(self.mode, jpeg_decoder=self.jpeg_decoder)
        seed = samples.seed + crc32((self.feature or self.key).encode())
        return ImageTransform(self.mode or "RGB", self.preprocess, seed=seed, jpeg_decoder=self.jpeg_decoder)


def _in_windows(images: Sequence[Any], num_steps: int) -> list[Any]:
    """Return images, one behind the other, as windows of `num_steps` steps."""
    return [as_one_array(images[at : at + num_steps]) for at in range(0, len(images), num_steps)]


def as_one_array(values: Any) -> Any:
    """Return values as one array where they are numbers of one shape; else as they are."""
    if isinstance(values, np.ndarray) or not values:
        return values
    if not all(isinstance(value, np.ndarray | np.generic) and is_numeric(value.dtype) for value in values):
        return values
    return np.stack(values) if len({(value.shape, value.dtype) for value in values}) == 1 else values


def _with_zeros(windows: Any, is_outside: NDArray[np.bool_]) -> Any:
    """Return windows, [n, T, ...] or n of T values, with zeros where steps are outside; bool [n, T]."""
    if not is_outside.any():
        return windows
    if isinstance(windows, np.ndarray):
        windows[is_outside] = 0
        return windows
    return [_steps_with_zeros(window, row) for window, row in zip(windows, is_outside, strict=True)]


def _steps_with_zeros(steps: Any, is_outside: NDArray[np.bool_]) -> Any:
    if isinstance(steps, dict):
        return {name: _steps_with_zeros(inner, is_outside) for name, inner in steps.items()}
    if isinstance(steps, np.ndarray):
        steps = steps.copy()
        steps[is_outside] = b"" if steps.dtype == object else 0
        return steps
    return [_empty_like(value) if outside else value for value, outside in zip(steps, is_outside.tolist(), strict=True)]


def _empty_like(value: Any) -> Any:
    """Return the value of a step outside of the episode where sizes differ: an image of zeros, or an empty sequence."""
    if isinstance(value, dict):
        return {name: _empty_like(inner) for name, inner in value.items()}
    is_image = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3
    return np.zeros_like(value) if is_image else value[:0]


def _text_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [_text_of(one) for one in value]
