"""broker.conf's keys about TLS to bookies, and the file that configures ZooKeeper's client.

Settings that would leave a connection less protected than they say are refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from managed_ledger.storage.tls_files import ClientTls, TlsFiles
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import camel_case
from pybroker.cluster.bad_settings import BadSettings

_FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
_BOOKIE_FILES: Final = (
    "bookkeeper_tls_trust_certs_file_path",
    "bookkeeper_tls_certificate_file_path",
    "bookkeeper_tls_key_file_path",
    "bookkeeper_tls_key_store_password_path",
    "bookkeeper_tls_trust_store_password_path",
)
_AS_PEM: Final = (
    "only PEM files are supported: convert it, for example with `keytool -importkeystore "
    "-deststoretype PKCS12` and then `openssl pkcs12 -nodes`"
)

# Keys of ZooKeeper's client: Java properties, or lines of its own configuration file.
_SECURE: Final = "zookeeper.client.secure"
_SASL: Final = "zookeeper.sasl.client"
_HOST_NAME: Final = "zookeeper.ssl.hostnameVerification"
_KEY_STORE: Final = "zookeeper.ssl.keyStore"
_TRUST_STORE: Final = "zookeeper.ssl.trustStore"
_ZOOKEEPER_KEYS: Final = frozenset(
    {
        _SECURE,
        _SASL,
        _HOST_NAME,
        "zookeeper.clientCnxnSocket",  # only for Java's client
        *(
            f"{store}.{each}"
            for store in (_KEY_STORE, _TRUST_STORE)
            for each in ("location", "type")
        ),
        f"{_KEY_STORE}.passwordPath",
    }
)
_SEPARATOR: Final = re.compile(r"\s*[=:]\s*|\s+")  # of Java properties
_BOOLEANS: Final = {"true": True, "false": False}


def bookie_tls(config: BrokerConfig) -> ClientTls | None:
    """None if connections have no TLS (bookkeeperTLSClientAuthentication=false). Raises
    BadSettings.
    """
    plugin = config.bookkeeper_client_authentication_plugin
    if plugin:
        raise BadSettings(
            f"bookkeeperClientAuthenticationPlugin={plugin[:200]}: pybroker does not log in to "
            "bookies with SASL or Kerberos. Leave it empty, and use TLS with a client certificate "
            "(bookkeeperTLSClientAuthentication=true)"
        )
    given = [name for name in _BOOKIE_FILES if getattr(config, name)]
    if not config.bookkeeper_tls_client_authentication:
        if given:
            raise BadSettings(
                f"{camel_case(given[0])} is set, but connections to bookies are not encrypted "
                "unless bookkeeperTLSClientAuthentication=true: set it, or remove "
                f"{camel_case(given[0])}"
            )
        return None
    factory = config.bookkeeper_tls_provider_factory_class
    if factory != _FACTORY:
        raise BadSettings(
            f"bookkeeperTLSProviderFactoryClass={factory[:200]}: pybroker runs no Java classes; "
            f"use the default, {_FACTORY}"
        )
    for name in ("bookkeeper_tls_key_file_type", "bookkeeper_tls_trust_cert_types"):
        if (kind := getattr(config, name)).upper() != "PEM":
            raise BadSettings(f"{camel_case(name)}={kind[:80]}: {_AS_PEM}")
    if config.bookkeeper_tls_trust_store_password_path:
        raise BadSettings(
            "bookkeeperTLSTrustStorePasswordPath: trusted certificates in PEM have no password; "
            "remove it"
        )
    certificate = config.bookkeeper_tls_certificate_file_path
    if config.bookkeeper_tls_key_file_path and not certificate:
        raise BadSettings(
            "bookkeeperTLSKeyFilePath is set without bookkeeperTLSCertificateFilePath: set "
            "both or neither"
        )
    files = TlsFiles(
        config.bookkeeper_tls_trust_certs_file_path,
        certificate,
        config.bookkeeper_tls_key_file_path,
        config.bookkeeper_tls_key_store_password_path,
        config.bookkeeper_hostname_verification_enabled,
    )
    return _usable(
        files,
        config.bookkeeper_tls_cert_files_refresh_duration_seconds or None,
        "bookkeeperTLSTrustCertsFilePath, bookkeeperTLSCertificateFilePath and "
        "bookkeeperTLSKeyFilePath",
    )


def zookeeper_tls(config: BrokerConfig) -> ClientTls | None:
    """The settings in the file of metadataStoreConfigPath; None if connections have no TLS. Raises
    BadSettings.
    """
    path = config.metadata_store_config_path
    if not path:
        return None
    given = dict(_properties(path))
    for key in given:
        if key not in _ZOOKEEPER_KEYS:
            raise BadSettings(_refusal(path, key))
    if _flag(path, given, _SASL, False):
        raise BadSettings(
            f"{path}: {_SASL}=true: pybroker does not log in to ZooKeeper with SASL, Kerberos or "
            f"digest. Set it to false, and use TLS with a client certificate ({_SECURE}=true)"
        )
    stores = [key for key in given if key.startswith("zookeeper.ssl.")]
    if not _flag(path, given, _SECURE, False):
        if stores:
            raise BadSettings(
                f"{path}: {stores[0]} is set, but connections to ZooKeeper are not encrypted "
                f"unless {_SECURE}=true: set it, or remove {stores[0]}"
            )
        return None
    for store in (_KEY_STORE, _TRUST_STORE):
        location = given.get(f"{store}.location", "")
        is_pem = location.lower().endswith(".pem")
        kind = given.get(f"{store}.type", "PEM" if is_pem or not location else "JKS")
        if kind.upper() != "PEM":
            raise BadSettings(
                f"{path}: {store}.location={location[:200]}: {_AS_PEM}, and set {store}.type=PEM"
            )
    files = TlsFiles(
        given.get(f"{_TRUST_STORE}.location", ""),
        given.get(f"{_KEY_STORE}.location", ""),
        "",
        given.get(f"{_KEY_STORE}.passwordPath", ""),
        _flag(path, given, _HOST_NAME, True),
    )
    refresh_s = config.tls_cert_refresh_check_duration_sec
    return _usable(files, refresh_s, f"{path}: {_TRUST_STORE}.location and {_KEY_STORE}.location")


def _usable(files: TlsFiles, refresh_s: float | None, names: str) -> ClientTls:
    try:
        return ClientTls(files, refresh_s)
    except (OSError, ValueError) as error:
        raise BadSettings(
            f"{names} must be PEM files of certificates that the broker can read, and the key must "
            f"belong to the certificate: {', '.join(files.paths)}: {error}"
        ) from error


def _properties(path: str) -> Iterator[tuple[str, str]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"metadataStoreConfigPath={path} cannot be read: {error}") from error
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, *value = _SEPARATOR.split(stripped, maxsplit=1)
            yield key, "".join(value)


def _flag(path: str, given: dict[str, str], key: str, default: bool) -> bool:
    text = given.get(key, "").lower()
    if not text:
        return default
    if text not in _BOOLEANS:
        raise BadSettings(f"{path}: {key} must be true or false")
    return _BOOLEANS[text]


def _refusal(path: str, key: str) -> str:
    if key.startswith(f"{_TRUST_STORE}.password"):
        return f"{path}: {key}: trusted certificates in PEM have no password; remove it"
    if key == f"{_KEY_STORE}.password":
        return f"{path}: {key}: write the password into a file, and name it with {key}Path"
    return (
        f"{path}: {key[:200]!r} has no effect in pybroker: remove it. The file of "
        f"metadataStoreConfigPath may contain {', '.join(sorted(_ZOOKEEPER_KEYS))}"
    )
