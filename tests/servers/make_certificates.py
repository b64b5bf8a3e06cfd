"""A certificate authority of the tests' own, and a certificate of 127.0.0.1 and localhost that it has signed."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from servers.certificates import Certificates


def make_certificates(folder: Path) -> Certificates:
    """Writes a new authority and a certificate that it has signed; both are valid for a day."""
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name, server_name = _name("tfds_torch tests"), _name("localhost")
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    authority = (
        _begin(authority_name, authority_name, authority_key.public_key())
        .add_extension(is_authority, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        _begin(server_name, authority_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    made = Certificates(folder / "authority.pem", folder / "server.pem")
    made.authority.write_bytes(authority.public_bytes(pem))
    made.server.write_bytes(key + server.public_bytes(pem))
    return made


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
    )
