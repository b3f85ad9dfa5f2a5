"""Subscriptions that an operator moves forward, and topics that an operator empties."""

from typing import Any

import httpx
import pytest
from publishing import publish
from raw_client import RawClient

from pybroker.client import Client, Consumer, ConsumerType, InitialPosition, Timeout
from pybroker.testing import RunningBroker

P = "/admin/v2/persistent"


@pytest.fixture
def audited(admin: httpx.Client, client: Client, topic: str) -> str:
    """A topic with five messages, entries 0 to 4, unread on subscription audit."""
    admin.put(f"{P}/{topic}/subscription/audit", json="earliest")
    publish(client, topic, 5)
    return topic


def subscription_stats(admin: httpx.Client, topic: str) -> Any:
    return admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["audit"]


def backlog(admin: httpx.Client, topic: str) -> Any:
    return subscription_stats(admin, topic)["msgBacklog"]


def ledger_of(admin: httpx.Client, topic: str) -> Any:
    return admin.get(f"{P}/{topic}/internalStats").json()["ledgers"][-1]["ledgerId"]


def receive_all(consumer: Consumer, count: int) -> list[bytes]:
    """Receives `count` messages, and asserts that no more come."""
    received = [consumer.receive(timeout_millis=30_000).data() for _ in range(count)]
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=300)
    return received


@pytest.mark.parametrize(
    ("place", "waits"),
    [
        ({"batchIndex": 1}, (1, [0b1110])),
        ({"batchIndex": 1, "excluded": True}, (1, [0b1100])),
        ({"batchIndex": 0}, (1, [])),
        ({"batchIndex": 3, "excluded": True}, (2, [])),
        ({"batchIndex": -1, "excluded": True}, (2, [])),
        ({"isExcluded": True}, (2, [])),
        ({}, (1, [])),
    ],
)
def test_a_subscription_is_reset_to_a_message_of_a_batch_or_behind_it(
    admin: httpx.Client,
    admin_broker: RunningBroker,
    topic: str,
    place: dict[str, Any],
    waits: tuple[int, list[int]],
) -> None:
    """Apache Pulsar's Java clients send `excluded`."""
    path = f"{P}/{topic}/subscription/audit"
    admin.put(path)
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{topic}")
        for number in range(3):
            fields = {"send_fields": {"num_messages": 4}, "num_messages_in_batch": 4}
            second = raw.publish(b"x", 4 * number, **fields).message_id
        body = {"ledgerId": second.ledgerId, "entryId": 1, "partitionIndex": -1} | place
        assert admin.post(f"{path}/resetcursor", json=body).status_code == 204
        raw.subscribe(f"persistent://{topic}", subscription="audit")
        raw.flow(1)
        (message,) = raw.messages(1)
        assert (message.message_id.entryId, list(message.ack_set)) == waits


def test_all_partitions_are_reset_to_a_time_or_an_end_but_not_to_a_message_of_one(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{P}/{namespace}/wide/subscription/audit"
    admin.put(f"{P}/{namespace}/wide/partitions", json=2)
    admin.put(path)
    assert admin.post(f"{path}/resetcursor/0").status_code == 204
    assert admin.post(f"{path}/resetcursor", json="latest").status_code == 204
    refused = admin.post(f"{path}/resetcursor", json={"ledgerId": 1, "entryId": 0})
    assert (refused.status_code, "partitioned" in refused.text) == (405, True)


def test_the_given_number_of_entries_is_skipped_and_acknowledged_ones_do_not_count(
    admin: httpx.Client, client: Client, audited: str
) -> None:
    consumer = client.subscribe(f"persistent://{audited}", "audit")
    consumer.receive(timeout_millis=30_000)
    consumer.acknowledge(consumer.receive(timeout_millis=30_000))  # entry 1
    consumer.close()
    assert admin.post(f"{P}/{audited}/subscription/audit/skip/2").status_code == 204
    consumer = client.subscribe(f"persistent://{audited}", "audit")
    assert receive_all(consumer, 2) == [b"3", b"4"]


def test_skipped_messages_are_no_longer_unacknowledged(
    admin: httpx.Client, client: Client, audited: str
) -> None:
    consumer = client.subscribe(f"persistent://{audited}", "audit", ConsumerType.Shared)
    receive_all(consumer, 5)
    admin.post(f"{P}/{audited}/subscription/audit/skip/3")
    assert subscription_stats(admin, audited)["unackedMessages"] == 2
    consumer.redeliver_unacknowledged_messages()
    assert receive_all(consumer, 2) == [b"3", b"4"]


def test_skipping_more_than_there_is_skips_everything_and_nothing_skips_nothing(
    admin: httpx.Client, audited: str
) -> None:
    path = f"{P}/{audited}/subscription/audit/skip"
    assert admin.post(f"{path}/0").status_code == 204
    assert backlog(admin, audited) == 5
    assert admin.post(f"{path}/99").status_code == 204
    assert backlog(admin, audited) == 0


def test_messages_of_an_open_transaction_are_not_skipped(
    admin: httpx.Client, client: Client, audited: str
) -> None:
    txn = client.new_transaction()
    client.create_producer(f"persistent://{audited}").send(b"later", txn=txn)
    admin.post(f"{P}/{audited}/subscription/audit/skip/99")
    admin.post(f"{P}/{audited}/subscription/audit/expireMessages/0")
    admin.delete(f"{P}/{audited}/truncate")
    txn.commit()
    consumer = client.subscribe(f"persistent://{audited}", "audit")
    assert receive_all(consumer, 1) == [b"later"]


def test_skipping_on_a_partitioned_topic_is_refused(admin: httpx.Client, namespace: str) -> None:
    admin.put(f"{P}/{namespace}/wide/partitions", json=2)
    admin.put(f"{P}/{namespace}/wide/subscription/audit")
    answer = admin.post(f"{P}/{namespace}/wide/subscription/audit/skip/1")
    assert (answer.status_code, "partitioned" in answer.text) == (405, True)


def test_messages_expire_up_to_a_position_or_before_it(admin: httpx.Client, audited: str) -> None:
    path = f"{P}/{audited}/subscription/audit/expireMessages"
    second = {"ledgerId": ledger_of(admin, audited), "entryId": 1}
    assert admin.post(path, json=second | {"excluded": True}).status_code == 204
    assert backlog(admin, audited) == 4
    assert admin.post(path, json=second).status_code == 204
    assert backlog(admin, audited) == 3
    assert admin.post(path, json={"ledgerId": "x"}).status_code == 400


def test_messages_expire_by_age_on_one_subscription_or_on_all(
    admin: httpx.Client, audited: str
) -> None:
    admin.put(f"{P}/{audited}/subscription/other", json="earliest")
    path = f"{P}/{audited}/subscription/audit/expireMessages"
    assert admin.post(f"{path}/3600").status_code == 204
    assert backlog(admin, audited) == 5
    assert admin.post(f"{path}/0").status_code == 204
    stats = admin.get(f"{P}/{audited}/stats").json()["subscriptions"]
    assert (stats["audit"]["msgBacklog"], stats["other"]["msgBacklog"]) == (0, 5)
    assert admin.post(f"{P}/{audited}/all_subscription/expireMessages/0").status_code == 204
    assert admin.get(f"{P}/{audited}/stats").json()["subscriptions"]["other"]["msgBacklog"] == 0


def expire(admin: httpx.Client, topic: str, by: str) -> httpx.Response:
    """Expires all five messages of `audited`."""
    if by != "position":
        return admin.post(f"{P}/{topic}/{by}")
    body = {"ledgerId": ledger_of(admin, topic), "entryId": 4}
    return admin.post(f"{P}/{topic}/subscription/audit/expireMessages", json=body)


EXPIRING = ["subscription/audit/expireMessages/0", "all_subscription/expireMessages/0", "position"]


@pytest.mark.parametrize("by", EXPIRING)
def test_messages_that_open_transactions_hold_do_not_expire_and_the_administrator_hears_it(
    admin: httpx.Client, client: Client, audited: str, by: str
) -> None:
    consumer = client.subscribe(f"persistent://{audited}", "audit")
    received = [consumer.receive(timeout_millis=30_000) for _ in range(3)]
    txn = client.new_transaction()
    consumer.acknowledge(received[2], txn=txn)
    for _ in range(2):  # the second time nothing can expire
        answer = expire(admin, audited, by)
        assert answer.status_code == 409
        assert f"3 on audit of persistent://{audited}" in answer.json()["reason"]
        stats = subscription_stats(admin, audited)
        assert (stats["msgBacklog"], stats["totalMsgExpired"]) == (3, 2)
    txn.abort()
    assert expire(admin, audited, by).status_code == 204
    assert subscription_stats(admin, audited)["totalMsgExpired"] == 5


@pytest.mark.parametrize("by", EXPIRING)
def test_messages_that_are_not_committed_yet_do_not_expire_and_the_administrator_hears_it(
    admin: httpx.Client, client: Client, topic: str, by: str
) -> None:
    admin.put(f"{P}/{topic}/subscription/audit", json="earliest")
    publish(client, topic, 2)
    txn = client.new_transaction()
    producer = client.create_producer(f"persistent://{topic}")
    producer.send(b"uncommitted", txn=txn)
    publish(client, topic, 2)
    answer = expire(admin, topic, by)
    assert (answer.status_code, "3 on audit of" in answer.json()["reason"]) == (409, True)
    assert backlog(admin, topic) == 3
    txn.abort()
    assert expire(admin, topic, by).status_code == 204
    assert backlog(admin, topic) == 0


def test_a_missing_subscription_does_not_expire(admin: httpx.Client, topic: str) -> None:
    path = f"{P}/{topic}/subscription/none"
    assert admin.post(f"{path}/expireMessages/0").status_code == 404
    assert admin.post(f"{path}/skip/1").status_code == 404
    assert admin.get(f"{path}/properties").status_code == 404


def test_properties_of_a_subscription_are_replaced_and_outlive_an_unload(
    admin: httpx.Client, audited: str
) -> None:
    path = f"{P}/{audited}/subscription/audit/properties"
    assert admin.get(path).json() == {}
    assert admin.put(path, json={"team": "billing"}).status_code == 204
    assert admin.put(path, json={"owner": "ann"}).status_code == 204
    admin.put(f"{P}/{audited}/unload")
    assert admin.get(path).json() == {"owner": "ann"}
    assert admin.put(path, json={"owner": 1}).status_code == 400


def test_endless_properties_of_a_subscription_are_refused(
    admin: httpx.Client, audited: str
) -> None:
    """They are written with each acknowledgement of the subscription."""
    endless = {"k" * 1000: "v" * 65_000}
    path = f"{P}/{audited}/subscription"
    assert admin.put(f"{path}/audit/properties", json=endless).status_code == 412
    position = {"ledgerId": -1, "entryId": -1, "properties": endless}
    assert admin.put(f"{path}/other", json=position).status_code == 412
    assert admin.put(f"{path}/audit/properties", json={"k": "v" * 65_000}).status_code == 204


def test_truncating_deletes_what_is_stored_whatever_retention_says(
    admin: httpx.Client, client: Client, audited: str
) -> None:
    assert admin.delete(f"{P}/{audited}/truncate").status_code == 204
    assert backlog(admin, audited) == 0
    assert admin.get(f"{P}/{audited}/internalStats").json()["numberOfEntries"] == 0
    publish(client, audited, 1)
    consumer = client.subscribe(f"persistent://{audited}", "audit")
    assert receive_all(consumer, 1) == [b"0"]


def test_trimming_leaves_what_waits(admin: httpx.Client, audited: str) -> None:
    assert admin.post(f"{P}/{audited}/trim").status_code == 204
    assert backlog(admin, audited) == 5


def test_a_backlog_is_sized_from_a_message_id_on(admin: httpx.Client, audited: str) -> None:
    first = {"ledgerId": ledger_of(admin, audited), "entryId": 0}
    whole = admin.put(f"{P}/{audited}/backlogSize", json=first).json()
    assert whole == admin.get(f"{P}/{audited}/stats").json()["storageSize"]
    last = admin.put(f"{P}/{audited}/backlogSize", json=first | {"entryId": 4}).json()
    assert last == whole // 5


def test_messages_are_examined_from_either_end(admin: httpx.Client, audited: str) -> None:
    def examined(**query: str | int) -> bytes:
        answer = admin.get(f"{P}/{audited}/examinemessage", params=query)
        assert answer.status_code == 200
        return answer.content

    assert examined() == b"4"
    assert examined(initialPosition="latest", messagePosition=2) == b"3"
    assert examined(initialPosition="earliest", messagePosition=2) == b"1"
    assert examined(initialPosition="earliest", messagePosition=99) == b"4"


def test_an_impossible_examination_is_refused(admin: httpx.Client, topic: str) -> None:
    path = f"{P}/{topic}/examinemessage"
    assert admin.get(path).status_code == 412  # the topic is empty
    assert admin.get(path, params={"messagePosition": "x"}).status_code == 400
    assert admin.get(path, params={"initialPosition": "middle"}).status_code == 412


def test_a_message_is_found_by_time(admin: httpx.Client, audited: str) -> None:
    found = admin.get(f"{P}/{audited}/messageid/0").json()
    assert found == {"ledgerId": ledger_of(admin, audited), "entryId": 0, "partitionIndex": -1}
    assert admin.get(f"{P}/{audited}/messageid/99999999999999").json()["entryId"] == 5


def test_internal_info_lists_ledgers_and_cursors(
    admin: httpx.Client, audited: str, namespace: str
) -> None:
    info = admin.get(f"{P}/{audited}/internal-info").json()
    assert sum(ledger["entries"] for ledger in info["ledgers"]) == 5
    assert info["cursors"]["audit"]["markDelete"]["entryId"] == -1
    admin.put(f"{P}/{namespace}/wide/partitions", json=2)
    parts = admin.get(f"{P}/{namespace}/wide/internal-info").json()["partitions"]
    assert [name[-11:] for name in sorted(parts)] == ["partition-0", "partition-1"]


def test_every_partition_is_terminated_and_none_is_missing(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    path = f"{P}/{namespace}/wide"
    admin.put(f"{path}/partitions", json=2)
    assert admin.post(f"{path}/createMissedPartitions").status_code == 204
    assert admin.post(f"{path}/terminate").status_code == 405
    ended = admin.post(f"{path}/terminate/partitions").json()
    assert sorted(ended) == ["0", "1"]
    assert admin.post(f"{P}/{topic}/terminate/partitions").status_code == 404
    assert admin.post(f"{P}/{topic}/createMissedPartitions").status_code == 404


def test_nothing_is_offloaded(admin: httpx.Client, topic: str) -> None:
    assert admin.get(f"{P}/{topic}/offload").json()["status"] == "NOT_RUN"
    answer = admin.put(f"{P}/{topic}/offload", json={"ledgerId": 0, "entryId": 0})
    assert (answer.status_code, "Offloading is not supported" in answer.text) == (412, True)


@pytest.mark.parametrize("kind", list(ConsumerType), ids=str)
def test_consumers_of_every_type_go_on_behind_what_was_skipped(
    admin: httpx.Client, client: Client, topic: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(
        f"persistent://{topic}", "audit", kind, initial_position=InitialPosition.Earliest
    )
    publish(client, topic, 3)
    receive_all(consumer, 3)
    admin.post(f"{P}/{topic}/subscription/audit/skip/3")
    publish(client, topic, 2)
    assert receive_all(consumer, 2) == [b"0", b"1"]
    assert backlog(admin, topic) == 2


def test_a_subscription_is_replicated_if_its_creator_or_a_consumer_requests_it(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    def replicated(name: str) -> Any:
        path = f"{P}/{topic}/subscription/{name}"
        return admin.get(f"{path}/replicatedSubscriptionStatus").json()[f"persistent://{topic}"]

    for name, query in (("made", {"replicated": "true"}), ("joined", {}), ("plain", {})):
        assert admin.put(f"{P}/{topic}/subscription/{name}", params=query).status_code == 204
    with RawClient(admin_broker.service_url) as raw:
        for number, name in enumerate(("joined", "new")):
            state = {"subscription": name, "replicate_subscription_state": True}
            raw.subscribe(f"persistent://{topic}", number, **state)
    assert [replicated(n) for n in ("made", "joined", "new", "plain")] == [True, True, True, False]


def test_whether_a_subscription_is_replicated_is_kept_beside_its_properties(
    admin: httpx.Client, audited: str
) -> None:
    path = f"{P}/{audited}/subscription/audit"
    status = f"{path}/replicatedSubscriptionStatus"
    assert admin.get(status).json() == {f"persistent://{audited}": False}
    assert admin.post(status, json=True).status_code == 204
    admin.put(f"{path}/properties", json={"a": "b", "pulsar.replicated.subscription": "no"})
    admin.put(f"{P}/{audited}/unload")
    assert admin.get(status).json() == {f"persistent://{audited}": True}
    assert admin.get(f"{path}/properties").json() == {"a": "b"}
    assert subscription_stats(admin, audited)["isReplicated"]
    assert admin.post(status, json=False).status_code == 204
    assert not subscription_stats(admin, audited)["isReplicated"]
    assert admin.post(status, json="yes").status_code == 400
