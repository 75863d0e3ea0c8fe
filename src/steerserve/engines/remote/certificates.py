"""Keys and certificates that prove to each end of a link that the other end is the expected one.

A key is made for one engine, and lives in the memory of one process. Only certificates leave the process.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALIDITY = timedelta(days=366)
"""How long before and after its making a certificate is valid. A certificate is used within a minute of its making, so
this bounds how far the clocks of two nodes may differ."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One end of a link. `certificate` is public, in PEM; the key stays in this process."""

    certificate: str
    _key: bytes = field(repr=False)

    def __reduce__(self) -> str:
        raise TypeError("the key of an identity never leaves its process")

    def as_server(self, peer: str) -> ssl.SSLContext:
        """The context of the end that listens, for the peer with this certificate alone.

        Raises:
            ValueError: `peer` is no certificate.
        """
        return self._context(ssl.PROTOCOL_TLS_SERVER, peer)

    def as_client(self, peer: str) -> ssl.SSLContext:
        """The context of the end that connects, for the peer with this certificate alone.

        Raises:
            ValueError: `peer` is no certificate.
        """
        return self._context(ssl.PROTOCOL_TLS_CLIENT, peer)

    def _context(self, protocol: int, peer: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate itself is known, so its name says nothing
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=_checked(peer))
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no session is taken up again
        self._load_key(context)
        return context

    def _load_key(self, context: ssl.SSLContext) -> None:
        """Give the key to the library, which reads keys from files only. The file is in memory and has no name."""
        file = os.memfd_create("identity")
        try:
            os.write(file, self._key + self.certificate.encode())
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)


def new_identity() -> Identity:
    """A new key, with a certificate that the key signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "steerserve engine link")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALIDITY)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def is_pinned(connection: ssl.SSLObject, peer: str) -> bool:
    """Whether the other end of a connection showed exactly this certificate."""
    return connection.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(peer)


def _checked(peer: str) -> str:
    """The text of exactly one certificate, so that no second one is trusted.

    Raises:
        ValueError: the text is something else.
    """
    (certificate,) = x509.load_pem_x509_certificates(peer.encode())
    return str(certificate.public_bytes(serialization.Encoding.PEM), "ascii")
