"""Which URLs a dataset is opened from; the others are refused here, before anything is contacted over a network."""

import re

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted

READ_SCHEME = "gs"
"""Google Cloud Storage, which tensorflow reads by itself."""

_scheme_of = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://").match
_COPY_COMMANDS = {
    "s3": "aws s3 sync {url} <a local folder>",
    "az": "az storage blob download-batch --source <container> --destination <a local folder>",
    "abfs": "az storage blob download-batch --source <container> --destination <a local folder>",
    "hf": "hf download <repository> --repo-type dataset --local-dir <a local folder>",
    "hdfs": "hdfs dfs -get {url} <a local folder>",
    "http": "wget --recursive --no-parent --no-host-directories {url}",
    "https": "wget --recursive --no-parent --no-host-directories {url}",
}
"""Scheme -> the usual command that copies a folder from there."""


def check_url(argument: str, path: str) -> None:
    """Raises ConfigError where a path is a URL that no dataset can be opened from; looks at the text alone."""
    found = _scheme_of(path)
    if found is None or found[1] == READ_SCHEME:
        return
    scheme, given = found[1].lower(), f"{argument}={quoted(path)}"
    if scheme == "file":
        raise ConfigError(f"{given} is a URL of a local folder: give its path, without 'file://'.")
    if scheme == READ_SCHEME:
        raise ConfigError(f"{given}: write {READ_SCHEME}:// in small letters.")
    command = _COPY_COMMANDS.get(scheme)
    url = quoted(path)[1:-1]
    how = f", for example with: {command.format(url=url)}" if command else ""
    raise ConfigError(
        f"{given}: a dataset is read from local folders and from {READ_SCHEME}:// URLs, and not from {scheme}:// ones. "
        f"Copy it to this machine{how}; or mount it as a local folder. Then give the local path. See "
        f"docs/remote-files.md."
    )
