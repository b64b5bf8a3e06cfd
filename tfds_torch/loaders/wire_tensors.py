"""torch's tensors as numpy arrays, without importing torch: whoever has made one has imported it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError


def is_tensor(kind: type) -> bool:
    """Whether a type is torch.Tensor, or derived from it."""
    return any(base.__name__ == "Tensor" and base.__module__ == "torch" for base in kind.__mro__)


def tensor_to_array(tensor: Any, path: str) -> NDArray[Any]:
    """Returns the values of a tensor on the CPU, in its memory where that is possible.

    Args:
        tensor: a torch.Tensor.
        path: where it lies, for messages.

    Raises:
        ConfigError: no array of numpy is equal to it.
    """
    remedy = _find_remedy(tensor)
    if remedy is None:
        try:
            array: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy()
            return np.asarray(array)
        except TypeError:
            remedy = f"of dtype {tensor.dtype}, which numpy does not have", "Call `.float()` on it"
    problem, what_to_do = remedy
    raise ConfigError(
        f"{path} is a tensor {problem}, and a MultiLoader carries tensors as numpy arrays. {what_to_do}, or use "
        f"tfds_torch.create_loader, which carries tensors."
    )


def _find_remedy(tensor: Any) -> tuple[str, str] | None:
    """Returns what a tensor is that no array is, and what to do; None: it can become an array."""
    if tensor.is_nested:
        return "that is nested", "Yield the list `list(tensor.unbind())`"
    if tensor.is_quantized:
        return "that is quantized", "Call `.dequantize()` on it"
    if str(tensor.layout) != "torch.strided":
        return f"of layout {tensor.layout}", "Call `.to_dense()` on it"
    if tensor.device.type == "meta":
        return "on the device 'meta', without values", "Yield one that has values"
    if tensor.device.type != "cpu":
        return f"on the device {str(tensor.device)!r}", "Call `.cpu()` on it"
    if tensor.requires_grad:
        return "that requires a gradient", "Call `.detach()` on it"
    return None
