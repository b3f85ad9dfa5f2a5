"""The certificate and settings of new TLS connections.

Files are checked from time to time, when a client connects: changed files apply to new connections,
without a restart. Unusable files are logged, and the previous ones stay in use.
"""

import logging
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pybroker.base.runtime import Clock
from pybroker.security.certificates import has_expired
from pybroker.security.identity import Certificate
from pybroker.security.keys import KeyFailure

_PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_FULL_NAME: Final = re.compile(r"TLS_(?:(RSA)|(\w+?))_WITH_(\w+)_(SHA\d*)")

log = logging.getLogger("pybroker.tls")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of broker.conf, without their prefix."""

    certificate_file_path: str
    key_file_path: str
    trust_certs_file_path: str = ""
    require_trusted_client_cert: bool = False
    protocols: Sequence[str] = ()  # empty: TLS 1.2 and 1.3
    ciphers: Sequence[str] = ()  # of TLS 1.2; OpenSSL's names, or full names

    @property
    def files(self) -> list[str]:
        paths = (self.certificate_file_path, self.key_file_path, self.trust_certs_file_path)
        return [path for path in paths if path]


class TlsContexts:
    def __init__(self, settings: TlsSettings, refresh_check_s: float, clock: Clock) -> None:
        """Raises KeyFailure if a file or a setting cannot be used."""
        self._settings = settings
        self._refresh_check_s = refresh_check_s
        self._clock = clock
        self._stamps = _stamps(settings)
        self._context = make_context(settings)
        self._next_check_s = clock.monotonic_s() + refresh_check_s

    def has_expired(self, certificate: Certificate) -> bool:
        return has_expired(certificate, self._clock.now_ms())

    def current(self) -> ssl.SSLContext:
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + self._refresh_check_s
            self._load_if_changed()
        return self._context

    def reload(self) -> bool:
        """Check the files now: changed ones apply to new connections. False if they are unusable,
        which is logged.
        """
        return self._load_if_changed()

    def _load_if_changed(self) -> bool:
        stamps = _stamps(self._settings)
        if stamps == self._stamps:
            return True
        try:
            self._context = make_context(self._settings)
        except KeyFailure as error:  # perhaps half written: checked again the next time
            log.error("the previous certificate stays in use: %s", error)
            return False
        self._stamps = stamps
        log.warning("now using the certificate in %s", self._settings.files[0])
        return True


def _stamps(settings: TlsSettings) -> list[tuple[int, int] | None]:
    return [_stamp(Path(path)) for path in settings.files]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises KeyFailure if a file or a setting cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _choose_protocols(context, settings.protocols)
    if settings.ciphers:
        _choose_ciphers(context, settings.ciphers)
    _load_certificate(context, settings)
    _ask_clients(context, settings)
    return context


def _choose_protocols(context: ssl.SSLContext, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in _PROTOCOLS]
    if unknown:
        raise KeyFailure(
            f"tlsProtocols: {unknown[0][:40]!r} is not supported; use {', '.join(_PROTOCOLS)}"
        )
    chosen = sorted(_PROTOCOLS[name] for name in names or _PROTOCOLS)
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]


def _choose_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """For TLS 1.2; TLS 1.3 has its own few ciphers, all good, which are not configured here."""
    chosen = [openssl_name(name) for name in names if "_WITH_" in name or "_" not in name]
    if not chosen:
        return
    try:
        context.set_ciphers(":".join(chosen))
    except ssl.SSLError:
        raise KeyFailure(f"tlsCiphers: OpenSSL knows none of {', '.join(names)[:200]}") from None


def openssl_name(name: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    found = _FULL_NAME.fullmatch(name)
    if found is None:
        return name
    _, exchange, cipher, digest = found.groups()
    if cipher.startswith("CHACHA20"):
        digest = ""
    cipher = re.sub(r"AES_(\d+)(_CBC)?", r"AES\1", cipher)
    parts = [exchange, cipher, digest]
    return "-".join(part.replace("_", "-") for part in parts if part)


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.certificate_file_path or not settings.key_file_path:
        raise KeyFailure("a TLS port needs tlsCertificateFilePath and tlsKeyFilePath, in PEM")
    try:
        context.load_cert_chain(
            settings.certificate_file_path, settings.key_file_path, _no_password
        )
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise KeyFailure(
            f"tlsCertificateFilePath={settings.certificate_file_path} and "
            f"tlsKeyFilePath={settings.key_file_path} cannot be used: {error}"
        ) from None


def _no_password() -> str:
    """Instead of a password prompt on the terminal."""
    raise ValueError("the key is encrypted; use a key without a password")


def _ask_clients(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.trust_certs_file_path:
        if settings.require_trusted_client_cert:
            raise KeyFailure("tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath")
        return
    try:
        context.load_verify_locations(settings.trust_certs_file_path)
    except OSError as error:
        raise KeyFailure(
            f"tlsTrustCertsFilePath={settings.trust_certs_file_path} cannot be used: {error}"
        ) from None
    # A resumed session has the certificate of its first handshake, which is not verified again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    required = settings.require_trusted_client_cert
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
