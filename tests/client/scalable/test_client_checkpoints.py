"""Checkpoint consumers on scalable topics of a broker in this process."""

from typing import Any

import pytest
from scalable_orders import Orders, by_key, contents, receive

from pybroker.client import Client, InvalidConfiguration, MessageId
from pybroker.client.scalable import Checkpoint


def at(client: Client, orders: Orders, start: Checkpoint = Checkpoint.earliest) -> Any:
    return client.create_checkpoint_consumer(orders.name, start)


def test_a_checkpoint_consumer_reads_parents_before_their_children(client: Client, orders: Orders):
    consumer = at(client, orders)
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    orders.merge(1, 2)
    published += orders.publish()
    received = receive(consumer, len(published))
    assert sorted(contents(received)) == published
    assert all(values == sorted(values) for values in by_key(received).values())


def test_a_checkpoint_restores_what_was_read_of_each_segment(client: Client, orders: Orders):
    """Whether it is taken before, amid or after a split."""
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    for taken in (0, 3, 14, 20, 28):
        consumer = at(client, orders)
        received = receive(consumer, taken)
        checkpoint = Checkpoint.deserialize(consumer.checkpoint().serialize())
        consumer.close()
        restored = at(client, orders, checkpoint)
        received += receive(restored, len(published) - taken)
        assert sorted(contents(received)) == published, taken
        restored.close()


def test_the_latest_checkpoint_begins_at_the_end_of_each_segment(client: Client, orders: Orders):
    orders.publish()
    orders.split(0)
    orders.publish()
    consumer = at(client, orders, Checkpoint.latest)
    begun = consumer.checkpoint()
    later = orders.publish()
    assert sorted(contents(receive(consumer, len(later)))) == later
    assert sorted(contents(receive(at(client, orders, begun), len(later)))) == later


def test_a_checkpoint_of_before_a_split_leads_to_the_children(client: Client, orders: Orders):
    consumer = at(client, orders)
    first = orders.publish()
    assert contents(receive(consumer, len(first))) == first
    checkpoint = consumer.checkpoint()
    consumer.close()
    orders.split(0)
    orders.split(1)
    later = orders.publish()
    assert sorted(contents(receive(at(client, orders, checkpoint), len(later)))) == later


def test_checkpoints_are_written_as_the_java_sdk_writes_them():
    place = MessageId(-1, 7, 9)
    written = Checkpoint({3: place}).serialize()
    header = bytes.fromhex("00 00000001 0000000000000003 00000004")
    assert written == header + place.serialize() and len(place.serialize()) == 4
    assert Checkpoint.deserialize(written).places == {3: place}
    assert (Checkpoint.earliest.serialize(), Checkpoint.latest.serialize()) == (b"\1", b"\2")
    for known in (Checkpoint.earliest, Checkpoint.latest):
        assert Checkpoint.deserialize(known.serialize()) == known


@pytest.mark.parametrize(
    "said",
    [
        *("", "03", "00", "0000000001", "00ffffffff", "0000000000ff", "01ff", "02ff"),
        "00000000010000000000000003ffffffff",
        "00000000010000000000000003000000040807",
        "0000000001000000000000000300000001ff",
    ],
)
def test_bytes_that_are_no_checkpoint_are_refused(said: str):
    with pytest.raises(InvalidConfiguration, match="no checkpoint"):
        Checkpoint.deserialize(bytes.fromhex(said))
