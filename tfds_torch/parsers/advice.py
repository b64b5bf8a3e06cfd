"""Advice on reading: what a user could do better, as pure functions of plans and facts.

`facts_of` and `worker_parts` look at a parser, once; all other functions take plain values and return a text, or
None where there is no advice. The objects that the user calls (a dataset, a loader, a command) warn or print.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.protocol import METADATA_FIELDS, Parser, dataset_of, is_undecoded, stored_name
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import MemoryLimit
from tfds_torch.runtime.printable import quoted

_TELL_PADDING = frozenset({"valid", "index", "id"})
_LARGE_REMAINDER = 0.05
_TENSORFLOW_BYTES = 400 * 2**20
_PROCESS_BYTES = 115 * 2**20  # Of a forked worker; a spawned one imports torch anew.
_PIXELS_PER_ENCODED_BYTE = 8  # Of a photograph as JPEG, three channels.


@dataclass(frozen=True)
class Facts:
    """A dataset, and what a loader asks of it.

    Attributes:
        dataset: `name/config:version`.
        split: the split expression.
        preprocess: how images are cut and resized while they are decoded; None: they stay as they are.
        unmoved_boxes: fields whose boxes stay those of the whole image, though the image beside them is cropped or
            flipped.
        hidden: names of a batch's metadata that the dataset stores as well, where the stored fields are not asked for.
        tells_padding: whether a field that is asked for tells padding from examples.
    """

    dataset: str
    split: str
    preprocess: Preprocess | None = None
    unmoved_boxes: Sequence[str] = ()
    hidden: Sequence[str] = ()
    tells_padding: bool = True


def facts_of(parser: Parser, fields: Sequence[str]) -> Facts:
    """Return the facts of a parser and the fields asked for; a parser of the user's own may know no boxes."""
    preprocess, boxes = parser.preprocess, list[str]()
    dataset = dataset_of(parser)
    if dataset is not None and preprocess is not None and "image" in fields and not preprocess.keeps_positions:
        boxes = dataset.unmoved_boxes([name for name in fields if dataset.is_stored(name)], preprocess)
    asked = [name for name in METADATA_FIELDS if name in fields and stored_name(name) not in fields]
    stored = parser.element_spec.fields if asked else {}
    hidden = [name for name in asked if stored_name(name) in stored]
    tells_padding = not _TELL_PADDING.isdisjoint(fields)
    if not tells_padding and "label" in fields:
        tells_padding = dataset is None or dataset.has_markable_label
    return Facts(parser.dataset_name, parser.split, preprocess, boxes, hidden, tells_padding)


def advise_reading(parser: Parser, fields: Sequence[str], rank: World, *, of_padding: bool = True) -> Iterator[str]:
    """Yield a loader's warnings about a parser: small splits, cut groups, padding, boxes that stay, hidden names.

    Args:
        parser: that the loader reads.
        fields: that are asked for.
        rank: of this process.
        of_padding: whether padding that no field marks is warned of; False where batches mark it in any case, or
            the loader warns of it itself.
    """
    facts = facts_of(parser, fields)
    try:
        plan = parser.plan(rank)
    except ConfigError:  # Reported where the loader is iterated.
        pass
    else:
        yield from filter(None, (describe_repeats(plan, facts), describe_groups(plan, facts)))
        if of_padding and (text := describe_unmarked_padding(plan, facts)):
            yield text
    yield from advise_fields(facts)


def advise_fields(facts: Facts) -> Iterator[str]:
    """Yield the warnings where single examples are read, in whatever order: boxes that stay, hidden names."""
    yield from filter(None, (describe_boxes(facts), describe_hidden(facts)))


# The plan


def describe_repeats(plan: EpochPlan, facts: Facts) -> str | None:
    """Return the warning for a training split that does not fill one global batch."""
    num_own, num_slots = plan.num_own_slots, plan.global_batch_size
    if not plan.is_training or plan.remainder is not Remainder.WRAP or num_own >= num_slots:
        return None
    if plan.order.is_endless:
        return (
            f"{facts.dataset} has {num_own} examples in an epoch, fewer than a batch of {num_slots}: the one "
            f"batch of an epoch is filled with the first examples of the next ones. Use a larger epoch_size, or a "
            f"smaller batch_size."
        )
    least, most = num_slots // plan.order.num_slots, -(-num_slots // plan.order.num_slots)
    times = f"{least} times" if least == most else f"{least} or {most} times"
    num_replicas = plan.world.num_replicas
    ranks = f" ({num_replicas} ranks x batch_size {plan.batch_size})" if num_replicas > 1 else ""
    remedy = "Use a larger split, or fewer ranks."
    if largest := num_own // num_replicas:
        remedy = f"Use batch_size={largest} or less, or a larger split."
    return (
        f"{facts.dataset}, split {quoted(facts.split)}, has {plan.order.num_slots} examples, fewer than a batch "
        f"of {num_slots}{ranks}: each comes {times} in the one batch of an epoch. {remedy}"
    )


def describe_groups(plan: EpochPlan, facts: Facts) -> str | None:
    """Return the warning for ranks that share the groups of blocks, where each should have its own."""
    groups, num_replicas = plan.order.num_groups, plan.world.num_replicas
    if num_replicas == 1 or plan.has_equal_groups:
        return None
    step = groups // gcd(groups, num_replicas)
    lower = plan.batch_size // step * step
    sizes = f"{lower} or {lower + step}" if lower else str(step)
    return (
        f"{facts.dataset}, split {quoted(facts.split)}: block_groups={groups} does not divide the global batch "
        f"of {plan.global_batch_size} ({num_replicas} ranks x batch_size {plan.batch_size}), so that every rank reads "
        f"from all groups, and every machine nearly all blocks. Use batch_size={sizes}, or other block_groups."
    )


def describe_unmarked_padding(plan: EpochPlan, facts: Facts) -> str | None:
    """Return the warning for an evaluation whose batches have padding, and no field that tells it from examples."""
    num_more = num_padded(plan)
    if facts.tells_padding or not num_more:
        return None
    return (
        f"{facts.dataset}, split {quoted(facts.split)}, has {plan.num_own_slots} examples, and {num_more} more pad "
        f"the last batches, so that all {plan.world.num_replicas} ranks have as many. No field that is asked for tells "
        f"them from examples: ask for the field 'valid', and leave out what is not valid."
    )


def describe_padding(plan: EpochPlan, facts: Facts) -> str | None:
    """Return the warning for an evaluation of rows on several ranks, which counts some rows twice unnoticed."""
    num_twice = plan.num_batches * plan.global_batch_size - plan.num_examples
    if plan.world.num_replicas == 1 or plan.order.shuffle or num_twice <= 0:
        return None
    return (
        f"{facts.dataset} has {plan.num_examples} items, and {plan.world.num_replicas} ranks with batch_size "
        f"{plan.batch_size} read {num_twice} of them twice, so that all have as many batches. An evaluation that "
        f"must not count them twice reads which are padding: create_loader(ImageDataset(ParserMapStyle(rows, "
        f"batch_size={plan.batch_size}), fields=(..., 'valid'), batched=True))."
    )


def describe_remainder(plan: EpochPlan) -> str | None:
    """Return the advice for an epoch whose last batch leaves out, repeats or pads many examples."""
    wasted = _num_wasted(plan)
    if wasted <= _LARGE_REMAINDER * plan.num_own_slots:
        return None
    what = {
        Remainder.DROP: "examples are dropped from",
        Remainder.WRAP: f"examples of the next {'epoch' if plan.order.is_endless else 'pass'} fill up",
        Remainder.PAD: "padded examples fill up",
    }[plan.remainder]
    share = wasted / plan.num_own_slots
    return f"batch_size {plan.batch_size}: {wasted:,} {what} every epoch ({share:.0%} of it).{_better_batch_size(plan)}"


def describe_fill(plan: EpochPlan) -> str | None:
    """Return the advice for overlapping epochs of an endless row: a last batch's fill comes again in the next epoch."""
    rest = plan.num_own_slots % plan.global_batch_size
    if not plan.order.is_endless or plan.remainder is Remainder.KEEP or not rest:
        return None
    whole = plan.num_own_slots - rest
    sizes = [f"epoch_size {size}" for size in (whole, whole + plan.global_batch_size) if size]
    done = f"the {rest} that are left are dropped"
    if plan.remainder is not Remainder.DROP:
        done = f"the {plan.global_batch_size - rest} that fill its last batch come again in the next one"
    return (
        f"An epoch has {plan.num_own_slots:,} examples, which are not whole batches of {plan.global_batch_size}: "
        f"{done}. With {' or '.join(sizes)}, epochs follow each other without a gap."
    )


def _better_batch_size(plan: EpochPlan) -> str:
    """Return a sentence about the largest batch size, at least half of the present one, that wastes least."""
    wasted = {}
    for batch_size in range(plan.batch_size, (plan.batch_size - 1) // 2, -1):
        try:
            wasted[batch_size] = _num_wasted(replace(plan, batch_size=batch_size))
        except ConfigError:  # Leaves no batch.
            continue
    best = min(wasted, key=lambda size: wasted[size], default=plan.batch_size)
    return "" if best == plan.batch_size else f" batch_size {best} would make it {wasted[best]:,}."


def num_padded(plan: EpochPlan) -> int:
    """Return how many copies of examples pad the last batches of all ranks."""
    return _num_wasted(plan) if plan.remainder is Remainder.PAD else 0


def _num_wasted(plan: EpochPlan) -> int:
    """Return how many examples an epoch computes in excess, or leaves out."""
    if plan.remainder is Remainder.KEEP:
        return 0
    return abs(plan.num_batches * plan.global_batch_size - plan.num_own_slots)


# Fields


def describe_boxes(facts: Facts) -> str | None:
    """Return the warning for boxes that stay beside images that are cropped or flipped."""
    if not facts.unmoved_boxes:
        return None
    boxes = ", ".join(map(repr, facts.unmoved_boxes))
    if isinstance(facts.preprocess, Views):
        return (
            f"{facts.dataset}: Views makes several crops of each image, and the boxes in {boxes} stay those of the "
            f"whole image. Leave them out, or use one crop: boxes move with that of a TrainPreprocess or an "
            f"EvalPreprocess."
        )
    return (
        f"{facts.dataset}: {type(facts.preprocess).__name__} crops or flips the images, and the boxes in {boxes} stay "
        f"those of the whole image: those move that are [ymin, xmin, ymax, xmax], relative to the image, one box or "
        f"one sequence of them in an example. If these are such boxes, and the dataset does not say so "
        f"(bbox_format=None), name their features in the preprocess, as in boxes=('objects/bbox',). Else leave out the "
        f"preprocess and transform image and boxes together, example by example; or keep the whole image: "
        f"EvalPreprocess(size=..., crop_pct=1, crop_mode='squash'); or say that they are to stay: boxes=() in the "
        f"preprocess."
    )


def describe_hidden(facts: Facts) -> str | None:
    """Return the warning for metadata of a batch whose names the dataset stores as well."""
    if not facts.hidden:
        return None
    names, others = (", ".join(map(repr, some)) for some in (facts.hidden, map(stored_name, facts.hidden)))
    return (
        f"{facts.dataset} stores fields of its own with the names {names}. Under these names come the values "
        f"that every example has; ask for {others} to get the stored ones."
    )


# Memory


def worker_parts(parser: Parser, num_workers: int, prefetch_batches: int) -> list[tuple[int, str]]:
    """Return the parts of a parser that a loader's worker holds in memory: about how many bytes, and their names."""
    mean_bytes, read = parser.mean_example_bytes, parser.read
    num_batches = prefetch_batches + 1 + read.prefetch_batches
    batch_bytes = (parser.batch_size or 1) * _image_bytes(parser)
    parts = [(_PROCESS_BYTES, "Python, its libraries and images being decoded")]
    if _is_stream(parser, num_workers):
        buffer_bytes = read.shuffle_buffer_of_worker(num_workers, mean_bytes) * mean_bytes
        buffer_bytes += read.cycle_length * read.read_buffer_bytes
        parts += [(_TENSORFLOW_BYTES, "tensorflow"), (buffer_bytes, "the shuffle buffer and open files")]
    return [*parts, (num_batches * batch_bytes, f"{num_batches} batches of {batch_bytes / 2**20:.0f} MiB")]


def describe_memory(
    num_workers: int, parts: Sequence[tuple[int, str]], free_bytes: int, limit: MemoryLimit
) -> str | None:
    """Return the warning for workers that would take more memory than is free; `parts` are those of one worker."""
    each_bytes = sum(size for size, _ in parts)
    if num_workers * each_bytes <= free_bytes:
        return None
    words = ", ".join(f"{_gigabytes(size)} for {name}" for size, name in parts if size)
    return (
        f"{num_workers} workers will take about {_gigabytes(num_workers * each_bytes)} of memory: "
        f"{_gigabytes(each_bytes)} each ({words}). {_gigabytes(free_bytes)} are free of {_gigabytes(limit.bytes)} "
        f"({limit.source}). Use fewer workers, or a smaller batch_size, prefetch_batches or shuffle_buffer."
    )


def _is_stream(parser: Parser, num_workers: int) -> bool:
    """Return whether examples go through a shuffle buffer, as far as that is known before the rank is known."""
    try:
        return parser.read_mode(World(num_workers=num_workers)) != "index"
    except ConfigError:  # Reported where the loader is iterated.
        return True


def _image_bytes(parser: Parser) -> int:
    """Return the size in bytes of an image in a batch."""
    if parser.preprocess is not None:
        return parser.preprocess.num_pixels * 3
    return parser.mean_example_bytes * (1 if is_undecoded(parser, "image") else _PIXELS_PER_ENCODED_BYTE)


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
