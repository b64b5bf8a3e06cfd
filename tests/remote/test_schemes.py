"""az:// and https:// against servers that others wrote; s3:// and gs:// are in the modules beside this one."""

from pathlib import Path
from typing import Any

import pytest
from servers.azure_server import AzureServer
from servers.certificates import Certificates
from servers.nginx_server import NginxServer

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.remote.options import RemoteOptions

pytestmark = pytest.mark.slow  # Their servers are not installed for an ordinary run.
BLOCKS = ReadOptions(block_records=4, shuffle_buffer=8)


def read_epoch(root: str, storage_options: dict[str, Any] | None = None) -> list[Any]:
    remote = None if storage_options is None else RemoteOptions(storage_options=storage_options)
    parser = ParserTfds(root, "numbered:1.0.0", is_training=True, batch_size=4, read=BLOCKS, remote=remote)
    return [(batch.index.tolist(), list(batch.id)) for batch in parser.batches(fields=("index", "id"))]


def test_azure_is_read_as_a_local_copy(azure_server: AzureServer, numbered_root: str, own_cache: Path) -> None:
    url = azure_server.fill(Path(numbered_root), "numbers")
    assert read_epoch(url, {"allow_http": True}) == read_epoch(numbered_root)
    remote = RemoteOptions(storage_options={"allow_http": True})
    newest = ParserTfds(url, "numbered", remote=remote)  # Azure lists folders: the version need not be named.
    assert newest.fingerprint == ParserTfds(numbered_root, "numbered").fingerprint


def test_a_web_server_of_an_own_authority_is_read_where_its_certificate_is_given(
    nginx_server: NginxServer, certificates: Certificates, numbered_root: str, own_cache: Path
) -> None:
    (nginx_server.folder / "numbers").symlink_to(numbered_root)
    url, authority = f"{nginx_server.tls_url}/numbers", certificates.authority.read_text()
    with pytest.raises(ConfigError, match=r"certificate is not trusted.*root_certificate"):
        read_epoch(url)
    assert read_epoch(url, {"root_certificate": authority}) == read_epoch(numbered_root)
