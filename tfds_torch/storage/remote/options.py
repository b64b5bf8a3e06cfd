"""RemoteOptions: where objects are cached, how many bytes of them, and how their stores are asked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import check_flag, check_integer, check_seconds
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.own_folder import cache_folder
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.storage_options import check_storage_options

DEFAULT_CONNECTIONS = 24
_MOST_CONNECTIONS = 256


@explain_keywords
@dataclass(frozen=True)
class RemoteOptions:
    """How objects of s3://, gs://, az://, https:// and http:// are fetched, and where they are kept.

    The values of `storage_options` are secrets: they are in no repr, pickle, state, log or file. A process that gets a
    pickled copy asks the fetcher of the process that has them.

    Attributes:
        cache_dir: folder of the cache; None: `tfds_torch/remote` in the user's cache folder. It must be the user's own.
        max_bytes: most bytes that the cache may take; None: 0.8 of the free space on its disk (space that the cache
            itself takes counts as free).
        storage_options: options by obstore's names, like `region`, `endpoint`, `access_key_id`, `skip_signature`; None:
            credentials come from the environment, or from the machine's role.
        ahead_bytes: bytes that are fetched ahead of the current window; None: 512 MiB, a quarter of `max_bytes`
            at most.
        connections: number of requests at a time; a quarter is reserved for bytes that readers wait for; None: 24.
        timeout_s: seconds for which a request is tried again that fails for a transient reason.
        trust_size: whether an object counts as the same version as long as its size is the same, where its server
            sends neither an ETag nor the time of its last change. False: such an object is refused when its dataset is
            opened, even where it lies in the cache. Has no effect for other servers.

    Raises:
        ConfigError: a number is out of range, or a storage option is unknown.
    """

    cache_dir: str | os.PathLike[str] | None = None
    max_bytes: int | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    ahead_bytes: int | None = None
    connections: int | None = None
    timeout_s: float = 120.0
    trust_size: bool = False

    def __post_init__(self) -> None:
        if self.cache_dir is not None and not isinstance(self.cache_dir, str | os.PathLike):
            raise ConfigError(f"RemoteOptions: cache_dir={quoted(self.cache_dir)} must be a path, or None.")
        path = None if self.cache_dir is None else os.fspath(self.cache_dir)
        if path is not None and (not isinstance(path, str) or not path.strip() or "://" in path or "\0" in path):
            raise ConfigError(f"RemoteOptions: cache_dir={quoted(path)} must be the path of a folder of this machine.")
        for name, most in (("max_bytes", None), ("ahead_bytes", None), ("connections", _MOST_CONNECTIONS)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_integer(f"RemoteOptions: {name}", value, 1, most))
        check_seconds("RemoteOptions: timeout_s", self.timeout_s, can_be_none=False)
        check_flag("RemoteOptions: trust_size", self.trust_size)
        if self.storage_options is not None:
            object.__setattr__(self, "storage_options", check_storage_options(self.storage_options))

    @property
    def folder(self) -> Path:
        """Folder of the cache."""
        if self.cache_dir is None:
            return cache_folder("remote")
        return Path(os.path.abspath(os.path.expanduser(self.cache_dir)))

    def __repr__(self) -> str:
        names = ("cache_dir", "max_bytes", "ahead_bytes", "connections", "timeout_s", "trust_size")
        fields = [f"{name}={getattr(self, name)!r}" for name in names]
        if self.storage_options is not None:
            keys = ", ".join(f"{key!r}: ..." for key in sorted(self.storage_options))
            fields.insert(2, f"storage_options={{{keys}}}")
        return f"RemoteOptions({', '.join(fields)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy without storage options, which would be readable in the pickle."""
        cache_dir = None if self.cache_dir is None else os.fspath(self.cache_dir)
        others = self.ahead_bytes, self.connections, self.timeout_s, self.trust_size
        return RemoteOptions, (cache_dir, self.max_bytes, None, *others)
