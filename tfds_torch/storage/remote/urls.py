"""URLs of objects: which URLs are read here, and their parts."""

from typing import NamedTuple
from urllib.parse import urlsplit

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

SCHEMES = ("s3", "gs", "az", "https", "http")
LISTED_SCHEMES = ("s3", "gs", "az")
"""Schemes whose servers list the names below a prefix."""


class UrlParts(NamedTuple):
    """The parts of an object's URL.

    Attributes:
        scheme: one of SCHEMES.
        bucket: bucket, container, or host with its port.
        path: the rest, without the slash at its beginning.
    """

    scheme: str
    bucket: str
    path: str


def is_object_url(path: object) -> bool:
    """Return whether a path is the URL of an object in a store that is read here."""
    if not isinstance(path, str):
        return False
    scheme, separator, rest = path.partition("://")
    return bool(separator) and scheme in SCHEMES and bool(rest.strip("/"))


def join(url: str, *names: str) -> str:
    """Return the URL of a name below another URL; the query of a URL stays at its end."""
    place, mark, query = url.partition("?")
    return "/".join((place.rstrip("/"), *(name.strip("/") for name in names))) + mark + query


def split(url: str) -> UrlParts:
    """Return the parts of an object's URL.

    Raises:
        ConfigError: the text is not the URL of an object.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConfigError(
            f"{quoted(without_secrets(url))} is not the URL of an object: the schemes are "
            f"{', '.join(f'{one}://' for one in SCHEMES)}.{did_you_mean(scheme, SCHEMES)}"
        )
    bucket, _, path = rest.partition("/")
    if not bucket:
        what = "bucket" if scheme in LISTED_SCHEMES else "host"
        raise ConfigError(f"{quoted(without_secrets(url))} has no {what}: write {scheme}://{what.upper()}/PATH.")
    if scheme in ("https", "http") and not _has_valid_port(bucket):
        raise ConfigError(f"{quoted(without_secrets(url))}: the port behind the host must be a number in 1..65535.")
    return UrlParts(scheme, bucket, path)


def _has_valid_port(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").port != 0
    except ValueError:
        return False


def without_secrets(url: str) -> str:
    """Return a URL without its query, user name and password, for messages and files."""
    scheme, separator, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    return scheme + separator + host.rpartition("@")[2] + slash + path
