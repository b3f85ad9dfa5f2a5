"""Damaged ledger files, as seen by clients and administrators: intact entries are served, and
missing ones are reported.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import httpx
import pytest
from raw_client import RawClient

from pybroker import testing
from pybroker.broker.policies.expiry import expire_older
from pybroker.process.ports import StartFailed
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.slow  # restarts brokers

MESSAGES = 200
MESSAGE_BYTES = 5000
TOPIC = "/admin/v2/persistent/public/default/t"


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    with file.open("r+b") as data:
        data.seek(300_000)
        byte = data.read(1)[0]
        data.seek(300_000)
        data.write(bytes([byte ^ 4]))


def asked(broker: Any, path: str, method: str = "GET", body: Any = None) -> Any:
    request = Request(
        broker.admin_url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request) as answer:
        said = answer.read()
        return json.loads(said) if said else None


def entry_ids(client: RawClient) -> list[int]:
    """The entry ids of the messages received, and acknowledged, until the consumer is closed."""
    found = []
    while True:
        command = client.receive(pb.BaseCommand.MESSAGE, pb.BaseCommand.CLOSE_CONSUMER)
        if isinstance(command, pb.CommandCloseConsumer):
            return found
        found.append(command.message_id.entryId)
        ack = pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[command.message_id]
        )
        client.send(pb.BaseCommand.ACK, "ack", ack)


@pytest.mark.parametrize(
    ("damage", "good_before", "good_behind"),
    [(truncate, True, False), (Path.unlink, False, False), (flip, True, True)],
)
def test_what_is_whole_is_delivered_and_the_rest_is_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    good_before: bool,
    good_behind: bool,
) -> None:
    with testing.broker(data_dir=tmp_path, http=True) as broker:
        with RawClient(broker.service_url) as client:
            client.create_producer("t")
            for number in range(MESSAGES):
                client.publish(b"%d" % number * (MESSAGE_BYTES // len(b"%d" % number)), number)
        broker.stop()
        damage(max((tmp_path / "ledgers").iterdir(), key=lambda file: file.stat().st_size))
        broker.start()
        if damage is not flip:  # a flipped bit is found only by a read
            assert "public/default/persistent/t lacks entries" in caplog.text
        with RawClient(broker.service_url) as client:
            client.subscribe("t", 1, subscription="s")
            client.flow(1000, 1)
            found = entry_ids(client)
            assert found == list(range(len(found)))
            assert bool(found) == good_before
            refusal = client.subscribe("t", 2, subscription="s")
            assert refusal.error == pb.PersistenceError
            assert "resetcursor" in refusal.message
            client.create_producer("t", 3)
            client.publish(b"new", 0, producer_id=3)
            (ledger, *_) = asked(broker, f"{TOPIC}/internalStats")["ledgers"]
            (damaged,) = ledger["damaged"]
            assert damaged["from"] == len(found)
            assert (damaged["to"] < MESSAGES - 1) == good_behind
            behind = {"ledgerId": ledger["ledgerId"], "entryId": damaged["to"] + 1}
            asked(broker, f"{TOPIC}/subscription/s/resetcursor", "POST", behind)
            client.subscribe("t", 4, subscription="s")
            client.flow(1000, 4)
            rest = client.messages(MESSAGES - damaged["to"])
            ids = [message.message_id.entryId for message in rest[:-1]]
            assert ids == list(range(damaged["to"] + 1, MESSAGES))


async def expire_by_policy(running: Any) -> None:
    topic = await running.topics.get("t")
    now_ms = topic.clock.now_ms()
    await expire_older(topic, now_ms - 3_600_000, now_ms)


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize("damage", [truncate, Path.unlink, flip])
def test_messages_expire_past_what_is_damaged(
    tmp_path: Path, damage: Callable[[Path], None], by_policy: bool
) -> None:
    """The damaged messages and the first one after them are two hours old; a new one follows."""
    with testing.broker(data_dir=tmp_path, http=True) as broker:
        with RawClient(broker.service_url) as client:
            client.subscribe("t", 1, subscription="s")
            client.create_producer("t")
            old_ms = time.time_ns() // 1_000_000 - 7_200_000
            for number in range(MESSAGES):
                client.publish(b"x" * MESSAGE_BYTES, number, publish_time=old_ms)
        broker.stop()
        damage(max((tmp_path / "ledgers").iterdir(), key=lambda file: file.stat().st_size))
        broker.start()
        with RawClient(broker.service_url) as client:
            client.create_producer("t")
            client.publish(b"x", MESSAGES, publish_time=old_ms)
            receipt = client.publish(b"x", MESSAGES + 1, publish_time=old_ms + 7_200_000)
            stats = asked(broker, f"{TOPIC}/stats?getEarliestTimeInBacklog=true")
            assert stats["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == old_ms
            if by_policy:
                broker.call(expire_by_policy)
            else:
                asked(broker, f"{TOPIC}/subscription/s/expireMessages/3600", "POST")
            client.subscribe("t", 1, subscription="s")
            client.flow(10, 1)
            (message,) = client.messages(1)
            assert message.message_id.ledgerId == receipt.message_id.ledgerId
            assert message.message_id.entryId == receipt.message_id.entryId


@pytest.mark.parametrize("subscription", ["s", "none"])
def test_a_look_at_a_damaged_entry_says_what_is_wrong_and_those_behind_it_can_be_seen(
    tmp_path: Path, subscription: str
) -> None:
    with testing.broker(data_dir=tmp_path, http=True) as broker:
        with RawClient(broker.service_url) as client:
            client.subscribe("t", 1, subscription="s")
            client.create_producer("t")
            for number in range(MESSAGES):
                client.publish(b"%d" % number * (MESSAGE_BYTES // len(b"%d" % number)), number)
        broker.stop()
        flip(max((tmp_path / "ledgers").iterdir(), key=lambda file: file.stat().st_size))
        broker.start()
        at = f"{broker.admin_url}{TOPIC}/subscription/{subscription}/position"
        answers = [httpx.get(f"{at}/{number}") for number in range(1, MESSAGES + 1)]
        whole = [number for number, answer in enumerate(answers) if answer.status_code == 200]
        assert all(answers[number].content.startswith(b"%d" % number) for number in whole)
        assert 0 in whole and MESSAGES - 1 in whole
        damaged = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in damaged} == {500}
        assert all("cannot be read" in answer.json()["reason"] for answer in damaged)
        assert all("resetcursor" in answer.json()["reason"] for answer in damaged)
        url = f"{broker.admin_url}{TOPIC}/subscription/s/analyzeBacklog"
        assert "cannot be read" in httpx.post(url).json()["reason"]


@pytest.mark.parametrize("damage", [truncate, Path.unlink, flip])
def test_a_topic_loads_though_its_recovery_comes_to_what_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    with testing.broker(data_dir=tmp_path, broker_deduplication_enabled=True) as broker:
        with RawClient(broker.service_url) as client:
            client.create_producer("t", producer_name="p")
            txn_id = client.new_txn()
            client.add_partition(txn_id, "persistent://public/default/t")
            client.publish(b"in a transaction", 0, txn_id)
            client.end(txn_id, commit=True)
            for number in range(1, MESSAGES):
                client.publish(b"x" * MESSAGE_BYTES, number)
        broker.kill_and_restart()  # without the snapshot of a clean stop
        broker.restart()  # now everything is in ledger files
        broker.stop()
        damage(max((tmp_path / "ledgers").iterdir(), key=lambda file: file.stat().st_size))
        broker.start()
        with RawClient(broker.service_url) as client:
            last = client.ask_for_producer("t", producer_name="p").last_sequence_id
            assert (last == MESSAGES - 1) == (damage is flip), "as far as it is whole"
            client.publish(b"new", MESSAGES)
            client.publish(b"new again", MESSAGES)
            reset = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
            reader = client.subscribe("t", 1, durable=False, start_message_id=reset)
            assert isinstance(reader, pb.CommandSuccess)
        assert "is opened without its damaged entries" in caplog.text


@pytest.mark.parametrize("coordinators", [1, 3])
def test_a_damaged_transaction_log_stops_the_start_with_a_sentence_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, coordinators: int
) -> None:
    with testing.broker(data_dir=tmp_path) as broker:
        with RawClient(broker.service_url) as client:
            for coordinator_id in range(coordinators):
                client.end(client.new_txn(tc_id=coordinator_id), commit=True)
        broker.stop()
        for file in (tmp_path / "ledgers").iterdir():
            file.unlink()
        with pytest.raises(StartFailed) as refused:
            broker.start()
        assert "__transaction_log_" in str(refused.value)
        assert "ledgers/" in str(refused.value) and "from a backup" in str(refused.value)
        assert "resetcursor" not in caplog.text + str(refused.value)
        assert all(record.exc_info is None for record in caplog.records)
