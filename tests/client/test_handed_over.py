"""Short spans handed over by a broker: what a reader of each would receive, or nothing."""

import itertools

import pytest

import pybroker.testing
from managed_ledger.errors import DamagedEntries
from managed_ledger.ledger import ManagedLedger
from pybroker.base.errors import NotAllowed
from pybroker.broker.persistent.entry_metadata import INDEX, TIMESTAMP
from pybroker.broker.persistent.short_spans import MOST_BYTES, MOST_ENTRIES
from pybroker.client import Client
from pybroker.client.topic_questions import TopicQuestion
from pybroker.wire.message_metadata import payload_of, split_entry

EARLIEST = (-1, -1)
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def client():
    with pybroker.testing.broker() as running, Client(running.service_url) as client:
        yield client


@pytest.fixture
def topic():
    return f"persistent://public/default/short-{next(_NUMBERS)}"


def place(message_id):
    return message_id.ledger_id(), message_id.entry_id()


def fill(client, topic, *values, txn=None):
    with client.create_producer(topic) as producer:
        return [place(producer.send(value, txn=txn)) for value in values]


def read(client, *spans, read_bytes=MOST_BYTES):
    questions = [TopicQuestion(topic, after=after, read_to=to) for topic, after, to in spans]
    return client.ask_topics(questions, read_bytes=read_bytes)


def values(state):
    return [bytes(payload_of(entry.data)) for entry in state.entries]


def test_a_span_is_handed_over_without_what_was_aborted(client, topic):
    first = fill(client, topic, b"0", b"1")
    with client.new_transaction() as aborted:
        fill(client, topic, b"aborted", txn=aborted)
        aborted.abort()
    last = fill(client, topic, b"2", b"3")
    [all_of_it] = read(client, (topic, EARLIEST, last[-1]))
    assert all_of_it.is_read and values(all_of_it) == [b"0", b"1", b"2", b"3"]
    [some] = read(client, (topic, first[0], last[0]))
    assert some.is_read and values(some) == [b"1", b"2"]
    assert [entry[:2] for entry in some.entries] == [first[1], last[0]]


def test_nothing_is_handed_over_that_is_not_decided_or_was_aborted(client, topic):
    fill(client, topic, b"0")
    txn = client.new_transaction()
    [undecided] = fill(client, topic, b"1", txn=txn)
    behind = fill(client, topic, b"2")[0]
    for to in (undecided, behind):
        [state] = read(client, (topic, EARLIEST, to))
        assert state.is_read is False and not state.entries
    txn.abort()
    assert read(client, (topic, EARLIEST, undecided))[0].is_read is False
    assert values(read(client, (topic, EARLIEST, behind))[0]) == [b"0", b"2"]


def test_spans_across_ledgers_are_handed_over(topic):
    config = {
        "managed_ledger_max_entries_per_ledger": 2,
        "managed_ledger_min_ledger_rollover_time_minutes": 0,
    }
    with pybroker.testing.broker(**config) as running, Client(running.service_url) as client:
        client.subscribe(topic, "keep")
        places = fill(client, topic, *(b"%d" % number for number in range(7)))
        assert len({ledger for ledger, _ in places}) > 1
        [state] = read(client, (topic, EARLIEST, places[-1]))
        assert values(state) == [b"%d" % number for number in range(7)]


def test_what_does_not_fit_is_to_be_asked_for_again_and_what_never_fits_is_left_to_a_reader(
    client, topic
):
    names = [f"{topic}-{number}" for number in range(4)]
    spans = [(name, EARLIEST, fill(client, name, bytes(600))[0]) for name in names]
    first, second, third, fourth = read(client, *spans, read_bytes=1500)
    assert first.is_read and second.is_read
    assert third.is_read is None and fourth.is_read is None
    large = f"{topic}-large"
    spans.insert(0, (large, EARLIEST, fill(client, large, bytes(2000))[0]))
    assert [state.is_read for state in read(client, *spans[:3], read_bytes=1500)] == [
        False,
        True,
        True,
    ]
    # A smaller span does not overtake a larger one that waits.
    spans = [spans[1], spans[0], spans[2]]
    assert [state.is_read for state in read(client, *spans, read_bytes=1500)] == [True, None, None]


def test_many_entries_are_left_to_a_reader(client, topic):
    places = fill(client, topic, *[b"x"] * (MOST_ENTRIES + 1))
    assert read(client, (topic, EARLIEST, places[-1]))[0].is_read is False
    assert read(client, (topic, places[0], places[-1]))[0].is_read is True


def test_damaged_entries_are_left_to_a_reader(client, topic, monkeypatch):
    places = fill(client, topic, b"0", b"1")

    async def damaged(ledger, position, *_):
        raise DamagedEntries(position.ledger_id, 0, 1, "bad checksum")

    monkeypatch.setattr(ManagedLedger, "read_cached", lambda *_: None)
    monkeypatch.setattr(ManagedLedger, "read", damaged)
    assert read(client, (topic, EARLIEST, places[-1]))[0].is_read is False


def test_a_topic_that_is_missing_has_an_error_and_does_not_disturb_others(client, topic):
    [last] = fill(client, topic, b"0")
    missing, there = read(client, (topic + "-no", EARLIEST, (0, 0)), (topic, EARLIEST, last))
    assert missing.error is not None and not missing.is_read
    assert values(there) == [b"0"]


@pytest.mark.parametrize(
    "limit",
    [
        "dispatch_throttling_rate_per_topic_in_msg",
        "dispatch_throttling_rate_per_topic_in_byte",
        "dispatch_throttling_rate_per_subscription_in_msg",
        "dispatch_throttling_rate_per_subscription_in_byte",
    ],
)
def test_where_dispatch_has_a_rate_nothing_passes_it_by(limit, topic):
    with (
        pybroker.testing.broker(**{limit: 1000}) as running,
        Client(running.service_url) as client,
    ):
        [last] = fill(client, topic, b"0")
        assert read(client, (topic, EARLIEST, last))[0].is_read is False


def test_where_readers_are_not_allowed_nothing_is_handed_over(topic):
    with (
        pybroker.testing.broker(subscription_types_enabled="Shared") as running,
        Client(running.service_url) as client,
    ):
        [last] = fill(client, topic, b"0")
        [state] = read(client, (topic, EARLIEST, last))
        assert isinstance(state.error, NotAllowed) and not state.entries


def test_entries_come_without_broker_entry_metadata(topic):
    interceptors = {"broker_entry_metadata_interceptors": (TIMESTAMP, INDEX)}
    with pybroker.testing.broker(**interceptors) as running, Client(running.service_url) as client:
        [last] = fill(client, topic, b"0")
        [state] = read(client, (topic, EARLIEST, last))
        assert split_entry(state.entries[0].data)[0].publish_time > 0
        assert values(state) == [b"0"]
        assert not state.entries[0].data.startswith(b"\x0e\x02")
