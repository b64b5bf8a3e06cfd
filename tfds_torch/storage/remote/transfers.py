"""Requests that are tried again after transient faults; other faults are errors at once."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container
from contextlib import aclosing
from typing import TypeVar

from tfds_torch.errors import ConfigError, ShardError, TfdsTorchError
from tfds_torch.storage.remote.cache import RemoteObject
from tfds_torch.storage.remote.client import CHUNK_BYTES, Client, changed_message, pause_s
from tfds_torch.storage.remote.faults import Fault
from tfds_torch.storage.remote.urls import split, without_secrets

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_SLOWEST_BYTES_S = 32 << 10
_NEVER_REACHED_S = 3.0  # A host or credentials that never worked are more likely wrong than unavailable for a moment.


class Transfers:
    """Requests of a client, each tried again until `timeout_s` seconds have passed without progress.

    Args:
        client: the client that asks the stores.
        timeout_s: seconds without progress after which a request fails.
    """

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._chunk_s = min(CHUNK_BYTES / _SLOWEST_BYTES_S, timeout_s)
        self._logged: set[str] = set()
        self.num_retries = 0
        self.num_bytes = 0

    async def ask(
        self, url: str, call: Callable[[str], Awaitable[_T]], answers: Container[str] = frozenset({"missing"})
    ) -> _T:
        """Return the client's answer about an object.

        Args:
            url: the object.
            call: function that asks about it.
            answers: kinds of faults that count as answers.

        Raises:
            ShardError: the object cannot be read.
            ConfigError: the request is wrong, rather than the object.
            Fault: the fault has one of the kinds in `answers`.
        """
        patience = _Patience(self, url)
        while True:
            try:
                return await asyncio.wait_for(call(url), max(self._timeout_s, 1.0))
            except TimeoutError:
                fault = Fault("no answer came in time", "Check the network.", is_transient=True)
            except Fault as found:
                fault = found
            if fault.kind in answers:
                raise fault
            await patience.wait(fault)

    async def fetch(
        self,
        found: RemoteObject,
        start: int,
        stop: int,
        write: Callable[[bytes, int], None],
        give_way: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Fetch bytes start..stop-1 of an object; where an answer breaks off, ask again for the rest.

        Args:
            found: the object.
            start: first byte.
            stop: the byte behind the last one.
            write: function that takes bytes and their offset in the object.
            give_way: function that waits between two pieces while others are more urgent.

        Raises:
            ShardError: the bytes cannot be read, or the object has changed.
            ConfigError: options are wrong.
            OSError: `write` failed.
        """
        position = start
        patience = _Patience(self, found.url)
        while position < stop:
            try:
                stream = self._client.stream(found.url, position, stop, found.size, found.pin)
                async with aclosing(stream) as chunks:
                    while True:
                        async with asyncio.timeout(self._chunk_s):
                            chunk = await anext(chunks, None)
                        if chunk is None:
                            break
                        if len(chunk) > stop - position:
                            raise Fault("the server sent more bytes than were asked for", "", is_transient=True)
                        write(chunk, position)
                        position += len(chunk)
                        self.num_bytes += len(chunk)
                        patience.renew()
                        if give_way is not None and position < stop:
                            await give_way()
                if position < stop:
                    missing = f"the server sent {stop - position} bytes fewer than were asked for"
                    raise Fault(missing, "", is_transient=True)
            except TimeoutError:
                clause = f"fewer than {CHUNK_BYTES} bytes came in {self._chunk_s:g} s"
                fault = Fault(clause, "Check the network.", is_transient=True)
                await patience.wait(fault, f"bytes {position}-{stop - 1}")
            except Fault as fault:
                await patience.wait(fault, f"bytes {position}-{stop - 1}")


class _Patience:
    """Notes how long a request has failed already."""

    def __init__(self, transfers: Transfers, url: str) -> None:
        self._transfers, self._url = transfers, url
        self._failing_since: float | None = None
        self._num_failed = 0

    def renew(self) -> None:
        """Note progress."""
        self._failing_since, self._num_failed = None, 0

    async def wait(self, fault: Fault, asked: str = "") -> None:
        """Wait before the next try, or raise the error for the fault."""
        transfers, now = self._transfers, time.monotonic()
        if fault.kind == "changed":
            raise ShardError(changed_message(self._url, fault.clause if fault.clause.startswith(":") else ""))
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        is_reached = transfers._client.is_reached(self._url)
        patience_s = transfers._timeout_s if is_reached else min(transfers._timeout_s, _NEVER_REACHED_S)
        if fault.kind not in ("unreachable", "unresolved", "expired"):
            patience_s = transfers._timeout_s
        pause = pause_s(self._num_failed)
        self._num_failed += 1
        is_hopeless = not fault.is_transient or (fault.kind in ("unresolved", "no credentials") and not is_reached)
        if is_hopeless or now + pause - since > patience_s:
            raise self._error(fault, asked, now - since)
        transfers.num_retries += 1
        told = self._url if is_reached else ":".join(split(self._url)[:2])  # Once for a host that never answered.
        if told not in transfers._logged:
            transfers._logged.add(told)
            shown = without_secrets(self._url)
            _logger.warning("%s: %s; trying again for up to %g s.", shown, fault.clause, patience_s)
        await asyncio.sleep(pause)

    def _error(self, fault: Fault, asked: str, failing_s: float) -> TfdsTorchError:
        tried = f" ({self._num_failed} tries in {failing_s:.1f} s)" if self._num_failed > 1 else ""
        where = f", {asked}," if asked else ""
        message = f"{without_secrets(self._url)}{where} cannot be read: {fault.clause}{tried}. {fault.remedy}".rstrip()
        return (ConfigError if fault.is_config else ShardError)(message)
