"""Requests to stores of objects by obstore, which this module alone imports; it runs in the fetcher only."""

import os
import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.limits import usable_cores
from tfds_torch.storage.remote.faults import Fault, fault_of, profile_line
from tfds_torch.storage.remote.layout import NO_VERSION, pin_of
from tfds_torch.storage.remote.storage_options import options_of_scheme, secrets_of
from tfds_torch.storage.remote.urls import LISTED_SCHEMES, split, without_secrets

CHUNK_BYTES = 512 << 10
_STALL_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 8.0
_SMALL_BYTES = 64 << 20
_MOST_THREADS = 4
_MOST_JUMPS, _PAGE_KEYS = 100, 1000
_NO_TIME_S = 1.0  # obstore reports 1970 where no time is known; reproducible builds set files to its first second.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Environment variables that hold the URL of a store."""
_OWN_KEYS = frozenset(("access_key_id", "skip_signature", "web_identity_token_file", "container_credentials_full_uri"))
_VARIABLES_OF_KEYS = frozenset(
    (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SKIP_SIGNATURE",
    )
)


def import_obstore() -> Any:
    """Return the package obstore.

    Raises:
        ConfigError: it is not installed.
    """
    # The threads of its runtime wake each other for every packet: with few threads, reading takes a fifth less time.
    os.environ.setdefault("TOKIO_WORKER_THREADS", str(max(1, min(_MOST_THREADS, int(usable_cores().number) // 4))))
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise ConfigError(
            "Object stores are read by the package obstore, which is not installed: pip install 'tfds_torch[remote]'."
        ) from error
    return obstore


class Version(NamedTuple):
    """The version of an object in a server's answer: ETag and time of the last change; None: it was not sent."""

    etag: str | None
    modified: str | None

    @property
    def pin(self) -> int:
        """The number that stands for the version in a stamp."""
        return pin_of(self.etag, self.modified)

    @property
    def condition(self) -> dict[str, str]:
        """The options of a request that fails for another version; a weak ETag never matches in If-Match."""
        return {} if self.etag is None or self.etag.startswith("W/") else {"if_match": self.etag}


class Client:
    """Asks stores for objects. Every method raises Fault, and no method tries a request twice.

    Args:
        storage_options: storage options; see `RemoteOptions`.
        timeout_s: seconds without a byte after which a request is given up, 15 at most.
        connections: number of connections that are kept open for each host.
        trusts_size: whether the size alone identifies an object where the server sends no version.
    """

    def __init__(
        self, storage_options: Mapping[str, Any], timeout_s: float, connections: int, *, trusts_size: bool
    ) -> None:
        self._obstore = import_obstore()
        self._options = storage_options
        self._secrets = secrets_of(storage_options)
        self._stall_s = min(_STALL_S, timeout_s)
        self._connections, self._trusts_size = connections, trusts_size
        self._stores: dict[tuple[str, str], Any] = {}
        self._versions: dict[str, Version] = {}
        self.reached: set[tuple[str, str]] = set()
        """Stores that have answered: their host name and port are right."""
        self.num_requests = 0

    async def look(self, url: str) -> tuple[int, int]:
        """Return size and pin of an object."""
        store, path = self._store(url)
        try:
            self.num_requests += 1
            found = await self._obstore.head_async(store, path)
        except Exception as error:
            raise await self._with_reason(self._fault(error, url, store), store, path, url) from None
        self._note_answer(url)
        version = self._versions[url] = _version(found)
        if version.pin == NO_VERSION and not self._trusts_size:
            raise _no_version()
        return int(found["size"]), version.pin

    async def read_small(self, url: str) -> tuple[bytes, bool]:
        """Return the content of an object, and whether the answer tells its version."""
        store, path = self._store(url)
        try:
            self.num_requests += 1
            result = await self._obstore.get_async(store, path)
            if result.meta["size"] > _SMALL_BYTES:
                raise Fault(f"it has {result.meta['size']} bytes, too many for metadata", "Check the URL.")
            content = bytes(await result.bytes_async())
        except Fault:
            raise
        except Exception as error:
            raise self._fault(error, url, store) from None
        self._note_answer(url)
        return content, _version(result.meta).pin != NO_VERSION

    async def write_small(self, url: str, content: bytes) -> None:
        """Put an object in its place."""
        store, path = self._store(url)
        try:
            self.num_requests += 1
            await self._obstore.put_async(store, path, content)
        except Exception as error:
            raise self._fault(error, url, store) from None
        self._note_answer(url)

    async def folders(self, url: str) -> list[str]:
        """Return the names of the folders right below a URL; where a key is not a path, those from "0" on."""
        store, path = self._store(url)
        try:
            self.num_requests += 1
            try:
                found = await self._obstore.list_with_delimiter_async(store, path or None)
                names = {prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]}
            except self._obstore.exceptions.InvalidPathError:
                later = await self._later_folders(store, path)
                if later is None:
                    raise
                names = later
        except Exception as error:
            raise self._fault(error, url, store) from None
        self._note_answer(url)
        return sorted(names - {""})

    async def _later_folders(self, store: Any, path: str) -> set[str] | None:
        """Return the folders below a path from "0" on: names of versions are sorted behind "", "." and "..".

        One odd key makes a page of a listing fail. A page can begin at any name, so that the listing jumps behind each
        folder that it finds. None: there are too many folders.
        """
        names, prefix = set[str](), f"{path.rstrip('/')}/" if path else ""
        offset = f"{prefix}0"
        for _ in range(_MOST_JUMPS):
            self.num_requests += 1
            listing = self._obstore.list(store, path or None, offset=offset, chunk_size=_PAGE_KEYS)
            page = await anext(aiter(listing), None)
            if not page:
                return names
            names |= {name for name, mark, _ in (one["path"][len(prefix) :].partition("/") for one in page) if mark}
            last, mark, _ = page[-1]["path"][len(prefix) :].partition("/")
            offset = prefix + last + ("0" if mark else "")  # "0" follows the slash.
        return None

    async def stream(self, url: str, start: int, stop: int, size: int, pin: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes start..stop-1 of an object, which must have this size and version.

        Args:
            url: the object.
            start: first byte.
            stop: the byte behind the last one.
            size: size of the object, in bytes.
            pin: number that stands for its version.
        """
        store, path = self._store(url)
        options: dict[str, Any] = {}
        if (start, stop) != (0, size):
            options["range"] = (start, stop)
        known = self._versions.get(url)
        if known is not None and known.pin != pin:
            known = None
        try:
            result = await self._get(store, path, options, {} if known is None else known.condition)
            self._note_answer(url)
            version = _version(result.meta)
            self._compare(result.meta["size"], version, size, pin, known)
            self._versions[url] = version
            async for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
                yield chunk
        except Fault:
            raise
        except Exception as error:
            raise self._fault(error, url, store) from None

    async def _get(self, store: Any, path: str, options: dict[str, Any], condition: dict[str, str]) -> Any:
        """Return the answer to a request; where the condition fails, repeat it without, and let the caller compare."""
        if condition:
            try:
                self.num_requests += 1
                return await self._obstore.get_async(store, path, options=options | condition)
            except self._obstore.exceptions.PreconditionError:
                pass  # This also happens where an ETag has become weak, and is still equal.
        self.num_requests += 1
        return await self._obstore.get_async(store, path, options=options)

    def _compare(self, found: int, version: Version, size: int, pin: int, known: Version | None) -> None:
        """Raise Fault where an answer is about another object or version than wanted."""
        is_same = version.pin == pin
        is_trusted = self._trusts_size and NO_VERSION in (version.pin, pin)
        if found == size and (is_same or is_trusted):
            return
        if found == size and version.pin == NO_VERSION:
            raise _no_version(" with a range of bytes")
        if is_same and version.etag is not None:
            raise Fault(f"the server sends {found} bytes of the {size} that this version has", "", is_transient=True)
        raise Fault(_difference(found, version, size, known), "", kind="changed")

    def is_reached(self, url: str) -> bool:
        """Return whether an object's store has answered before."""
        return split(url)[:2] in self.reached

    async def _with_reason(self, fault: Fault, store: Any, path: str, url: str) -> Fault:
        """Return a fault with the store's reason, which an answer to a HEAD request lacks, as it has no body."""
        if fault.kind not in ("missing", "refused") or split(url).scheme not in LISTED_SCHEMES:
            return fault
        try:
            self.num_requests += 1
            await self._obstore.get_async(store, path, options={"range": (0, 1)})
        except Exception as error:
            return self._fault(error, url, store)
        return fault

    def _note_answer(self, url: str) -> None:
        self.reached.add(split(url)[:2])

    def _fault(self, error: Exception, url: str, store: Any) -> Fault:
        fault = fault_of(error, url, self._secrets)
        at = split(url)[:2]
        if fault.kind in ("expired", "no credentials") and self._stores.get(at) is store:
            self._stores.pop(at, None)  # The next try opens the store again, and asks for the keys of a role again.
        return fault

    def _store(self, url: str) -> tuple[Any, str]:
        """Return the store of an object, and the object's path in it."""
        scheme, bucket, path = split(url)
        if scheme in ("https", "http"):
            path, _, query = path.partition("?")
            path = unquote(path)  # obstore quotes the path.
            if query:
                raise Fault(
                    "a URL with a query (such as a signed one) cannot be read by ranges here",
                    "Pass a header that signs it, storage_options={'default_headers': ...}, or use the store's scheme.",
                    is_config=True,
                )
        store = self._stores.get((scheme, bucket))
        if store is None:
            try:
                store = self._stores[scheme, bucket] = self._open(scheme, bucket)
            except Fault:
                raise
            except Exception as error:
                fault = self._fault(error, url, None)
                fault.is_config = True
                raise fault from None
        return store, path

    def _open(self, scheme: str, bucket: str) -> Any:
        config, client = options_of_scheme(scheme, self._options)
        for name in _ENDPOINTS.get(scheme, ()):
            _check_endpoint(name)
        if scheme == "s3":
            _check_profile(config)
        client = {
            "read_timeout": f"{self._stall_s:g}s",
            "connect_timeout": f"{min(5.0, self._stall_s):g}s",
            "timeout": "1day",  # Slow answers are judged by their rate.
            "pool_max_idle_per_host": str(self._connections),
            "allow_http": scheme == "http" or client.get("allow_http", _is_plain_endpoint(config)),
        } | client
        retry = {"max_retries": 0}
        stores = self._obstore.store
        if scheme in ("https", "http"):
            return stores.HTTPStore(f"{scheme}://{bucket}", client_options=client, retry_config=retry)
        kind = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[scheme]
        return kind(bucket, config=config, client_options=client, retry_config=retry)


def pause_s(num_failed: int) -> float:
    """Return how many seconds to wait before the next try; random, so that not all requests come at once."""
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(num_failed, 10))
    return random.uniform(0.5, 1.0) * longest  # noqa: S311 (no secret)


def changed_message(url: str, clause: str) -> str:
    """Return the error message for an object that has changed."""
    return (
        f"{without_secrets(url)} changed since it was first looked at{clause}. Versions are not mixed: start again "
        f"with objects that nobody writes to, or build its index anew."
    )


def _difference(found: int, version: Version, size: int, known: Version | None) -> str:
    """Return how the object of an answer differs from the wanted one, as the clause of a message."""
    if found != size:
        return f": it had {size} bytes and has {found}"
    if known is None:
        return ": its ETag or the time of its last change is another one"
    if pin_of(known.etag, None) != pin_of(version.etag, None):
        return ": its ETag is another one"
    of_tag = "" if version.etag is None else ", and its ETag is the same"
    return f": it was written at {known.modified}, now at {version.modified}{of_tag}"


def _no_version(where: str = "") -> Fault:
    """Return the fault of an object that may be replaced without anybody noticing."""
    return Fault(
        f"its server sends neither an ETag nor a Last-Modified{where}, so that nobody would notice when it is replaced "
        f"by another one of the same size",
        "Serve it by a server that sends one of them. Or, where objects are never replaced: "
        "remote=RemoteOptions(trust_size=True).",
        is_config=True,
    )


def _version(meta: Mapping[str, Any]) -> Version:
    """Return the version of the object that an answer names."""
    etag, modified = meta.get("e_tag"), meta.get("last_modified")
    if modified is not None and modified.timestamp() <= _NO_TIME_S:
        modified = None
    return Version(str(etag) if etag else None, modified.isoformat() if modified is not None else None)


def _check_endpoint(name: str) -> None:
    """Raise Fault for an environment variable that must be a URL and is not: obstore would panic."""
    value = os.environ.get(name)
    if value and not value.startswith(("http://", "https://")):
        raise Fault(
            f"the environment variable {name} is not a URL",
            "Write it with http:// or https://, such as https://host:9000.",
            is_config=True,
        )


def _check_profile(config: Mapping[str, Any]) -> None:
    """Raise Fault where an AWS profile was chosen: obstore does not read the files of `aws configure`."""
    name = os.environ.get("AWS_PROFILE")
    if not name or _OWN_KEYS & config.keys() or _VARIABLES_OF_KEYS & os.environ.keys():
        return
    raise Fault(
        f"AWS_PROFILE names the profile {name!r}, and files of profiles are not read",
        f"Set its keys in the environment: {profile_line(name)}",
        is_config=True,
    )


def _is_plain_endpoint(config: Mapping[str, Any]) -> bool:
    named = [config.get("endpoint"), config.get("base_url"), config.get("aws_endpoint_url_s3")]
    named += [os.environ.get(name) for names in _ENDPOINTS.values() for name in names]
    return any(str(one).startswith("http://") for one in named if one)
