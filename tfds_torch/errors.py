"""The errors of tfds_torch.

Every type can be built from its message alone, because torch rebuilds a worker's error in the parent that way;
the message therefore has all the facts: the request, the finding, and the next step.
"""

from typing import ClassVar


class TfdsTorchError(Exception):
    """Base of every error that tfds_torch raises on purpose.

    Tracebacks of errors whose cause may lie outside of the script name the page that lists causes and remedies.
    """

    _is_explained: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if self._is_explained:
            self.add_note("Causes and remedies: docs/troubleshooting.md")


class ConfigError(TfdsTorchError, ValueError):
    """An argument, or a combination of arguments, cannot work."""


class ExampleNotFoundError(ConfigError, IndexError):
    """The split does not have an index or an id that was asked for."""


class DatasetNotFoundError(TfdsTorchError, LookupError):
    """The dataset does not exist, or is not prepared under the given root."""

    _is_explained = True


class ShardError(TfdsTorchError):
    """A shard file is missing, or holds another number of examples than `dataset_info.json` says."""


class CorruptRecordError(ShardError):
    """Bytes of a shard are damaged: a checksum is wrong, a record is cut, or an image cannot be decoded."""


class StateMismatchError(TfdsTorchError, ValueError):
    """A saved state does not belong to this dataset, plan or world."""

    _is_explained = True


class WorkerError(TfdsTorchError, RuntimeError):
    """A process or thread that reads for us failed or ended before its work was done."""

    _is_explained = True


class StallError(TfdsTorchError, TimeoutError):
    """No batch came within the allowed time."""

    _is_explained = True


class ExportError(TfdsTorchError, RuntimeError):
    """An export could not be completed; its target is as it was before."""
