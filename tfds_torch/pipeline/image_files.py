"""Examples from image files, one file each, as a tf.data stream."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError, ShardError, TfdsTorchError
from tfds_torch.pipeline.bytes_array import bytes_array

IMAGE, LABEL, FILENAME = "image", "label", "image/filename"
"""The features of an image folder, as TFDS calls them."""

_LOOKED_UP = 512  # Examples whose paths are looked up at a time.


@dataclass(frozen=True)
class ImageFiles:
    """What one pipeline reads from image files: an `ExampleSource`.

    Its order is known beforehand, so nothing is shuffled in the graph, and no file is read before it is due.

    Attributes:
        dataset: what the files belong to, for messages.
        num_examples: of the pipeline.
        num_in_split: examples of a pass.
        occurrences: positions (start, stop) in the order of delivery -> the examples there, each with its pass, int64
            [stop - start].
        paths: indices, int64 [m] -> their files.
        labels: indices, int64 [m] -> int64 [m].
        num_threads: files read at the same time.
    """

    dataset: str
    num_examples: int
    num_in_split: int
    occurrences: Callable[[int, int], NDArray[np.int64]]
    paths: Callable[[NDArray[np.int64]], Sequence[str]]
    labels: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    num_threads: int

    def __len__(self) -> int:
        return self.num_examples

    def check(self) -> None:
        """Does nothing: a file is only known to be whole when it has been decoded."""

    def chunks(self, tf: Any, chunk_size: int, num_skipped: int, features: Sequence[str]) -> Any:  # noqa: D102
        def look_up(start: Any) -> list[Any]:
            columns: list[Any] = tf.numpy_function(self._look_up, [start], [tf.int64, tf.string, tf.int64])
            for column in columns:
                column.set_shape([None])
            return columns

        def load(occurrence: Any, path: Any, label: Any) -> tuple[Any, dict[str, Any]]:
            example = {LABEL: label, FILENAME: path}
            return occurrence, example | ({IMAGE: tf.io.read_file(path)} if IMAGE in features else {})

        starts = tf.data.Dataset.range(num_skipped, self.num_examples, _LOOKED_UP)
        listed = starts.map(tf.autograph.experimental.do_not_convert(lambda start: tuple(look_up(start)))).unbatch()
        examples = listed.map(
            tf.autograph.experimental.do_not_convert(load),
            num_parallel_calls=self.num_threads if IMAGE in features else None,
            deterministic=True if IMAGE in features else None,
        )
        return examples.batch(chunk_size)

    def parse(self, tf: Any, encoded: Any, specs: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: D102
        return {key: encoded[key] for key in specs}

    def explain(self, tf: Any, error: Any, reason: str, num_delivered: int) -> TfdsTorchError | None:  # noqa: D102
        if isinstance(error, tf.errors.InvalidArgumentError):
            return None
        following = chain.from_iterable(map(self._paths_from, range(num_delivered, self.num_examples, _LOOKED_UP)))
        named = [path for path in following if path in str(error.message)]
        path = max(named, key=len, default=None)  # The others are the beginning of it.
        problem = None if path is None else self._problem_of_file(path)
        return problem or ShardError(f"An image of {self.dataset} could not be read. tensorflow says: {reason}")

    def describe_undecodable(self, index: int | None, reason: str) -> TfdsTorchError:  # noqa: D102
        if index is None:
            return CorruptRecordError(f"An image of {self.dataset} cannot be decoded. {reason}")
        (path,) = self.paths(np.array([index], np.int64))
        return self._problem_of_file(path) or CorruptRecordError(
            f"{path} of {self.dataset} (index {index}) cannot be decoded: it is damaged, or no JPEG or PNG image. "
            f"{reason}"
        )

    def close(self) -> None:
        """Does nothing: tensorflow opens and closes the files."""

    def _look_up(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.object_], NDArray[np.int64]]:
        """Returns occurrence, path and label of examples from a position on: so many that a call's cost is shared."""
        occurrences = self._occurrences_from(int(start))
        index = occurrences % self.num_in_split
        return occurrences, bytes_array([os.fsencode(path) for path in self.paths(index)]), self.labels(index)

    def _paths_from(self, start: int) -> Sequence[str]:
        return self.paths(self._occurrences_from(start) % self.num_in_split)

    def _occurrences_from(self, start: int) -> NDArray[np.int64]:
        return self.occurrences(start, min(start + _LOOKED_UP, self.num_examples))

    def _problem_of_file(self, path: str) -> ShardError | None:
        try:
            with open(path, "rb") as file:
                is_empty = not file.read(1)
        except FileNotFoundError:
            return ShardError(
                f"{path} of {self.dataset} is missing: it was removed after the folder was listed, or is a link to "
                f"nothing. Restore it, or open the dataset anew."
            )
        except OSError as error:
            return ShardError(f"{path} of {self.dataset} cannot be read: {error.strerror}.")
        if is_empty:
            return CorruptRecordError(f"{path} of {self.dataset} is empty: it holds no image.")
        return None
