"""Exceptions of workers on their way to the training process, as text."""

import sys
import traceback
from dataclasses import dataclass

from tfds_torch.errors import TfdsTorchError, WorkerError


@dataclass(frozen=True)
class Failure:
    """An exception that was raised in a worker, as text: its type may be unknown here, or expensive to import."""

    module: str
    name: str
    message: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return the Failure of an exception that is being handled."""
        try:
            message = str(error)
        except Exception:
            message = f"(its __str__ failed; it is a {type(error).__name__})"
        return cls(type(error).__module__, type(error).__qualname__, message, traceback.format_exc())

    def to_error(self, where: str) -> Exception:
        """Return the exception to raise: of the original type where that is known here without an import."""
        text = _Text(f"{self.message}\n\nRaised in {where}:\n{self.trace}")
        kind = getattr(sys.modules.get(self.module), self.name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, StopIteration):
            is_ours = issubclass(kind, TfdsTorchError)
            try:
                error = kind(self.message if is_ours else text)
            except Exception:  # It cannot be built from a message.
                error = None
            if error is not None:
                error.__cause__ = RemoteTraceback(text) if is_ours else None
                return error
        return WorkerError(f"{self.module}.{self.name}: {text}")


class RemoteTraceback(Exception):  # noqa: N818 (it is only the cause of an error)
    """Shows, as the cause of an error, how it was raised in a worker."""


class _Text(str):
    """A message that shows its lines also where an exception quotes it, as KeyError does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
