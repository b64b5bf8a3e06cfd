"""The errors of tfds_torch.

Every type can be built from its message alone, because torch rebuilds a worker's error in the parent that way;
the message therefore holds all the facts: what was asked, what was found, what to do next.
"""


class TfdsTorchError(Exception):
    """Base of every error that tfds_torch raises on purpose."""


class ConfigError(TfdsTorchError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class ExampleNotFoundError(ConfigError, IndexError):
    """An index or an id that the split does not have."""


class DatasetNotFoundError(TfdsTorchError, LookupError):
    """No such dataset, or it is not prepared under the given root."""


class ShardError(TfdsTorchError):
    """A shard file is missing, or holds another number of examples than `dataset_info.json` says."""


class CorruptRecordError(ShardError):
    """Bytes of a shard that are not what was written: a bad checksum, a cut record, an image that does not decode."""


class StateMismatchError(TfdsTorchError, ValueError):
    """A saved state that does not belong to this dataset, plan or world."""


class WorkerError(TfdsTorchError, RuntimeError):
    """A process or thread that reads for us failed or ended before its work was done."""


class StallError(TfdsTorchError, TimeoutError):
    """No batch came within the allowed time."""


class ExportError(TfdsTorchError, RuntimeError):
    """An export could not be completed; its target is as it was before."""
