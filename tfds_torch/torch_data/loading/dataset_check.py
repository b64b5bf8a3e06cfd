"""What `create_loader` takes: whether a dataset can be read, and whether the arguments fit it."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Subset

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import Parser
from tfds_torch.torch_data.image_dataset import ImageDataset, no_numbers
from tfds_torch.torch_data.loader_options import LoaderOptions
from tfds_torch.torch_data.loading.iterables import is_iterable, is_plain_iterable
from tfds_torch.torch_data.torch_fetch import no_collation

_OWN_ORDER = (
    "An order of your own needs create_loader(IndexedImageDataset(parser), {name}=...); a part of the examples is a "
    "split of the parser, such as 'train[:10%]'."
)


def check_dataset(dataset: Any, options: LoaderOptions) -> None:
    """Checks what a loader is asked to read, before anything is started.

    Raises:
        ConfigError: it is not a dataset, or the options do not fit it.
    """
    if isinstance(dataset, ImageDataset):
        _check_planned(dataset, options)
        return
    _check_kind(dataset)
    if is_iterable(dataset):
        _check_iterable(dataset, options)
    _check_batches(options)


def _check_planned(dataset: ImageDataset, options: LoaderOptions) -> None:
    """Refuses what the parser of an ImageDataset plans, with the argument of the parser that plans it."""
    parser, kind = dataset.parser, type(dataset.parser).__name__
    if options.batch_size not in (None, parser.batch_size or 1):  # As the plan counts without one.
        raise ConfigError(
            f"create_loader: batch_size={options.batch_size}, and the parser of {parser.dataset_name} plans "
            f"batch_size={parser.batch_size}. Leave it out here, and give the parser the one that is wanted: "
            f"{kind}(..., batch_size={options.batch_size})."
        )
    answers = {
        "shuffle": f"{kind}(..., shuffle=True), the default in training, shuffles anew in every epoch.",
        "sampler": _OWN_ORDER.format(name="sampler"),
        "batch_sampler": _OWN_ORDER.format(name="batch_sampler"),
        "drop_last": f"{kind}(..., remainder='drop') leaves out the short last batch.",
    }
    for name, answer in answers.items():
        if getattr(options, name) not in (None, False):
            raise ConfigError(
                f"create_loader: {name}={getattr(options, name)!r} is not for an ImageDataset, whose order and last "
                f"batch its parser plans. Leave {name} out here. {answer}"
            )
    if dataset.has_pil_images and options.collate_fn is None:
        raise no_collation("create_loader")


def _check_kind(dataset: Any) -> None:
    """Refuses what is not a dataset, and what a loader would read in another way than is meant."""
    if not isinstance(dataset, Dataset | type) and isinstance(dataset, Parser):
        raise ConfigError(
            f"create_loader: {dataset!r} is a parser, whose single examples would come one by one, without batches "
            f"and without a preprocess. Use create_loader(ImageDataset(parser), ...)."
        )
    if isinstance(dataset, Subset) and isinstance(_bottom_of(dataset), ImageDataset):
        raise no_numbers("create_loader: a Subset asks for examples by number")
    is_known = isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitem__")
    if isinstance(dataset, type) or not (is_known or (is_iterable(dataset) and not isinstance(dataset, Iterator))):
        raise ConfigError(
            f"create_loader: {_kind_of(dataset)} is not a dataset: it must be an ImageDataset, a "
            f"torch.utils.data.IterableDataset, have __getitem__ and __len__, or be an iterable that can be read "
            f"anew in every epoch."
        )


def _check_iterable(dataset: Any, options: LoaderOptions) -> None:
    if options.shuffle or options.sampler is not None or options.batch_sampler is not None:
        raise ConfigError(
            f"create_loader: {type(dataset).__name__} is an iterable, which has an order of its own: shuffle=, "
            f"sampler= and batch_sampler= are for map-style datasets."
        )
    if is_plain_iterable(dataset) and options.num_workers != 0:
        raise ConfigError(
            f"create_loader: num_workers={options.num_workers!r}, and {type(dataset).__name__} is no dataset of "
            f"torch but an iterable, which each worker would read whole: use num_workers=0, or make it a "
            f"torch.utils.data.IterableDataset that gives every worker its share."
        )


def _check_batches(options: LoaderOptions) -> None:
    """Refuses arguments that exclude each other where the loader makes the batches."""
    if options.batch_sampler is not None:
        for name in ("batch_size", "shuffle", "sampler", "drop_last"):
            if getattr(options, name) not in (None, False):
                raise ConfigError(
                    f"create_loader: batch_sampler= and {name}={getattr(options, name)!r} exclude each other: the "
                    f"batch sampler says which examples are in every batch. Leave {name} out."
                )
    if options.sampler is not None and options.shuffle:
        raise ConfigError("create_loader: sampler= and shuffle=True exclude each other: the sampler is the order.")
    if options.drop_last and options.batch_size is None:
        raise ConfigError("create_loader: drop_last=True needs batch_size: without it there are no short batches.")


def _bottom_of(dataset: Any) -> Any:
    """Returns what a subset, or a subset of subsets, is a part of."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _kind_of(dataset: Any) -> str:
    return f"the class {dataset.__name__}" if isinstance(dataset, type) else type(dataset).__name__
