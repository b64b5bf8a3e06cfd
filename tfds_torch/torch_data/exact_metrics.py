"""Means over a distributed evaluation that are those of a single process."""

from typing import Any

import torch
import torch.distributed
from torch import Tensor

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.torch_data.rank_world import is_distributed


@explain_keywords
class MaskedMean:
    """A mean over the valid examples of all ranks: padding counts nowhere, and every example counts once.

    Two lines make an evaluation exact, on any number of ranks and workers:

        accuracy.update(logits.argmax(1) == labels, valid)  # for every batch
        accuracy.compute()  # after the last one, on every rank

    Sums are kept in float64 (so counts are exact up to 2**53), on the device of the values, and nothing is synchronised
    before `compute`. Not thread-safe.

    Args:
        group: the process group whose ranks took part; None: all of torch.distributed, or this process alone when that
            is not initialised.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums = torch.zeros(2, dtype=torch.float64, device="cpu")  # The total, and the number of valid examples.

    def update(self, values: Tensor, valid: Tensor | None = None) -> None:
        """Add a batch of this rank.

        Args:
            values: a real number or bool per example, [B]; for padding it may be anything, NaN too.
            valid: bool [B], as the field `valid` has it; None: all of them. `labels != -100` is the same where a
                label is one integer, and nowhere else.

        Raises:
            ConfigError: values is not one number per example, or valid does not fit it or is not bool.
        """
        values = _to_tensor("update: values", values)
        if values.ndim != 1:
            raise ConfigError(
                f"MaskedMean.update: values of shape {list(values.shape)} are not one number per example, [B]. Use "
                f"reduction='none', or update_sum for what is already summed."
            )
        if valid is None:
            valid = torch.ones_like(values, dtype=torch.bool)
        valid = _to_tensor("update: valid", valid)
        if valid.dtype != torch.bool:  # Labels, for example: -100 would be true.
            raise ConfigError(
                f"MaskedMean.update: valid is {valid.dtype}, and must be bool. Give the field `valid`: "
                f"ImageDataset(parser, fields=('image', 'label', 'valid'))."
            )
        if valid.shape != values.shape:
            raise ConfigError(
                f"MaskedMean.update: valid has shape {list(valid.shape)}, and values {list(values.shape)}; both must "
                f"be [B]."
            )
        valid = valid.to(values.device)
        self._add(torch.where(valid, values, 0), valid)

    def update_sum(self, total: Tensor | float, num_valid: Tensor | int) -> None:
        """Add a batch of this rank that is already summed over its valid examples.

        `cross_entropy(logits, labels, reduction="sum")` is such a sum: it leaves out the label -100, also in a batch of
        nothing but padding, where the mean would be NaN.

        Args:
            total: the sum, one number or a tensor of one element.
            num_valid: how many examples are in it, an integer >= 0, `valid.sum()`.

        Raises:
            ConfigError: one of the two is not a single number, or num_valid is not a count.
        """
        numbers = [_to_tensor("update_sum: total", total), _to_tensor("update_sum: num_valid", num_valid)]
        for name, number in zip(("total", "num_valid"), numbers, strict=True):
            if number.numel() != 1:
                raise ConfigError(
                    f"MaskedMean.update_sum: {name} of shape {list(number.shape)} is not a single number."
                )
        is_count = not (numbers[1].dtype.is_floating_point or numbers[1].dtype == torch.bool)
        if not is_count or (isinstance(num_valid, int) and num_valid < 0):
            raise ConfigError(f"MaskedMean.update_sum: num_valid={num_valid} must be an integer >= 0.")
        self._add(*(number.reshape(1) for number in numbers))

    def sums(self) -> tuple[float, int]:
        """Return the sum over the valid examples of all ranks, and their number.

        Every rank must call it: the ranks wait for each other.
        """
        sums = self._sums
        if is_distributed():
            sums = sums.to(_device_of_group(self._group), copy=True)
            torch.distributed.all_reduce(sums, group=self._group)
        total, num_valid = sums.tolist()
        return total, round(num_valid)

    def compute(self) -> float:
        """Return the mean over the valid examples of all ranks; NaN when there are none.

        Every rank must call it: the ranks wait for each other.
        """
        total, num_valid = self.sums()
        return total / num_valid if num_valid else float("nan")

    def _add(self, values: Tensor, counts: Tensor) -> None:
        device = values.device if values.device.type != "mps" else torch.device("cpu")  # MPS has no float64.
        sums = [numbers.to(device).to(torch.float64).sum() for numbers in (values, counts)]
        self._sums = self._sums.to(device) + torch.stack(sums)


def _to_tensor(name: str, value: Any) -> Tensor:
    try:
        tensor = (value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")).detach()
    except (TypeError, ValueError, RuntimeError):
        tensor = None
    if tensor is None or tensor.dtype.is_complex:
        raise ConfigError(f"MaskedMean.{name} must be a tensor of real numbers, not {type(value).__name__}.")
    return tensor


def _device_of_group(group: Any) -> torch.device:
    """Return the device on which a group reduces; that of the values would differ on a rank that had none."""
    if "cpu:" in torch.distributed.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
