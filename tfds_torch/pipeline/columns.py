"""How each field of an example is decoded in the graph, a chunk of examples at a time, and unpacked in numpy.

Values of different sizes cross from tensorflow to numpy as one flat tensor plus their shapes: one copy per chunk, where
a tensor per example would cost a call each.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.pipeline.bytes_array import bytes_array

CHANNELS = {None: 0, "L": 1, "RGB": 3, "RGBA": 4}
"""`image_mode` -> number of channels; None keeps what is stored."""

Array = NDArray[Any]


class Column(Protocol):
    """A field: a piece of graph that decodes it, and its counterpart in numpy."""

    def feature_specs(self, tf: Any) -> Mapping[str, Any]:
        """Returns what `tf.io.parse_example` must extract for this field."""

    def decode(self, tf: Any, parsed: Mapping[str, Any], serialized: Any, num_parallel: int) -> tuple[Any, ...]:
        """Adds the decoding of a chunk to the graph.

        Args:
            tf: the module tensorflow.
            parsed: tensors of `feature_specs`, each [n, ...].
            serialized: string [n], the encoded examples.
            num_parallel: how many examples may be decoded at the same time.

        Returns:
            Dense tensors, as `unpack` expects them.
        """

    def unpack(self, arrays: tuple[Array, ...]) -> Any:
        """Returns the chunk's n values: an array [n, ...], or a list."""


@dataclass(frozen=True)
class DenseColumn:
    """A feature of fixed shape that is stored as it is: numbers, labels, texts.

    Attributes:
        key: its key in the `tf.train.Example`.
        dtype: of the feature; a string feature is `object`.
        shape: of one value.
        is_text: whether bytes are decoded to `str`.
        default: value of an example that lacks the feature; None makes that an error.
    """

    key: str
    dtype: Any
    shape: tuple[int, ...] = ()
    is_text: bool = False
    default: Any = None

    def feature_specs(self, tf: Any) -> Mapping[str, Any]:  # noqa: D102
        return {self.key: tf.io.FixedLenFeature(self.shape, tf.as_dtype(self._stored), self.default)}

    def decode(self, tf: Any, parsed: Mapping[str, Any], serialized: Any, num_parallel: int) -> tuple[Any, ...]:  # noqa: D102
        value = parsed[self.key]
        return (value if value.dtype == tf.string else tf.cast(value, self.dtype),)

    def unpack(self, arrays: tuple[Array, ...]) -> Any:  # noqa: D102
        (values,) = arrays
        if values.dtype != object:
            return values
        if self.is_text and not self.shape:
            return [text.decode(errors="replace") for text in values]
        return list(values)

    def read(self, features: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the values of one example, as many as `shape` has, without tensorflow.

        Args:
            features: key -> `tf.train.Feature`, of the example.

        Raises:
            ValueError: it has another number of values.
        """
        return read_values(features, self.key, self._field, self._size, self._defaults)

    def stack(self, rows: Sequence[Sequence[Any]]) -> tuple[Array, ...]:
        """Returns what n examples' values, of `read`, would have been decoded to: an array [n, *shape]."""
        flat = list(chain.from_iterable(rows))
        values = bytes_array(flat) if self._stored is np.object_ else np.array(flat, self._stored)
        shaped = values.reshape(len(rows), *self.shape)
        return (shaped if self._stored is np.object_ else shaped.astype(self.dtype),)

    @cached_property
    def _stored(self) -> type[np.generic]:
        """The type in which the feature is stored."""
        kind = np.dtype(self.dtype).kind
        return np.object_ if kind in "OSU" else np.float32 if kind == "f" else np.int64

    @cached_property
    def _field(self) -> str:
        return {np.object_: "bytes_list", np.float32: "float_list", np.int64: "int64_list"}[self._stored]

    @cached_property
    def _size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def _defaults(self) -> Sequence[Any]:
        return () if self.default is None else np.broadcast_to(self.default, self.shape).reshape(-1).tolist()


@dataclass(frozen=True)
class ImageColumn:
    """An encoded image (JPEG, PNG, GIF's first frame or BMP).

    Attributes:
        key: its key in the `tf.train.Example`.
        mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
    """

    key: str
    mode: str | None = "RGB"

    def feature_specs(self, tf: Any) -> Mapping[str, Any]:  # noqa: D102
        return {self.key: tf.io.FixedLenFeature((), tf.string)}

    def decode(self, tf: Any, parsed: Mapping[str, Any], serialized: Any, num_parallel: int) -> tuple[Any, ...]:  # noqa: D102
        return map_ragged(tf, lambda image: (self.decode_one(tf, image),), (parsed[self.key],), num_parallel)

    def unpack(self, arrays: tuple[Array, ...]) -> Any:  # noqa: D102
        return list(split_ragged(*arrays))

    def read(self, features: Mapping[str, Any]) -> bytes:
        """Returns the encoded image of one example, without tensorflow.

        Args:
            features: key -> `tf.train.Feature`, of the example.

        Raises:
            ValueError: it has none, or several.
        """
        image: bytes
        (image,) = read_values(features, self.key, "bytes_list", 1)
        return image

    def decode_one(self, tf: Any, image: Any) -> Any:
        """Returns uint8 [H, W, C] of an encoded image, string []."""
        if self.mode != "RGBA":
            return tf.io.decode_image(image, channels=CHANNELS[self.mode], expand_animations=False)
        # libjpeg knows no alpha: decode what is there, then add what is missing.
        pixels = tf.io.decode_image(image, channels=0, expand_animations=False)
        num_channels = tf.shape(pixels)[-1]
        color = tf.cond(num_channels < 3, lambda: tf.repeat(pixels[..., :1], 3, axis=-1), lambda: pixels[..., :3])
        has_alpha = tf.logical_or(tf.equal(num_channels, 2), tf.equal(num_channels, 4))
        opaque = tf.constant(255, tf.uint8)
        alpha = tf.cond(has_alpha, lambda: pixels[..., -1:], lambda: tf.fill(tf.shape(pixels[..., :1]), opaque))
        return tf.concat([color, alpha], axis=-1)


@dataclass(frozen=True)
class StructuredColumn:
    """Any other feature, decoded by its own TFDS connector: sequences, boxes, nested dictionaries, audio, video.

    Attributes:
        decode_example: string [] -> tensors, ragged tensors, or nested dictionaries of them; called in the graph.
        path: keys to follow inside what `decode_example` returns.
    """

    decode_example: Callable[[Any], Any]
    path: tuple[str, ...] = ()
    _template: dict[str, Any] = field(default_factory=dict, compare=False)

    def feature_specs(self, tf: Any) -> Mapping[str, Any]:  # noqa: D102
        return {}

    def decode(self, tf: Any, parsed: Mapping[str, Any], serialized: Any, num_parallel: int) -> tuple[Any, ...]:  # noqa: D102
        def leaves(example: Any) -> tuple[Any, ...]:
            value = self.decode_example(example)
            for key in self.path:
                value = value[key]
            flat: list[Any] = []
            self._template["value"] = _flatten(value, flat)
            return tuple(flat)

        return map_ragged(tf, leaves, (serialized,), num_parallel)

    def unpack(self, arrays: tuple[Array, ...]) -> Any:  # noqa: D102
        leaves = [list(split_ragged(flat, shapes)) for flat, shapes in zip(arrays[::2], arrays[1::2], strict=True)]
        return [_unflatten(self._template["value"], iter(example)) for example in zip(*leaves, strict=True)]


def read_values(
    features: Mapping[str, Any], key: str, field: str, size: int, defaults: Sequence[Any] = ()
) -> Sequence[Any]:
    """Returns the values of a feature of one example; the defaults where it has none.

    Args:
        features: key -> `tf.train.Feature`, of the example.
        key: of the feature.
        field: of the `tf.train.Feature`: `bytes_list`, `float_list` or `int64_list`.
        size: how many values there are to be.
        defaults: none, or as many.

    Raises:
        ValueError: it has another number of values.
    """
    found: Sequence[Any] = getattr(features[key], field).value if key in features else ()
    if len(found) == size:
        return found
    if found or len(defaults) != size:
        raise ValueError(f"Its feature {key!r} has {len(found)} values instead of {size}.")
    return defaults


def map_ragged(
    tf: Any, function: Callable[..., tuple[Any, ...]], elements: tuple[Any, ...], num_parallel: int
) -> tuple[Any, ...]:
    """Maps each of n elements to tensors of varying shape.

    An element is what all of the tensors `elements`, [n, ...] each, have at one place.

    A loop that writes into tensor arrays and concatenates once is 1.4 to 2.8 times as fast as `tf.map_fn` with a ragged
    signature, or as an element-wise `map` followed by `ragged_batch` (both copy every image through a variant tensor).

    Returns:
        For every output of `function`: its values [sum of sizes], and their shapes int64 [n, rank].
    """
    element = [tf.TensorSpec(values.shape[1:], values.dtype) for values in elements]
    traced = tf.function(function, autograph=False).get_concrete_function(*element)
    num_elements = tf.shape(elements[0])[0]

    def array(dtype: Any, shape: list[int | None]) -> Any:
        return tf.TensorArray(dtype, size=num_elements, element_shape=shape, infer_shape=False)

    columns = [
        store
        for output in traced.outputs
        for store in (array(output.dtype, [None]), array(tf.int64, [output.shape.rank]))
    ]

    def step(i: Any, *stores: Any) -> tuple[Any, ...]:
        written = []
        for output, flat, shapes in zip(
            traced(*(values[i] for values in elements)), stores[::2], stores[1::2], strict=True
        ):
            shape = tf.cast(tf.shape(output), tf.int64)  # Uncast it has a type of its own, and tensorflow warns.
            written += [flat.write(i, tf.reshape(output, [-1])), shapes.write(i, shape)]
        return i + 1, *written

    _, *stores = tf.while_loop(lambda i, *_: i < num_elements, step, [0, *columns], parallel_iterations=num_parallel)
    return tuple(
        x for flat, shapes in zip(stores[::2], stores[1::2], strict=True) for x in (flat.concat(), shapes.stack())
    )


def split_ragged(flat: Array, shapes: Array) -> Iterator[Array]:
    """Yields views of `flat`, a tensor of `map_ragged`, in the shapes int64 [n, rank]."""
    stops = np.cumsum(np.prod(shapes, axis=1, dtype=np.int64)).tolist()
    for start, stop, shape in zip([0, *stops], stops, shapes.tolist(), strict=False):
        yield flat[start:stop].reshape(shape)


def _flatten(value: Any, flat: list[Any]) -> Any:
    """Appends the dense tensors of a nested value to `flat`; returns what `_unflatten` needs to put it together."""
    if isinstance(value, dict):
        return {key: _flatten(value[key], flat) for key in sorted(value)}
    if hasattr(value, "nested_row_splits"):
        flat += [value.flat_values, *value.nested_row_splits]
        return len(value.nested_row_splits)
    if not hasattr(value, "dtype"):
        raise ConfigError(f"A feature that decodes to {type(value).__name__} cannot be put into batches.")
    flat.append(value)
    return 0


def _unflatten(template: Any, leaves: Iterator[Array]) -> Any:
    if isinstance(template, dict):
        return {key: _unflatten(inner, leaves) for key, inner in template.items()}
    value: Any = next(leaves)
    splits = [next(leaves).tolist() for _ in range(template)]
    for rows in reversed(splits):
        value = [value[start:stop] for start, stop in pairwise(rows)]
    return value if template or value.ndim else value[()]
