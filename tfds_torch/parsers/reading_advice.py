"""Warnings about what a loader over a parser would read, where that is unlikely to be meant."""

import warnings
from collections.abc import Sequence
from math import gcd

from tfds_torch.errors import ConfigError
from tfds_torch.images.views import Views
from tfds_torch.parsers.protocol import METADATA_FIELDS, Parser, stored_name
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.world import World
from tfds_torch.runtime.printable import quoted


def warn_of_reading(parser: Parser, fields: Sequence[str], rank: World, stacklevel: int = 3) -> None:
    """Warns of batches that repeat a small split or cut groups of blocks, and of fields that are hardly meant."""
    _warn(_describe_repeats(parser, rank), stacklevel)
    _warn(_describe_groups(parser, rank), stacklevel)
    warn_of_fields(parser, fields, stacklevel + 1)


def warn_of_fields(parser: Parser, fields: Sequence[str], stacklevel: int = 3) -> None:
    """Warns of boxes that do not move with images, and of names that hide stored fields; see `warn_of_reading`."""
    _warn(_describe_boxes(parser, fields), stacklevel)
    _warn(_describe_hidden(parser, fields), stacklevel)


def _warn(text: str | None, stacklevel: int) -> None:
    if text is not None:
        warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)


def _describe_repeats(parser: Parser, rank: World) -> str | None:
    """Returns the warning for a training split that does not fill one global batch; None: it does."""
    try:
        plan = parser.plan(rank)
    except ConfigError:  # Reported where the loader is iterated.
        return None
    num_own, num_slots = plan.num_own_slots, plan.global_batch_size
    if not plan.is_training or plan.remainder is not Remainder.WRAP or num_own >= num_slots:
        return None
    if plan.order.is_endless:
        return (
            f"{parser.dataset_name} has {num_own} examples in an epoch, fewer than a batch of {num_slots}: the one "
            f"batch of an epoch is filled with the first examples of the next ones. Use a larger epoch_size, or a "
            f"smaller batch_size."
        )
    least, most = num_slots // plan.order.num_slots, -(-num_slots // plan.order.num_slots)
    times = f"{least} times" if least == most else f"{least} or {most} times"
    ranks = f" ({rank.num_replicas} ranks x batch_size {plan.batch_size})" if rank.num_replicas > 1 else ""
    return (
        f"{parser.dataset_name}, split {quoted(parser.split)}, has {plan.order.num_slots} examples, fewer than a batch "
        f"of {num_slots}{ranks}: each comes {times} in the one batch of an epoch. {_remedy(plan)}"
    )


def _describe_groups(parser: Parser, rank: World) -> str | None:
    """Returns the warning for ranks that share the groups of blocks; None: each has its own, or there is one rank."""
    try:
        plan = parser.plan(rank)
    except ConfigError:  # Reported where the loader is iterated.
        return None
    groups, num_replicas = plan.order.num_groups, rank.num_replicas
    if num_replicas == 1 or plan.has_equal_groups:
        return None
    step = groups // gcd(groups, num_replicas)
    lower = plan.batch_size // step * step
    sizes = f"{lower} or {lower + step}" if lower else str(step)
    return (
        f"{parser.dataset_name}, split {quoted(parser.split)}: block_groups={groups} does not divide the global batch "
        f"of {plan.global_batch_size} ({num_replicas} ranks x batch_size {plan.batch_size}), so that every rank reads "
        f"from all groups, and every machine nearly all blocks. Use batch_size={sizes}, or other block_groups."
    )


def _remedy(plan: EpochPlan) -> str:
    most = plan.num_own_slots // plan.world.num_replicas
    if most == 0:
        return "Use a larger split, or fewer ranks."
    return f"Use batch_size={most} or less, or a larger split."


def _describe_boxes(parser: Parser, fields: Sequence[str]) -> str | None:
    """Returns the warning for boxes that stay beside images that are cropped or flipped; None: there are none."""
    find, preprocess = getattr(parser, "unmoved_boxes", None), parser.preprocess
    if find is None or preprocess is None or preprocess.keeps_positions or "image" not in fields:
        return None
    boxes = find(fields, preprocess)
    if not boxes:
        return None
    if isinstance(preprocess, Views):
        return (
            f"{parser.dataset_name}: Views makes several crops of each image, and the boxes in "
            f"{', '.join(map(repr, boxes))} stay those of the whole image. Leave them out, or use one crop: boxes move "
            f"with that of a TrainPreprocess or an EvalPreprocess."
        )
    return (
        f"{parser.dataset_name}: {type(preprocess).__name__} crops or flips the images, and the boxes in "
        f"{', '.join(map(repr, boxes))} stay those of the whole image: those move that are [ymin, xmin, ymax, xmax], "
        f"relative to the image, one box or one sequence of them in an example. If these are such boxes, and the "
        f"dataset does not say so (bbox_format=None), name their features in the preprocess, as in "
        f"boxes=('objects/bbox',). Else leave out the preprocess and transform image and boxes together, example by "
        f"example; or keep the whole image: EvalPreprocess(size=..., crop_pct=1, crop_mode='squash'); or say that they "
        f"are to stay: boxes=() in the preprocess."
    )


def _describe_hidden(parser: Parser, fields: Sequence[str]) -> str | None:
    """Returns the warning for metadata of a batch whose names the dataset stores as well; None: there is none."""
    asked = [name for name in METADATA_FIELDS if name in fields and stored_name(name) not in fields]
    stored = parser.element_spec.fields if asked else {}
    hidden = [name for name in asked if stored_name(name) in stored]
    if not hidden:
        return None
    names, others = (", ".join(map(repr, some)) for some in (hidden, map(stored_name, hidden)))
    return (
        f"{parser.dataset_name} stores fields of its own with the names {names}. Under these names come the values "
        f"that every example has; ask for {others} to get the stored ones."
    )
