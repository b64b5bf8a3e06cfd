"""The picture of the shuffle: where the examples of the dataset came in epoch 0."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.check.findings import Findings
from tfds_torch.check.order_sample import BUFFER, shuffle_by_buffer
from tfds_torch.check.svg import draw_dots

_FEWEST_TO_CORRELATE = 3


def show_order(findings: Findings) -> dict[str, Any] | None:
    """Returns the order that came and, where it is shuffled, that of a shuffle buffer at the same positions."""
    if findings.order is None or findings.expected is None:
        return None
    positions, indices = findings.order.came
    if not len(positions):
        return None
    plan, num_positions = findings.expected.plan, findings.order.num_positions
    shown = {
        "num_points": len(positions),
        "num_positions": num_positions,
        "num_examples": plan.num_examples,
        "is_shuffled": plan.shuffle,
        "mode": findings.expected.mode,
        "ours": _draw(positions, indices, num_positions, plan.num_examples, "the order of this run"),
        "our_correlation": _correlate(positions, indices),
        "buffer": BUFFER,
        "theirs": None,
    }
    if plan.shuffle:
        theirs = shuffle_by_buffer(plan.num_examples, positions, plan.seed)
        label = f"the order of a shuffle buffer of {BUFFER:,}"
        shown["theirs"] = _draw(positions, theirs, num_positions, plan.num_examples, label)
        shown["their_correlation"] = _correlate(positions, theirs)
    return shown


def _draw(
    positions: NDArray[np.int64], indices: NDArray[np.int64], num_positions: int, num_examples: int, label: str
) -> Any:
    x, y = (positions + 0.5) / num_positions, (indices + 0.5) / num_examples
    return draw_dots(x, y, f"position in the epoch and index in the dataset: {label}")


def _correlate(positions: NDArray[np.int64], indices: NDArray[np.int64]) -> float | None:
    """Returns the correlation of positions and indices; None where there are too few to speak of one."""
    if len(positions) < _FEWEST_TO_CORRELATE or not np.ptp(indices):
        return None
    return float(np.corrcoef(positions, indices)[0, 1])
