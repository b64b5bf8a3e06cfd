"""LoaderOptions: the arguments of `create_loader`, checked before anything is started."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from typing import Any, Literal

import torch
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, IterableDataset, Subset

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import Parser
from tfds_torch.runtime.arguments import check_flag, check_integer, check_seconds
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.keyword_hints import TIMM_LOADER
from tfds_torch.torch_data.batches import dataset_call
from tfds_torch.torch_data.default_collation import collate_lists
from tfds_torch.torch_data.fused_transform import Fused
from tfds_torch.torch_data.image_dataset import ImageDataset, no_numbers
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
from tfds_torch.torch_data.plain_dataloader import no_collation
from tfds_torch.torch_data.rows_dataset import RowsDataset
from tfds_torch.torch_data.wrapped_datasets import find_layer

_MOST_WORKERS, _MOST_PREFETCHED = 1024, 1024
_OWN_ORDER = (
    "An order of your own needs create_loader(IndexedImageDataset(parser), {name}=...); a part of the examples is a "
    "split of the parser, such as 'train[:10%]'."
)


@dataclass(frozen=True)
class LoaderOptions:
    """The arguments of `create_loader`, which documents them, checked."""

    dataset: Any
    num_workers: int | str = 0
    device: str | torch.device | None = None
    mean: float | Iterable[float] | None = None
    std: float | Iterable[float] | None = None
    dtype: torch.dtype | str | None = None
    prefetch_batches: int = 2
    timeout_s: float | None = 300.0
    _: KW_ONLY
    batch_size: int | None = None
    shuffle: bool = False
    sampler: Any = None
    batch_sampler: Any = None
    drop_last: bool = False
    collate_fn: Callable[[Any], Any] | Literal["list"] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    persistent_workers: bool = True
    multiprocessing_context: Any = None
    seed: int | None = None
    check_ranks: bool = True
    log_every: int | None = None
    channels_last: bool = True

    def __post_init__(self) -> None:
        asked: Any = self.num_workers
        if asked != "auto":
            also = f". {TIMM_LOADER.removesuffix('.')}" if isinstance(asked, tuple | list) else ""
            self._check_count("num_workers", 0, _MOST_WORKERS, f" or 'auto'{also}")
        self._check_count("prefetch_batches", 1, _MOST_PREFETCHED)
        for name, least in (("batch_size", 1), ("log_every", 1), ("seed", 0)):
            if getattr(self, name) is not None:
                self._check_count(name, least)
        for name in ("mean", "std"):
            if isinstance(getattr(self, name), Iterator):  # It is read again in every epoch.
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_seconds("create_loader: timeout_s", self.timeout_s, can_be_none=True)
        for name in ("shuffle", "drop_last", "persistent_workers", "check_ranks", "channels_last"):
            check_flag(f"create_loader: {name}", getattr(self, name))
        for name in ("collate_fn", "worker_init_fn"):
            is_word = name == "collate_fn" and self.collate_fn == "list"
            if getattr(self, name) is not None and not callable(getattr(self, name)) and not is_word:
                also = ", or 'list'" if name == "collate_fn" else ""
                raise ConfigError(f"create_loader: {name}={getattr(self, name)!r} must be a function, or None{also}.")
        self._check_orders()
        if isinstance(self.dataset, ImageDataset):
            _check_planned(self.dataset, self)
            return
        _check_kind(self.dataset)
        if is_iterable(self.dataset):
            _check_iterable(self.dataset, self)
        _check_batches(self)

    @cached_property
    def planned(self) -> ImageDataset | None:
        """The dataset that plans the batches: an ImageDataset, or one over map-style rows; None: torch's loader does.

        torch plans them where the caller has a sampler or a collate_fn, wants no batches, or has an
        IndexedImageDataset, whose crops count the epochs of torch's loaders.
        """
        if isinstance(self.dataset, ImageDataset):
            return self.dataset if self.fused is None else self.dataset.in_batches(self.fused)
        has_own = any(value is not None for value in (self.sampler, self.batch_sampler, self.collate_fn))
        if self.batch_size is None or has_own or is_iterable(self.dataset):
            return None
        if find_layer(self.dataset, IndexedImageDataset) is not None:
            return None
        return RowsDataset(
            self.dataset, self.batch_size, shuffle=self.shuffle, drop_last=self.drop_last, seed=self.seed
        )

    @cached_property
    def fused(self) -> Fused | None:
        """The decoder's part of an ImageDataset's transform, where the loader does the rest of it; else None.

        That rest is layout, scale and Normalize, and the caller asked for no other collation and scale.
        """
        dataset, own = self.dataset, (self.collate_fn, self.mean, self.std)
        if not isinstance(dataset, ImageDataset) or dataset.target_transform is not None or own != (None,) * 3:
            return None
        fused = dataset.find_fused()
        return fused if fused is not None and fused.leaves_batches(dataset.fields) else None

    @cached_property
    def scaling(self) -> tuple[Any, Any]:
        """The mean and std by which images are normalised: the caller's, or those with which a transform ends."""
        of_transform = None if self.fused is None else self.fused.scaling
        return (self.mean, self.std) if of_transform is None else of_transform

    @property
    def image_place(self) -> int | str | None:
        """Where batches have the field `image`, see `find_image_place`; None also where a function collates them."""
        return find_image_place(self.dataset) if self.collate_fn in (None, "list") else None

    @property
    def collate(self) -> Callable[[Any], Any] | None:
        """The function that makes batches of lists of examples; None: torch's default collation, or nothing."""
        return collate_lists if self.collate_fn == "list" else self.collate_fn

    @property
    def has_device_stage(self) -> bool:
        """Whether batches are moved, normalised or cast."""
        return any(value is not None for value in (self.device, *self.scaling, self.dtype))

    def check_transform(self) -> None:
        """Raise ConfigError where the dataset has another transform now than the one whose rest the loader does."""
        if self.fused is not None and self.dataset.find_fused() is not self.fused:
            raise ConfigError(
                f"The transform of {type(self.dataset).__name__} was changed after create_loader had taken it over. "
                f"Make the loader after that, or give the dataset fuse=False."
            )

    def _check_count(self, name: str, least: int, most: int | None = None, also: str = "") -> None:
        try:
            number = check_integer(f"create_loader: {name}", getattr(self, name), least, most)
        except ConfigError as error:
            raise ConfigError(f"{str(error).removesuffix('.')}{also}.") from None
        object.__setattr__(self, name, number)

    def _check_orders(self) -> None:
        for name, kind in (("sampler", "Sampler, or other"), ("batch_sampler", "BatchSampler, or other lists of")):
            value = getattr(self, name)
            if not isinstance(value, Iterable | None):
                raise ConfigError(f"create_loader: {name}={value!r} must be a {kind} indices in order.")
        context, methods = self.multiprocessing_context, get_all_start_methods()
        if not isinstance(context, BaseContext | None) and context not in methods:
            raise ConfigError(
                f"create_loader: multiprocessing_context={context!r} must be one of {', '.join(map(repr, methods))}, "
                f"or a context of multiprocessing."
            )


def find_image_place(dataset: Any) -> int | str | None:
    """Return where examples of a dataset, and batches that are collated of them, have the field `image`.

    Args:
        dataset: ours, a Subset of it, or several of ours in one, which agree. Of others the place is unknown.

    Returns:
        A place in tuples, or a key of dictionaries; None: it is unknown.
    """
    if isinstance(dataset, Subset):
        return find_image_place(dataset.dataset)
    if isinstance(dataset, ChainDataset | ConcatDataset):
        places = set(map(find_image_place, dataset.datasets))
        return places.pop() if len(places) == 1 else None
    return dataset.image_place if isinstance(dataset, ImageDataset | IndexedImageDataset) else None


def is_iterable(dataset: Any) -> bool:
    """Return whether a dataset is iterated: an IterableDataset, or any other iterable without `__getitem__`."""
    return isinstance(dataset, IterableDataset) or is_plain_iterable(dataset)


def is_plain_iterable(dataset: Any) -> bool:
    """Return whether it is an iterable other than torch's, like a Feeder's batches; only this process reads it."""
    return isinstance(dataset, Iterable) and not (isinstance(dataset, Dataset) or hasattr(dataset, "__getitem__"))


def _check_planned(dataset: ImageDataset, options: LoaderOptions) -> None:
    """Refuse arguments that the parser of an ImageDataset plans, and name the parser's argument."""
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
    if dataset.is_batched and options.collate_fn == "list":
        raise ConfigError(
            "create_loader: collate_fn='list' makes batches of single examples, and this dataset yields whole batches. "
            "Leave it out, or give the ImageDataset batched=False."
        )
    if dataset.has_pil_images and options.collate_fn is None:
        raise no_collation("create_loader")
    if dataset.is_dict and getattr(options.collate_fn, "__module__", "").partition(".")[0] == "timm":
        raise ConfigError(
            f"create_loader: {getattr(options.collate_fn, '__name__', 'collate_fn')} of timm takes tuples, and this "
            f"dataset yields dictionaries. Ask it for fields=('image', 'label'), without as_dict, or leave out the "
            f"collate_fn."
        )


def _check_kind(dataset: Any) -> None:
    """Refuse objects that are not datasets, and datasets that a loader would misread."""
    if not isinstance(dataset, Dataset | type) and isinstance(dataset, Parser):
        raise ConfigError(
            f"create_loader: {dataset!r} is a parser, and a loader takes a dataset, which says what its batches have. "
            f"Use create_loader({dataset_call(dataset)}, ...)."
        )
    bottom = dataset
    while isinstance(bottom, Subset):
        bottom = bottom.dataset
    if isinstance(bottom, ImageDataset):
        raise no_numbers("create_loader: a Subset asks for examples by number")
    is_known = isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitem__")
    if isinstance(dataset, type) or not (is_known or (is_iterable(dataset) and not isinstance(dataset, Iterator))):
        kind = f"the class {dataset.__name__}" if isinstance(dataset, type) else type(dataset).__name__
        raise ConfigError(
            f"create_loader: {kind} is not a dataset: it must be an ImageDataset, a torch.utils.data.IterableDataset, "
            f"have __getitem__ and __len__, or be an iterable that can be read anew in every epoch."
        )


def _check_iterable(dataset: Any, options: LoaderOptions) -> None:
    if options.shuffle or options.sampler is not None or options.batch_sampler is not None:
        raise ConfigError(
            f"create_loader: {type(dataset).__name__} is an iterable, which has an order of its own: shuffle=, "
            f"sampler= and batch_sampler= are for map-style datasets."
        )
    if is_plain_iterable(dataset) and options.num_workers != 0:
        raise ConfigError(
            f"create_loader: num_workers={options.num_workers!r}, and {type(dataset).__name__} is not a dataset of "
            f"torch but an iterable, which each worker would read whole: use num_workers=0, or make it a "
            f"torch.utils.data.IterableDataset that gives every worker its share."
        )


def _check_batches(options: LoaderOptions) -> None:
    """Refuse arguments that exclude each other where the loader makes the batches."""
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
