"""pybroker admin shows the messages of a batch one by one, as pulsar-admin does."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pybroker.client import Client, InitialPosition
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

Asked = Callable[..., Any]


@pytest.fixture
def asked(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Asked:
    def ask(*words: str) -> Any:
        assert main(["admin", "--admin-url", broker.admin_url, "topics", *words]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def stored(client: Client, topic: str) -> str:
    """A topic with a batch of a, b, c, then an entry with d alone."""
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=3)
    for body in "abc":
        producer.send_async(
            body.encode(), lambda *_: None, properties={"is": body}, partition_key=body
        )
    producer.flush()
    client.create_producer(topic, batching_enabled=False).send(b"d", {"is": "d"})
    return topic


@pytest.mark.parametrize(("count", "bodies"), [(1, "a"), (2, "ab"), (3, "abc"), (9, "abcd")])
def test_peeking_splits_batches_and_shows_as_many_messages_as_there_are(
    asked: Asked, stored: str, count: int, bodies: str
) -> None:
    found = asked("peek-messages", "-s", "s", "-n", str(count), stored)
    assert [each["payload"] for each in found] == list(bodies)


def test_a_message_of_a_batch_has_its_own_id_key_sequence_and_properties(
    asked: Asked, stored: str
) -> None:
    first, second, _, alone = asked("peek-messages", "-s", "s", "-n", "4", stored)
    entry = alone["Message-ID"].split(":")[0] + ":0"
    assert [first["Message-ID"], second["Message-ID"]] == [f"{entry}:-1:0", f"{entry}:-1:1"]
    assert [first["sequence-id"], second["sequence-id"]] == ["0", "1"]
    assert [first["partition-key"], second["partition-key"]] == ["a", "b"]
    assert [second["PROPERTY-is"], alone["PROPERTY-is"]] == ["b", "d"]


def test_an_entry_asked_for_by_its_id_or_place_is_split_too(asked: Asked, stored: str) -> None:
    last = asked("examine-messages", stored)
    assert last["payload"] == "d"
    ledger, entry = last["Message-ID"].split(":")
    assert asked("get-message-by-id", "-l", ledger, "-e", entry, stored) == last
    batch = asked("get-message-by-id", "-l", ledger, "-e", "0", stored)
    assert [each["payload"] for each in batch] == ["a", "b", "c"]
    assert asked("examine-messages", "-i", "earliest", "-m", "1", stored) == batch[0]


def test_an_empty_backlog_is_an_empty_list(asked: Asked, client: Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    assert asked("peek-messages", "-s", "s", topic) == []
