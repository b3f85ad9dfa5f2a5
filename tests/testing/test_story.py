"""The timeline of a broker that a failing test prints."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

import pybroker.testing
from pybroker.client import Client, CompressionType, Consumer, InitialPosition, PulsarException
from pybroker.testing import RunningBroker, Story
from pybroker.testing.story import MOST_LINES
from pybroker.testing.story_text import Line, escaped, line, payload, since
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(faults=True) as running:
        yield running


@pytest.fixture
def story(broker: RunningBroker) -> Iterator[Story]:
    with Story(broker) as told:
        yield told


@pytest.fixture
def client(broker: RunningBroker, story: Story) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as connected:
        yield connected


def subscribed(client: Client) -> Consumer:
    return client.subscribe("orders", "billing", initial_position=InitialPosition.Earliest)


def told(story: Story, *words: str) -> bool:
    """Whether a line contains all of the words."""
    return any(all(word in line for word in words) for line in story.text().splitlines())


def test_nothing_happened(story: Story) -> None:
    assert story.text() == ""


def test_what_was_published_delivered_and_acknowledged(
    broker: RunningBroker, client: Client, story: Story
) -> None:
    consumer, producer = subscribed(client), client.create_producer("orders")
    position = producer.send(b"one lamp")
    at = f" {position.ledger_id()}:{position.entry_id()}"
    message = consumer.receive(timeout_millis=20_000)
    assert told(story, "published", "orders", at, "b'one lamp'", "by ")
    assert told(story, "delivered", "orders / billing", at, "b'one lamp'")
    assert told(story, "delivered and not acknowledged: orders / billing", at)
    consumer.acknowledge(message)
    broker.wait_until(lambda: told(story, "acknowledged orders / billing", at))
    assert not told(story, "delivered and not acknowledged", at)


def test_a_cumulative_acknowledgement_covers_what_is_before_it(
    broker: RunningBroker, client: Client, story: Story
) -> None:
    consumer, producer = subscribed(client), client.create_producer("orders")
    for payload_ in (b"1", b"2"):
        producer.send(payload_)
    messages = [consumer.receive(timeout_millis=20_000) for _ in range(2)]
    consumer.acknowledge_cumulative(messages[-1])
    broker.wait_until(lambda: told(story, "acknowledged", "cumulative"))
    assert not told(story, "delivered and not acknowledged")


def test_transactions_open_committed_and_aborted(client: Client, story: Story) -> None:
    consumer, producer = subscribed(client), client.create_producer("orders")
    producer.send(b"first")
    message = consumer.receive(timeout_millis=20_000)
    committed, aborted, still_open = (client.new_transaction() for _ in range(3))
    producer.send(b"kept", txn=committed)
    producer.send(b"gone", txn=aborted)
    producer.send(b"not yet", txn=still_open)
    consumer.acknowledge(message, aborted)
    names = [f"({each.txn_id.most},{each.txn_id.least})" for each in (committed, aborted)]
    assert told(story, "still open", names[1], "1 published to orders", "1 acknowledged on orders")
    committed.commit()
    aborted.abort()
    for _ in range(2):  # their ends are recorded after the answer
        client.new_transaction().commit()
    assert told(story, "begun", names[0])
    assert told(story, "published", "b'kept'", f"in {names[0]}")
    assert told(story, "will commit", names[0])
    assert told(story, "will abort", names[1])
    open_name = f"({still_open.txn_id.most},{still_open.txn_id.least})"
    assert told(story, "still open", open_name, "1 published to orders")


def test_restarts_the_clock_and_faults(broker: RunningBroker, client: Client, story: Story) -> None:
    producer = client.create_producer("orders")
    broker.faults.inject("lookup.before", "fail", once=True, error="TopicNotFound")
    with pytest.raises(PulsarException):
        client.create_producer("other")
    broker.clock.advance("1h30m")
    broker.kill_and_restart()
    broker.restart()
    producer.send(b"after all")
    assert told(story, "FAULT fail at lookup.before", "other")
    assert told(story, "the clock is advanced by 1:30:00.000")
    assert told(story, "the broker was killed")
    assert told(story, "the broker was stopped")
    assert told(story, "the broker has started")
    assert told(story, " 1:30:", "b'after all'")


@pytest.mark.parametrize("action", ["delay", "fail"])
def test_a_fault_behind_an_acknowledgement_leaves_it_acknowledged(
    broker: RunningBroker, client: Client, story: Story, action: str
) -> None:
    consumer = subscribed(client)
    client.create_producer("orders").send(b"one lamp")
    message = consumer.receive(timeout_millis=20_000)
    seconds = 0.001 if action == "delay" else None
    with broker.faults.inject("acknowledge.after", action, once=True, seconds=seconds) as fault:
        with suppress(PulsarException):
            consumer.acknowledge(message)
        fault.wait_for_hit()
    assert told(story, f"FAULT {action} at acknowledge.after", "orders / billing")
    assert not told(story, "delivered and not acknowledged")


def test_a_delayed_delivery_is_not_acknowledged(
    broker: RunningBroker, client: Client, story: Story
) -> None:
    broker.faults.inject("deliver.before", "delay", once=True, seconds=0.001)
    consumer = subscribed(client)
    client.create_producer("orders").send(b"one lamp")
    consumer.receive(timeout_millis=20_000)
    assert told(story, "delivered and not acknowledged: orders / billing")


def test_a_second_story_of_a_broker_ends_alone(broker: RunningBroker, story: Story) -> None:
    with Story(broker) as second:
        broker.clock.advance("1m")
    broker.clock.advance("1h")
    broker.restart()
    assert told(second, "advanced by 0:01:00.000") and not told(second, "advanced by 1:00")
    assert told(story, "advanced by 1:00:00.000") and told(story, "the broker has started")


def test_the_clock_that_the_admin_api_advances_and_a_restart_after_a_crash() -> None:
    with pybroker.testing.broker(http=True, faults=True) as broker, Story(broker) as story:
        advanced = httpx.post(f"{broker.admin_url}/admin/v3/clock/advance", json={"by": "1h"})
        assert advanced.status_code == 200
        with Client(broker.service_url) as client:
            broker.restart_after(broker.faults.inject("producer.open.before", "crash"))
            client.create_producer("orders")
        assert told(story, "the clock is advanced by 1:00:00.000")
        assert told(story, "the broker was killed") and told(story, "the broker has started")


def test_refusals(client: Client, story: Story) -> None:
    subscribed(client)
    with pytest.raises(PulsarException):
        client.subscribe("orders", "billing")
    assert told(story, "REFUSED subscribe", "orders / billing", "because")


def test_a_story_has_a_bound(client: Client, story: Story) -> None:
    producer = client.create_producer("orders")
    for number in range(MOST_LINES + 50):
        producer.send(b"%d" % number)
    first, *others = story.text().splitlines()
    assert first == "(52 earlier steps are left out)"
    assert len(others) == MOST_LINES
    assert told(story, f"b'{MOST_LINES + 49}'")


def test_a_test_s_story_begins_with_the_test(client: Client, story: Story) -> None:
    producer = client.create_producer("orders")
    producer.send(b"of another test")
    story.begin()
    assert story.text() == ""
    producer.send(b"of this one")
    assert "another" not in story.text() and told(story, "  0.", "b'of this one'")


def test_a_story_that_has_ended_notes_nothing(
    broker: RunningBroker, client: Client, story: Story
) -> None:
    story.close()
    client.create_producer("orders").send(b"unheard")
    broker.clock.advance("1h")
    assert story.text() == ""


def test_it_is_told_while_it_goes_on(client: Client, story: Story) -> None:
    producer, ended = client.create_producer("orders"), threading.Event()

    def publish() -> None:
        for _ in range(50):
            producer.send(b"x")
        ended.set()

    publishing = threading.Thread(target=publish)
    publishing.start()
    while not ended.is_set():
        story.text()
    publishing.join()


# -- text


def of(content: bytes, **fields: object) -> tuple[bytes, int]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)  # type: ignore[arg-type]
    entry = build_entry(metadata, content)
    return entry, len(entry)


def test_a_long_payload_is_shortened() -> None:
    assert payload(of(b"\x1b[31m" + b"x" * 1000)) == repr(b"\x1b[31m" + b"x" * 35) + "… 1005 bytes"


def test_an_entry_may_be_cut_off_anywhere() -> None:
    entry, size = of(b"one lamp", num_messages_in_batch=2, compression=pb.ZLIB)
    for end in range(size):
        assert "bytes" in payload((entry[:end], size)) or end > 20


def test_an_encrypted_payload_is_not_shown() -> None:
    key = pb.EncryptionKeys(key="k", value=b"v")
    assert payload(of(b"secret", encryption_keys=[key])) == "(encrypted, 6 bytes)"


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZLib])
def test_the_messages_of_a_batch(
    client: Client, story: Story, compression: CompressionType
) -> None:
    producer = client.create_producer(
        "orders",
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=compression,
    )
    for name in (b"one", b"two", b"three", b"four"):
        producer.send_async(name, callback=None)
    producer.flush()
    assert told(story, "published", "[b'one', b'two', b'three', … 4 messages]")


def test_names_are_escaped_and_shortened() -> None:
    assert escaped("\x1b[31mred\n\ud800é") == r"\x1b[31mred\n\ud800é"
    assert escaped("x" * 1000) == "x" * 80 + "…"


def test_times_of_hours() -> None:
    assert [since(each).strip() for each in (0.004, 61, 90_000, -1)] == [
        "0.004",
        "0:01:01.000",
        "25:00:00.000",
        "0.000",
    ]


def test_many_positions_are_counted() -> None:
    positions = [(1, each) for each in range(8)]
    step = Line(0, "x", "t", "s", "", "", 0, positions, (), "", "", "")
    assert line(step, {"x": "seen"}) == "seen         t / s 1:0 1:1 1:2 1:3 1:4 and 3 more"
