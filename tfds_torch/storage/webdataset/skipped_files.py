"""What is reported of files in tars that belong to no sample, such as those that tar tools leave."""

import logging

from tfds_torch.errors import ShardError
from tfds_torch.storage.webdataset.tar_index import TarIndex

_logger = logging.getLogger(__name__)


def report_skipped(index: TarIndex, name: str) -> None:
    """Logs how many files belong to no sample, where there are such files.

    Args:
        index: of the tars.
        name: of them all.

    Raises:
        ShardError: all files are of no sample.
    """
    number = sum(index.num_skipped)
    if not number:
        return
    such_as = ", ".join(index.skipped)
    if not len(index):
        raise ShardError(
            f"{name} has no samples: the names of all its files ({number}, such as {such_as}) lack an extension or "
            f"begin with a dot. Names are <key>.<extension>, such as '0017.jpg' and '0017.cls': write the tars again "
            f"with such names."
        )
    _logger.warning(
        "%s: files that belong to no sample are skipped: %d, such as %s. Names are <key>.<extension>.",
        *(name, number, such_as),
    )
