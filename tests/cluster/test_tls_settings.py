"""The keys of broker.conf for TLS to bookies and ZooKeeper: they take effect, or errors say what to
do.
"""

import asyncio
from pathlib import Path

import pytest
from certificates import Authority

from managed_ledger.storage.bookkeeper.backend import ClusterConfig
from managed_ledger.storage.tls_files import ClientTls
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import parse_config
from pybroker.cluster.bad_settings import BadSettings
from pybroker.cluster.settings import ClusterSettings, cluster_settings

SERVERS = "metadataStoreUrl=zk:one:2181\n"
TLS = "bookkeeperTLSClientAuthentication=true\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate, key = authority.issue("broker")
    both = Path(key).read_text() + Path(certificate).read_text()
    (authority.directory / "broker.pem").write_text(both)
    (authority.directory / "ca.pem").write_text(authority.path.read_text())
    return authority.directory


def settings(text: str) -> ClusterSettings:
    config: BrokerConfig = parse_config(SERVERS + text, "broker.conf")
    return cluster_settings(config)


def of_zookeeper(folder: Path, text: str) -> ClusterSettings:
    path = folder / "client.conf"
    path.write_text(text.replace("FOLDER", str(folder)))
    return settings(f"metadataStoreConfigPath={path}")


def test_without_its_keys_there_is_no_tls() -> None:
    found = settings("bookkeeperTLSKeyFileType=PEM\nbookkeeperTLSTrustCertsFilePath=\n")
    assert found.bookie_tls is None and found.zookeeper_tls is None


def test_apaches_keys_give_tls_to_bookies(folder: Path) -> None:
    found = settings(
        f"{TLS}bookkeeperTLSTrustCertsFilePath={folder}/ca.crt\n"
        f"bookkeeperTLSCertificateFilePath={folder}/broker.crt\n"
        f"bookkeeperTLSKeyFilePath={folder}/broker.key\n"
    ).bookie_tls
    assert found is not None and not found.files.checks_host_name
    checking = settings(f"{TLS}bookkeeper_hostnameVerificationEnabled=true").bookie_tls
    assert checking is not None and checking.files.checks_host_name


def test_zookeepers_properties_give_tls_to_zookeeper(folder: Path) -> None:
    found = of_zookeeper(
        folder,
        "# of ZooKeeper's client\nzookeeper.client.secure=true\n"
        "zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty\n"
        "zookeeper.ssl.trustStore.location=FOLDER/ca.pem\n"
        "zookeeper.ssl.keyStore.location=FOLDER/broker.pem\n",
    ).zookeeper_tls
    assert found is not None and found.files.checks_host_name
    assert of_zookeeper(folder, "zookeeper.client.secure=false").zookeeper_tls is None


def test_zookeepers_properties_are_separated_as_java_does(folder: Path) -> None:
    found = of_zookeeper(
        folder,
        "zookeeper.client.secure : true\n"
        "zookeeper.ssl.trustStore.location FOLDER/ca.pem\n"
        "  zookeeper.ssl.hostnameVerification:false\n",
    ).zookeeper_tls
    assert found is not None and not found.files.checks_host_name
    assert found.files.trusted == f"{folder}/ca.pem"


def test_zero_seconds_mean_what_apache_pulsar_says(folder: Path) -> None:
    """0 means: read bookies' certificates once, and check ZooKeeper's for each connection."""
    authority = Authority(folder)
    certificate, key = authority.issue("renewed")

    async def is_renewed(tls: ClientTls | None) -> bool:
        assert tls is not None
        first = tls.context()
        authority.issue("renewed")
        return tls.context() is not first

    to_bookies = settings(
        f"{TLS}bookkeeperTlsCertFilesRefreshDurationSeconds=0\n"
        f"bookkeeperTLSCertificateFilePath={certificate}\nbookkeeperTLSKeyFilePath={key}\n"
    ).bookie_tls
    assert not asyncio.run(is_renewed(to_bookies))
    path = folder / "zero.conf"
    path.write_text(
        f"zookeeper.client.secure=true\nzookeeper.ssl.trustStore.location={certificate}"
    )
    path.write_text(path.read_text().replace(".crt", ".crt\nzookeeper.ssl.trustStore.type=PEM"))
    to_zookeeper = settings(f"metadataStoreConfigPath={path}\ntlsCertRefreshCheckDurationSec=0")
    assert asyncio.run(is_renewed(to_zookeeper.zookeeper_tls))


REFUSED = {
    "bookkeeperTLSTrustCertsFilePath=/ca.pem": "bookkeeperTLSClientAuthentication=true: set it, or",
    "bookkeeperTLSTrustStorePasswordPath=/p": "bookkeeperTLSClientAuthentication=true: set it, or",
    f"{TLS}bookkeeperTLSKeyFileType=JKS": "bookkeeperTLSKeyFileType=JKS: only PEM files",
    f"{TLS}bookkeeperTLSTrustCertTypes=PKCS12": "bookkeeperTLSTrustCertTypes=PKCS12: only PEM",
    f"{TLS}bookkeeperTLSTrustStorePasswordPath=/p": "in PEM have no password; remove it",
    f"{TLS}bookkeeperTLSKeyFilePath=/k": "without bookkeeperTLSCertificateFilePath",
    f"{TLS}bookkeeperTLSTrustCertsFilePath=/none.pem": "that the broker can read.*/none.pem",
    f"{TLS}bookkeeperTLSProviderFactoryClass=a.B": "pybroker runs no Java classes; use the default",
    "bookkeeperClientAuthenticationPlugin=a.SASL": "does not log in to bookies with SASL",
    "configurationMetadataStoreUrl=zk:two:2181": "the same ZooKeeper servers as metadataStoreUrl",
    "metadataStoreConfigPath=/none.conf": "metadataStoreConfigPath=/none.conf cannot be read",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_take_effect_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match=REFUSED[text]):
        settings(text)


SECURE = "zookeeper.client.secure=true\n"
REFUSED_OF_ZOOKEEPER = {
    "zookeeper.ssl.keyStore.location=/a.pem": "not encrypted unless zookeeper.client.secure=true",
    f"{SECURE}zookeeper.ssl.keyStore.location=/a.jks": "only PEM files.*keyStore.type=PEM",
    f"{SECURE}zookeeper.ssl.trustStore.type=JKS": "only PEM files.*trustStore.type=PEM",
    f"{SECURE}zookeeper.ssl.keyStore.password=hidden": "it with zookeeper.ssl.keyStore.password",
    f"{SECURE}zookeeper.ssl.keyStore.password: hidden": "keyStore.passwordPath",
    f"{SECURE}zookeeper.ssl.trustStore.passwordPath=/p": "have no password; remove it",
    f"{SECURE}zookeeper.ssl.ciphersuites=x": "has no effect in pybroker: remove it",
    "zookeeper.sasl.client=true": "does not log in to ZooKeeper with SASL",
    "zookeeper.client.secure=yes": "zookeeper.client.secure must be true or false",
    f"{SECURE}zookeeper.ssl.trustStore.location=/none.pem": "that the broker can read.*/none.pem",
}


@pytest.mark.parametrize("text", REFUSED_OF_ZOOKEEPER)
def test_what_zookeepers_file_cannot_have_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(BadSettings, match=REFUSED_OF_ZOOKEEPER[text]) as refused:
        of_zookeeper(folder, text)
    assert "hidden" not in str(refused.value)


def test_a_key_that_needs_a_password_names_the_key_for_it(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization as of

    key = of.load_pem_private_key((folder / "broker.key").read_bytes(), None)
    locked = of.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(of.Encoding.PEM, of.PrivateFormat.PKCS8, locked)
    (folder / "locked.key").write_bytes(pem)
    (folder / "password").write_text("secret\n")
    text = (
        f"{TLS}bookkeeperTLSCertificateFilePath={folder}/broker.crt\n"
        f"bookkeeperTLSKeyFilePath={folder}/locked.key\n"
    )
    with pytest.raises(BadSettings, match="key is encrypted"):
        settings(text)
    assert settings(f"{text}bookkeeperTLSKeyStorePasswordPath={folder}/password").bookie_tls


def test_new_ledgers_have_the_password_of_apaches_key_which_nobody_is_shown() -> None:
    found = settings("managedLedgerPassword=hidden\n")
    assert found.ledger_password == b"hidden"
    assert settings("").ledger_password == b""
    assert "hidden" not in repr(found) + repr(ClusterConfig(ledger_password=b"hidden"))
    assert "hidden" not in repr(BrokerConfig(managed_ledger_password="hidden"))


def test_checksums_of_another_kind_are_refused() -> None:
    assert settings("managedLedgerDigestType=CRC32C")
    with pytest.raises(BadSettings, match="managedLedgerDigestType=MAC: pybroker stores"):
        settings("managedLedgerDigestType=MAC")
