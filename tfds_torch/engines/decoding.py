"""ChunkDecoder: the fields of encoded examples, decoded; images straight into their batch. Both engines use it."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfds_torch.engines.map_function import make_map
from tfds_torch.engines.request import Content, Decoded, EncodedChunk
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.images.decoding import BadImageError, OtherSizeError
from tfds_torch.images.preprocess import PreprocessError
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.random import examples_of
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage.source import Columns, Source
from tfds_torch.storage.stored_pixels import StoredPixels


class ChunkDecoder:
    """Decodes chunks of examples. Several threads may decode, each chunks of its own.

    Args:
        source: of the examples.
        content: what is decoded.
        seed: of random numbers.
        metrics: what times are reported to.

    Raises:
        ConfigError: the map_fn of the preprocess cannot be used.
    """

    def __init__(self, source: Source, content: Content, seed: int = 0, metrics: StageMetrics | None = None) -> None:
        self._source = source
        self._content = content
        self._metrics = metrics
        self._transform: ImageTransform | None = None
        if content.image is not None:
            map_images = make_map(content.preprocess, content.image.mode, seed)
            self._transform = ImageTransform(content.image.mode, content.preprocess, seed=seed, map_images=map_images)

    def row_shape(self, chunk: EncodedChunk, position: int) -> tuple[int, int, int]:
        """Returns [H, W, C] of the rows of a batch that begins with an example of a chunk.

        Raises:
            CorruptRecordError: its image tells no size.
        """
        assert self._content.image is not None and self._transform is not None  # noqa: S101, PT018 (nobody else asks)
        try:
            return self._transform.row_shape(chunk.columns[self._content.image.key], position)
        except BadImageError as error:
            raise self._undecodable(chunk, position, error.reason) from None

    def only_copies(self, columns: Columns, keys: Int64Array) -> bool:
        """Whether decoding is but to copy: all values are arrays, and images pixels that are at most cut and flipped.

        Args:
            columns: stored field -> n encoded values.
            keys: int64 [m], the sample keys of some examples, by whose crops it is judged.
        """
        image, preprocess = self._content.image, self._content.preprocess
        if image is None or self._transform is None or (preprocess is not None and preprocess.also):
            return False
        images = columns[image.key]
        others = [values for name, values in columns.items() if name != image.key]
        return (
            isinstance(images, StoredPixels)
            and all(isinstance(values, np.ndarray) and values.dtype != object for values in others)
            and self._transform.only_copies(images, keys)
        )

    def decode(self, chunk: EncodedChunk, rows: Sequence[BufferRows]) -> Decoded:
        """Returns field name -> n values; the images of batch buffers are written into these.

        Args:
            chunk: n encoded examples.
            rows: n rows in all that their images belong to; empty where images are arrays of their own.

        Raises:
            CorruptRecordError: an image or another value cannot be decoded.
            ConfigError: the preprocess or its map_fn failed, or images of whole batches are of several sizes.
        """
        began_s = time.perf_counter()
        try:
            return self._decode(chunk, rows)
        except OtherSizeError as error:
            (name,) = self._source.ids(self._index(chunk)[error.position : error.position + 1])
            raise ConfigError(
                f"Whole batches need images of one size: {name} is of another one than the images before it. "
                f"{error.reason} Give the parser a preprocess, such as TrainPreprocess(size=224), or leave out "
                f"batched=True."
            ) from None
        except PreprocessError as error:
            (name,) = self._source.ids(self._index(chunk)[error.position : error.position + 1])
            raise ConfigError(f"The preprocess cannot be applied to {name}. {error.reason}") from error.__cause__
        except BadImageError as error:
            raise self._undecodable(chunk, error.position, error.reason) from None
        finally:
            if self._metrics is not None:
                self._metrics.add("decode", time.perf_counter() - began_s)

    def _decode(self, chunk: EncodedChunk, rows: Sequence[BufferRows]) -> Decoded:
        decoded = {name: self._decode_field(name, chunk) for name in self._content.fields}
        image, preprocess = self._content.image, self._content.preprocess
        if image is not None and self._transform is not None:
            also = () if preprocess is None else preprocess.also
            masks = {name: decoded[name] for name in also if name in decoded}
            decoded |= self._transform.write(chunk.columns[image.key], chunk.keys, rows, masks)
        return decoded

    def _decode_field(self, name: str, chunk: EncodedChunk) -> Any:
        decoder = self._content.fields[name]
        try:
            return decoder.decode(chunk.columns)
        except BadImageError:
            raise
        except (TfdsTorchError, MemoryError):
            raise
        except Exception as error:  # Of TFDS's decoders, which do not check what they are given.
            failure = error
        for position in range(len(chunk)):
            try:
                decoder.decode(cut_columns(chunk.columns, position, position + 1))
            except Exception as error:
                raise self._undecodable(chunk, position, f"Its field {name!r}: {describe(error)}") from error
        raise self._undecodable(chunk, 0, f"The field {name!r} of it and its neighbours: {describe(failure)}")

    def _undecodable(self, chunk: EncodedChunk, position: int, reason: str) -> TfdsTorchError:
        return self._source.undecodable(int(self._index(chunk)[position]), reason)

    def _index(self, chunk: EncodedChunk) -> "np.typing.NDArray[np.int64]":
        return examples_of(chunk.keys, len(self._source))


def describe(error: BaseException) -> str:
    """Returns an error as a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    said = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    return said if said.endswith(".") else f"{said}."


def cut_columns(columns: Columns, start: int, stop: int) -> Columns:
    """Returns the columns of the examples at positions start..stop-1."""
    return {name: values[start:stop] for name, values in columns.items()}
