"""IndexedImageDataset: a parser's examples as a torch map-style Dataset."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch.utils.data

from tfds_torch.engines.batch import Example
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import DEFAULT_FIELDS, Parser
from tfds_torch.runtime.worker_watch import end_with_parent
from tfds_torch.torch_data.fields import check_field_names, make_tuples


class IndexedParser(Parser, Protocol):
    """A parser whose examples can be fetched one by one."""

    def examples_by_index(
        self, indices_or_ids: Iterable[int | str], fields: Sequence[str] = DEFAULT_FIELDS
    ) -> list[Example]:
        """Returns examples, decoded."""


class IndexedImageDataset(torch.utils.data.Dataset[tuple[Any, ...]]):
    """Any example by its index, `(PIL.Image, int)` unless told otherwise: for samplers of your own.

    `DataLoader(dataset, batch_size=B, sampler=WeightedRandomSampler(...), num_workers=W)`, `Subset`, `random_split`,
    `DistributedSampler`: whatever works with a map-style dataset. A batch's examples are fetched together.

    Where no sampler is needed, `ImageDataset` in read mode `index` is the better choice: it shuffles globally, resumes
    anywhere, deals examples to ranks and workers, and decodes ahead in threads.

    PIL images have no default collation: end `transform` with a conversion to tensors, or give the loader a
    `collate_fn`. Examples are decoded where they are asked for, without tensorflow. Workers may be started by fork,
    spawn or forkserver, also after that; threads may share a dataset.

    Args:
        parser: where the examples come from; its batch size, shuffle and remainder play no part.
        transform: called with the PIL image; its result takes the image's place.
        target_transform: called with the label (0-based int).
        fields: what an example consists of, in this order: `image`, `label`, `index` (int), `id` (str,
            `<shard>__<record>`), `valid` (always True), or any feature of the dataset.

    Raises:
        ConfigError: a field that does not exist, no fields, or a parser that has no random access.
    """

    def __init__(
        self,
        parser: IndexedParser,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        fields: Sequence[str] = DEFAULT_FIELDS,
    ) -> None:
        super().__init__()
        if not callable(getattr(parser, "examples_by_index", None)):
            raise ConfigError(
                f"{parser!r} cannot fetch examples by their index: use ImageDataset, which reads in order."
            )
        self.parser = parser
        self.transform = transform
        self.target_transform = target_transform
        self.fields = check_field_names(parser, fields)

    def __len__(self) -> int:
        """Examples of the split."""
        return self.parser.num_examples

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns an example by its index, or by its id.

        Raises:
            ConfigError: index is neither an integer nor an id.
            ExampleNotFoundError: there is no such example.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Returns a batch's examples, fetched together; torch's loaders call it."""
        if torch.utils.data.get_worker_info() is not None:
            end_with_parent()
        examples = self.parser.examples_by_index(indices, self.fields)
        columns = [(field, [_value(example, field) for example in examples]) for field in self.fields]
        return list(make_tuples(columns, self.transform, self.target_transform))

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Returns a name for every example of the split, in the order of its index.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the dataset's directory.

        Raises:
            ConfigError: the shards are remote.
            ShardError: a shard is missing or damaged.
        """
        return self.parser.filenames(basename, absolute)


def _value(example: Example, field: str) -> Any:
    if field == "valid":
        return True
    if field in ("index", "id", "image"):
        return getattr(example, field)
    return example.label if field == "label" and field not in example.features else example.features[field]
