"""Compares the ranks' reading, before one of them waits for another without end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

import torch.distributed

from tfds_torch.errors import ConfigError, StallError
from tfds_torch.images.decoders import jpeg
from tfds_torch.parsers.protocol import Parser, dataset_of, transforms_of
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_seconds
from tfds_torch.runtime.identity import digest_of
from tfds_torch.torch_data.rank_world import is_distributed

_REMEDIES = {
    "epoch": " (call set_epoch with the same number on every rank, before its iteration)",
    "start_batch": " (load the same state on every rank)",
    "jpeg_decoder": " (install the same one everywhere, or choose ReadOptions(jpeg_decoder='simplejpeg'))",
}


def check_ranks(
    parser: Parser, find_world: Callable[[], World], timeout_s: float, more: Mapping[str, object] | None = None
) -> None:
    """Compare the data that this rank is about to read with those of the others, within a time limit.

    Raise ConfigError on every rank where they differ, and StallError where not all ranks came.
    """
    check_seconds("check_ranks: timeout_s", timeout_s, can_be_none=False)
    if is_distributed():
        if not torch.distributed.is_gloo_available():
            raise ConfigError("check_ranks needs gloo, and this build of torch.distributed has none.")
        differences = find_differences(_gather(_describe(parser, find_world) | dict(more or {}), timeout_s))
        if differences:
            raise ConfigError("The ranks do not read the same thing: " + "; ".join(differences) + ".")
        return
    world = find_world()
    if world.num_replicas > 1:
        raise ConfigError(
            f"check_ranks: this is rank {world.rank} of {world.num_replicas}, and torch.distributed is not "
            f"initialised: the ranks cannot be compared. Call torch.distributed.init_process_group() first."
        )


def find_differences(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the differences between the processes of torch.distributed, a sentence each; empty when all agree."""
    found = [f"rank {process}: {facts['error']}" for process, facts in enumerate(ranks) if "error" in facts]
    known = [facts for facts in ranks if "error" not in facts]
    for name in dict.fromkeys(name for facts in ranks for name in facts if name not in ("rank", "error")):
        if name == "fingerprint" and found:
            continue  # The dataset or the split that differ explain it.
        values: dict[object, list[int]] = {}
        for process, facts in enumerate(ranks):
            if name in facts:
                values.setdefault(facts[name], []).append(process)
        if len(values) > 1:
            parts = ", ".join(f"{_show(value)} on {_list(processes)}" for value, processes in values.items())
            found.append(f"{name} is {parts}{_REMEDIES.get(name, '')}")
    if found:
        return found
    num_replicas, read = known[0]["num_replicas"], [facts["rank"] for facts in known]
    if unread := sorted({*range(num_replicas)} - {*read}):
        found.append(f"of {num_replicas} shares, no rank reads {unread} (the ranks of torch.distributed read {read})")
    return found


def _describe(parser: Parser, find_world: Callable[[], World]) -> dict[str, Any]:
    """Return the facts that must be equal on every rank, and the number of this rank."""
    dataset = dataset_of(parser)
    cameras = {} if dataset is None else dataset.cameras
    facts: dict[str, Any] = {
        "dataset": parser.dataset_name,
        "split": parser.split,
        "fingerprint": parser.fingerprint,
        "num_examples": parser.num_examples,
        "batch_size": parser.batch_size,
        "preprocess": _describe_preprocess(parser.preprocess),
        "cameras": ", ".join(f"{name}: {_describe_preprocess(one)}" for name, one in cameras.items()),
        "jpeg_decoder": jpeg.describe(parser.read.jpeg_decoder),
        "transforms": ", ".join(transforms_of(parser)),
    }
    try:
        world = find_world()
        plan, read_mode = parser.plan(world), parser.read_mode(world)
    except ConfigError as error:  # Where it raised here, the others would wait for this rank until their timeout.
        return facts | {"error": str(error)}
    facts |= {"is_training": plan.is_training, "remainder": plan.remainder.value, "read_mode": read_mode}
    facts["num_passes"] = plan.num_passes
    if plan.order.is_endless:
        facts["epoch_size"] = plan.order.num_slots
    order = {name: value for name, value in plan.order.identity().items() if name not in ("num_examples", "num_slots")}
    facts |= {name: digest_of(value) if isinstance(value, list) else value for name, value in order.items()}
    return facts | {"num_replicas": world.num_replicas, "rank": world.rank}


def _describe_preprocess(preprocess: Any) -> str:
    """Return a preprocess in words that are equal in every process: its repr may hold addresses."""
    if not is_dataclass(preprocess):
        return type(preprocess).__qualname__
    shown = []
    for field in (one for one in fields(preprocess) if one.compare):
        value = getattr(preprocess, field.name)
        kind = value if hasattr(value, "__qualname__") else type(value)
        shown.append(f"{field.name}={f'{kind.__module__}:{kind.__qualname__}' if callable(value) else repr(value)}")
    return f"{type(preprocess).__name__}({', '.join(shown)})"


def _gather(facts: dict[str, Any], timeout_s: float) -> list[Mapping[str, Any]]:
    """Return the facts of every process, by its number."""
    num_processes = torch.distributed.get_world_size()
    gathered: list[Any] = [None] * num_processes
    group = None
    try:
        # A separate group: the default one may wait for half an hour, or know only GPUs.
        group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        torch.distributed.all_gather_object(gathered, facts, group=group)
    except RuntimeError as error:
        raise StallError(
            f"check_ranks: not all {num_processes} ranks came within {timeout_s:g} s; this is rank "
            f"{torch.distributed.get_rank()}. Every rank must call it, for the same datasets in the same order; "
            f"another rank may also have failed (torch reports: {str(error).splitlines()[0]})."
        ) from error
    finally:
        if group is not None:
            torch.distributed.destroy_process_group(group)
    return gathered


def _show(value: object) -> str:
    return value if isinstance(value, str) and "(" in value else repr(value)


def _list(processes: list[int]) -> str:
    return ("rank " if len(processes) == 1 else "ranks ") + ", ".join(map(str, processes))
