"""One broker for all bad input: no test's input may disturb the next test."""

from collections.abc import Iterator

import pytest
from peer import ANSWER_WITHIN_S, Peer
from raw_client import RawClient

import pybroker.testing
from pybroker.wire import pulsar_api_pb2 as pb

HANDSHAKE_TIMEOUT_MS = 60_000


@pytest.fixture(scope="session")
def service_url() -> Iterator[str]:
    with pybroker.testing.broker(handshake_timeout_ms=HANDSHAKE_TIMEOUT_MS) as broker:
        yield broker.service_url


@pytest.fixture
def bystander(service_url: str) -> Iterator[None]:
    """Another client, which the broker must still serve after the test."""
    with RawClient(service_url, answer_timeout_s=ANSWER_WITHIN_S) as bystander:
        bystander.create_producer("bystander")
        yield
        assert isinstance(bystander.publish(b"still here", 0), pb.CommandSendReceipt)


@pytest.fixture
def peer(service_url: str, bystander: None) -> Iterator[Peer]:
    with Peer(service_url) as peer:
        yield peer


@pytest.fixture
def client(service_url: str, bystander: None) -> Iterator[RawClient]:
    with RawClient(service_url, answer_timeout_s=ANSWER_WITHIN_S) as client:
        yield client
