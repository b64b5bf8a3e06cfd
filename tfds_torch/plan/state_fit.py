"""Whether a dataset can continue a saved state: what differs, and what would do."""

from collections.abc import Mapping
from typing import Any

from tfds_torch.plan.state_fields import describe

_REMEDIES = {
    "dataset": "Open the dataset and version of the state.",
    "split": "Pass split={stored}.",
    "fingerprint": "The files are not those that the state was saved with: open the same ones (and a decoded cache "
    "with the same max_resolution).",
    "num_examples": "Open the dataset with the examples it had.",
    "read_mode": "Pass ReadOptions(mode={stored}).",
    "is_training": "Pass is_training={stored}.",
    "shuffle": "Pass shuffle={stored}.",
    "seed": "Pass seed={stored}.",
    "repeats": "Pass repeats={stored}.",
    "remainder": "Pass remainder={stored}.",
    "block_records": "Pass ReadOptions(block_records={stored}).",
    "window_blocks": "A window is shuffle_buffer // block_records blocks: the state had {window_records} examples.",
}
_SAME_REMAINDERS = ("keep", "pad")
_MOST_NAMED = 8


def differences(stored: Mapping[str, Any], here: Mapping[str, Any], *, allow_batch_change: bool) -> list[str]:
    """Returns a sentence and a remedy for every field of a state that keeps a dataset from continuing it.

    Args:
        stored: the fields of the state.
        here: those of the dataset.
        allow_batch_change: whether another global batch size may continue the state, in read mode `index`.
    """
    found = []
    for name, remedy in _REMEDIES.items():
        if stored[name] != here[name] and not (name == "remainder" and _has_same_batches(stored, here)):
            said = remedy.format(stored=describe(stored[name]), window_records=_window_records(stored))
            found.append(_said(name, stored, here, said))
    if stored["read_mode"] == "index":
        return found if allow_batch_change else found + _of_global_batch(stored, here)
    return found + _of_world(stored, here)


def likely_changed(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a state that no comparison with a dataset can judge."""
    free = ["global_batch_size", "num_replicas", "batch_size"] if stored["read_mode"] == "index" else []
    free += ["remainder"] if stored["remainder"] in _SAME_REMAINDERS else []
    return ["epoch", "first_example", "batches_delivered", "num_workers"] + [
        name for name in free if stored[name] != here[name]
    ]


def _said(name: str, stored: Mapping[str, Any], here: Mapping[str, Any], remedy: str) -> str:
    return f"{name}: {describe(stored[name])} in the state, {describe(here[name])} here. {remedy}"


def _window_records(stored: Mapping[str, Any]) -> int | None:
    block_records, window_blocks = stored["block_records"], stored["window_blocks"]
    return None if block_records is None or window_blocks is None else block_records * window_blocks


def _has_same_batches(stored: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    return stored["remainder"] in _SAME_REMAINDERS and here["remainder"] in _SAME_REMAINDERS


def _of_global_batch(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    size, num_replicas = stored["global_batch_size"], here["num_replicas"]
    if size == here["global_batch_size"]:
        return []
    if size % num_replicas == 0:
        remedy = f"With {num_replicas} ranks, batch_size={size // num_replicas} continues it."
    else:
        # A changed size may be huge: only numbers of ranks near ours are tried.
        possible = [count for count in range(1, 4 * num_replicas + 1) if size % count == 0]
        nearest = sorted(possible, key=lambda count: abs(count - num_replicas))[:_MOST_NAMED]
        remedy = (
            f"{size} does not divide among {num_replicas} ranks; these numbers of ranks continue it: "
            f"{', '.join(map(str, sorted(nearest)))}."
        )
    return [
        f"global_batch_size: {size} in the state ({stored['num_replicas']} ranks x batch_size "
        f"{stored['batch_size']}), {here['global_batch_size']} here ({num_replicas} ranks x batch_size "
        f"{here['batch_size']}). {remedy} Or call load_state_dict(state, allow_batch_change=True), which deals the "
        f"rest of the epoch anew."
    ]


def _of_world(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    names = [name for name in ("num_replicas", "batch_size") if stored[name] != here[name]]
    num_workers = (stored["num_workers"], here["num_workers"])
    if None not in num_workers and num_workers[0] != num_workers[1] and stored["batches_delivered"] > 0:
        names.append("num_workers")
    if not names and stored["global_batch_size"] != here["global_batch_size"]:
        names = ["global_batch_size"]
    remedy = f"Read mode {stored['read_mode']!r} goes on in the same world only; 'index' in others too."
    return [_said(name, stored, here, remedy) for name in names]
