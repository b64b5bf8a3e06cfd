"""Views: several crops of each image, as self-supervised training takes them; and the memory of a batch of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.images.batch_buffer import ArrayBuffer, BatchBuffer, MakeBatchBuffer
from tfds_torch.images.crops import Crops, ExampleRandom
from tfds_torch.images.decoding import Pixels
from tfds_torch.images.preprocess import Preprocess, height_and_width
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords

_MOST_VIEWS = 256


@explain_keywords
@dataclass(frozen=True, init=False)
class Views(Preprocess):
    """Several views of every image: the field `image` is a list of batches, one for each view.

    `Views((TrainPreprocess(224), 2), (TrainPreprocess(96), 8))` makes ten batches: two of 224 pixels, then eight of 96.
    An image is read once, and decoded once for all views whose crops need the same resolution. Each view has its own
    random numbers; the first view has those that its preprocess has without Views.

    Args:
        *views: pairs of a preprocess and the number of views that it makes, >= 1; a bare preprocess makes one.

    Raises:
        ConfigError: a view is something else, or its preprocess has `also` or named boxes, which follow one crop and
            not several.
    """

    views: tuple[tuple[Preprocess, int], ...]

    boxes = ()

    def __init__(self, *views: Any) -> None:
        object.__setattr__(self, "views", tuple(map(_read_view, views)))
        if not views or len(self.each) > _MOST_VIEWS:
            raise ConfigError(
                f"Views: there are {len(self.each)} views, and there can be 1 to {_MOST_VIEWS}: give pairs such as "
                f"(TrainPreprocess(size=224), 2)."
            )

    def __repr__(self) -> str:
        return f"Views({', '.join(map(repr, self.views))})"

    @property
    def each(self) -> tuple[Preprocess, ...]:
        """The preprocess of each view."""
        return tuple(one for one, count in self.views for _ in range(count))

    @property
    def size(self) -> int | tuple[int, int]:  # type: ignore[override]
        """Size of the results of the first view."""
        return self.views[0][0].size

    @property
    def max_pixels(self) -> int:  # type: ignore[override]
        """The smallest `max_pixels` of all views."""
        return min(one.max_pixels for one, _ in self.views)

    @property
    def num_pixels(self) -> int:
        """Pixels of all views of one image."""
        return sum(one.num_pixels for one in self.each)

    @property
    def augments(self) -> bool:
        """Whether a view has its own `augment`."""
        return any(one.augments for one, _ in self.views)

    @property
    def keeps_positions(self) -> bool:
        """Whether every place of an image stays in all views; see `Preprocess`."""
        return all(one.keeps_positions for one, _ in self.views)

    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Return the crops of the first view; see `Preprocess.crop`.

        Args:
            sizes: int64 [n, 2], heights and widths of the images, pixels.
            random: random numbers of the n examples.
        """
        return self.views[0][0].crop(sizes, random)


def _read_view(view: Any) -> tuple[Preprocess, int]:
    """Return a preprocess and how many views it makes; raise ConfigError for anything else."""
    pair = view if isinstance(view, tuple | list) else (view, 1)
    if len(pair) != 2 or not isinstance(pair[0], Preprocess) or isinstance(pair[0], Views):
        raise ConfigError(
            f"Views: {view!r} must be a pair of a preprocess and a number, such as (TrainPreprocess(size=224), 2)."
        )
    preprocess = pair[0]
    for name in ("also", "boxes"):
        if value := getattr(preprocess, name):
            raise ConfigError(
                f"Views: {preprocess!r} has {name}={value!r}, which belongs to one crop of an image, and there are "
                f"several: leave it out."
            )
    return preprocess, check_integer("Views: the number of views", pair[1], 1, _MOST_VIEWS)


class ViewsBuffer:
    """The views of a batch, each a buffer, in one piece of memory.

    Args:
        memory: a buffer of [1, 1, number of bytes, 1].
        shapes: shapes of the views, [B, H, W, C].
    """

    def __init__(self, memory: BatchBuffer, shapes: Sequence[tuple[int, int, int, int]]) -> None:
        stops = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        pairs = zip(pairwise(stops), shapes, strict=True)
        self.parts = [memory.part(start, stop, shape) for (start, stop), shape in pairs]

    @property
    def pixels(self) -> Pixels:
        """The first view, uint8 [B, H, W, C]."""
        return self.parts[0].pixels

    @property
    def images(self) -> list[Any]:
        """The views, each in the form that the buffer's maker wants."""
        return [part.images for part in self.parts]


@dataclass(frozen=True)
class MakeViewsBuffer:
    """Makes the memory of batches of views; see `MakeBatchBuffer`.

    Attributes:
        views: the views.
        make_buffer: makes memory; None: in numpy.
    """

    views: Views
    make_buffer: MakeBatchBuffer | None = None

    def __call__(self, shape: tuple[int, int, int, int]) -> Any:
        """Return a buffer of the views of B images of C channels; `shape` is [B, H, W, C]."""
        num_images, _, _, num_channels = shape
        shapes = [(num_images, *height_and_width(one.size), num_channels) for one in self.views.each]
        make = self.make_buffer or ArrayBuffer
        return ViewsBuffer(make((1, 1, sum(int(np.prod(one)) for one in shapes), 1)), shapes)
