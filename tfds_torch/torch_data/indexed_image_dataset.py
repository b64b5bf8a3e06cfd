"""IndexedImageDataset: a parser's examples as a torch map-style Dataset."""

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.utils.data

from tfds_torch.engines.batch import Example
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess
from tfds_torch.parsers.advice import advise_fields, facts_of
from tfds_torch.parsers.options import check_single_examples
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, Parser, draws_numbers, transforms_of
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.pickling import check_functions
from tfds_torch.runtime.user_random import take_generators
from tfds_torch.runtime.worker_start import end_with_parent
from tfds_torch.torch_data.batches import Fields, Transforms, check_fields, check_is_parser
from tfds_torch.torch_data.plain_epochs import ExampleEpochs
from tfds_torch.torch_data.tensor_buffer import make_own_buffer

_KEYS_OF_EPOCH = 2**40
_IN_TENSORS = ReadContext(make_buffer=make_own_buffer)


class IndexedParser(Parser, Protocol):
    """A parser whose examples can be fetched one by one; `seed` is that of random numbers."""

    @property
    def seed(self) -> int:
        """The seed of random numbers."""

    @property
    def examples_by_index(self) -> Callable[..., list[Example]]:
        """Like that of `DatasetParser`."""

    def numbers_at(self, places: Iterable[int | str]) -> list[int | str]:
        """Return numbers of examples, like that of `DatasetParser`."""


@explain_keywords
class IndexedImageDataset(torch.utils.data.Dataset[Any]):
    """Any example by its index, for samplers of your own: `(PIL.Image, int)`, or preprocessed images as tensors.

    `DataLoader(dataset, batch_size=B, sampler=WeightedRandomSampler(...), num_workers=W)`, `Subset`, `random_split`,
    `DistributedSampler`: whatever works with a map-style dataset. A batch's examples are fetched together.

    Where no sampler is needed, `ImageDataset` in read mode `index` is the better choice: it shuffles globally, resumes
    anywhere, deals examples to ranks and workers, and decodes ahead in threads.

    Without a preprocess, images are whole. PIL images have no default collation: end `transform` with a conversion to
    tensors, or give the loader a `collate_fn`. Where the parser has a preprocess, an image is uint8 [C, H, W], equal to
    the one in the whole batches of ImageDataset for that example in that epoch.

    Random crops change with every epoch. With `create_loader`, every iteration is the next epoch, until `set_epoch`
    fixes it. torch's DataLoader does not tell a dataset when an iteration begins: call `set_epoch` before each of them,
    or all iterations have the crops of epoch 0, with a warning. Two loaders that share a dataset (`Subset`,
    `random_split`) share its epoch.

    Examples are decoded where they are asked for, without tensorflow. Workers may be started by fork, spawn or
    forkserver, also after examples were read here; threads may share a dataset.

    Args:
        parser: where the examples come from, by their index; its batch size, shuffle and remainder play no part.
        transform: called with the PIL image, or the preprocessed one, or its bytes where the parser does not decode it;
            its result takes the image's place.
        target_transform: called with the label (0-based int).
        fields: what an example consists of, in this order: `image`, `label`, `index` (int), `id` (str,
            `<shard>__<record>`), `valid` (always True), or any feature of the dataset. Images that go through the same
            crop (the preprocess's `also`) are tensors, too. With a dictionary, name -> field, or "all", examples are
            dictionaries, as of ImageDataset.
        as_dict: whether examples are dictionaries of the fields' names; else they are tuples, where `fields` does not
            ask for dictionaries.

    Raises:
        ConfigError: a field that does not exist, no fields, a parser that has no random access, or whose preprocess
            makes views, which come in whole batches.
    """

    def __init__(
        self,
        parser: IndexedParser,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        fields: Fields = DEFAULT_FIELDS,
        *,
        as_dict: bool = False,
    ) -> None:
        super().__init__()
        check_is_parser(parser)
        if not callable(getattr(parser, "examples_by_index", None)):
            raise ConfigError(
                f"{parser!r} cannot fetch examples by their index: use ImageDataset, which reads in order."
            )
        self.parser = parser
        self.transform = transform
        self.target_transform = target_transform
        self._asked = check_fields(parser, fields, as_dict)
        if parser.preprocess is not None:
            check_single_examples(parser.dataset_name, parser.preprocess)
        self._has_transforms, self._draws = bool(transforms_of(parser)), draws_numbers(parser)
        has_random_numbers = self._has_transforms or any(
            one is not None for one in (parser.preprocess, transform, target_transform)
        )
        self._epochs = ExampleEpochs() if has_random_numbers else None
        for text in advise_fields(facts_of(parser, self.fields)):
            warnings.warn(text, UserWarning, stacklevel=3)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that an example consists of, in this order."""
        return self._asked.fields

    @property
    def image_place(self) -> int | str | None:
        """Where an example, or a batch, has the field `image`: its place or its key; None: it has no such field."""
        return self._asked.place_of("image")

    def begin_epoch(self) -> None:
        """Begin the next epoch, until one is set; a Loader calls it when an iteration begins."""
        if self._epochs is not None:
            self._epochs.begin(None, 0)

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch, and so the random crops, of the iterations to come, also in workers that already run.

        It also fixes the random numbers of `transform` and `target_transform`, like those of an ImageDataset. It has no
        effect where there are no transforms, and the parser has no preprocess.

        Args:
            epoch: number of the epoch, an integer >= 0.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        epoch = check_integer("set_epoch: epoch", epoch, 0)
        if self._epochs is not None:
            self._epochs.set_epoch(epoch)

    def __len__(self) -> int:
        """Examples of the split, or of the subset."""
        return self.parser.num_examples

    def __getitem__(self, index: int) -> Any:
        """Return an example by its index (of a subset: its place there), or by its id.

        Raises:
            ConfigError: index is neither an integer nor an id.
            ExampleNotFoundError: there is no such example.
        """
        return self._fetch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch's examples, fetched together; torch's loaders call it."""
        epochs, seed = self._epochs, _loader_seed()
        if (
            epochs is not None
            and (self._draws or not isinstance(self.parser.preprocess, EvalPreprocess | None))
            and epochs.now(seed) is None
            and epochs.must_warn(seed)
        ):
            warnings.warn(
                f"{self.parser.dataset_name}: nothing has told this IndexedImageDataset the epoch, so that every "
                f"epoch has the random numbers of epoch 0. Call its set_epoch(epoch) before every iteration of torch's "
                f"DataLoader, or use create_loader, which does so.",
                UserWarning,
                stacklevel=2,
            )
        return self._fetch(indices)

    def _fetch(self, indices: Sequence[int]) -> list[Any]:
        if torch.utils.data.get_worker_info() is not None:
            end_with_parent()
            take_generators()
        images: Collection[str] = ()
        numbers = self.parser.numbers_at(indices)
        if self._epochs is None or (self.parser.preprocess is None and not self._has_transforms):
            examples = self.parser.examples_by_index(numbers, self.fields)
        else:
            if self.parser.preprocess is not None:
                images = ("image", *self.parser.preprocess.also_kinds)
            epoch = self._epochs.now(_loader_seed())
            context = replace(_IN_TENSORS, seeds_items=epoch is not None)  # Else they would repeat in every epoch.
            examples = self.parser.examples_by_index(numbers, self.fields, epoch=epoch or 0, context=context)
        asked = self._asked.with_added(examples[0].features) if examples else self._asked
        columns = [(name, [_value(example, name, images) for example in examples]) for name in asked.fields]
        told = None if self._epochs is None else self._epochs.now(_loader_seed())
        # Without an epoch, random numbers that belong to an example would be the same in all of them.
        seed = None if told is None else self.parser.seed
        index = np.array([example.index for example in examples], np.int64)
        keys = index + (told or 0) * _KEYS_OF_EPOCH
        transforms = Transforms(self.transform, self.target_transform, seed)
        made = transforms(columns, keys, index, [example.id for example in examples])
        return list(made if asked.names is None else map(asked.example, made))

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example of the split, in the order of its index.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the dataset's directory.

        Raises:
            ConfigError: the shards can only be streamed.
            ShardError: a shard is missing or damaged.
        """
        return self.parser.filenames(basename, absolute)

    def __getstate__(self) -> dict[str, Any]:
        check_functions({name: getattr(self, name) for name in ("transform", "target_transform")})
        return self.__dict__


def _loader_seed() -> int | None:
    """Return the base seed of the loader whose worker this process is; None in other processes."""
    worker = torch.utils.data.get_worker_info()
    return None if worker is None else worker.seed - worker.id


def _value(example: Example, field: str, images: Collection[str]) -> Any:
    """Return a field of an example; the preprocessed images as tensors uint8 [C, H, W]."""
    if field == "valid":
        return True
    if field in ("index", "id"):
        return getattr(example, field)
    if field == "image":
        image = example.image  # An array where a transform made it one of another size.
        is_array = field in images and isinstance(image, np.ndarray)
        return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1) if is_array else image
    if field in images:
        return torch.from_numpy(np.ascontiguousarray(example.features[field])).permute(2, 0, 1)
    return example.label if field == "label" and field not in example.features else example.features[field]
