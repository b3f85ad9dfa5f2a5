"""Logins of Kafka's clients: PLAIN, OAUTHBEARER, SCRAM, certificates; and what is refused."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from credentials import TOKEN_SETTINGS, token
from kafka import KafkaAdminClient
from raw_kafka import RawKafka

from pybroker.kafka.codec.messages import Header, encode_request
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.requests.table import ROWS
from pybroker.testing import RunningBroker, broker

TIMEOUT_S = 30
METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 3, 17, 18, 36
NO_TOPICS = {"topics": []}
SHA_PASSWORDS = "data:,alice:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="  # secret


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    both = TOKEN_SETTINGS | {
        "authentication_providers": ("token", "basic"),
        "basic_auth_conf": SHA_PASSWORDS,
        "super_user_roles": ("admin",),
        "authorization_enabled": True,
    }
    with broker(kafka=True, **both) as started:
        yield started


def plain(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def scram(user: str, password: str, mechanism: str) -> dict[str, str]:
    return plain(user, password) | {"sasl.mechanism": mechanism}


def admin(started: RunningBroker, **settings: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": started.kafka_bootstrap} | settings)


def sees_the_broker(started: RunningBroker, settings: dict[str, Any]) -> bool:
    """Whether the client is let in."""
    errors: list[Any] = []
    client = admin(started, error_cb=errors.append, **settings)
    for _ in range(60):
        try:
            return bool(client.list_topics(timeout=0.5).brokers)
        except KafkaException:
            client.poll(0)
        if errors:
            return False
    raise TimeoutError("the client hears neither that it is let in nor that it is not")


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice", "secret"),
        ("any", "token:" + token("alice")),
    ],
)
def test_plain_carries_a_password_or_a_token(
    running: RunningBroker, user: str, password: str
) -> None:
    assert sees_the_broker(running, plain(user, password))


def test_plain_carries_a_bare_token_if_there_are_no_passwords() -> None:
    with broker(kafka=True, **TOKEN_SETTINGS) as started:
        assert sees_the_broker(started, plain("any", token("alice")))


@pytest.mark.kafka_client("kafka-python", "logins")
def test_kafka_python_logs_in_with_a_password(running: RunningBroker) -> None:
    client = KafkaAdminClient(
        bootstrap_servers=running.kafka_bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="alice",
        sasl_plain_password="secret",
    )
    client.close()


@pytest.mark.kafka_client("confluent-kafka", "logins")
def test_oauthbearer_carries_a_token(running: RunningBroker) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token("alice"), time.time() + 3600),
    }
    assert sees_the_broker(running, settings)


# -- byte by byte


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def log_in(raw: RawKafka, data: bytes, mechanism: str = "PLAIN", version: int = 2) -> Any:
    chosen = raw.ask(HANDSHAKE, 1, {"mechanism": mechanism})
    assert chosen["error_code"] == ErrorCode.NONE
    return raw.ask(AUTHENTICATE, version, {"auth_bytes": data})


def test_a_client_that_does_not_log_in_is_closed_with_a_sentence(
    raw: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pybroker.kafka"):
        assert raw.ask(API_VERSIONS, 0, {})["api_keys"]
        raw.send(METADATA, 1, NO_TOPICS)
        assert raw.is_closed()
    assert any("it sent Metadata without logging in" in line for line in caplog.messages)


def test_a_wrong_password_is_refused_and_the_connection_closed(raw: RawKafka) -> None:
    answer = log_in(raw, b"\0alice\0wrong")
    assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer["error_message"] == "Unknown user or wrong password"
    assert raw.is_closed()


@pytest.mark.parametrize(
    ("mechanism", "data"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"\0\0secret"),
        ("PLAIN", b"bob\0alice\0secret"),
        ("PLAIN", b"\0any\0token:no-token"),
        ("PLAIN", b"\0a\0b\0c"),
        ("OAUTHBEARER", b"n,,\x01auth=Basic abc\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer abc\x01\x01"),
        ("OAUTHBEARER", b""),
        ("SCRAM-SHA-256", b"p=tls-unique,,n=alice,r=abc"),
        ("SCRAM-SHA-256", b"n,a=bob,n=alice,r=abc"),
        ("SCRAM-SHA-256", b"n,,r=abc"),
        ("SCRAM-SHA-256", b"\xff"),
        ("SCRAM-SHA-256", b"n,,n=alice,r=" + b"x" * 5000),
    ],
)
def test_credentials_that_are_none_are_refused(raw: RawKafka, mechanism: str, data: bytes) -> None:
    answer = log_in(raw, data, mechanism)
    assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raw.is_closed()


def test_an_unknown_mechanism_names_the_others(raw: RawKafka) -> None:
    answer = raw.ask(HANDSHAKE, 1, {"mechanism": "GSSAPI"})
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer["mechanisms"] == ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert log_in(raw, b"\0alice\0secret")["error_code"] == ErrorCode.NONE


def test_a_mechanism_is_chosen_first(raw: RawKafka) -> None:
    answer = raw.ask(AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0secret"})
    assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_old_clients_send_tokens_without_requests(raw: RawKafka) -> None:
    raw.ask(HANDSHAKE, 0, {"mechanism": "PLAIN"})
    raw.send_frame(b"\0alice\0secret")
    assert raw.receive_frame() == b""
    assert raw.ask(METADATA, 1, NO_TOPICS)["brokers"]


def test_a_wrong_password_of_an_old_client_closes_the_connection(raw: RawKafka) -> None:
    raw.ask(HANDSHAKE, 0, {"mechanism": "PLAIN"})
    raw.send_frame(b"\0a\0b")
    assert raw.is_closed()


def test_a_request_before_the_login_is_small(
    raw: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    frame = encode_request(Header(AUTHENTICATE, 2, 1, "raw"), {"auth_bytes": b"x" * 70_000})
    with caplog.at_level(logging.INFO, "pybroker.kafka"):
        raw.send_frame(frame)
        assert raw.is_closed()
    assert any("at most 65536 are allowed" in line for line in caplog.messages)


def test_a_login_that_expires_says_so_and_ends(running: RunningBroker) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        expires_s = running.clock.now_ms() // 1000 + 100
        answer = log_in(raw, b"\0any\0token:" + token("alice", exp=expires_s).encode())
        assert 0 < answer["session_lifetime_ms"] <= 100_000
        again = log_in(raw, b"\0any\0token:" + token("alice", exp=expires_s + 60).encode())
        assert again["session_lifetime_ms"] > answer["session_lifetime_ms"]
        assert raw.ask(METADATA, 1, NO_TOPICS)["brokers"]
        running.clock.advance(300)
        raw.send(METADATA, 1, NO_TOPICS)
        assert raw.is_closed()


def test_a_connection_cannot_change_its_role(raw: RawKafka) -> None:
    log_in(raw, b"\0alice\0secret")
    answer = log_in(raw, b"\0any\0token:" + token("bob").encode())
    assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raw.is_closed()


def test_only_a_few_requests_may_come_before_the_login() -> None:
    before = {row.name for row in ROWS.values() if row.before_login}
    assert before == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}


def test_without_authentication_whatever_credentials_are_accepted() -> None:
    with broker(kafka=True) as started:
        assert sees_the_broker(started, plain("any", "thing"))


def test_a_client_without_a_login_is_anonymous_if_that_is_allowed() -> None:
    with broker(kafka=True, anonymous_user_role="guest", **TOKEN_SETTINGS) as started:
        assert sees_the_broker(started, {})


# -- SCRAM


def alter(started: RunningBroker, *changes: Any, role: str = "admin") -> None:
    client = admin(started, **plain("any", "token:" + token(role)))
    for future in client.alter_user_scram_credentials(list(changes)).values():
        future.result(TIMEOUT_S)


def upsertion(
    user: str, mechanism: Any = ScramMechanism.SCRAM_SHA_256, password: bytes = b"pass,=word"
) -> UserScramCredentialUpsertion:
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("SCRAM-SHA-256", ScramMechanism.SCRAM_SHA_256),
        ("SCRAM-SHA-512", ScramMechanism.SCRAM_SHA_512),
    ],
)
def test_a_user_with_a_scram_password_logs_in(
    running: RunningBroker, name: str, mechanism: Any
) -> None:
    user = f"user,={name}"
    alter(running, upsertion(user, mechanism))
    assert sees_the_broker(running, scram(user, "pass,=word", name))
    assert not sees_the_broker(running, scram(user, "another", name))
    alter(running, UserScramCredentialDeletion(user, mechanism))
    assert not sees_the_broker(running, scram(user, "pass,=word", name))


def test_scram_passwords_are_described_without_the_passwords(running: RunningBroker) -> None:
    alter(running, upsertion("described"))
    client = admin(running, **plain("any", "token:" + token("admin")))
    found = client.describe_user_scram_credentials(["described"])["described"].result(TIMEOUT_S)
    assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    everyone = client.describe_user_scram_credentials().result(TIMEOUT_S)
    assert "described" in everyone
    with pytest.raises(KafkaException):
        client.describe_user_scram_credentials(["nobody"])["nobody"].result(TIMEOUT_S)


def test_only_superusers_give_scram_passwords(running: RunningBroker) -> None:
    with pytest.raises(KafkaException) as refused:
        alter(running, upsertion("sneaky"), role="alice")
    assert refused.value.args[0].code() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not sees_the_broker(running, scram("sneaky", "pass,=word", "SCRAM-SHA-256"))


def test_an_unknown_user_learns_as_little_as_one_with_a_wrong_password(raw: RawKafka) -> None:
    first = log_in(raw, b"n,,n=nobody,r=abc", "SCRAM-SHA-256")["auth_bytes"].decode()
    nonce, salt, iterations = first.split(",")
    assert nonce.startswith("r=abc") and salt.startswith("s=") and iterations == "i=4096"
    final = f"c=biws,{nonce},p={'A' * 43}=".encode()
    answer = raw.ask(AUTHENTICATE, 2, {"auth_bytes": final})
    assert answer["error_message"] == "Unknown user or wrong password"


# -- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.issue("broker")
    made.issue("carol")
    return made


def tls_settings(authority: Authority) -> dict[str, Any]:
    return {
        "kafka_service_port_tls": 0,
        "tls_certificate_file_path": str(authority.directory / "broker.crt"),
        "tls_key_file_path": str(authority.directory / "broker.key"),
    }


def over_tls(authority: Authority, *certificate: Path | str) -> dict[str, str]:
    settings = {"security.protocol": "SSL", "ssl.ca.location": str(authority.path)}
    if certificate:
        names = "ssl.certificate.location", "ssl.key.location"
        settings |= dict(zip(names, map(str, certificate), strict=True))
    return settings


def test_clients_connect_with_tls(authority: Authority) -> None:
    with broker(**tls_settings(authority)) as started:
        assert sees_the_broker(started, over_tls(authority))
        assert not sees_the_broker(started, {})


def test_a_certificate_is_a_login(authority: Authority) -> None:
    settings = tls_settings(authority) | {
        "tls_trust_certs_file_path": str(authority.path),
        "authentication_enabled": True,
        "authentication_providers": ("tls",),
        "authorization_enabled": True,
        "super_user_roles": ("carol",),
    }
    carol = authority.directory / "carol.crt", authority.directory / "carol.key"
    with broker(**settings) as started:
        client = admin(started, **over_tls(authority, *carol))
        found = client.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
        assert "ALTER" in {each.name for each in found.authorized_operations}
        assert not sees_the_broker(started, over_tls(authority))


def test_a_password_over_tls(authority: Authority) -> None:
    settings = tls_settings(authority) | {
        "authentication_enabled": True,
        "authentication_providers": ("basic",),
        "basic_auth_conf": SHA_PASSWORDS,
    }
    login = plain("alice", "secret") | over_tls(authority) | {"security.protocol": "SASL_SSL"}
    with broker(**settings) as started:
        assert sees_the_broker(started, login)


def test_a_handshake_that_is_none_is_closed(authority: Authority) -> None:
    with broker(**tls_settings(authority)) as started, RawKafka(started.kafka_bootstrap) as raw:
        raw.send(METADATA, 1, NO_TOPICS)
        data = raw.socket.recv(100)
        assert data == b"" or data[0] == 0x15  # TLS's alert


def test_who_does_not_log_in_in_time_is_sent_away() -> None:
    settings = TOKEN_SETTINGS | {"handshake_timeout_ms": 5_000}
    with broker(kafka=True, **settings) as started, RawKafka(started.kafka_bootstrap) as silent:
        assert silent.ask(API_VERSIONS, 0, {})["api_keys"]
        with RawKafka(started.kafka_bootstrap) as known:
            known.ask(HANDSHAKE, 1, {"mechanism": "PLAIN"})
            login = b"\0any\0" + token("admin").encode()
            assert known.ask(AUTHENTICATE, 2, {"auth_bytes": login})["error_code"] == 0
            started.clock.advance("6s")
            assert silent.is_closed()
            assert known.ask(METADATA, 9, NO_TOPICS)["brokers"]
