"""StreamSpec: what one pipeline reads, and how."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.painter import ImagePainter
from tfds_torch.runtime.clock import Clock

Chunk = tuple[NDArray[np.int64], dict[str, Any]]
"""The occurrences, int64 [n], and column name -> n values."""

IMAGES = "encoded images"
"""Name of the column that holds the images which are to be painted."""


class ExampleSource(Protocol):
    """What one pipeline reads in an epoch, in the order of delivery."""

    def __len__(self) -> int:
        """Number of examples."""

    def check(self) -> None:
        """Holds what can be checked before reading against what was promised. Loads no tensorflow.

        Raises:
            ShardError: a file is missing, or holds another number of examples than promised.
        """

    def chunks(self, tf: Any, chunk_size: int, num_skipped: int, features: Sequence[str]) -> Any:
        """Returns a dataset of (occurrence int64 [n], n encoded examples), n = chunk_size but for the last chunk.

        An occurrence is an example in a pass: `pass_number * num_examples + index`.

        Args:
            tf: the module tensorflow.
            chunk_size: examples of a chunk.
            num_skipped: examples that are passed over.
            features: keys of the features that `parse` will be asked for.
        """

    def parse(self, tf: Any, encoded: Any, specs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds to the graph what takes features out of a chunk of encoded examples.

        Args:
            tf: the module tensorflow.
            encoded: n encoded examples, batched.
            specs: feature key -> what `tf.io.parse_example` would need to know.

        Returns:
            Feature key -> tensor [n, ...].
        """

    def explain(self, tf: Any, error: Any, reason: str, num_delivered: int) -> TfdsTorchError | None:
        """Returns our own error for one of tensorflow's about reading; None when it is about decoding.

        Args:
            tf: the module tensorflow.
            error: a `tf.errors.OpError`.
            reason: its message, made readable.
            num_delivered: examples that were read before, those passed over included.
        """

    def describe_undecodable(self, index: int | None, reason: str) -> TfdsTorchError:
        """Returns the error for an example that cannot be decoded.

        Args:
            index: of the example, where that is known.
            reason: why, in a sentence.
        """

    def close(self) -> None:
        """Lets go of what is open. Called once nothing is read any more."""


@dataclass(frozen=True, eq=False)
class Replacing:
    """How others take the place of damaged examples, in an order that is known beforehand.

    It is the next example of the split that is whole, by index, so the same one wherever the damaged one is read.

    Attributes:
        occurrences: positions (start, stop) in the order of delivery -> the examples there, each with its pass, int64
            [stop - start].
        source_of: occurrences, int64 [n] -> what reads these.
        ids: indices, int64 [n] -> their n ids.
        most: examples that may be replaced in the stream; one more is an error.
    """

    occurrences: Callable[[int, int], NDArray[np.int64]]
    source_of: Callable[[NDArray[np.int64]], ExampleSource]
    ids: Callable[[NDArray[np.int64]], Sequence[str]]
    most: int


@dataclass(frozen=True)
class StreamSpec:
    """What one pipeline reads, and how.

    Attributes:
        source: where the examples come from.
        num_examples: of a pass.
        columns: name -> how the field is decoded.
        painter: of the images, where they are preprocessed; they are no column then.
        chunk_size: examples that are decoded and handed over at a time.
        num_skipped: examples of the (shuffled) stream that are passed over without being decoded.
        num_threads: size of the pipeline's thread pool.
        prefetch_chunks: decoded chunks held ready; no other decoded images are held.
        replacing: how others take the place of damaged examples; None: those are errors.
        parse: bytes of a record -> `tf.train.Example`, where records are such.
        clock: what times are reported to.
    """

    source: ExampleSource
    num_examples: int
    columns: Mapping[str, Column]
    painter: ImagePainter | None
    chunk_size: int
    num_skipped: int
    num_threads: int
    prefetch_chunks: int
    replacing: Replacing | None = None
    parse: Callable[[bytes], Any] | None = None
    clock: Clock | None = None
