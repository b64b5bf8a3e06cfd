"""Turns a parser's batches into the items of a dataset: whole batches, or single examples."""

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tfds_torch.engines.batch import Batch, DrawnBatch
from tfds_torch.engines.padding import Padded, check_fills
from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.parsers.options import check_has_image
from tfds_torch.parsers.protocol import METADATA_FIELDS, Parser, dataset_of, flat_names, has_windows
from tfds_torch.plan.order import Int64Array, draw_function_seeds
from tfds_torch.runtime.examples_at_work import Notes
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.one_thread import close_iterator
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric, native
from tfds_torch.runtime.user_random import (
    TARGET_TRANSFORM,
    TRANSFORM,
    are_taken,
    borrowed_generators,
    calling,
    seed_generators,
)
from tfds_torch.torch_data.nested import count_examples
from tfds_torch.torch_data.profiling import stage

Function = Callable[[Any], Any]

ALL = "all"
_MADE_TOGETHER = 16
"""Examples of a training process: to borrow its generators takes 45 us, and more images than that leave the caches."""


@dataclass(frozen=True)
class Transforms:
    """A user's functions of single examples.

    Attributes:
        image: called with the PIL image or the tensor; its result takes the place of that; None: there is none.
        label: called with the label.
        seed: the seed of their random numbers for an example; None: they are not seeded.
        metrics: receives their times; None: times are not reported.
    """

    image: Function | None = None
    label: Function | None = None
    seed: int | None = None
    metrics: StageMetrics | None = None

    def __call__(
        self,
        columns: Sequence[tuple[str, Iterable[Any]]],
        keys: Int64Array,
        index: Int64Array,
        ids: Sequence[str],
    ) -> Any:
        """Return an iterable of examples, made of columns with one value per example.

        In a worker each example is made when its turn comes. In a training process, which has its own random numbers, a
        few are made together, and the state of these numbers is left as it was.

        Args:
            columns: field -> n values; images are pixels uint8 [H, W, C], tensors, or bytes.
            keys: int64 [n], the examples' sample keys.
            index: int64 [n], their positions in the split.
            ids: of the n examples, for errors.
        """
        seeds: list[Sequence[int] | None] = [None, None]
        if self.seed is not None:
            for number, function in ((TRANSFORM, self.image), (TARGET_TRANSFORM, self.label)):
                if function is not None:
                    seeds[number] = draw_function_seeds(keys, self.seed, number).tolist()
        notes = None if self.metrics is None else self.metrics.at_work.notes(index)
        examples = zip(*(self._convert(name, values, seeds, notes, ids) for name, values in columns), strict=True)
        if seeds == [None, None] or are_taken():
            return examples
        return _made_in_groups(examples)

    def _convert(
        self,
        name: str,
        values: Iterable[Any],
        seeds: Sequence[Sequence[int] | None],
        notes: Notes | None,
        ids: Sequence[str],
    ) -> Iterator[Any]:
        if name == "image":
            images = map(_to_pil, values)
            if self.image is None:
                return images
            return self._call(self.image, "transform", images, seeds[TRANSFORM], notes, ids)
        if name == "label" and self.label is not None:
            return self._call(self.label, "target_transform", values, seeds[TARGET_TRANSFORM], notes, ids)
        return iter(values)

    def _call(
        self,
        function: Function,
        name: str,
        values: Iterable[Any],
        seeds: Sequence[int] | None,
        notes: Notes | None,
        ids: Sequence[str],
    ) -> Iterator[Any]:
        place = 0  # Not by `enumerate`, which holds on to a value until the next one is there: memory is used again.
        for value in values:
            if notes is not None:
                notes.cells[0] = notes.values[place]
            if seeds is not None:
                seed_generators(seeds[place])
            began_at = time.monotonic()
            try:
                with calling():
                    result = function(value)
            except Exception as error:
                error.add_note(f"The {name} raised it for the example {quoted(ids[place])}.")
                raise
            finally:
                if self.metrics is not None:
                    self.metrics.add("transform", time.monotonic() - began_at)
            if self.metrics is not None:  # A message about an interrupt of this thread uses this note.
                self.metrics.at_work.note_passed()
            del value
            yield result
            del result
            place += 1  # noqa: SIM113


def _made_in_groups(examples: Iterator[Any]) -> Iterator[Any]:
    """Yield examples that are made a few at a time, with generators that are borrowed for each group."""
    while True:
        with borrowed_generators():
            made = list(islice(examples, _MADE_TOGETHER))
        if not made:
            return
        made.reverse()
        while made:
            yield made.pop()


class NumberedItems(list[Any]):
    """The items of a batch, as their dataset returns them; `numbers` are their indices there, int64 [n]."""

    def __init__(self, items: Iterable[Any], numbers: NDArray[np.int64]) -> None:
        super().__init__(items)
        self.numbers = numbers


class NumberedColumns(dict[str, Any]):
    """The fields of a batch as columns, arrays or lists of n values; `numbers` are those of the items, int64 [n]."""

    def __init__(self, columns: Mapping[str, Any], numbers: NDArray[np.int64]) -> None:
        super().__init__(columns)
        self.numbers = numbers


def check_is_parser(parser: object) -> None:
    """Raise ConfigError for anything but a parser, like the user's own dataset."""
    if isinstance(parser, type) or not callable(getattr(parser, "check_fields", None)):
        if isinstance(parser, str | PathLike):
            raise ConfigError(
                f"{quoted(parser)} is a path, and a parser is wanted, which opens it: ParserTfds(root, name, split), "
                f"ParserWebDataset(urls) for tars, or ParserBeton(path) for .beton files."
            )
        raise ConfigError(
            f"{quoted(parser)} is not a parser. ParserMapStyle(dataset, ...) makes one of a dataset of your own, which "
            f"create_loader(dataset, batch_size=...) also takes as it is."
        )


def dataset_call(parser: Parser) -> str:
    """Return the call that makes a dataset of a parser, for messages: windows have no usual fields."""
    return "ImageDataset(parser, fields=('action', ...))" if has_windows(parser) else "ImageDataset(parser)"


Fields = Sequence[str] | Mapping[str, str] | str
"""Names of fields; or name in the batch -> field; or "all"."""


class AskedFields(NamedTuple):
    """The fields that a dataset is asked for.

    Attributes:
        fields: in the order in which an example has them.
        names: their names in an example that is a dictionary; None where an example is a tuple.
        are_all: whether fields that transforms add without declaring them are asked for, too.
    """

    fields: tuple[str, ...]
    names: tuple[str, ...] | None = None
    are_all: bool = False

    def with_added(self, features: Iterable[str]) -> "AskedFields":
        """Return these fields with those of a batch's features that transforms added, where all are asked for."""
        added = tuple(name for name in features if name not in self.fields) if self.are_all else ()
        if not added or self.names is None:
            return self
        return AskedFields((*self.fields, *added), (*self.names, *added), are_all=True)

    def place_of(self, field: str) -> int | str | None:
        """Return where an example, or a batch, has a field: its place in a tuple, or its key; None: it has not."""
        if field not in self.fields:
            return None
        place = self.fields.index(field)
        return place if self.names is None else self.names[place]

    def example(self, values: Iterable[Any]) -> Any:
        """Return an example, or a batch, of the values of its fields: a tuple, or a dictionary."""
        return tuple(values) if self.names is None else dict(zip(self.names, values, strict=True))


def check_fields(parser: Parser, fields: Fields, as_dict: bool) -> AskedFields:
    """Return the fields that a dataset is asked for; its arguments are those of ImageDataset.

    Raises:
        ConfigError: a field does not exist, there are none, or two have one name.
    """
    check_is_parser(parser)
    if not isinstance(as_dict, bool):
        raise ConfigError(f"as_dict={quoted(as_dict)} must be True or False.")
    are_all = isinstance(fields, str) and fields == ALL
    if are_all:
        fields = all_fields(parser)
    is_ordered = isinstance(fields, Iterable) and not isinstance(fields, str | set | frozenset)
    names = tuple(fields) if is_ordered else ()
    asked = tuple(fields.values()) if isinstance(fields, Mapping) else names
    if not asked or not all(isinstance(name, str) for name in (*names, *asked)):
        raise ConfigError(
            f"fields={fields!r} must be a sequence of field names, such as ('image', 'label'), a dictionary of names "
            f"in the batch and their fields, such as {{'pixel_values': 'image'}}, or 'all'."
        )
    parser.check_fields(asked)
    if not as_dict and not isinstance(fields, Mapping):
        return AskedFields(asked)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"fields={fields!r}, as_dict=True: a dictionary has {twice!r} once only. Name it once.")
    return AskedFields(asked, names, are_all)


def all_fields(parser: Parser) -> dict[str, str]:
    """Return name in the batch -> field, of all that a parser has; see `Dataset.all_fields`."""
    dataset = dataset_of(parser)
    return {name: name for name in flat_names(parser.element_spec)} if dataset is None else dataset.all_fields()


def check_batched(
    parser: Parser,
    fields: Sequence[str],
    batched: bool | None,
    transform: Function | None,
    target_transform: Function | None,
) -> bool:
    """Return whether a dataset yields whole batches; its arguments are those of ImageDataset."""
    preprocess = parser.preprocess
    if not isinstance(batched, bool | None):
        raise ConfigError(f"batched={batched!r} must be True, False or None (where the parser has a preprocess).")
    if batched is False and preprocess is not None:
        raise ConfigError(
            f"batched=False, and the parser has {preprocess!r}: preprocessed images come in whole batches. Leave out "
            f"batched, or give the dataset a transform instead of the parser a preprocess."
        )
    if not batched and preprocess is None and (batched is False or not has_windows(parser)):
        return False
    for name, function in (("transform", transform), ("target_transform", target_transform)):
        if function is not None:
            remedy = (
                "Give the parser transform=function, which gets whole windows, or this dataset batched=False."
                if has_windows(parser)
                else "Give the parser transform=function, which gets whole examples after the preprocess; augment on "
                "the device; or leave out the preprocess."
            )
            raise ConfigError(f"{name} is called with single examples, and this dataset yields whole batches. {remedy}")
    if parser.batch_size is None:
        raise ConfigError("batched=True needs the parser's batch_size: it is the size of the batches.")
    if preprocess is not None:
        check_has_image(fields, preprocess)
    return True


def check_pad(parser: Parser, fields: Sequence[str], pad: Any, is_batched: bool) -> dict[str, float]:
    """Return field -> fill value of the fields that a dataset pads; its arguments are those of ImageDataset."""
    if pad is not None and not is_batched:
        raise ConfigError(
            f"pad={pad!r} is for whole batches, and this dataset yields single examples: give it batched=True "
            f"where images are not asked for, or the parser a preprocess; or pad in the collate_fn of the loader."
        )
    images = () if parser.preprocess is None else parser.preprocess.also_kinds
    if pad is None:
        return {}  # An own dataset would be asked for an item.
    dataset = dataset_of(parser)
    labels = ("label",) if dataset is not None and dataset.has_one_label else ()
    return check_fills(pad, fields, ("image", *labels, *METADATA_FIELDS, *images))


def collate_items(
    items: Iterator[Any], batch_size: int | None, collate: Function | None, metrics: StageMetrics
) -> Generator[WorkerBatch, None, None]:
    """Yield the batches of a Loader, and report how long fetching and collating took.

    Without a batch_size the items are whole batches, which come as they are where there is no `collate`.
    """
    try:
        while True:
            begun_at = time.monotonic()
            try:
                rows = next(items, None) if batch_size is None else list(islice(items, batch_size))
            finally:
                fetched_at = time.monotonic()
                metrics.add("fetch", fetched_at - begun_at)
            if not rows:
                return
            if collate is None:
                first = next(iter(rows.values())) if isinstance(rows, dict) else rows[0]
                yield WorkerBatch(rows, _count_values(first))
                continue
            try:
                with stage("collate"):
                    batch = collate(rows)
            except StopIteration as error:
                raise WorkerError(f"The collate_fn {collate!r} raised StopIteration.") from error
            metrics.add("collate", time.monotonic() - fetched_at)
            if isinstance(rows, NumberedItems | NumberedColumns):
                yield WorkerBatch(batch, len(rows.numbers))
            else:
                yield WorkerBatch(batch, count_examples(batch) if batch_size is None else len(rows))
    finally:
        close_iterator(items)


def _count_values(field: Any) -> int:
    """Return the number of examples whose values a field of a whole batch holds."""
    if isinstance(field, Padded):
        return len(field.lengths)
    is_views = isinstance(field, list) and bool(field) and isinstance(field[0], Tensor)
    return len(field[0] if is_views else field)


def take_batches(
    batches: Generator[WorkerBatch, None, None], run: Callable[[Callable[[], Any]], Any], metrics: StageMetrics
) -> Iterator[WorkerBatch]:
    """Yield the batches of a Loader without workers; `run` calls a step, and limits its duration."""
    with closing(batches):
        while (batch := run(partial(next, batches, None))) is not None:
            metrics.add_batch(batch.num_examples)
            yield batch


def make_items(
    batches: Iterable[Batch],
    asked: AskedFields,
    transforms: Transforms | None,
    fills: Mapping[str, float] = MappingProxyType({}),
    images: Collection[str] = (),
    lists: Collection[str] = (),
) -> Iterator[Any]:
    """Yield the items of a dataset from batches, or pieces of them: whole batches where there are no transforms.

    An item is a tuple or a dictionary of the fields that are asked for. The images of whole batches are a
    TensorBuffer's. The fields of `fills` are padded by its values; of `images`, see
    `images_beside`, values [H, W, C] become [C, H, W]. Those of `lists` stay lists.
    """
    for batch in batches:
        asked = asked.with_added(batch.features)
        if transforms is None:
            yield asked.example(
                _padded(batch, name, fills[name])
                if name in fills
                else list(batch.features[name])
                if name in lists
                else _field(batch, name, name in images)
                for name in asked.fields
            )
        else:
            keys = batch.keys if isinstance(batch, DrawnBatch) else batch.index
            columns = [(name, _values(batch, name)) for name in asked.fields]
            examples = transforms(columns, keys, batch.index, batch.id)
            yield from examples if asked.names is None else map(asked.example, examples)


def _to_pil(pixels: NDArray[np.uint8] | Tensor | bytes) -> Image.Image | Tensor | bytes:
    """Return an image of pixels uint8 [H, W, C], C in 1, 3, 4, as PIL has it.

    Other numbers [H, W, C] become a tensor [C, H, W]; tensors and undecoded bytes stay.
    """
    if isinstance(pixels, Tensor | bytes):
        return pixels
    if pixels.dtype != np.uint8 or pixels.shape[-1] not in CHANNELS.values():
        return _channels_first(pixels)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _field(batch: Batch, name: str, is_image: bool) -> Any:
    """Return a field of a whole batch, a tensor where that is possible; images are uint8 [B, C, H, W]."""
    if name == "image":
        return _image(batch.image)
    if name == "id":
        return list(batch.id)
    if name in ("valid", "index") or (name == "label" and batch.label is not None):
        return torch.from_numpy(np.ascontiguousarray(getattr(batch, name)))
    return _feature(batch.features[name], is_image)


def _image(images: Any) -> Any:
    """Return the images of a batch; numbers [B, H, W, C], or B of them, which are in no buffer, as [B, C, H, W]."""
    if isinstance(images, np.ndarray):
        return torch.from_numpy(images).permute(0, 3, 1, 2)
    is_list = isinstance(images, list) and bool(images) and isinstance(images[0], np.ndarray)
    return list(map(_channels_first, images)) if is_list else images


def _channels_first(pixels: NDArray[Any]) -> Tensor:
    """Return numbers [H, W, C] as a tensor [C, H, W]."""
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


def _padded(batch: Batch, name: str, fill: float) -> Padded:
    """Return a field of a whole batch as tensors [B, longest, ...] and int64 [B]."""
    return Padded(*map(tensor_of, batch.padded(name, fill)))


def _feature(values: Any, is_image: bool) -> Any:
    """Return the values of a feature, [B, ...] or B of them, as a tensor where they are numbers of one shape.

    Images [H, W, C] become [B, C, H, W] in channels_last memory, as the field `image`.
    """
    if isinstance(values, Tensor):  # Images of windows, in the memory of their batch.
        return values
    if isinstance(values, np.ndarray):
        if not is_numeric(values.dtype):
            return values.tolist()
        if values.flags.writeable and not values.flags.c_contiguous:
            return tensor_of(values)  # Images of windows, whose channels come last: decoded for this batch.
        return tensor_of(np.array(values))
    if values and all(isinstance(value, Tensor) for value in values):  # Of a dtype that numpy does not have.
        return torch.stack(values) if len({(value.shape, value.dtype) for value in values}) == 1 else values
    is_alike = all(isinstance(value, np.ndarray) and is_numeric(value.dtype) for value in values)
    if not is_alike or len({(value.shape, value.dtype) for value in values}) != 1:
        return values
    stacked = tensor_of(np.stack(values))
    return stacked.permute(0, 3, 1, 2) if is_image and stacked.ndim == 4 else stacked


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return an array of numbers as a tensor, in its memory where that is possible."""
    if array.dtype.name == "bfloat16":  # Of ml_dtypes.
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(native(array))


def _values(batch: Batch, field: str) -> Any:
    """Return a field's values, one per example."""
    if field == "label":
        return batch.features["label"] if batch.label is None else batch.label.tolist()
    if field in METADATA_FIELDS:
        values = getattr(batch, field)
        return values if field == "id" else values.tolist()
    return batch.image if field == "image" else batch.features[field]
