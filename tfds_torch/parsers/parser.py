"""ParserBase: batches and single examples of a split. A format's own parser opens the source and names its fields."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch, Example
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.fields import Content, ImageField, ImagesBeside, ListField
from tfds_torch.engines.read_mode import find_read_mode
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.engines.tf_data import read_in_stream_mode
from tfds_torch.engines.window_fields import WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.columns import Selection
from tfds_torch.parsers.examples import check_are_in, decode_examples, find_examples, find_place
from tfds_torch.parsers.options import check_has_image, check_single_examples
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, METADATA_FIELDS, field_name, stored_name, varying_fields
from tfds_torch.plan.world import World
from tfds_torch.runtime.one_thread import OneThreadIterator
from tfds_torch.runtime.printable import quoted


class ParserBase(Selection):
    """Reads a split by its Source: batches and single examples. It can be pickled, and used from several processes."""

    def batches(
        self,
        world: World = World(),
        epoch: int = 0,
        start_batch: int = 0,
        *,
        fields: Sequence[str] = DEFAULT_FIELDS,
        in_pieces: bool = False,
        context: ReadContext = ReadContext(),
        first_example: int = 0,
    ) -> Iterator[Batch]:
        """Yields the batches of one worker of one rank, to one thread.

        Args:
            world: the grid, and the place whose batches are wanted.
            epoch: number of the epoch, >= 0.
            start_batch: the rank's batch at which to begin. In mode `index` nothing of earlier ones is read; a stream
                passes over their encoded examples.
            fields: what to decode: `image`, `label`, and any feature of the dataset; the rest is not decoded.
            in_pieces: whether a batch may come as several, one after the other, each as soon as it is decoded;
                preprocessed images come in whole batches.
            context: what the run supplies: the memory of batches, metrics, the ranks of this machine.
            first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
                size; batches are dealt and counted from there on. In mode `index` only.

        Raises:
            ConfigError: fields that do not exist, or a world in which the plan cannot work.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        if self.batch_size is None and world.num_workers > 1:
            raise ConfigError(
                f"Evaluation with {world.num_workers} workers needs batch_size: a worker must know which batches are "
                f"its own."
            )
        self.check_fields(fields)
        plan = self.plan(world, first_example=first_example)
        epoch = plan.check_epoch(epoch)
        plan.worker_batches(start_batch)
        mode = find_read_mode(self._source, self.split, plan, self.read)
        in_pieces = in_pieces and self.preprocess is None
        in_buffers = context.make_buffer is not None and context.has_one_size and not in_pieces
        content = self._content(fields, in_buffers=in_buffers, has_cameras=not in_pieces)
        request = ReadRequest(
            self._source, plan, epoch, start_batch, content, self.read, in_pieces=in_pieces, context=context
        )
        request = self._as_read(request)
        batches = read_in_index_mode(request) if mode == "index" else read_in_stream_mode(request, mode)
        if "label" in content.fields and self._class_map is not None:
            batches = self._class_map.remap(batches)
        return self._guarded(batches, context)

    def _as_read(self, request: ReadRequest) -> ReadRequest:
        """Returns a request as this kind of parser reads it."""
        return request

    def _guarded(self, batches: Iterator[Batch], context: ReadContext) -> Iterator[Batch]:
        """Returns batches for one thread; a loader's worker, which reads ahead, has no other thread."""
        return batches if context.is_read_ahead else OneThreadIterator(batches, repr(self))

    def _content(
        self,
        fields: Sequence[str],
        *,
        in_buffers: bool,
        has_cameras: bool = False,
        is_preprocessed: bool = True,
        in_batches: bool = True,
    ) -> Content:
        """Returns the content to decode for some fields.

        Args:
            fields: what is asked for.
            in_buffers: whether `image` goes into batch buffers also without a preprocess.
            has_cameras: whether images of windows do.
            is_preprocessed: whether images are cut and resized.
            in_batches: whether whole batches are made, in which values whose size varies are lists.
        """
        decoders = {name: self.field(name) for name in fields if name not in METADATA_FIELDS}
        for name, decoder in decoders.items():
            if isinstance(decoder, ImageField | WindowImageField):
                decoders[name] = replace(decoder, jpeg_decoder=self.read.jpeg_decoder)
            elif isinstance(decoder, ImagesBeside):
                kinds = {} if self.preprocess is None else self.preprocess.also_kinds
                decoders[name] = decoder.of_kind(kinds.get(name), self.read.jpeg_decoder)
        for name in varying_fields(self, list(decoders)) if in_batches else ():
            if not isinstance(decoders[name], ImageField | WindowImageField):
                decoders[name] = ListField(decoders[name])
        cameras = {name: one for name, one in decoders.items() if has_cameras and isinstance(one, WindowImageField)}
        decoders = {name: one for name, one in decoders.items() if name not in cameras}
        has_label = "label" in decoders and self._has_integer_target and not self.is_undecoded("label")
        image = decoders.get("image")
        preprocess = self.preprocess if is_preprocessed else None
        if preprocess is not None:
            check_has_image(fields, preprocess)
        if isinstance(image, ImageField) and ((in_buffers and not image.is_deep) or preprocess is not None):
            del decoders["image"]
            boxes = () if preprocess is None else self.moving_boxes(fields, preprocess)
            return Content(decoders, has_label, image, preprocess, boxes, cameras=cameras)
        return Content(decoders, has_label, are_whole=not is_preprocessed, cameras=cameras)

    # Single examples.

    @overload
    def __getitem__(self, key: slice) -> list[Example]: ...
    @overload
    def __getitem__(self, key: int | str) -> Example: ...
    def __getitem__(self, key: Any) -> Any:
        """Returns the example of an index or an id, or a list of those of a slice.

        It has image and label, as far as the dataset has them. Without both, as where image_key and target_key are
        None, it has all features, those named `image` and `label` too; a window of an episode has all of its fields.
        A feature `image` that is no image comes as the feature `stored/image`.

        The image is whole, uint8 [H, W, C], whatever the preprocess: crops belong to a pass. A negative index counts
        from the end; iterating ends with the split. For more than a few use `examples_by_index`.

        Raises:
            ConfigError: key is not an index, id or slice, or the files are remote.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        if isinstance(key, slice):
            places = range(*key.indices(self.num_examples))
            return self._examples(places if self.selected is None else self.selected.numbers[list(places)].tolist())
        return self._examples(self.numbers_at([key]))[0]

    def numbers_at(self, places: Iterable[int | str]) -> list[int | str]:
        """Returns the numbers of examples by their places among those of the parser; of a whole split they are equal.

        Args:
            places: integers, -num_examples <= i < num_examples; ids are left as they are.

        Raises:
            ExampleNotFoundError: there is no such place.
        """
        if self.selected is None:
            return list(places)
        return [
            one if isinstance(one, str) else int(self.selected.numbers[find_place(self.selected, repr(self), one)])
            for one in places
        ]

    def _examples(self, indices_or_ids: Iterable[int | str]) -> list[Example]:
        """Returns examples with image and label, as far as they have them; windows and those without both with all."""
        if self.has_windows:
            return self.examples_by_index(indices_or_ids, [field_name(key) for key in self._all_fields])
        fields = [name for name in DEFAULT_FIELDS if self.has_field(name)]
        if fields:
            if "image" not in fields and self.has_field(stored_name("image")):  # It is no image, and is not left out.
                fields.append(stored_name("image"))
            return self.examples_by_index(indices_or_ids, fields)
        own = {stored_name(key): key for key in DEFAULT_FIELDS if key in self._all_fields}
        fields = [*own, *(field_name(key) for key in self._all_fields if key not in DEFAULT_FIELDS)]
        examples = self.examples_by_index(indices_or_ids, fields)
        return [
            replace(example, features={own.get(name, name): value for name, value in example.features.items()})
            for example in examples
        ]

    def examples_by_index(
        self,
        indices_or_ids: Iterable[int | str],
        fields: Sequence[str] = DEFAULT_FIELDS,
        *,
        epoch: int | None = None,
        context: ReadContext = ReadContext(),
    ) -> list[Example]:
        """Returns examples in the order asked for, fetched together and decoded in this process.

        They are what `batches` yields, example by example: without a preprocess, or with it where an epoch is given.

        Args:
            indices_or_ids: indices in the split, as the field `index` has them (negative ones count from the end), and
                TFDS ids, `<shard file>__<record>` (of an image folder: the path below its root), in any mix and order;
                also several times the same.
            fields: what to decode: `image`, `label`, and any feature of the dataset.
            epoch: whose crops the images get: those of the first pass of that epoch; None: images are whole, whatever
                the preprocess.
            context: what the run supplies: the memory of preprocessed images, and metrics.

        Raises:
            ConfigError: a field that does not exist, something that is not an index or id, or remote files; or an
                epoch whose sample keys do not fit into int64, or an epoch and a preprocess that makes views.
            ExampleNotFoundError: there is no such example.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: a record or an image is damaged.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields={quoted(fields)} must be a sequence of field names, such as ('image', 'label').")
        self.check_fields(fields)
        self._check_can_fetch()
        keys = find_examples(self._source, self.split, indices_or_ids)
        if self.selected is not None:
            check_are_in(self.selected, repr(self), keys)
        if epoch is not None:
            check_single_examples(self.dataset_name, self.preprocess)
            keys = keys + self._first_pass(epoch, keys) * max(1, len(self._source))
        content = self._content(fields, in_buffers=False, is_preprocessed=epoch is not None, in_batches=False)
        return decode_examples(self._source, content, self._class_map, self.read, keys, seed=self.seed, context=context)

    def _first_pass(self, epoch: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the pass of each example, int64 [n], in which an epoch begins."""
        plan = self.plan(World())
        return self._order.passes_from(plan.check_epoch(epoch) * plan.num_own_slots, index)

    def encoded_names(self) -> list[str]:
        """Returns the fields of an example as it is stored: image and label first, then the dataset's other ones."""
        names = [name for name in DEFAULT_FIELDS if self.has_field(name)]
        behind = {self.encoded_field(name).decoder.keys for name in names}
        return names + [name for name in self._all_fields if name not in names and self._keys_of(name) not in behind]

    def encoded_examples(self, index: NDArray[np.int64], fields: Sequence[str]) -> list[Example]:
        """Returns examples as they are stored, in the order asked for: see `EncodedField`.

        Args:
            index: int64 [n].
            fields: which of `encoded_names`. `label` has its new value where there is a class map.

        Raises:
            ConfigError: a field that does not exist, or remote files.
            ShardError: a shard is missing, or does not hold the promised number of examples.
            CorruptRecordError: an example is damaged.
        """
        self._check_can_fetch()
        content = Content(
            {name: self.encoded_field(name).decoder for name in fields},
            has_label="label" in fields and self._has_integer_target,
        )
        return decode_examples(self._source, content, self._class_map, self.read, index)

    def _keys_of(self, name: str) -> tuple[str, ...] | None:
        try:
            return self.encoded_field(name).decoder.keys
        except ConfigError:  # Only tensorflow could decode it: asking for it raises this error.
            return None

    def _check_can_fetch(self) -> None:
        if self._source.obstacle is not None:
            raise ConfigError(
                f"{self.dataset_name}: single examples cannot be fetched: {self._source.obstacle}. Copy the dataset to "
                f"this machine, or read it in order with batches()."
            )
