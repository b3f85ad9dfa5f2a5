"""A broker on a network, as in docs/security.md: TLS, three ways to log in, permissions.

The role is always `alice`; `stranger` may log in but has no permissions.
"""

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import bcrypt
import pytest
from certificates import Authority
from credentials import token
from permission_world import SETTINGS, World

import pybroker.testing
from pybroker.testing import RunningBroker

PROVIDERS: Final = ("token", "basic", "tls")
by_each = pytest.mark.parametrize("provider", PROVIDERS)
PASSWORD: Final = "open sesame"
# A producer's timeout for an unconfirmed message: longer than a busy machine stalls.
SEND_MS: Final = 2000


class LoginWorld:
    """The broker, and all credentials as files in `directory`."""

    def __init__(self, broker: RunningBroker, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.authority = str(directory / "ca.crt")

    def namespace(self) -> World:
        """A new namespace in which alice may produce and consume."""
        world = World(self.broker)
        world.grant("alice", "produce", "consume")
        return world

    def expiring(self) -> list[int]:
        """The expiry times of the current logins that expire."""

        async def look(running: Any) -> list[int]:
            logins = [session.login for session in running.server.sessions if session.login]
            ends = [login.identity.expires_ms for login in logins]
            return [end for end in ends if end is not None]

        return self.broker.call(look)

    def certificate(self, role: str) -> tuple[str, str]:
        return str(self.directory / f"{role}.crt"), str(self.directory / f"{role}.key")


@contextmanager
def login_world(directory: Path) -> Iterator[LoginWorld]:
    settings = SETTINGS | _credentials(directory)
    with pybroker.testing.broker(http=True, **settings) as broker:
        yield LoginWorld(broker, directory)


def _credentials(directory: Path) -> dict[str, Any]:
    authority = Authority(directory)
    certificate, key = authority.issue("broker")
    for role in ("alice", "stranger"):
        authority.issue(role)
        (directory / f"{role}.token").write_text(token(role))
    (directory / "forged.token").write_text(token("alice", key=bytes(64)))
    (directory / "expired.token").write_text(token("alice", exp=1))
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    users = "".join(f"{role}:{hashed}\n" for role in ("alice", "stranger"))
    return {
        "authentication_providers": PROVIDERS,
        "authentication_refresh_check_seconds": 1,
        "basic_auth_conf": "data:;base64," + base64.b64encode(users.encode()).decode(),
        "broker_service_port_tls": 0,
        "tls_certificate_file_path": certificate,
        "tls_key_file_path": key,
        "tls_trust_certs_file_path": str(authority.path),
    }


def who_is_connected(world: World) -> list[str]:
    """The names of the topic's producers and consumers."""
    stats = world.admin("GET", world.on_topic("/stats"))
    consumers = [each for found in stats["subscriptions"].values() for each in found["consumers"]]
    producers = [each["producerName"] for each in stats["publishers"]]
    return producers + [each["consumerName"] for each in consumers]


def producers_address(world: World) -> str:
    """The address of the topic's only producer; it changes when the producer reconnects."""
    (producer,) = world.admin("GET", world.on_topic("/stats"))["publishers"]
    return str(producer["address"])


def short_token(lives_s: int = 5) -> str:
    """A token of alice that expires soon."""
    return token("alice", exp=int(time.time()) + lives_s)


def publish(world: World, content: bytes) -> None:
    """Publish as the tenant's admin."""
    with world.client("boss") as boss:
        boss.create_producer(world.topic).send(content)
