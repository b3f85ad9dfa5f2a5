"""A session moves its cursors in transactions, whatever its consumers are given."""

from pybroker.client import Client
from pybroker.spark.offsets import CursorName
from pybroker.spark.session import Session, position_of
from pybroker.testing import broker

TOPIC = "persistent://public/default/in"


async def _disconnect(running):
    topic = await running.topics.get(TOPIC)
    topic.subscriptions["sub"].dispatch.disconnect_consumers("test")


async def _messages_given(running):
    topic = await running.topics.get(TOPIC)
    return sum(each.messages_out for each in topic.subscriptions["sub"].consumers)


def test_a_consumer_that_reconnects_during_a_transaction_is_not_refused_afterwards():
    """It is given again what the transaction holds, but nobody reads it."""
    name = CursorName(TOPIC, "sub")
    with broker() as running, Client(running.service_url, enable_transaction=True) as client:
        session = Session(client)
        session.cursor(name, create=True)
        producer = client.create_producer(TOPIC)
        positions = [position_of(producer.send(b"%d" % number)) for number in range(3)]
        first = client.new_transaction()
        session.acknowledge(name, positions[0], first)
        running.call(_disconnect)
        running.wait_until(lambda: running.call(_messages_given))
        first.commit()
        second = client.new_transaction()
        session.acknowledge(name, positions[1], second)
        second.commit()
        assert session.cursor(name) == positions[1]
