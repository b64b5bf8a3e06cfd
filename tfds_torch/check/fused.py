"""What is measured of whole batches, whose images are preprocessed while they are decoded. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tfds_torch.check.content import ImageSizes
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess

STAGES = ("read", "decode", "fetch", "collate", "hand_over", "waiting")
"""Of `LoaderStats`, those that say what a loop waited for."""
_USUAL_SIDE, _SMALL_SIDE, _CROP_PADDING = 224, 64, 4  # Pixels.


@dataclass(frozen=True)
class FusedSpeed:
    """How fast rank 0 got whole batches, alone on the machine.

    Attributes:
        first_batch_s: from making the loader to its first batch: the workers start.
        examples_per_s: of what was timed: a whole second epoch where epochs are short, else what followed the first
            batch.
        num_batches: that were timed.
        num_examples: in them.
        timed_s: how long they took.
        stages: stage -> seconds in that time, as in `LoaderStats`, all workers and threads together.
        memory: pid -> proportional set size, bytes; the process that read first, then its children; empty where the
            system does not tell.
    """

    first_batch_s: float
    examples_per_s: float
    num_batches: int
    num_examples: int
    timed_s: float
    stages: Mapping[str, float]
    memory: Mapping[int, int]


@dataclass(frozen=True)
class FusedMeasure:
    """What came of measuring whole batches.

    Attributes:
        preprocess: what was done to the images, as one would write it.
        is_own: whether the recipe asks for it; else it is the usual one for images of this size.
        num_workers: loader processes.
        transform_s: what the same crops of an image of the median size cost when Pillow makes them; None: not known.
        speed: None where it could not be measured.
        error: why not.
    """

    preprocess: str
    is_own: bool
    num_workers: int
    transform_s: float | None
    speed: FusedSpeed | None
    error: str | None = None

    def transformed_per_s(self, examples_per_s: float) -> float:
        """Returns about how many single examples would come, were they cut and resized by Pillow in the same workers.

        Handing their pixels over is not counted, nor that more workers than cores must take turns: it is rather less.

        Args:
            examples_per_s: what came when only their sizes did.
        """
        cost_s = (self.transform_s or 0.0) / max(1, self.num_workers)
        return 1 / (1 / examples_per_s + cost_s) if examples_per_s else 0.0


def choose_preprocess(is_training: bool, sizes: ImageSizes) -> Preprocess:
    """Returns the usual preprocess: 224 pixels, or for small images their own size."""
    width, height = sizes.median
    if max(width, height) >= _SMALL_SIDE:
        return TrainPreprocess(_USUAL_SIDE) if is_training else EvalPreprocess(_USUAL_SIDE)
    size = height if height == width else (height, width)
    if not is_training:
        return EvalPreprocess(size, crop_pct=1.0)
    return TrainPreprocess(size, crop_padding=min(_CROP_PADDING, min(width, height) - 1))


def describe(preprocess: Preprocess) -> str:
    """Returns a preprocess as one would write it, without what is usual."""
    known = fields(preprocess)  # type: ignore[arg-type] # Both kinds are dataclasses.
    values = [(field.name, getattr(preprocess, field.name), field.default) for field in known]
    given = ", ".join(f"{name}={value!r}" for name, value, usual in values if value != usual)
    return f"{type(preprocess).__name__}({given})"
