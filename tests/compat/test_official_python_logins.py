"""The official Python client's ways to log in, and its behaviour when its permission is revoked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pulsar
import pytest
from login_world import (
    PASSWORD,
    SEND_MS,
    LoginWorld,
    by_each,
    producers_address,
    publish,
    short_token,
    who_is_connected,
)
from permission_world import World

pytestmark = pytest.mark.slow

SOON_MS = 30_000
NOTHING_MS = 300


@contextmanager
def client(
    logins: LoginWorld, login: pulsar.Authentication | None, timeout_s: int = 20
) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        logins.broker.service_url_tls,
        authentication=login,
        tls_trust_certs_file_path=logins.authority,
        operation_timeout_seconds=timeout_s,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        yield client
    finally:
        client.close()


def as_role(logins: LoginWorld, provider: str, role: str) -> pulsar.Authentication:
    match provider:
        case "token":
            return pulsar.AuthenticationToken((logins.directory / f"{role}.token").read_text())
        case "basic":
            return pulsar.AuthenticationBasic(role, PASSWORD)
        case _:
            return pulsar.AuthenticationTLS(*logins.certificate(role))


@pytest.mark.feature("login by token", "login by password", "login by certificate")
@by_each
def test_right_credentials_let_in(logins: LoginWorld, world: World, provider: str) -> None:
    with client(logins, as_role(logins, provider, "alice")) as alice:
        consumer = alice.subscribe(world.topic, "s")
        alice.create_producer(world.topic).send(b"m")
        assert consumer.receive(SOON_MS).data() == b"m"


@by_each
def test_a_role_without_permission_is_told_so(
    logins: LoginWorld, world: World, provider: str
) -> None:
    with client(logins, as_role(logins, provider, "stranger")) as stranger:
        with pytest.raises(pulsar.AuthorizationError):
            stranger.create_producer(world.topic)
        with pytest.raises(pulsar.AuthorizationError):
            stranger.subscribe(world.topic, "s")


WRONG: dict[str, Callable[[LoginWorld], pulsar.Authentication | None]] = {
    "none": lambda logins: None,
    "forged token": lambda logins: as_role(logins, "token", "forged"),
    "expired token": lambda logins: as_role(logins, "token", "expired"),
    "no token": lambda logins: pulsar.AuthenticationToken("nonsense"),
    "wrong password": lambda logins: pulsar.AuthenticationBasic("alice", "guessed"),
    "unknown user": lambda logins: pulsar.AuthenticationBasic("nobody", PASSWORD),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_credentials_are_refused(logins: LoginWorld, world: World, name: str) -> None:
    """This client closes a connection after an error without reading it, and retries until its
    timeout, so it cannot learn the reason. The broker sends the reason all the same.
    """
    with (
        client(logins, WRONG[name](logins), timeout_s=1) as nobody,
        pytest.raises(pulsar.PulsarException),
    ):
        nobody.create_producer(world.topic)
    assert world.ask("GET", world.on_topic("/stats")).status_code == 404


@pytest.mark.feature("token renewed while connected")
def test_a_token_that_expires_is_renewed_on_the_same_connection(
    logins: LoginWorld, world: World
) -> None:
    asked: list[str] = []

    def supplier() -> str:
        asked.append(short_token())
        return asked[-1]

    with client(logins, pulsar.AuthenticationToken(supplier)) as alice:
        producer = alice.create_producer(world.topic)
        address, before = producers_address(world), len(asked)
        logins.broker.wait_until(lambda: len(asked) > before, timeout_s=60)
        producer.send(b"m")
        assert producers_address(world) == address


@pytest.mark.feature("permission revoked while connected")
@by_each
def test_a_revoked_permission_stops_a_producer_and_a_consumer(
    logins: LoginWorld, world: World, provider: str
) -> None:
    """Both reconnect by themselves, and continue once they have permission."""
    with client(logins, as_role(logins, provider, "alice")) as alice:
        consumer = alice.subscribe(world.topic, "s")
        alice.create_producer(world.topic).send(b"before")
        producer = alice.create_producer(world.topic, send_timeout_millis=SEND_MS)
        assert consumer.receive(SOON_MS).data() == b"before"
        world.revoke("alice")
        assert who_is_connected(world) == []
        with pytest.raises(pulsar.Timeout):
            producer.send(b"after")
        publish(world, b"of another")
        with pytest.raises(pulsar.Timeout):
            consumer.receive(NOTHING_MS)
        world.grant("alice", "produce", "consume")
        logins.broker.wait_until(producer.is_connected, timeout_s=60)
        producer.send(b"again")
        received = [consumer.receive(SOON_MS).data() for _ in range(3)]
        assert received == [b"before", b"of another", b"again"]
