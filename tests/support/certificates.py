"""A certificate authority for tests, and certificates that it signs, as PEM files.

They have what Python 3.13 demands: the purpose and the key's identifier of the authority, and in
each certificate the identifier of its authority's key.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Writes `name.crt` and `name.key` to its directory; its own certificate is `ca.crt`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        signed = self._sign(self._name, self._key, authority=True)
        self.path = directory / "ca.crt"
        self.path.write_bytes(signed)

    def issue(self, name: str, subject: list[tuple[Any, str]] | None = None) -> tuple[str, str]:
        """The paths of a new certificate and its key. A second call renews both files."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [(NameOID.COMMON_NAME, name)] if subject is None else subject
        signed = self._sign(x509.Name([x509.NameAttribute(*part) for part in parts]), key)
        certificate, private = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        certificate.write_bytes(signed)
        encoding, formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(encoding, formats, serialization.NoEncryption()))
        return str(certificate), str(private)

    def _sign(self, subject: x509.Name, key: Any, authority: bool = False) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        if authority:
            builder = builder.add_extension(_SIGNS, critical=True)
        else:
            names = [x509.DNSName("localhost"), x509.DNSName("127.0.0.1")]
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(issuer, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)
