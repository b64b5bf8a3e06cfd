"""The servers, each of which is tried here by obstore alone."""

from server_fixtures import (
    azure_server,
    certificates,
    faulty_s3,
    faulty_server,
    gcs_server,
    nginx_server,
    no_credentials,
    refused_url,
    s3_server,
    untrusted_server,
)

__all__ = [
    "azure_server",
    "certificates",
    "faulty_s3",
    "faulty_server",
    "gcs_server",
    "nginx_server",
    "no_credentials",
    "refused_url",
    "s3_server",
    "untrusted_server",
]
