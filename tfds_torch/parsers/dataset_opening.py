"""DatasetOpener: a prepared TFDS dataset from its files alone, prepared first where that is asked for.

`tensorflow_datasets` is passed in: this module does not import it.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers import image_folder
from tfds_torch.parsers.builder_info import dataset_name
from tfds_torch.parsers.dataset_names import describe_not_found
from tfds_torch.runtime import fresh_process

_logger = logging.getLogger(__name__)


class DatasetOpener:
    """Opens datasets.

    Args:
        tfds: the module tensorflow_datasets.
        download_and_prepare: called in a process of its own, with the module that defines a dataset, its name and the
            data directory.
    """

    def __init__(self, tfds: Any, download_and_prepare: Callable[[str, str, str], None]) -> None:
        self._tfds = tfds
        self._download_and_prepare = download_and_prepare

    def open(self, root: str | os.PathLike[str] | None, name: str | os.PathLike[str], *, download: bool) -> Any:
        """Returns the builder of a prepared dataset; no dataset code is imported.

        Args:
            root: as in ParserTfds.
            name: as in ParserTfds.
            download: whether it is downloaded and prepared where it is not prepared yet.

        Raises:
            ConfigError: the name has not the form of one.
            DatasetNotFoundError: there is no such dataset, or it cannot be read.
        """
        if not isinstance(name, str | os.PathLike):
            raise ConfigError(f"name={name!r} must be a dataset's name, or the path of a version directory.")
        root = None if root is None else os.path.expanduser(root)
        if _is_version_directory(name):
            return self._load(self._tfds.builder_from_directory, name)
        try:
            parsed, arguments = self._tfds.core.naming.parse_builder_name_kwargs(os.fspath(name))
        except ValueError:
            raise ConfigError(
                f"The dataset name {os.fspath(name)!r} does not have the form name, name/config, name:version or "
                f"name/config:version, and it is no directory with a dataset_info.json."
            ) from None
        if root is not None and _is_version_directory(root):
            return self._open_directory(root, os.fspath(name), str(parsed), arguments)
        builder = self._open_prepared(root, str(parsed), arguments)
        if builder is None and str(parsed) == image_folder.NAME:
            return image_folder.open_image_folder(root, arguments, download, self._tfds)
        if builder is None and download:
            self._prepare(root, os.fspath(name), str(parsed))
            builder = self._open_prepared(root, str(parsed), arguments)
        if builder is None:
            raise DatasetNotFoundError(
                describe_not_found(os.fspath(name), self._data_dir(root), self.registered_names())
            )
        return builder

    def registered_names(self) -> list[str]:
        """Returns the names of the datasets that TFDS knows how to build."""
        # Community datasets are listed by a server: asking it would load tensorflow and wait for the network.
        return list(self._tfds.list_builders(with_community_datasets=False))

    def _open_directory(self, root: str, name: str, parsed_name: str, arguments: dict[str, Any]) -> Any:
        builder = self._load(self._tfds.builder_from_directory, root)
        found = {"config": builder.info.config_name or "", "version": str(builder.info.version)}
        if parsed_name != builder.info.name or any(found.get(key) != value for key, value in arguments.items()):
            raise DatasetNotFoundError(
                f"The root {root} is the version directory of {dataset_name(builder)}, which is not {name!r}."
            )
        return builder

    def _open_prepared(self, root: str | os.PathLike[str] | None, name: str, arguments: dict[str, Any]) -> Any:
        try:
            return self._load(self._tfds.core.read_only_builder.builder_from_files, name, data_dir=root, **arguments)
        except self._tfds.core.DatasetNotFoundError:
            return None

    def _load(self, load: Callable[..., Any], where: str | os.PathLike[str], **arguments: Any) -> Any:
        try:
            return load(where, **arguments)
        except (self._tfds.core.DatasetNotFoundError, ImportError):
            raise
        except Exception as error:  # TFDS reads its metadata unchecked: anything may come out of a damaged file.
            what = f"The dataset {os.fspath(where)!r} under {arguments.get('data_dir') or where}"
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if isinstance(error, OSError) or type(error).__module__.startswith("tensorflow."):
                raise DatasetNotFoundError(f"{what} cannot be read ({reason}).") from None
            raise DatasetNotFoundError(
                f"{what} cannot be opened: its dataset_info.json or features.json is damaged ({reason}). Prepare it "
                f"again."
            ) from error

    def _prepare(self, root: str | os.PathLike[str] | None, name: str, registered_name: str) -> None:
        """Downloads and builds a dataset, in one process however many ask for it at the same time."""
        if registered_name not in self.registered_names():
            return  # Said with the nearest names by the caller.
        data_dir = self._data_dir(root)
        data_dir.mkdir(parents=True, exist_ok=True)
        module = self._tfds.builder_cls(registered_name).__module__
        lock_name = "".join(letter if letter.isalnum() else "_" for letter in name)
        _logger.warning("Preparing %s under %s, or waiting for the process that does.", name, data_dir)
        with FileLock(data_dir / f".{lock_name}.prepare.lock"):
            fresh_process.call(self._download_and_prepare, module, name, str(data_dir))

    def _data_dir(self, root: str | os.PathLike[str] | None) -> Path:
        return Path(os.path.expanduser(root if root is not None else self._tfds.core.constants.DATA_DIR))


def _is_version_directory(path: str | os.PathLike[str]) -> bool:
    return (Path(path) / "dataset_info.json").is_file()
