"""One broker for all bad input: what one test does to it must not disturb the next."""

from collections.abc import Iterator

import pytest
from peer import Peer

import pybroker.testing
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

HANDSHAKE_TIMEOUT_MS = 500


@pytest.fixture(scope="session")
def service_url() -> Iterator[str]:
    with pybroker.testing.broker(handshake_timeout_ms=HANDSHAKE_TIMEOUT_MS) as broker:
        yield broker.service_url


@pytest.fixture(scope="session")
def entry() -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return build_entry(metadata, b"payload")


@pytest.fixture
def peer(service_url: str, entry: bytes) -> Iterator[Peer]:
    """A connected peer; when the test is over, a bystander must still be served."""
    with Peer(service_url) as bystander, Peer(service_url) as peer:
        bystander.create_producer("bystander")
        yield peer
        receipt = bystander.publish(entry)
        assert receipt is not None and receipt.command.HasField("send_receipt")
