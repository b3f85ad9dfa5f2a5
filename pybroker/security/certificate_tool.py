"""`pybroker certificates`: creates an authority, a broker's certificate, and certificates of roles.

For a network without an authority. Existing files stay, so the same command may run at each start:
only missing files are created, with the existing authority. Without --renew an existing key is
never lost: if it has no certificate, or another key's (after an interrupted run), it gets its own.
"""

import argparse
import importlib.util
import ipaddress
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pybroker.security.keys import KeyFailure, missing, private_key

_AUTHORITY_DAYS: Final = 3650
_MAX_DAYS: Final = 36_500
_ROLE: Final = re.compile(r"[\w.@-]{1,64}")
_HOST: Final = re.compile(r"[A-Za-z0-9*._-]{1,253}")
_BROKER: Final = "broker"
_AUTHORITY: Final = "ca"


def add_certificates(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-o", "--output", type=Path, default=Path(), metavar="FOLDER",
        help="folder for ca.crt, broker.crt, broker.key, … (default: current)")  # fmt: skip
    add("--host", action="append", default=[], metavar="NAME",
        help="host name or address of the broker; repeatable (default: localhost)")  # fmt: skip
    add("--role", action="append", default=[], metavar="NAME",
        help="also create a client certificate NAME.crt, NAME.key; repeatable")  # fmt: skip
    add("--days", type=int, default=365, help="validity in days (default 365)")
    add("--renew", action="store_true", help="renew the certificates with the existing authority")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        _check(options)
        options.output.mkdir(parents=True, exist_ok=True)
        _make(options)
    except (KeyFailure, OSError) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return 1
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raises KeyFailure for days out of range, and names that certificates or files cannot have."""
    if not 0 < options.days <= _MAX_DAYS:
        raise KeyFailure(f"--days {options.days} is not between 1 and {_MAX_DAYS}")
    for host in options.host:
        if not _HOST.fullmatch(host) and not _is_address(host):
            raise KeyFailure(f"--host {host[:80]!r} is neither a name nor an address")
    for role in options.role:
        taken = role.casefold() in (_BROKER, _AUTHORITY)
        if not _ROLE.fullmatch(role) or role.startswith(".") or taken:
            raise KeyFailure(
                f"--role {role[:80]!r} cannot name a file: use up to 64 letters, digits and .@-_, "
                f"but neither {_BROKER} nor {_AUTHORITY}"
            )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _make(options: argparse.Namespace) -> None:
    """Raises KeyFailure if cryptography is missing or a file there is not a key, OSError if one
    cannot be written.
    """
    if importlib.util.find_spec("cryptography") is None:
        raise missing("cryptography", "making certificates")
    authority = _Authority.at(options.output)
    names = {_BROKER: options.host or ["localhost"]} | {role: [] for role in options.role}
    for name, hosts in names.items():
        certificate, key = _files(options.output, name)
        there = _key_at(key)  # also on renewal: a file that is not a key belongs to the user
        if options.renew or there is None or not _belongs(certificate, there):
            own = _new_key() if options.renew or there is None else there
            authority.issue(name, hosts, options.days, certificate, key, own)
            print(certificate)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.crt", folder / f"{name}.key"


class _Authority:
    def __init__(self, key: Any, certificate: Any) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def at(cls, folder: Path) -> "_Authority":
        """The existing authority, or a new one. Raises KeyFailure, OSError."""
        certificate, key = _files(folder, _AUTHORITY)
        found = _key_at(key)
        if found is None and certificate.exists():
            raise KeyFailure(f"{certificate} exists, but {key} does not: an authority needs both")
        if found is None or not certificate.exists():
            return cls._new(certificate, key, found or _new_key())
        if not _belongs(certificate, found):
            raise KeyFailure(f"{certificate} and {key} do not belong together")
        return cls(found, _certificate_at(certificate))

    @classmethod
    def _new(cls, certificate: Path, key: Path, own: Any) -> "_Authority":
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        builder = _builder("pybroker authority", own, _AUTHORITY_DAYS)
        subject = _name("pybroker authority")
        signed = (
            builder.issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .sign(own, hashes.SHA256())
        )
        _write(certificate, key, signed, own)
        print(certificate)
        return cls(own, signed)

    def issue(
        self, name: str, hosts: list[str], days: int, certificate: Path, key: Path, own: Any
    ) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(hosts[0][:64] if hosts else name, own, days)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        _write(certificate, key, builder.sign(self._key, hashes.SHA256()), own)


def _key_at(path: Path) -> Any | None:
    """None if there is no such file. Raises KeyFailure, OSError."""
    if not path.exists():
        return None
    try:
        return private_key(path.read_bytes(), str(path))
    except KeyFailure as error:
        raise KeyFailure(f"{error}; it is not overwritten") from None


def _certificate_at(path: Path) -> Any:
    """Raises KeyFailure if the file is not a PEM certificate, OSError if it cannot be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise KeyFailure(f"{path} cannot be read: {error}") from None


def _belongs(certificate: Path, key: Any) -> bool:
    """Whether the certificate exists and belongs to this key. Raises KeyFailure, OSError."""
    return certificate.exists() and _certificate_at(certificate).public_key() == key.public_key()


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(common_name: str, key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(**wanted: bool) -> Any:
    from cryptography import x509

    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{use: wanted.get(use, False) for use in every})


def _alternative(host: str) -> Any:
    from cryptography import x509

    if _is_address(host):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def _write(certificate: Path, key: Path, signed: Any, own: Any) -> None:
    """Writes the key first, readable only by its owner, unless its file already has this key."""
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    form, nobody = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    there = _key_at(key)
    if there is None or there.public_key() != own.public_key():
        _put(key, own.private_bytes(pem, form, nobody), 0o600)
    _put(certificate, signed.public_bytes(pem), 0o644)


def _put(path: Path, data: bytes, mode: int) -> None:
    """Replaces the file atomically."""
    made = path.with_name(f"{path.name}.new")
    made.unlink(missing_ok=True)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    made.replace(path)
