"""The table [remote] of a recipe: how objects of a store are fetched, and where they are cached."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.options import RemoteOptions

REMOTE = "[remote]"
REMOTE_KEYS = frozenset(field.name for field in fields(RemoteOptions))

_SECRETS = ("key", "secret", "token", "password", "credential", "account", "headers", "certificate", "proxy_url")
"""Parts of the names of storage options that are secrets, or may hold some."""
_NO_SECRETS = ("account_name", "sse_bucket_key_enabled", "credential_type")


def make_remote(source: str, given: Mapping[str, Any]) -> RemoteOptions:
    """Returns what a table [remote] describes.

    Args:
        source: the file, for messages.
        given: what it holds; its keys are known.

    Raises:
        ConfigError: a value of another type or out of its bounds, an unknown storage option, or one that is a secret.
    """
    options = given.get("storage_options")
    for name in options if isinstance(options, Mapping) else ():
        if any(part in name.lower() for part in _SECRETS) and not name.lower().endswith(_NO_SECRETS):
            raise ConfigError(
                f"{source}: {REMOTE} storage_options {quoted(name)} is a secret, or may hold one, and a recipe is a "
                f"file that others read. Leave it out, and set it in the environment (such as AWS_SECRET_ACCESS_KEY), "
                f"in the store's own configuration, or in Python: make_parser(remote=RemoteOptions(...))."
            )
    try:
        return RemoteOptions(**given)
    except ConfigError as error:
        raise ConfigError(f"{source}: {REMOTE} {error}") from None
