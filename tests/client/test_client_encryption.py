"""Encrypted entries: decrypted, or refused without being lost."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from scripted_broker import BATCH, ScriptedBroker, acks, deliver_batch, turns

from pybroker.client import ConsumerCryptoFailureAction, CryptoError, CryptoKeyReader
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, payload_of

KEYS = [pb.EncryptionKeys(key="k", value=b"wrapped")]


@pytest.fixture(scope="module")
def key_reader(tmp_path_factory: pytest.TempPathFactory) -> CryptoKeyReader:
    folder: Path = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "private.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "public.pem").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return CryptoKeyReader(str(folder / "public.pem"), str(folder / "private.pem"))


class Failing(CryptoKeyReader):
    def __init__(self) -> None:
        super().__init__("", "")

    def private_key(self, name: str, metadata: Any) -> bytes:
        raise OSError("the vault is closed")


async def taken(consumer: Any) -> list[bytes]:
    return [message.data() for message in await consumer.take(100, 500)]


async def delivered(broker: ScriptedBroker, client: Any, **options: Any) -> list[bytes]:
    """Receives an encrypted message, an encrypted batch and a plain message."""
    consumer = await client.subscribe("t", "s", **options)
    broker.peer.deliver(1, 0, b"secret", encryption_keys=KEYS, encryption_param=bytes(12))
    deliver_batch(broker, 1, encryption_keys=KEYS, encryption_param=bytes(12))
    broker.peer.deliver(1, 2, b"plain")
    received = await taken(consumer)
    await turns()
    return received


@pytest.mark.parametrize("reader", [None, Failing()])
def test_what_cannot_be_decrypted_is_neither_delivered_nor_acknowledged(
    broker: ScriptedBroker, client: Any, reader: CryptoKeyReader | None
):
    assert broker.run(delivered(broker, client, crypto_key_reader=reader)) == [b"plain"]
    assert acks(broker) == []


def test_it_comes_again_with_what_is_not_acknowledged_in_time(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        consumer = await client.subscribe("t", "s", unacked_messages_timeout_ms=10_000)
        broker.peer.deliver(1, 0, b"secret", encryption_keys=KEYS)
        assert await consumer.take(1, 11_000) == []

    broker.run(work())
    assert broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)


def test_it_can_be_discarded(broker: ScriptedBroker, client: Any):
    action = ConsumerCryptoFailureAction.DISCARD
    assert broker.run(delivered(broker, client, crypto_failure_action=action)) == [b"plain"]
    assert acks(broker) == [[(0, [])], [(1, [])]]
    errors = {ack.validation_error for ack in broker.asked_for(pb.CommandAck)}
    assert errors == {pb.CommandAck.DecryptionError}


def test_it_can_be_had_as_it_is(broker: ScriptedBroker, client: Any):
    action = ConsumerCryptoFailureAction.CONSUME
    received = broker.run(delivered(broker, client, crypto_failure_action=action))
    assert received == [b"secret", BATCH.payload, b"plain"]


@pytest.mark.parametrize("batching", [False, True])
def test_what_a_producer_encrypts_its_reader_decrypts(
    broker: ScriptedBroker, client: Any, key_reader: CryptoKeyReader, batching: bool
):
    async def work() -> list[bytes]:
        producer = await client.create_producer(
            "t", encryption_key="k", crypto_key_reader=key_reader, batching_enabled=batching
        )
        await producer.send(b"secret")
        await producer.close()
        metadata, payload = parse_metadata(broker.sent[0].entry), payload_of(broker.sent[0].entry)
        assert b"secret" not in payload
        consumer = await client.subscribe("t", "s", crypto_key_reader=key_reader)
        (consumer_id,) = {each.consumer_id for each in broker.asked_for(pb.CommandSubscribe)}
        described = {field.name: value for field, value in metadata.ListFields()}
        for name in ("producer_name", "sequence_id", "publish_time"):
            del described[name]
        broker.peer.deliver(consumer_id, 0, payload, **described)
        return await taken(consumer)

    assert broker.run(work()) == [b"secret"]


def test_a_producer_without_the_key_is_refused(broker: ScriptedBroker, client: Any):
    with pytest.raises(CryptoError, match="crypto_key_reader"):
        broker.run(client.create_producer("t", encryption_key="k"))
