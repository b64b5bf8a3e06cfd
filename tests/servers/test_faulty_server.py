"""What obstore, the client of remote files, does under each fault: what it tries again, and what it does not notice.

These are facts about the client: where a new version of it behaves otherwise, what is built on it must be looked at.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import (
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import HTTPStore, ObjectStore, S3Store
from server_fixtures import UNRESOLVABLE
from servers.certificates import Certificates
from servers.faulty_server import Fault, FaultyAddress, FaultyFolder

BODY = bytes(range(256)) * 400
START, END = 1000, 51000
WHOLE = f"bytes={START}-{END - 1}"
RETRIES = 3


def open_store(url: str, **options: Any) -> HTTPStore:
    """Returns a client that tries again soon, and gives up soon."""
    backoff = {"init_backoff": timedelta(milliseconds=2), "max_backoff": timedelta(milliseconds=10), "base": 2}
    retry = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=30), "backoff": backoff}
    return HTTPStore.from_url(url, client_options={"allow_http": True, **options}, retry_config=retry)


def read(store: ObjectStore, options: Mapping[str, Any] | None = None, path: str = "object") -> bytes:
    found = obstore.get(store, path, options={"range": (START, END), **(options or {})})
    return bytes(found.bytes())


@pytest.fixture
def server(faulty_server: FaultyFolder) -> FaultyFolder:
    (faulty_server.folder / "object").write_bytes(BODY)
    return faulty_server


def asked(server: FaultyAddress) -> list[tuple[int, str | None]]:
    return [(line.status, line.range) for line in server.ledger().requests]


def test_a_range_without_faults(server: FaultyFolder) -> None:
    assert read(open_store(server.url)) == BODY[START:END]
    (line,) = server.ledger().requests
    assert (line.status, line.range, line.bytes, line.is_over, line.fault) == (206, WHOLE, END - START, True, "")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(server: FaultyFolder, status: int) -> None:
    server.fault("/object", Fault(status=status), times=2)
    assert read(open_store(server.url)) == BODY[START:END]
    assert asked(server) == [(status, WHOLE)] * 2 + [(206, WHOLE)]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_not_waited_for(server: FaultyFolder, status: int) -> None:
    """An hour, and the request comes again at once."""
    server.fault("/object", Fault(status=status, retry_after="3600"), times=1)
    assert read(open_store(server.url)) == BODY[START:END]
    assert asked(server) == [(status, WHOLE), (206, WHOLE)]


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, UnauthenticatedError), (403, PermissionDeniedError), (404, FileNotFoundError), (410, GenericError)],
)
def test_what_does_not_pass_is_raised_at_once(server: FaultyFolder, status: int, error: type[Exception]) -> None:
    server.fault("/object", Fault(status=status))
    with pytest.raises(error, match=str(status)):
        read(open_store(server.url))
    assert asked(server) == [(status, WHOLE)]


def test_a_status_for_ever_is_raised_after_all_tries(server: FaultyFolder) -> None:
    server.fault("/object", Fault(status=503))
    with pytest.raises(GenericError, match=f"after {RETRIES} retries"):
        read(open_store(server.url))
    assert asked(server) == [(503, WHOLE)] * (1 + RETRIES)


def test_a_connection_that_is_reset_before_the_answer_is_tried_again(server: FaultyFolder) -> None:
    server.fault("/object", Fault(hang_up=True), times=1)
    assert read(open_store(server.url)) == BODY[START:END]
    assert asked(server) == [(0, WHOLE), (206, WHOLE)]


@pytest.mark.parametrize("fault", [Fault(reset_after=20000), Fault(close_after=20000)], ids=Fault.describe)
def test_a_body_that_breaks_off_is_gone_on_with(server: FaultyFolder, fault: Fault) -> None:
    """Only what is missing is asked for again, without If-Match."""
    server.fault("/object", fault, times=1)
    assert read(open_store(server.url)) == BODY[START:END]
    assert asked(server) == [(206, WHOLE), (206, f"bytes={START + 20000}-{END - 1}")]
    assert [line.if_match for line in server.ledger().requests] == [None, None]


def test_a_body_that_breaks_off_is_not_gone_on_with_in_another_version(server: FaultyFolder) -> None:
    server.fault("/object", Fault(reset_after=20000), times=1)
    server.fault("/object", Fault(changed=True), first=1)
    with pytest.raises(GenericError, match="body error"):
        read(open_store(server.url))


@pytest.mark.parametrize("timeout", ["timeout", "read_timeout"])
@pytest.mark.parametrize("stall_after", [0, 20000])
def test_a_stall_ends_with_the_timeout_and_is_gone_on_with(
    server: FaultyFolder, stall_after: int, timeout: str
) -> None:
    """`timeout` counts from the start of the request, `read_timeout` from the last byte. Defaults: 30 s and none."""
    server.fault("/object", Fault(stall_after=stall_after), times=1)
    assert read(open_store(server.url, **{timeout: "200ms"})) == BODY[START:END]
    assert asked(server) == [(206, WHOLE), (206, f"bytes={START + stall_after}-{END - 1}")]


def test_a_trickle_is_cut_off_by_timeout_and_the_bytes_that_came_are_kept(server: FaultyFolder) -> None:
    server.fault("/object", Fault(bytes_per_s=20_000), times=1)
    assert read(open_store(server.url, timeout="500ms")) == BODY[START:END]
    (_, first), (_, second) = asked(server)
    assert first == WHOLE
    assert second is not None
    assert START < int(second.removeprefix("bytes=").split("-")[0]) < END


def test_a_trickle_is_no_stall_for_read_timeout(server: FaultyFolder) -> None:
    """So a server at 1 kB/s holds a client whose only timeout is `read_timeout` for hours."""
    server.fault("/object", Fault(bytes_per_s=50_000))
    assert read(open_store(server.url, read_timeout="800ms")) == BODY[START:END]
    assert asked(server) == [(206, WHOLE)]


@pytest.mark.parametrize("extra_bytes", [-1, 1])
def test_a_206_of_another_length_is_not_noticed(server: FaultyFolder, extra_bytes: int) -> None:
    server.fault("/object", Fault(extra_bytes=extra_bytes))
    found = obstore.get(open_store(server.url), "object", options={"range": (START, END)})
    assert found.range == (START, END)
    assert len(found.bytes()) == END - START + extra_bytes


def test_an_ignored_range_is_an_error_at_once(server: FaultyFolder) -> None:
    server.fault("/object", Fault(ignores_range=True))
    with pytest.raises(NotSupportedError, match="Range request not supported"):
        read(open_store(server.url))
    assert asked(server) == [(200, WHOLE)]


def test_a_changed_object_is_noticed_by_if_match_alone(server: FaultyFolder) -> None:
    store = open_store(server.url)
    etag = obstore.head(store, "object")["e_tag"]
    assert read(store, {"if_match": etag}) == BODY[START:END]
    server.fault("/object", Fault(changed=True))
    assert read(store) == bytes(255 - byte for byte in BODY[START:END])
    with pytest.raises(PreconditionError, match="412"):
        read(store, {"if_match": etag})


def test_a_wrong_etag_is_not_noticed(server: FaultyFolder) -> None:
    """A server that does not know If-Match answers with another ETag: it is in `meta`, to be compared."""
    store = open_store(server.url)
    etag = obstore.head(store, "object")["e_tag"]
    server.fault("/object", Fault(etag='"another"'))
    found = obstore.get(store, "object", options={"range": (START, END), "if_match": etag})
    assert found.meta["e_tag"] == '"another"' != etag


def test_a_flipped_bit_is_not_noticed(server: FaultyFolder) -> None:
    server.fault("/object", Fault(flipped_byte=START + 5))
    body = bytearray(BODY[START:END])
    body[5] ^= 1
    assert read(open_store(server.url)) == body


def test_a_bearer_token_goes_into_the_default_headers(server: FaultyFolder) -> None:
    server.fault("/*", Fault(bearer="token"))
    with pytest.raises(UnauthenticatedError, match="401"):
        read(open_store(server.url))
    store = open_store(server.url, default_headers={"Authorization": "Bearer token"})
    assert read(store) == BODY[START:END]
    assert "token" not in repr(server.ledger())


def test_an_answer_that_does_not_come_is_asked_for_again(server: FaultyFolder) -> None:
    server.fault("/object", Fault(delay_s=60), times=1)
    assert read(open_store(server.url, timeout="200ms")) == BODY[START:END]
    assert asked(server) == [(0, WHOLE), (206, WHOLE)]


def test_a_redirect_is_followed_with_the_range_and_the_condition(server: FaultyFolder) -> None:
    """As the addresses of the Hugging Face Hub lead to those of its store. The ETag is that of the object."""
    (server.folder / "link").touch()
    server.fault("/link", Fault(redirect="/object"))
    store = open_store(server.url)
    etag = obstore.head(store, "object")["e_tag"]
    found = obstore.get(store, "link", options={"range": (START, END), "if_match": etag})
    assert (bytes(found.bytes()), found.meta["e_tag"]) == (BODY[START:END], etag)
    assert [(line.path, line.status, line.if_match) for line in server.ledger().requests[1:]] == [
        ("/link", 302, etag),
        ("/object", 206, etag),
    ]


def test_a_token_does_not_follow_a_redirect_to_another_server(
    server: FaultyFolder, untrusted_server: FaultyFolder, certificates: Certificates
) -> None:
    (untrusted_server.folder / "object").write_bytes(BODY)
    server.fault("/object", Fault(redirect=f"{untrusted_server.url}/object"))
    untrusted_server.fault("/object", Fault(bearer="token"), times=1)
    trusted = {"root_certificate": certificates.authority.read_bytes()}
    store = open_store(server.url, default_headers={"Authorization": "Bearer token"}, **trusted)
    with pytest.raises(UnauthenticatedError, match="401"):
        read(store)
    assert read(store) == BODY[START:END]


def test_who_is_not_there_is_tried_again_for_all_tries(server: FaultyFolder, refused_url: str) -> None:
    """An unresolvable name and a refused connection count as passing faults: ten tries by default."""
    for url in (UNRESOLVABLE, refused_url):
        with pytest.raises(GenericError, match=f"after {RETRIES} retries"):
            read(open_store(url))


def test_an_untrusted_certificate_is_tried_again_for_all_tries(
    untrusted_server: FaultyFolder, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    (untrusted_server.folder / "object").write_bytes(BODY)
    with pytest.raises(GenericError, match=f"after {RETRIES} retries"):
        read(open_store(untrusted_server.url))
    assert untrusted_server.ledger().requests == []
    trusting = open_store(untrusted_server.url, root_certificate=certificates.authority.read_bytes())
    assert read(trusting) == BODY[START:END]
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    assert read(open_store(untrusted_server.url)) == BODY[START:END]


def test_faults_come_by_path_and_number_of_the_request(server: FaultyFolder, tmp_path: Path) -> None:
    (server.folder / "other").write_bytes(BODY)
    anywhere = FaultyAddress(server.url)
    anywhere.fault("/o*", Fault(status=404), first=1, times=1)
    anywhere.fault("/object", Fault(status=403), first=1, times=2, method="GET")
    store = open_store(server.url)

    def try_to_read(path: str) -> str:
        try:
            return str(read(store, path=path) == BODY[START:END])
        except Exception as error:
            return type(error).__name__

    found = [try_to_read("object") for _ in range(4)]
    assert found == ["True", "FileNotFoundError", "PermissionDeniedError", "True"]
    assert [try_to_read("other") for _ in range(3)] == ["True", "FileNotFoundError", "True"]
    faults = [line.fault for line in server.ledger().requests]
    assert faults == ["", "status=404", "status=403", "", "", "status=404", ""]
    server.heal()
    assert server.ledger().requests == []
    assert try_to_read("object") == "True"


def test_s3_is_read_from_the_faulty_server_too(faulty_s3: FaultyFolder) -> None:
    (faulty_s3.folder / "bucket").mkdir()
    (faulty_s3.folder / "bucket" / "object").write_bytes(BODY)
    faulty_s3.fault("/bucket/object", Fault(status=503), times=1)
    backoff = {"init_backoff": timedelta(milliseconds=2), "max_backoff": timedelta(milliseconds=10), "base": 2}
    assert read(S3Store("bucket", retry_config={"backoff": backoff})) == BODY[START:END]
    assert [line.path for line in faulty_s3.ledger().requests] == ["/bucket/object"] * 2
