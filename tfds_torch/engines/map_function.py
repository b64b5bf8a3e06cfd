"""A user's own tensorflow function for augmentation, applied to the images of a chunk."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.tensorflow_runtime import load_tensorflow, readable_reason
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import CHANNELS, Pixels
from tfds_torch.images.preprocess import MapFunction, Preprocess, height_and_width
from tfds_torch.images.transform import MapImages
from tfds_torch.plan.order import draw_seeds
from tfds_torch.runtime.imported_function import import_function


def make_map(preprocess: Preprocess | None, mode: str | None, seed: int) -> MapImages | None:
    """Returns what applies a preprocess's map_fn; None: it has none. Only a map_fn brings tensorflow in.

    Raises:
        ConfigError: there is no such function, it fails, or it changes an image's shape or dtype.
    """
    if preprocess is None or preprocess.map_fn is None:
        return None
    shape = (*height_and_width(preprocess.size), CHANNELS[mode])
    image_map = ImageMap(load_tensorflow("a map_fn"), preprocess.map_fn, shape)
    return lambda pixels, keys: image_map.apply(pixels, draw_seeds(keys, seed))


class ImageMap:
    """Applies a map_fn. Thread-safe."""

    def __init__(self, tf: Any, map_fn: MapFunction, shape: tuple[int, int, int]) -> None:
        self._tf = tf
        name = map_fn if isinstance(map_fn, str) else getattr(map_fn, "__qualname__", repr(map_fn))
        function = find_map_function(map_fn)
        try:
            traced = tf.function(function).get_concrete_function(
                tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([2], tf.int64)
            )
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error.__context__, MemoryError):  # tensorflow's own error hides it.
                raise error.__context__ from None
            raise ConfigError(f"map_fn {name} failed: {type(error).__name__}: {error}") from error
        _check_result(tf, name, traced.structured_outputs, shape)

        def of_chunk(images: Any, seeds: Any) -> Any:
            return tf.map_fn(
                lambda pair: tf.ensure_shape(traced(*pair), shape),
                (images, seeds),
                fn_output_signature=tf.TensorSpec(shape, tf.uint8),
                parallel_iterations=1,  # Other chunks have the other threads.
            )

        signature = [tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None, 2], tf.int64)]
        self._of_chunk = tf.function(of_chunk, input_signature=signature, autograph=False)
        self._name = name

    def apply(self, images: Pixels, seeds: NDArray[np.int64]) -> Pixels:
        """Returns the images, uint8 [n, H, W, C], as the function made them.

        Raises:
            ConfigError: the function failed, or changed an image's shape.
        """
        try:
            return np.asarray(memoryview(self._of_chunk(images, seeds)))
        except self._tf.errors.OpError as error:
            reason = readable_reason(str(error.message))
            # tensorflow passes on only the text of what Python code inside of the function raised.
            kind, _, text = reason.partition(":")
            if kind == "KeyboardInterrupt":
                raise KeyboardInterrupt from None
            if kind == "MemoryError":
                raise MemoryError(text.strip()) from None
            raise ConfigError(f"map_fn {self._name} failed: {reason}") from error


def find_map_function(map_fn: MapFunction) -> Callable[..., Any]:
    """Returns the function that a map_fn is or names."""
    if not isinstance(map_fn, str):
        return map_fn
    return import_function("map_fn", map_fn)


def _check_result(tf: Any, name: str, result: Any, shape: tuple[int, int, int]) -> None:
    if not tf.is_tensor(result) and not hasattr(result, "shape"):
        raise ConfigError(f"map_fn {name} returned {result!r}: it must return an image, uint8 {list(shape)}.")
    if result.dtype != tf.uint8 or not result.shape.is_compatible_with(shape):
        raise ConfigError(
            f"map_fn {name} was given an image uint8 {list(shape)} and returned {result.dtype.name} {result.shape}: it "
            f"must keep shape and dtype. Cast with tf.saturate_cast(image, tf.uint8), and leave the size to the "
            f"preprocess."
        )
