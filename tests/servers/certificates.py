"""Certificates: the files of an authority of the tests' own, and of a server that it vouches for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Two PEM files.

    Attributes:
        authority: the certificate that a client must trust.
        server: a server's key and certificate.
    """

    authority: Path
    server: Path
