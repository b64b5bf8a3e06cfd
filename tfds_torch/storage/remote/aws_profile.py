"""Credentials of an AWS profile, which obstore does not read by itself: the files of `aws configure`.

Keys are read again every 15 minutes, so that a tool that renews them in the file does not end a long run. Profiles that
have to ask a service first (SSO, a role, a command) are read by boto3, where it is installed.
"""

import asyncio
import configparser
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tfds_torch.storage.remote.faults import Fault

_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_OWN_KEYS = ("access_key_id", "skip_signature", "web_identity_token_file", "container_credentials_full_uri")
_ASKS_A_SERVICE = ("sso_session", "sso_start_url", "role_arn", "credential_process")
_ALSO_IN_PROFILES = (
    ("region", "region", {"AWS_REGION", "AWS_DEFAULT_REGION"}),
    ("endpoint", "endpoint_url", {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"}),
)
_VALID = timedelta(minutes=15)

Provider = Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]]


def profile_provider(config: Mapping[str, Any]) -> tuple[dict[str, Any], Provider | None]:
    """Returns what a profile adds to a store's configuration, and what gives its credentials; None: there is none.

    Args:
        config: of the store; its own credentials, and those of the environment, come first.

    Raises:
        Fault: a profile was named that is not there, or that needs boto3.
    """
    named = os.environ.get("AWS_PROFILE")
    name = named or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    values = _profile(name)
    if not values and named:
        raise Fault(
            f"AWS_PROFILE names the profile {named!r}, and {_file('credentials')} and {_file('config')} have none",
            "Correct its name.",
            is_config=True,
        )
    added: dict[str, Any] = {}
    for ours, theirs, variables in _ALSO_IN_PROFILES:
        if theirs in values and ours not in config and not variables & os.environ.keys():
            added[ours] = values[theirs]
    if any(key in config for key in _OWN_KEYS) or any(key in os.environ for key in _OTHER_SOURCES):
        return added, None
    if "aws_access_key_id" in values:
        return added, lambda: _keys(name)
    if any(key in values for key in _ASKS_A_SERVICE):
        return added, _boto_provider(name)
    return added, None


def _keys(name: str) -> dict[str, Any]:
    values = _profile(name)
    for key in ("aws_access_key_id", "aws_secret_access_key"):
        if not values.get(key):  # It may be written at this moment.
            raise LookupError(f"the profile {name!r} has no {key}")
    return {
        "access_key_id": values["aws_access_key_id"],
        "secret_access_key": values["aws_secret_access_key"],
        "token": values.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + _VALID,
    }


def _boto_provider(name: str) -> Provider:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise Fault(
            f"the profile {name!r} asks a service for its credentials, which boto3 does, and it is not installed",
            "Run pip install boto3, or set the variables that `aws configure export-credentials --format env` prints.",
            is_config=True,
        ) from error

    def ask() -> dict[str, Any]:
        """Reads the profile anew: a session keeps the keys with which it asks for those of a role."""
        return dict(Boto3CredentialProvider(boto3.session.Session(profile_name=name), ttl=_VALID)())

    async def ask_beside() -> dict[str, Any]:
        return await asyncio.to_thread(ask)  # obstore's few threads must not wait for a service.

    return ask_beside


def _profile(name: str) -> dict[str, str]:
    """Returns the values of a profile from both files; empty: there is none."""
    values: dict[str, str] = {}
    for kind, section in (("config", name if name == "default" else f"profile {name}"), ("credentials", name)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(_file(kind), encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise Fault(f"{_file(kind)} is not what `aws configure` writes", "Correct it.", is_config=True) from error
        if parser.has_section(section):
            values |= dict(parser.items(section))
    return values


def _file(kind: str) -> Path:
    variable = {"config": "AWS_CONFIG_FILE", "credentials": "AWS_SHARED_CREDENTIALS_FILE"}[kind]
    return Path(os.path.expanduser(os.environ.get(variable) or f"~/.aws/{kind}"))
