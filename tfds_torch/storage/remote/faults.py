"""Faults of a request: which ones are transient, and the message to the user for each."""

import re
import shlex
from dataclasses import dataclass

from tfds_torch.runtime.printable import printable
from tfds_torch.storage.remote.urls import without_secrets

_STATUS = re.compile(r"status code: (\d{3})")
_METADATA_SERVERS = (
    "169.254.169.254",
    "169.254.170.2",
    "metadata.google.internal",
    "/latest/api/token",
    "login.microsoft",
)
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524})
_EXPIRED = (  # Azure says the last two in sentences.
    "<Code>ExpiredToken",
    "<Code>TokenRefreshRequired",
    "not valid in the specified time frame",
    "Lifetime validation failed",
)
_UNKNOWN_KEYS = ("<Code>InvalidAccessKeyId", "<Code>SignatureDoesNotMatch", "<Code>InvalidToken")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_MOST_LETTERS = 300


@dataclass
class Fault(Exception):  # noqa: N818 (a value of this room, which becomes an error of ours)
    """The reason why a request failed.

    Attributes:
        clause: the answer of the server or the failure, like "403 Forbidden".
        remedy: advice for the user, a sentence.
        is_transient: whether the same request may succeed later.
        kind: `missing`, `changed`, `refused` (by the store), `unknown keys` (to the store), `expired` (credentials),
            `no credentials`, `odd key` (among the keys to list), `unreachable` (no connection was made), `unresolved`
            (its host name), or another kind.
        is_config: whether options are wrong, rather than an object.
    """

    clause: str
    remedy: str
    is_transient: bool = False
    kind: str = "other"
    is_config: bool = False

    def __str__(self) -> str:
        return self.clause

    def message(self, url: str, asked: str = "") -> str:
        """Return the error message about an object; `asked` names the bytes."""
        return f"{without_secrets(url)} cannot be read{asked}: {self.clause}. {self.remedy}"


def profile_line(name: str) -> str:
    """Return the line of a shell that sets the keys of an AWS profile in the environment."""
    return f'eval "$(aws configure export-credentials --profile {shlex.quote(name)} --format env)"'


def fault_of(error: Exception, url: str, secrets: list[str]) -> Fault:
    """Return the fault that an error of obstore means."""
    text = str(error)
    for secret in secrets:
        text = text.replace(secret, "...")
    first, _, details = text.partition("\n\nDebug source:")
    name = type(error).__name__
    found = _STATUS.search(first)
    if any(server in first for server in _METADATA_SERVERS):
        of_profile = f" (those of a profile: {profile_line('default')})" if url.startswith("s3://") else ""
        return Fault(
            "there are no credentials",
            f"Set them in the environment{of_profile}, pass storage_options, or "
            f"storage_options={{'skip_signature': True}} for a public bucket.",
            is_transient=True,
            kind="no credentials",
            is_config=True,
        )
    if found:
        return _of_status(int(found[1]), first, details)
    if name == "FileNotFoundError":
        return _of_status(404, first, details)
    if name == "InvalidPathError":
        path = printable(first.rpartition("invalid path: ")[2].strip())
        return Fault(f"a key below it is not a path ({path})", "Remove or rename it.", kind="odd key")
    if name == "NotSupportedError" and "Range" in first:
        return Fault(
            "the server answers 200 with the whole object where a range of bytes was asked for",
            "Serve it by a web server that knows ranges.",
        )
    if "redirect" in first.lower():
        return Fault(
            "the store redirects without saying where to, as S3 does for a bucket of another region",
            "Set the bucket's region: AWS_REGION, or storage_options={'region': ...}.",
            is_config=True,
        )
    return _of_connection(name, first, details)


def _of_status(status: int, first: str, details: str) -> Fault:
    reason = _reason(first, details)
    clause = f"the store answered {status}{reason}"
    if status == 404:
        is_bucket = any(code in first + details for code in _NO_BUCKET)
        if is_bucket:
            return Fault(clause, "The bucket is wrong: there is none of this name.", kind="no bucket")
        return Fault(clause, "Check the URL (and the endpoint), and whether it is there.", kind="missing")
    if status == 412:
        return Fault(clause, "", kind="changed")
    if any(words in first + details for words in _EXPIRED):
        remedy = "The credentials have expired: renew them, and start again."
        return Fault(clause, remedy, is_transient=True, kind="expired")
    if any(code in first + details for code in _UNKNOWN_KEYS):
        remedy = "Correct the credentials (environment, storage_options): the store does not know them."
        return Fault(clause, remedy, kind="unknown keys")
    if status in (401, 403):
        remedy = (
            "Check that the credentials (environment, storage_options) may read it; "
            "storage_options={'skip_signature': True} reads a public bucket without a signature."
        )
        return Fault(clause, remedy, kind="refused")
    if status in _TRANSIENT:
        remedy = "Use fewer connections (RemoteOptions)." if status in (429, 503) else "Try again later."
        return Fault(clause, remedy, is_transient=True)
    return Fault(clause, "Check the URL, endpoint and region.", kind="refused")


def _of_connection(name: str, first: str, details: str) -> Fault:
    known = first + details
    lowered = known.lower()
    if "certificate" in lowered or "unknownissuer" in lowered or "notvalidforname" in lowered:
        return Fault(
            f"the server's certificate is not trusted{_certificate_reason(known)}",
            "Pass its authority's certificate (PEM): storage_options={'root_certificate': ...}.",
            is_config=True,
        )
    if "dns error" in lowered or "failed to lookup" in lowered:
        return Fault("its host has no address", "Check the URL (or the endpoint) and the network.", True, "unresolved")
    if re.search(r"kind: connect\b", lowered):
        clause = "the connection was refused" if "refused" in lowered else "no connection to its host could be made"
        return Fault(clause, "Check the URL, the endpoint and the network.", True, "unreachable")
    if "timedout" in lowered or "timed out" in lowered:
        return Fault("the server sent nothing for a while", "Check the network.", is_transient=True)
    if name == "GenericError" and ("request or response body" in first or "error sending request" in first):
        return Fault("the connection broke in the middle of an answer", "Check the network.", is_transient=True)
    if "unexpectedrange" in lowered:
        return Fault("the server sent another range of bytes than was asked for", "", is_transient=True)
    if "Account must be specified" in first:
        remedy = "Set AZURE_STORAGE_ACCOUNT_NAME, or storage_options={'account_name': ...}."
        return Fault("Azure's account is not named", remedy, is_config=True)
    line = re.sub(r"^Generic \w+ error: ", "", first.partition("\n")[0])[:_MOST_LETTERS].rstrip(". ")
    is_config = name in ("UnknownConfigurationKeyError", "ValueError", "TypeError")
    return Fault(line, "Check the URL and storage_options.", is_config=is_config)


def _certificate_reason(text: str) -> str:
    found = re.search(r"invalid peer certificate: (?:Other\(OtherError\()?(\w+)", text)
    return f" ({found[1]})" if found else ""


def _reason(first: str, details: str) -> str:
    """Return the words behind a status, and the code in the body of an answer from S3."""
    found = re.search(r"status code: \d{3} ([A-Z][A-Za-z' ]*)", first)
    code = re.search(r"<Code>(\w+)</Code>", first + details)
    words = f" {found[1].strip()}" if found else ""
    return f"{words} ({code[1]})" if code else words
