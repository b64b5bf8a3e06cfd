"""Decode and transform for several views of each image, which share the decoded pixels."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.crops import CropParameters
from tfds_torch.images.decoding import BadImageError, ImageDecodeError, ImageDecoder, Pixels
from tfds_torch.images.headers import Header
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.transform import BufferRows, Images, ImageTransform, MoveAlong, Rows
from tfds_torch.images.views import Views
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.stored_pixels import StoredPixels


def make_transform(
    mode: str | None,
    preprocess: Preprocess | None,
    *,
    seed: int,
    jpeg_decoder: str,
) -> ImageTransform:
    """Return the transform that makes the images of batches by a preprocess; its arguments are ImageTransform's."""
    if isinstance(preprocess, Views):
        return ViewsTransform(mode, preprocess, seed=seed, jpeg_decoder=jpeg_decoder)
    return ImageTransform(mode, preprocess, seed=seed, jpeg_decoder=jpeg_decoder)


class ViewsTransform(ImageTransform):
    """Writes the views of images into the parts of `ViewsBuffer`s. Thread-safe; the arguments are ImageTransform's."""

    def __init__(self, mode: str | None, views: Views, *, seed: int, jpeg_decoder: str) -> None:
        super().__init__(mode, views, seed=seed, jpeg_decoder=jpeg_decoder)
        self._each = [
            ImageTransform(mode, one, seed=seed, jpeg_decoder=jpeg_decoder, view=number)
            for number, one in enumerate(views.each)
        ]

    def only_copies(self, images: StoredPixels, keys: Int64Array) -> bool:
        """Return False: stored images never become rows by a copy."""
        return False

    def write(
        self,
        images: Images,
        keys: Int64Array,
        rows: Rows,
        masks: Mapping[str, Sequence[NDArray[Any]]] | None = None,
        move: MoveAlong | None = None,
        pictures: Mapping[str, Sequence[bool]] = MappingProxyType({}),
    ) -> dict[str, list[NDArray[Any]]]:
        """Decode n images and write their views; masks and boxes do not go along. See ImageTransform."""
        images = list(images)
        headers = self.read_headers(images)
        sizes = np.array([(header.height, header.width) for header in headers], np.int64)
        shrinkable = np.array([header.is_shrinkable for header in headers])
        every = [one.crop_parameters(sizes, keys, shrinkable) for one in self._each]
        decoded = decode_shared(self._decoder, images, headers, every)
        for number, (one, parameters, pixels) in enumerate(zip(self._each, every, decoded, strict=True)):
            own = [BufferRows(_part_of(part.buffer, number), part.start, part.stop) for part in rows]
            one.fill(own, pixels, parameters)
            one.augment(keys, own)
        return {}


def _part_of(buffer: Any, number: int) -> Any:
    return buffer.parts[number]  # Of a ViewsBuffer: parsers make no others for views.


def decode_shared(
    decoder: ImageDecoder, images: Images, headers: Sequence[Header], views: Sequence[CropParameters]
) -> list[list[Pixels]]:
    """Return the windows of n images for each view, uint8 [h, w, C].

    The windows of an image that are decoded at one resolution are cut out of one larger window, which is decoded once:
    most of the time goes into the lines of a JPEG, which are read for one window as for several.

    Raises:
        BadImageError: an image cannot be decoded.
    """
    shrinks = np.stack([parameters.shrinks for parameters in views])  # [views, n]
    # Rounded up: the last pixels of an image become one of the shrunk image, too. [views, n, 4]
    windows = -(-np.stack([parameters.windows for parameters in views]) // shrinks[..., None])
    decoded: list[list[Pixels]] = [[] for _ in views]
    for position, (image, header) in enumerate(zip(images, headers, strict=True)):
        found: dict[int, tuple[Pixels, int, int]] = {}
        own_shrinks, own = shrinks[:, position], windows[:, position]
        for shrink in set(own_shrinks.tolist()):
            those = own[own_shrinks == shrink]
            top, left = those[:, :2].min(axis=0).tolist()
            low, right = (those[:, :2] + those[:, 2:]).max(axis=0).tolist()
            try:
                pixels = decoder.decode(image, header, (top, left, low - top, right - left), shrink)
            except ImageDecodeError as error:
                raise BadImageError(position, str(error)) from None
            found[shrink] = pixels, top, left
        for parts, shrink, (top, left, height, width) in zip(decoded, own_shrinks.tolist(), own.tolist(), strict=True):
            pixels, first, start = found[shrink]
            parts.append(pixels[top - first : top - first + height, left - start : left - start + width])
    return decoded
