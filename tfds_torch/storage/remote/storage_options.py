"""Storage options: the keys that a store accepts, by obstore's names."""

from collections.abc import Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

_S3 = """access_key_id secret_access_key session_token region default_region endpoint bucket skip_signature
request_payer virtual_hosted_style_request unsigned_payload imdsv1_fallback metadata_endpoint s3_express
container_credentials_relative_uri container_credentials_full_uri container_authorization_token_file role_arn
role_session_name web_identity_token_file sts_endpoint server_side_encryption sse_kms_key_id sse_bucket_key_enabled
sse_customer_key_base64 disable_tagging"""
_GS = """service_account service_account_key application_credentials bearer_token base_url bucket skip_signature"""
_AZ = """account_name account_key client_id client_secret credential_type tenant_id authority_host sas_key bearer_token
endpoint use_emulator use_fabric_endpoint encryption_key msi_endpoint object_id msi_resource_id federated_token_file
use_azure_cli skip_signature container_name disable_tagging"""
_CLIENT = """allow_http allow_invalid_certificates connect_timeout default_headers http1_only http2_only
pool_idle_timeout pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes root_certificate
randomize_addresses read_timeout user_agent"""

KEYS = {"s3": frozenset(_S3.split()), "gs": frozenset(_GS.split()), "az": frozenset(_AZ.split())}
"""Scheme -> keys of its store, by obstore's names; https:// and http:// have the keys of the client only."""
CLIENT_KEYS = frozenset(_CLIENT.split())
"""Keys of the HTTP client, for every scheme."""
_OTHER_NAMES = {
    "anon": "skip_signature",
    "key": "access_key_id (s3://) or account_key (az://)",
    "secret": "secret_access_key",
    "token": "session_token (s3://), bearer_token (gs://, az://) or default_headers (https://)",
    "endpoint_url": "endpoint (s3://, az://) or base_url (gs://)",
    "headers": "default_headers",
    "requester_pays": "request_payer",
}
"""Name of a key in fsspec -> its name in obstore."""
_FLAG_NAMES = """skip_signature request_payer virtual_hosted_style_request unsigned_payload imdsv1_fallback s3_express
sse_bucket_key_enabled disable_tagging use_emulator use_fabric_endpoint use_azure_cli allow_http
allow_invalid_certificates http1_only http2_only randomize_addresses"""
_FLAGS = frozenset(_FLAG_NAMES.split())
_COUNTS = frozenset({"pool_max_idle_per_host"})
_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_STORAGE_"}
"""Scheme -> prefix of the names of its environment variables."""
_PREFIXES = ("aws_", "google_", "azure_storage_", "azure_")


def check_storage_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of storage options, whose keys are checked; no error message contains a value."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"RemoteOptions: storage_options must be a mapping, not a {type(options).__name__}.")
    known = _known()
    for key in options:
        name = _plain(key) if isinstance(key, str) else key
        if name in _OTHER_NAMES:
            raise ConfigError(f"RemoteOptions: the storage option {quoted(key)} is called {_OTHER_NAMES[name]} here.")
        if name not in known:
            raise ConfigError(
                f"RemoteOptions: unknown storage option {quoted(key)}: the keys are those of obstore's stores and of "
                f"its client.{did_you_mean(name, known)}"
            )
        _check_value(key, name, options[key])
    return dict(options)


def _check_value(key: str, name: str, value: Any) -> None:
    """Raise ConfigError for a value that no store understands; the message does not show it."""
    found = f"RemoteOptions: storage option {quoted(key)}"
    if name == "default_headers":
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for pair in value.items() for one in pair):
            raise ConfigError(
                f"{found} must be a mapping of names to texts, such as {{'Authorization': 'Bearer ...'}}."
            )
    elif name in _FLAGS or name in _COUNTS:
        kinds = (bool, str) if name in _FLAGS else (int, str)
        if not isinstance(value, kinds) or (name in _COUNTS and isinstance(value, bool)):
            raise ConfigError(f"{found} must be {'True or False' if name in _FLAGS else 'a number'}.")
    elif not isinstance(value, str | bytes):
        without = " Leave it out where there is none." if value is None else ""
        raise ConfigError(f"{found} must be a text, not a {type(value).__name__}.{without}")
    elif name in ("endpoint", "base_url"):
        if not str(value).startswith(("http://", "https://")):
            raise ConfigError(f"{found} must be a URL with http:// or https://, such as https://host:9000.")
    elif name in ("root_certificate", "proxy_ca_certificate") and not _is_pem(value):
        raise ConfigError(
            f"{found} must be a certificate in PEM's text, -----BEGIN CERTIFICATE-----, not a path: read the file, "
            f"as by Path(...).read_text()."
        )


def _is_pem(value: str | bytes) -> bool:
    return b"-----BEGIN CERTIFICATE-----" in (value.encode() if isinstance(value, str) else value)


def options_of_scheme(scheme: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of a scheme's store and of its client, in obstore's names.

    A key that only another scheme has is left out, so that the same options serve datasets in several stores.
    """
    store: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in options.items():
        name = _plain(key)
        if name in CLIENT_KEYS:
            client[name] = str(value) if name in _COUNTS else value
        elif name in KEYS.get(scheme, ()):
            store[name] = value
    return store, client


def secrets_of(options: Mapping[str, Any] | None) -> list[str]:
    """Return the texts that no message may contain."""
    found = []
    for key, value in (options or {}).items():
        name = key.lower()
        if isinstance(value, Mapping):
            found += [str(one) for one in value.values()]
        elif any(word in name for word in ("key", "secret", "token", "account", "sas", "password")):
            found.append(str(value))
    return [one for one in found if len(one) > 3]


def _plain(key: str) -> str:
    """Return a key in lower case, without the prefix that obstore allows."""
    name = key.lower()
    known = _known()
    for prefix in _PREFIXES:
        if name.startswith(prefix) and name[len(prefix) :] in known | _OTHER_NAMES.keys():
            return name[len(prefix) :]
    return name


def _known() -> set[str]:
    return set().union(*KEYS.values(), CLIENT_KEYS)


def environment_variables(options: Mapping[str, Any], url: str) -> list[str]:
    """Return the environment variables for storage options of a URL's store; empty: the store reads none."""
    prefix = _VARIABLES.get(url.partition("://")[0])
    return [] if prefix is None else sorted(f"{prefix}{_plain(key).upper()}" for key in options)
