"""ImageDataset: a parser's examples as a torch IterableDataset."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar, NoReturn

import torch.utils.data

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.images.batch_buffer import MakeBatchBuffer
from tfds_torch.parsers.advice import advise_reading
from tfds_torch.parsers.protocol import (
    DEFAULT_FIELDS,
    Parser,
    dataset_of,
    images_beside,
    is_undecoded,
    state_at,
    varying_fields,
)
from tfds_torch.plan.cursor import Position, Start
from tfds_torch.plan.epoch import Delivery, EpochPlan
from tfds_torch.plan.state import LoaderState, WorkerPosition
from tfds_torch.plan.world import World
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.limits import num_local_ranks
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.one_thread import OneThreadIterator
from tfds_torch.runtime.pickling import check_functions
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.user_random import take_generators
from tfds_torch.runtime.worker_start import end_with_parent, keep_freed_memory
from tfds_torch.torch_data.batches import (
    Fields,
    Transforms,
    check_batched,
    check_fields,
    check_pad,
    make_items,
)
from tfds_torch.torch_data.fused_transform import AUTO, Fused, check_fuse, fuse_transform
from tfds_torch.torch_data.plain_dataloader import Iteration, PlainIterations, is_position
from tfds_torch.torch_data.rank_check import check_ranks
from tfds_torch.torch_data.rank_world import RankFinder
from tfds_torch.torch_data.tensor_buffer import TensorBuffers, make_own_buffer
from tfds_torch.torch_data.wrapped_datasets import refuse_second_shards


@explain_keywords
class ImageDataset(torch.utils.data.IterableDataset[Any]):
    """The examples of a parser: whole batches where it has a preprocess, else single examples.

    Examples:
        >>> from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds, demo
        >>> preprocess = EvalPreprocess(size=8, crop_pct=1)
        >>> parser = ParserTfds(demo.prepare("digits"), "digits", batch_size=64, preprocess=preprocess)
        >>> images, labels = next(iter(ImageDataset(parser)))
        >>> images.shape, labels.shape
        (torch.Size([64, 3, 8, 8]), torch.Size([64]))

    Whole batches are uint8 [B, 3, H, W] in channels_last memory with int64 [B], for `create_loader(dataset, ...)` or
    `DataLoader(dataset, batch_size=None, ...)`. In a loader's worker the images are written into shared memory. With
    `Views`, the field `image` is a list of such tensors, one for each view.

    Single examples are `(PIL.Image, int)`, for `DataLoader(dataset, batch_size=B, ...)`, which yields exactly the
    batches that the parser plans if B is the parser's `batch_size`. PIL images have no default collation: end
    `transform` with a conversion to tensors, or give the loader a `collate_fn`.

    The epoch advances with every iteration of a loader (also one that is broken off) until `set_epoch` fixes it.

    Local files are read without tensorflow. Under fork, spawn and forkserver workers, persistent or not, every rank and
    worker reads its own examples. An iterator belongs to the thread that takes its first example.

    For a function of whole examples, with boxes and masks beside the image, use the parser's `transform`; see
    `Transform`.

    Random numbers of a `transform` or `target_transform` belong to (seed, pass, example), like those of a preprocess:
    `random`, `np.random` and torch's default generator are seeded before each call. An example therefore looks the same
    in any world, with any start method, and after a resume. In a training process without workers, these generators are
    left as they were.

    Args:
        parser: where the examples come from.
        transform: called with the PIL image (its bytes, where the parser does not decode it); its result takes the
            image's place. Single examples only. The decoder does the crop, resize and flips with which a transform of
            torchvision or timm begins, see `fuse`.
        target_transform: called with the label (0-based int, -100 for padding). Single examples only.
        fields: what an example consists of, in this order: `image`, `label`, `valid` (bool, False for padding),
            `index` (int), `id` (str, `<shard>__<record>`), or any feature of the dataset. In whole batches each is a
            tensor, or a list where values have no common shape. With a dictionary, name in the batch -> field,
            examples are dictionaries; also with "all", every feature of the dataset, nested ones by flat names
            ("objects/bbox").
        world: rank and number of replicas; None: those of torch.distributed when it is initialised, else those of the
            environment (`RANK`, `WORLD_SIZE`), else one replica. The dataset finds out its worker by itself.
        batched: whether whole batches are yielded; None: where the parser has a preprocess, or windows. Without a
            preprocess, all images must be of one size.
        pad: field -> fill value, of fields whose values differ in length, like boxes and their labels: in whole
            batches each is a pair (values [B, longest, ...], lengths int64 [B]) instead of a list.
        seed_transforms: whether random numbers are seeded before functions of yours are called for an example.
        as_dict: whether examples, and batches, are dictionaries of the fields' names; else they are tuples, where
            `fields` does not ask for dictionaries.
        fuse: "auto": the decoder takes over the first steps of `transform`, as far as `TrainPreprocess.from_transform`
            knows them, and the log names them once; sizes, places and flips then come from the example's own random
            numbers. Not where the environment has TFDS_TORCH_FUSE=0, or a Transform of the parser reads or returns the
            image. True: the same, but also where the environment has TFDS_TORCH_FUSE=0. False: the transform runs as it
            is.

    Raises:
        ConfigError: a field that does not exist, or no fields; a transform of single examples where there are whole
            batches, or a preprocess or `pad` where there are none. An error of the environment (`RANK` without
            `WORLD_SIZE`) is reported by `len` and iteration, since the rank may become known after construction.
    """

    _loader_warns_of_padding: ClassVar[bool] = False

    def __init__(
        self,
        parser: Parser,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        fields: Fields = DEFAULT_FIELDS,
        world: World | None = None,
        *,
        batched: bool | None = None,
        pad: Mapping[str, float] | None = None,
        seed_transforms: bool = True,
        as_dict: bool = False,
        fuse: bool | str = AUTO,
    ) -> None:
        super().__init__()
        if not isinstance(world, World | None):
            raise ConfigError(f"world={world!r} must be a World, for example World(rank=0, num_replicas=2), or None.")
        self.parser = parser
        if not isinstance(seed_transforms, bool):
            raise ConfigError(f"seed_transforms={seed_transforms!r} must be True or False.")
        self.transform = transform
        self.target_transform = target_transform
        self.seed_transforms = seed_transforms
        self.fuse = check_fuse(fuse)
        self._fused: Fused | None = None
        self._users_own: ImageDataset | None = None
        self._asked = check_fields(parser, fields, as_dict)
        self.is_batched = check_batched(parser, self.fields, batched, transform, target_transform)
        self.pad = check_pad(parser, self.fields, pad, self.is_batched)
        self._rank = RankFinder(world)
        self._iterations = PlainIterations()
        rank = self._rank.find_now() or World()
        for text in advise_reading(parser, self.fields, rank, of_padding=not self._loader_warns_of_padding):
            warnings.warn(text, UserWarning, stacklevel=3)
        self.hands_on_batches = False  # Whether collation hands on the batch whose rows the examples are.
        self.is_read_ahead = False  # By something between this dataset and the training loop.

    def __repr__(self) -> str:
        parser, kind = self.parser, "whole batches" if self.is_batched else "single examples"
        size = f"{parser.num_examples:,} examples, batch_size={parser.batch_size}"
        name = f"{type(self).__name__}({parser.dataset_name}, split={parser.split!r}"
        return f"{name}, {size}, fields={self.fields}, {kind}{', as dictionaries' if self.is_dict else ''})"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that an example consists of, in this order."""
        return self._asked.fields

    @property
    def is_dict(self) -> bool:
        """Whether examples, and batches, are dictionaries; else they are tuples."""
        return self._asked.names is not None

    @property
    def image_place(self) -> int | str | None:
        """Where an example, or a batch, has the field `image`: its place or its key; None: it has no such field."""
        return self._asked.place_of("image")

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the iterations to come, in this process and in workers that already run.

        Args:
            epoch: number of the epoch, an integer >= 0.

        Raises:
            ConfigError: epoch is not an integer >= 0, or Accelerate deals out the share of this rank a second time.
        """
        refuse_second_shards(self, self.parser)
        self._iterations.set_epoch(epoch)

    def state_dict(self, batches_delivered: int | None = None) -> dict[str, Any]:
        """Return where training is: a small dictionary of plain values, for JSON or `torch.save`.

        Behind a Loader, or without workers, this object knows the position. Behind a DataLoader with workers (and
        behind Accelerate's, which fetches one batch ahead) it does not see the delivered batches: give
        batches_delivered. In a worker, where torchdata's StatefulDataLoader asks, the state is the worker's position.

        Args:
            batches_delivered: batches taken out of the loader since its latest `iter()`, as `enumerate(loader, 1)`
                counts them; batches before the loaded state are added here. Before an epoch's first batch, call
                `set_epoch` first: a dataset does not see its loader begin.

        Raises:
            ConfigError: batches_delivered is missing where it is not known here, it is an impossible number, or the
                loader continued from its own state and must be asked.
        """
        is_worker = torch.utils.data.get_worker_info() is not None
        position = None if is_worker else self._iterations.epochs.position_of_loader()
        if position is not None:
            if batches_delivered is not None:
                raise ConfigError(
                    f"batches_delivered={batches_delivered}: the loader went on from a state of its own, which counts "
                    f"what it delivers. Ask the loader for its state."
                )
            return self.state_of(position).to_dict()
        return self._iterations.state(self.parser, self.find_rank(), batches_delivered, self.is_read_ahead)

    def load_state_dict(self, state: Mapping[str, Any], *, allow_batch_change: bool = False) -> None:
        """Let the next iteration continue where a state was taken; later ones are the following epochs.

        The next iteration yields the rest of the state's epoch, nothing where that had ended. In mode `index` the
        numbers of workers and ranks may change, as long as the global batch (ranks x batch_size) is the same. With
        `allow_batch_change` the global batch may change, too: the rest of the epoch is then dealt anew from the example
        where it stood, each example exactly once. The stream modes continue in the same world only. `len()` stays that
        of a whole epoch. Where you set another epoch by hand, that one begins at its first batch.

        Args:
            state: what `state_dict` returned, here or on another rank; or `LoaderState.from_stateful(...).to_dict()`.
            allow_batch_change: whether a state of another global batch is accepted, in mode `index`; give it on every
                rank.

        Raises:
            StateMismatchError: the state is damaged, or not of this dataset, split, plan or world; nothing is changed.
        """
        worker = torch.utils.data.get_worker_info()
        here = self.state_at(0, 0, None if worker is None else worker.num_workers)
        position = None
        if worker is not None:
            position = WorkerPosition.load(state, here, worker=worker.id, num_workers=worker.num_workers)
        else:
            if is_position(state):
                position = WorkerPosition.load(state, here, worker=0, num_workers=1)
                self._iterations.epochs.load(position.began_at.start, 1, must_keep_workers=True)
            else:
                num_replicas = self.find_rank().num_replicas
                loaded = LoaderState.load(state, here, allow_batch_change=allow_batch_change, num_replicas=num_replicas)
                must_keep_workers = loaded.batches > 0
                self._iterations.epochs.load(loaded.start, loaded.num_workers, must_keep_workers=must_keep_workers)
        self._iterations.restore(position)

    def state_at(self, epoch: int, batches_delivered: int, num_workers: int | None) -> LoaderState:
        """Return the state of a point in an epoch.

        Args:
            epoch: number of the epoch, >= 0.
            batches_delivered: batches of this rank that the training loop has taken in the epoch, >= 0.
            num_workers: workers of the loader; None: unknown.
        """
        return state_at(self.parser, self.find_rank(), Start(epoch, batches_delivered), num_workers)

    def state_of(self, position: Position) -> LoaderState:
        """Return the state of a loader that is at a position.

        Args:
            position: how far an iteration of the loader is, see `begin`.
        """
        return state_at(self.parser, self.find_rank(), position.now, position.num_workers)

    @property
    def start(self) -> Start:
        """Where the latest iteration began, or where the next one will: after `set_epoch` or `load_state_dict`."""
        return self._iterations.epochs.current().position().start

    @property
    def has_begun(self) -> bool:
        """Whether an iteration has begun since an epoch was set or a state was loaded."""
        return self._iterations.epochs.current().has_begun

    def begin(self, num_workers: int, earlier: Position | None = None) -> Position:
        """Return the position of an iteration of a Loader that begins now, as `Cursor.begin`.

        Args:
            num_workers: workers of the Loader; 0: it reads in this process.
            earlier: the position of the Loader's iteration before; None: there was none.

        Raises:
            StateMismatchError: a loaded state needs another number of workers, or is in the middle of a batch.
        """
        return self._iterations.begin_of_loader(num_workers, earlier)

    def __len__(self) -> int:
        """Examples that this rank yields in an epoch, wrapped and padded ones counted; whole batches where it is so."""
        return len(self.plan())

    def plan(self, *, first_example: int = 0) -> EpochPlan:
        """Return the plan of an epoch for this rank.

        Args:
            first_example: number of examples of the epoch, of all ranks together, before the plan begins, >= 0, as in
                `Start`.

        Raises:
            ConfigError: the rank is not clear, or the plan cannot work there.
        """
        plan = self.parser.plan(self.find_rank(), first_example=first_example)
        return replace(plan, delivery=Delivery.BATCH) if self.is_batched else plan

    @property
    def world(self) -> World | None:
        """The rank that was asked for; None: that of the process."""
        return self._rank.world

    def find_rank(self) -> World:
        """Return the rank that this dataset reads as, and the number of ranks; the same in its workers.

        Raises:
            ConfigError: the environment makes no sense, or contradicts torch.distributed.
        """
        return self._rank.find()

    def check_ranks(self, timeout_s: float = 60.0) -> None:
        """Compare the data, the order and the position of this rank with those of the other ranks.

        It compares dataset, split, seed, batch size, remainder, preprocess, read mode, number of ranks, and the epoch
        and batch at which the next iteration begins (or at which the current one began). Every rank must call it; a
        single rank has nothing to compare. A dataset does not know the number of workers of its loader, which must also
        be the same on every rank.

        Args:
            timeout_s: how long to wait for the other ranks, seconds.

        Raises:
            ConfigError: the ranks differ, on every rank; or there are several ranks and torch.distributed is not
                initialised.
            StallError: not all ranks came within timeout_s.
        """
        check_ranks(self.parser, self.find_rank, timeout_s, vars(self.start))

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example of the split, in the order of the field `index`.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the dataset's directory.

        Raises:
            ConfigError: the shards can only be streamed.
            ShardError: a shard is missing or damaged.
        """
        return self.parser.filenames(basename, absolute)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise ConfigError: examples come in the order that the parser plans."""
        raise no_numbers(f"Example {index!r} was asked for")

    def __iter__(self) -> Iterator[Any]:
        refuse_second_shards(self, self.parser)
        if torch.utils.data.get_worker_info() is not None:
            # If the parent is dead before torch's own loop looks for the first time, that never notices.
            end_with_parent()
            take_generators()
        items = self._counted(self._iterations.begin(self.parser, self.find_rank()))
        return OneThreadIterator(items, f"ImageDataset({self.parser.dataset_name}, {self.parser.split})")

    def read(
        self,
        world: World,
        start: Start,
        metrics: StageMetrics | None = None,
        slots: SharedSlots | None = None,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Yield the items that one worker of a rank, or the rank by itself, reads of an epoch; nothing is counted.

        Args:
            world: the rank, and which of its workers this is.
            start: where the loader's iteration begins.
            metrics: receives the times; None: times are not reported.
            slots: memory in which a worker writes the images of whole batches; None: the worker's own memory.
            seed: the seed of the random numbers of transforms; None: the parser's.
        """
        fused = self.find_fused()
        return self._item_maker(metrics, seed, fused)(self._batches(world, start, metrics, slots, fused))

    def find_fused(self) -> Fused | None:
        """Return the part of the current transform that the decoder does, and the rest; None: it runs whole."""
        if self.is_batched:
            return None
        self._fused = fuse_transform(self.parser, self.transform, self.fields, self.fuse, self._fused)
        return self._fused

    def in_batches(self, fused: Fused) -> "ImageDataset":
        """Return a dataset of whole batches of the same examples, without the rest of a fused transform.

        It shares the epochs and the state of this one.

        Args:
            fused: the result of `find_fused`, whose parser makes whole batches.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, parser=fused.parser, transform=None, is_batched=True, _users_own=self)
        return twin

    @property
    def users_own(self) -> Any:
        """The dataset that a loader was given: this one, or the one whose batches it has."""
        return self if self._users_own is None else self._users_own

    @property
    def is_collated(self) -> bool:
        """Whether a loader makes batches of the yielded items: of single examples."""
        return not self.is_batched

    @property
    def has_pil_images(self) -> bool:
        """Whether it yields PIL images, of which torch's default collation makes no batches."""
        return (
            "image" in self.fields
            and self.transform is None
            and not self.is_batched
            and not is_undecoded(self.parser, "image")
            and not ((dataset := dataset_of(self.parser)) is not None and dataset.has_image_numbers)
        )

    def _counted(self, iteration: Iteration) -> Iterator[Any]:
        """Yield the rest of an iteration, and count it."""
        began = iteration.began
        if self.is_batched and began.examples:
            raise StateMismatchError(
                f"The state was taken after {began.examples} examples of a batch, by a dataset that yields single "
                f"ones. It goes on there only; take states between batches."
            )
        num_passed = began.examples
        start = replace(began.began_at.start, start_batch=began.start_batch)
        fused = self.find_fused()
        make = self._item_maker(None, None, fused)
        for batch in self._batches(iteration.plan.world, start, fused=fused):
            self._iterations.epochs.note_produced(batch.batch + 1)
            for item in make([batch]):
                if num_passed:
                    num_passed -= 1
                else:
                    iteration.num_examples += len(batch) if self.is_batched else 1
                    yield item

    def _item_maker(
        self, metrics: StageMetrics | None, seed: int | None, fused: Fused | None
    ) -> Callable[[Iterable[Batch]], Iterator[Any]]:
        """Return the function that makes items of batches; look up here, once, which fields are images or lists."""
        if not self.is_batched:
            seed = self.parser.plan(World()).seed if seed is None else seed
            draws = fused is None or not fused.taken.is_pure or self.target_transform is not None
            own_seed = seed if self.seed_transforms and draws else None
            image = self.transform if fused is None else fused.rest
            transforms = Transforms(image, self.target_transform, own_seed, metrics)
            return partial(make_items, asked=self._asked, transforms=transforms)
        images, lists = images_beside(self.parser, self.fields), varying_fields(self.parser, self.fields)
        return partial(
            make_items,
            asked=self._asked,
            transforms=None,
            fills=self.pad,
            images=images,
            lists=lists,
        )

    def _batches(
        self,
        world: World,
        start: Start,
        metrics: StageMetrics | None = None,
        slots: SharedSlots | None = None,
        fused: Fused | None = None,
    ) -> Iterator[Batch]:
        is_worker = torch.utils.data.get_worker_info() is not None
        if is_worker:
            keep_freed_memory()
        make_buffer: MakeBatchBuffer | None = TensorBuffers(slots) if self.is_batched else None
        if fused is not None:
            make_buffer = TensorBuffers(slots) if self.hands_on_batches and fused.rest.gives_bytes else make_own_buffer
        local = num_local_ranks(os.environ) if "LOCAL_WORLD_SIZE" in os.environ else None
        context = ReadContext(make_buffer, metrics, local, is_read_ahead=is_worker, seeds_items=self.seed_transforms)
        return (self.parser if fused is None else fused.parser).batches(
            world,
            start.epoch,
            start.start_batch,
            fields=self.fields,
            in_pieces=not self.is_batched and fused is None,
            context=context,
            first_example=start.first_example,
        )

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # A worker of spawn does not know what Accelerate does here.
            refuse_second_shards(self, self.parser)
        check_functions({name: getattr(self, name) for name in ("transform", "target_transform")})
        return self.__dict__ | {"_fused": None}  # Workers find it anew.


def no_numbers(asked: str) -> ConfigError:
    """Return the error for asking an ImageDataset for an example by its number."""
    return ConfigError(
        f"{asked}, and an ImageDataset has no examples by number: it yields them in the order that its parser plans. "
        f"Subset, random_split and samplers work with IndexedImageDataset(parser). For a part of the examples give the "
        f"parser a part of the split, such as split='train[:80%]' and split='train[80%:]'."
    )


IterableImageDataset = ImageDataset
"""timm's name for it."""
