"""TLS on both ports: clients, renewed certificates, certificates as roles."""

import asyncio
import gc
import ssl
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from certificates import Authority
from credentials import TOKEN_SETTINGS, bearer, token
from cryptography.x509.oid import NameOID
from tls_ports import address, client, context, settings

import pybroker.testing
from pybroker.client import AuthenticationTLS, AuthenticationToken, Client
from pybroker.client.errors import PulsarException
from pybroker.process.app import Broker
from pybroker.security.keys import KeyFailure
from pybroker.security.tls_connection import TlsConnection
from pybroker.security.tls_contexts import TlsContexts, TlsSettings, make_context, openssl_name
from pybroker.testing import RunningBroker

TOPIC = "persistent://public/default/tls"
LARGE = bytes(range(256)) * 4000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    for name in ("broker", "alice"):
        made.issue(name)
    return made


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **settings(authority)) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[RunningBroker]:
    """Certificates are roles; they are requested, but not required."""
    more = TOKEN_SETTINGS | {"authentication_providers": ("tls", "token")}
    more["tls_trust_certs_file_path"] = str(authority.path)
    with pybroker.testing.broker(http=True, **settings(authority, **more)) as running:
        yield running


def with_certificate(authority: Authority, name: str) -> dict[str, str]:
    return {
        "tls_certificate_file_path": str(authority.directory / f"{name}.crt"),
        "tls_private_key_file_path": str(authority.directory / f"{name}.key"),
    }


# -- clients


def test_the_client_works_over_tls(broker: RunningBroker, authority: Authority) -> None:
    with client(broker, authority) as tls:
        consumer = tls.subscribe(TOPIC, "s")
        producer = tls.create_producer(TOPIC)
        for content in (b"small", LARGE, b""):
            producer.send(content)
            assert consumer.receive(timeout_millis=30_000).data() == content


def test_a_connection_that_was_closed_is_freed(
    broker: RunningBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is freed without a garbage collection: the broker seldom collects cycles."""
    made: list[weakref.ref[Any]] = []
    begin = TlsConnection.connection_made

    def watched(connection: TlsConnection, transport: asyncio.BaseTransport) -> None:
        made.extend((weakref.ref(connection), weakref.ref(transport)))
        begin(connection, transport)

    monkeypatch.setattr(TlsConnection, "connection_made", watched)
    gc.disable()
    try:
        with client(broker, authority) as tls:
            tls.create_producer(TOPIC).send(b"x")
        assert len(made) == 2
        broker.wait_until(lambda: all(part() is None for part in made))
    finally:
        gc.enable()


def test_the_official_client_works_over_tls(broker: RunningBroker, authority: Authority) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    official = pulsar.Client(
        broker.service_url_tls, tls_trust_certs_file_path=str(authority.path), logger=quiet
    )
    consumer = official.subscribe(TOPIC, "official")
    producer = official.create_producer(TOPIC)
    producer.send(LARGE)
    assert consumer.receive(timeout_millis=30_000).data() == LARGE
    official.close()


def test_many_messages_both_ways_come_in_order(broker: RunningBroker, authority: Authority) -> None:
    with client(broker, authority) as tls:
        consumer = tls.subscribe(TOPIC + "-many", "s")
        producer = tls.create_producer(TOPIC + "-many", max_pending_messages=10_000)
        for number in range(5000):
            producer.send_async(b"%d" % number * 50, None)
        producer.flush()
        for number in range(5000):
            message = consumer.receive(timeout_millis=30_000)
            assert message.data() == b"%d" % number * 50
            consumer.acknowledge(message)


def test_a_lookup_names_both_ports(broker: RunningBroker) -> None:
    path = "/lookup/v2/topic/persistent/public/default/t"
    found = httpx.get(broker.admin_url + path).json()
    assert found["brokerUrlTls"] == broker.service_url_tls
    assert found["brokerUrl"] == broker.service_url
    assert found["httpUrlTls"] == broker.admin_url_tls


def test_https_answers(broker: RunningBroker, authority: Authority) -> None:
    url = broker.admin_url_tls + "/admin/v2/clusters"
    with httpx.Client(verify=context(authority)) as https:
        for _ in range(3):
            assert https.get(url).json() == ["standalone"]
        topic = broker.admin_url_tls + "/admin/v2/persistent/public/default/large"
        large = https.put(topic, content=b"{" * 500_000)
        assert large.status_code == 400


def test_plain_ports_may_be_closed(authority: Authority) -> None:
    closed = {"broker_service_port": None, "web_service_port": None}
    with pybroker.testing.broker(http=True, **settings(authority, **closed)) as running:
        assert running.service_url == running.admin_url == ""
        with client(running, authority) as tls:
            tls.create_producer(TOPIC).send(b"x")
        with httpx.Client(verify=context(authority)) as https:
            assert https.get(running.admin_url_tls + "/admin/v2/brokers/health").text == "ok"


def test_a_client_does_not_talk_to_a_broker_that_it_does_not_trust(broker: RunningBroker) -> None:
    with (
        Client(broker.service_url_tls, operation_timeout_seconds=1) as stranger,
        pytest.raises(PulsarException),
    ):
        stranger.create_producer(TOPIC)


# -- certificates of clients


def test_a_certificates_common_name_is_the_role(
    mutual: RunningBroker, authority: Authority
) -> None:
    options = with_certificate(authority, "alice")
    with client(mutual, authority, authentication=AuthenticationTLS(), **options) as tls:
        tls.create_producer(TOPIC)

        async def look(running: Any) -> list[str]:
            return [session.login.identity.role for session in running.server.sessions]

        assert set(mutual.call(look)) == {"alice"}


def test_https_takes_certificates_too(mutual: RunningBroker, authority: Authority) -> None:
    url = mutual.admin_url_tls + "/admin/v2/clusters"
    alice = [str(authority.directory / f"alice.{end}") for end in ("crt", "key")]
    assert httpx.get(url, verify=context(authority, *alice)).status_code == 200
    assert httpx.get(url, verify=context(authority)).status_code == 401
    assert httpx.get(url, verify=context(authority), headers=bearer("bob")).status_code == 200


def test_tls_without_a_certificate_has_no_role(mutual: RunningBroker, authority: Authority) -> None:
    with (
        client(mutual, authority, authentication=AuthenticationTLS()) as tls,
        pytest.raises(PulsarException, match="none was sent"),
    ):
        tls.create_producer(TOPIC)
    with client(mutual, authority, authentication=AuthenticationToken(token("bob"))) as tls:
        tls.create_producer(TOPIC)


@pytest.mark.parametrize(
    "subject",
    [
        [(NameOID.ORGANIZATION_NAME, "nobody")],
        [(NameOID.COMMON_NAME, "alice"), (NameOID.COMMON_NAME, "admin")],
        [(NameOID.COMMON_NAME, " ")],
    ],
    ids=["none", "two", "blank"],
)
def test_a_certificate_without_exactly_one_name_has_no_role(
    mutual: RunningBroker, authority: Authority, subject: Any
) -> None:
    authority.issue("odd", subject)
    options = with_certificate(authority, "odd")
    with (
        client(mutual, authority, authentication=AuthenticationTLS(), **options) as tls,
        pytest.raises(PulsarException, match="one common name"),
    ):
        tls.create_producer(TOPIC)


def test_a_certificate_of_another_authority_is_refused(
    mutual: RunningBroker, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path).issue("alice")
    with pytest.raises((OSError, httpx.HTTPError)):
        httpx.get(mutual.admin_url_tls + "/metrics", verify=context(authority, *stranger))


def test_a_certificate_is_required_where_that_is_configured(authority: Authority) -> None:
    more = {"tls_trust_certs_file_path": str(authority.path)}
    more["tls_require_trusted_client_cert_on_connect"] = True  # type: ignore[assignment]
    with pybroker.testing.broker(**settings(authority, **more)) as running:
        with client(running, authority, **with_certificate(authority, "alice")) as tls:
            tls.create_producer(TOPIC)
        with (
            client(running, authority, operation_timeout_seconds=1) as tls,
            pytest.raises(PulsarException),
        ):
            tls.create_producer(TOPIC)


# -- certificates that change


class Clock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 0


def test_a_changed_certificate_serves_later_connections(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), Clock()
    paths = authority.issue("broker")
    contexts = TlsContexts(TlsSettings(*paths), 300, clock)
    first = contexts.current()
    authority.issue("broker")
    assert contexts.current() is first
    clock.now_s = 300
    second = contexts.current()
    assert second is not first
    Path(paths[0]).write_text("half wri")
    clock.now_s = 600
    assert contexts.current() is second
    authority.issue("broker")
    clock.now_s = 900
    assert contexts.current() not in (first, second)


def test_a_running_broker_takes_a_changed_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("broker")
    more = {"tls_cert_refresh_check_duration_sec": 0}
    with pybroker.testing.broker(**settings(authority, **more)) as running:
        port = address(running.service_url_tls)
        before = ssl.get_server_certificate(port)
        authority.issue("broker")
        assert ssl.get_server_certificate(port) != before


def test_a_hangup_loads_a_changed_certificate_at_once(tmp_path: Path) -> None:
    """As on `systemctl reload`, before `tlsCertRefreshCheckDurationSec` has passed."""
    authority = Authority(tmp_path)
    authority.issue("broker")
    more = {"tls_cert_refresh_check_duration_sec": 3600}
    with pybroker.testing.broker(**settings(authority, **more)) as running:

        async def reload(broker: Broker) -> None:
            broker.reload_credentials()

        port = address(running.service_url_tls)
        before = ssl.get_server_certificate(port)
        certificate, _ = authority.issue("broker")
        assert ssl.get_server_certificate(port) == before
        running.call(reload)
        after = ssl.get_server_certificate(port)
        assert after != before
        Path(certificate).write_text("half writ")
        running.call(reload)
        assert ssl.get_server_certificate(port) == after, "what cannot be used changes nothing"


# -- configuration


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"certificate_file_path": ""}, "tlsCertificateFilePath"),
        ({"certificate_file_path": "/nowhere"}, "cannot be used"),
        ({"key_file_path": "CERTIFICATE"}, "cannot be used"),
        ({"require_trusted_client_cert": True}, "tlsTrustCertsFilePath"),
        ({"trust_certs_file_path": "/nowhere"}, "tlsTrustCertsFilePath"),
        ({"protocols": ("SSLv3",)}, "tlsProtocols"),
        ({"protocols": ("TLSv1.2",), "ciphers": ("NONSENSE",)}, "tlsCiphers"),
    ],
    ids=str,
)
def test_tls_that_cannot_work_stops_the_start(
    authority: Authority, changed: dict[str, Any], said: str
) -> None:
    certificate, key = authority.issue("broker")
    fields = {"certificate_file_path": certificate, "key_file_path": key} | changed
    if fields["key_file_path"] == "CERTIFICATE":
        fields["key_file_path"] = certificate
    with pytest.raises(KeyFailure, match=said):
        make_context(TlsSettings(**fields))


def test_protocols_and_ciphers_are_as_configured(authority: Authority) -> None:
    name = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    made = make_context(
        TlsSettings(*authority.issue("broker"), protocols=("TLSv1.2",), ciphers=(name,))
    )
    assert made.maximum_version is ssl.TLSVersion.TLSv1_2
    chosen = {each["name"] for each in made.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert chosen == {"ECDHE-ECDSA-AES128-GCM-SHA256"}
    assert make_context(TlsSettings(*authority.issue("broker"))).minimum_version >= 0x0303


@pytest.mark.parametrize(
    ("name", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "DHE-RSA-CHACHA20-POLY1305"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_ciphers_have_two_names(name: str, openssl: str) -> None:
    assert openssl_name(name) == openssl
