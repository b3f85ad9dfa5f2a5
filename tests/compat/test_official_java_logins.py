"""The official Java client's ways to log in, and its behaviour when its permission is revoked."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from credentials import token
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
from official_java import NOTHING_S, OfficialClient, java_gateway
from permission_world import World
from py4j.protocol import Py4JJavaError

pytestmark = pytest.mark.java

_TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_BASIC = "org.apache.pulsar.client.impl.auth.AuthenticationBasic"


class Door:
    """Creates clients with various credentials."""

    def __init__(self, gateway: Any, logins: LoginWorld) -> None:
        self._gateway, self._logins = gateway, logins
        self._factory = gateway.jvm.org.apache.pulsar.client.api.AuthenticationFactory

    @contextmanager
    def client(self, login: Any) -> Iterator[OfficialClient]:
        client = OfficialClient(
            self._gateway,
            self._logins.broker.service_url_tls,
            enableTransaction=False,
            authentication=login,
            tlsTrustCertsFilePath=self._logins.authority,
            enableTlsHostnameVerification=True,
        )
        try:
            yield client
        finally:
            client.shutdown()

    def token(self, text: str) -> Any:
        return self._factory.token(text)

    def token_of_file(self, path: Path) -> Any:
        """A token from a file, which the client reads for every login."""
        return self._factory.create(_TOKEN, path.as_uri())

    def password(self, user: str, password: str) -> Any:
        return self._factory.create(_BASIC, json.dumps({"userId": user, "password": password}))

    def certificate(self, role: str) -> Any:
        return self._factory.TLS(*self._logins.certificate(role))

    def nothing(self) -> Any:
        return self._gateway.jvm.org.apache.pulsar.client.impl.auth.AuthenticationDisabled()

    def as_role(self, provider: str, role: str) -> Any:
        match provider:
            case "token":
                return self.token((self._logins.directory / f"{role}.token").read_text())
            case "basic":
                return self.password(role, PASSWORD)
            case _:
                return self.certificate(role)


@pytest.fixture(scope="module")
def door(logins: LoginWorld) -> Iterator[Door]:
    with java_gateway() as gateway:
        yield Door(gateway, logins)


@pytest.mark.feature("login by token", "login by password", "login by certificate")
@by_each
def test_right_credentials_let_in(door: Door, world: World, provider: str) -> None:
    with door.client(door.as_role(provider, "alice")) as alice:
        consumer = alice.consumer(world.topic, "s")
        alice.producer(world.topic).send(b"m")
        assert bytes(alice.receive(consumer).getData()) == b"m"


@by_each
def test_a_role_without_permission_is_told_so(door: Door, world: World, provider: str) -> None:
    with door.client(door.as_role(provider, "stranger")) as stranger:
        with pytest.raises(Py4JJavaError, match="AuthorizationException"):
            stranger.producer(world.topic)
        with pytest.raises(Py4JJavaError, match="AuthorizationException"):
            stranger.consumer(world.topic, "s")


WRONG: dict[str, Callable[[Door], Any]] = {
    "none": lambda door: door.nothing(),
    "forged token": lambda door: door.as_role("token", "forged"),
    "expired token": lambda door: door.as_role("token", "expired"),
    "no token": lambda door: door.token("nonsense"),
    "wrong password": lambda door: door.password("alice", "guessed"),
    "unknown user": lambda door: door.password("nobody", PASSWORD),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_credentials_are_told_so(door: Door, world: World, name: str) -> None:
    """They are refused at once: a timeout would be another exception."""
    with door.client(WRONG[name](door)) as nobody:
        with pytest.raises(Py4JJavaError, match="AuthenticationException"):
            nobody.producer(world.topic)
        with pytest.raises(Py4JJavaError, match="AuthenticationException"):
            nobody.consumer(world.topic, "s")


@pytest.mark.feature("token renewed while connected")
def test_a_token_that_expires_is_renewed_on_the_same_connection(
    door: Door, logins: LoginWorld, world: World
) -> None:
    path = logins.directory / "renewed.token"
    path.write_text(short_token(15))  # the first connection takes part of this time
    with door.client(door.token_of_file(path)) as alice:
        producer = alice.producer(world.topic)
        address = producers_address(world)
        path.write_text(token("alice"))  # never expires
        logins.broker.wait_until(lambda: not logins.expiring(), timeout_s=60)
        producer.send(b"m")
        assert producers_address(world) == address


@pytest.mark.feature("permission revoked while connected")
@by_each
def test_a_revoked_permission_stops_a_producer_and_a_consumer(
    door: Door, logins: LoginWorld, world: World, provider: str
) -> None:
    """Both reconnect by themselves, and continue once they have permission."""
    with door.client(door.as_role(provider, "alice")) as alice:
        consumer = alice.consumer(world.topic, "s")
        alice.producer(world.topic).send(b"before")
        producer = alice.producer(world.topic, sendTimeout=alice.ms(SEND_MS))
        assert bytes(alice.receive(consumer).getData()) == b"before"
        world.revoke("alice")
        assert who_is_connected(world) == []
        with pytest.raises(Py4JJavaError, match="TimeoutException"):
            producer.send(b"after")
        publish(world, b"of another")
        assert alice.receive(consumer, NOTHING_S) is None
        world.grant("alice", "produce", "consume")
        logins.broker.wait_until(producer.isConnected, timeout_s=60)
        producer.send(b"again")
        received = [bytes(alice.receive(consumer).getData()) for _ in range(3)]
        assert received == [b"before", b"of another", b"again"]
