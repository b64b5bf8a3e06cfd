"""Where a `.beton` file can be put."""

import os
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import check_integer
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.format import LARGEST_PAGE, SMALLEST_PAGE, is_page_size


def check_target(path: str | os.PathLike[str], page_size: int, overwrite: bool) -> None:
    """Raises ConfigError where no file can be put, or with pages of such a size; before any work is done for it."""
    path = Path(path)
    if not is_page_size(check_integer("page_size", page_size, 1)):
        raise ConfigError(
            f"page_size={page_size} must be a power of two, from {SMALLEST_PAGE:,} to {LARGEST_PAGE:,} bytes."
        )
    try:
        path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # A loop of links, a null character.
        raise ConfigError(f"{quoted(str(path))} is not a path of a file: {error}.") from None
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name the file in it.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is a device, a pipe or a socket, which stays as it is: choose another path.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"The folder of {path} does not exist: make it first.")
    if not overwrite and path.exists():
        raise ConfigError(f"{path} is there already: use overwrite=True to replace it, or another path.")
