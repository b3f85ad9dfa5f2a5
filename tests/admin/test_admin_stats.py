"""Stats of topics with messages and transactions in the admin REST."""

import logging
from itertools import pairwise
from typing import Any

import httpx
import pytest
from publishing import publish
from raw_client import RawClient

from pybroker.base.errors import InvalidTxnStatus
from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

P = "/admin/v2/persistent"
T = "/admin/v3/transactions"


def test_stats_count_what_came_in_and_what_waits(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    admin.put(f"{P}/{topic}/subscription/audit")
    publish(client, topic, 3)
    stats = admin.get(f"{P}/{topic}/stats").json()
    assert (stats["msgInCounter"], len(stats["publishers"])) == (3, 1)
    assert stats["storageSize"] > 0
    assert stats["bytesInCounter"] > 0
    subscription = stats["subscriptions"]["audit"]
    assert (subscription["msgBacklog"], subscription["type"]) == (3, "None")
    assert subscription["backlogSize"] > 0


def test_stats_describe_a_consumer(admin: httpx.Client, client: Client, topic: str) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "audit", consumer_name="auditor")
    stats = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["audit"]
    assert (stats["type"], stats["activeConsumerName"]) == ("Exclusive", "auditor")
    assert [c["consumerName"] for c in stats["consumers"]] == ["auditor"]
    consumer.close()


def test_stats_show_what_a_producer_says_of_itself(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    with RawClient(admin_broker.service_url, client_version="Pulsar-X-v1") as raw:
        raw.create_producer(f"persistent://{topic}", metadata=[{"key": "team", "value": "billing"}])
        (publisher,) = admin.get(f"{P}/{topic}/stats").json()["publishers"]
    assert publisher["metadata"] == {"team": "billing"}
    assert publisher["clientVersion"] == "Pulsar-X-v1"


def consume(raw: RawClient, topic: str, count: int, **fields: Any) -> list[Any]:
    raw.subscribe(f"persistent://{topic}", subscription="audit", **fields)
    raw.flow(100)
    return [message.message_id for message in raw.messages(count)]


def test_stats_tell_when_things_happened(
    admin: httpx.Client, admin_broker: RunningBroker, client: Client, topic: str
) -> None:
    created = admin.get(f"{P}/{topic}/stats").json()
    assert created["topicCreationTimeStamp"] > 1_600_000_000_000
    assert created["lastPublishTimeStamp"] == 0
    publish(client, topic, 2)
    with RawClient(admin_broker.service_url, client_version="Pulsar-X-v1") as raw:
        first, _ = consume(raw, topic, 2)
        before = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["audit"]
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[first])
        raw.request(pb.BaseCommand.ACK, "ack", ack)
        stats = admin.get(f"{P}/{topic}/stats").json()
    assert stats["topicCreationTimeStamp"] <= stats["lastPublishTimeStamp"]
    audit = stats["subscriptions"]["audit"]
    (consumer,) = audit["consumers"]
    assert consumer["clientVersion"] == "Pulsar-X-v1"
    assert consumer["avgMessagesPerEntry"] == 1
    assert before["lastAckedTimestamp"] == before["lastMarkDeleteAdvancedTimestamp"] == 0
    assert audit["lastMarkDeleteAdvancedTimestamp"] == audit["lastAckedTimestamp"]
    for field in ("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp"):
        assert stats["topicCreationTimeStamp"] <= consumer[field] == audit[field], field
    assert consumer["firstMessagesSentTimestamp"] == before["lastConsumedTimestamp"]
    assert audit["consumersAfterMarkDeletePosition"] == {}
    assert stats["ownerBroker"] == admin.get("/admin/v2/brokers").json()[0]


def test_stats_leave_out_what_is_not_wanted(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str
) -> None:
    name = f"{namespace}/parts"
    admin.put(f"{P}/{name}/partitions", json=1)
    unwanted = {
        "excludePublishers": "true",
        "excludeConsumers": "true",
        "subscriptionBacklogSize": "false",
    }
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{name}-partition-0")
        raw.publish(b"x", 0, publish_time=1234)
        consume(raw, f"{name}-partition-0", 1)
        for path in (f"{P}/{name}-partition-0/stats", f"{P}/{name}/partitioned-stats"):
            everything = admin.get(path).json()
            assert len(everything["publishers"]) == 1
            assert len(everything["subscriptions"]["audit"]["consumers"]) == 1
            less = admin.get(path, params=unwanted).json()
            audit = less["subscriptions"]["audit"]
            assert (less["publishers"], audit["consumers"], audit["backlogSize"]) == ([], [], -1)
            assert audit["msgOutCounter"] == 1
            more = admin.get(path, params={"getEarliestTimeInBacklog": "true"}).json()
            assert more["subscriptions"]["audit"]["earliestMsgPublishTimeInBacklog"] == 1234
            assert more["earliestMsgPublishTimeInBacklogs"] == 1234
            assert less["oldestBacklogMessageAgeSeconds"] == -1
            assert more["oldestBacklogMessageAgeSeconds"] > 1_000_000_000


def test_times_and_limits_of_partitions_are_not_added_up(
    admin: httpx.Client, namespace: str
) -> None:
    name = f"{namespace}/parts"
    admin.put(f"{P}/{name}/partitions", json=2)
    stats = admin.get(f"{P}/{name}/partitioned-stats").json()
    parts = stats["partitions"].values()
    assert stats["topicCreationTimeStamp"] == min(p["topicCreationTimeStamp"] for p in parts)
    assert stats["backlogQuotaLimitSize"] == -1


def test_stats_of_key_shared_consumers_cover_the_ring(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    with RawClient(admin_broker.service_url) as raw:
        for number in (1, 2):
            raw.subscribe(f"persistent://{topic}", number, subType=pb.CommandSubscribe.Key_Shared)
        stats = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["raw"]
    assert (stats["keySharedMode"], stats["drainingHashesCount"]) == ("AUTO_SPLIT", 0)
    ranges = sorted(r for c in stats["consumers"] for r in c["keyHashRangeArrays"])
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 65535
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(ranges))
    first = stats["consumers"][0]
    assert first["keyHashRanges"][0] == "[{}, {}]".format(*first["keyHashRangeArrays"][0])


def test_what_is_to_be_delivered_again_and_what_was_acknowledged_is_counted(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    shared = {"subType": pb.CommandSubscribe.Shared}
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{topic}")
        for number in range(5):
            raw.publish(b"x", number)
        raw.subscribe(f"persistent://{topic}", subscription="audit", **shared)
        raw.flow(3)
        ids = [message.message_id for message in raw.messages(3)]
        again = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids[:2])
        raw.send(
            pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            "redeliverUnacknowledgedMessages",
            again,
        )
        done = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids[2:])
        raw.request(pb.BaseCommand.ACK, "ack", done)
        audit = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["audit"]
        in_replay = []
        for _ in range(2):
            admin.post(f"{P}/{topic}/subscription/audit/skip/1")
            skipped = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["audit"]
            in_replay.append(skipped["msgInReplay"])
    assert (audit["msgInReplay"], audit["unackedMessages"]) == (2, 0)
    assert audit["consumers"][0]["appId"] is None
    assert in_replay == [1, 0], "what is skipped is not delivered again"


def test_draining_slots_count_for_the_consumer_that_holds_their_messages(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    key_shared = {"subType": pb.CommandSubscribe.Key_Shared}
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{topic}")
        for key in range(20):
            raw.publish(b"x", key, partition_key=f"{key}")
        consume(raw, topic, 20, **key_shared)
        raw.subscribe(f"persistent://{topic}", 2, subscription="audit", **key_shared)
        audit = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]["audit"]
    first, second = sorted(audit["consumers"], key=lambda c: -c["unackedMessages"])
    assert first["drainingHashesCount"] == audit["drainingHashesCount"] > 0
    assert first["drainingHashesUnackedMessages"] == first["drainingHashesCount"]
    assert [slot["unackMsgs"] for slot in first["drainingHashes"]] == [1] * len(
        first["drainingHashes"]
    )
    assert len(first["drainingHashes"]) == first["drainingHashesCount"]
    assert second["drainingHashesCount"] == 0


def test_partitioned_stats_are_sums(admin: httpx.Client, client: Client, namespace: str) -> None:
    name = f"{namespace}/parts"
    admin.put(f"{P}/{name}/partitions", json=2)
    publish(client, f"{name}-partition-0", 2)
    publish(client, f"{name}-partition-1", 3)
    stats = admin.get(f"{P}/{name}/partitioned-stats").json()
    assert (stats["msgInCounter"], stats["metadata"]["partitions"]) == (5, 2)
    assert stats["partitions"][f"persistent://{name}-partition-1"]["msgInCounter"] == 3
    without = admin.get(f"{P}/{name}/partitioned-stats", params={"perPartition": "false"})
    assert without.json()["partitions"] == {}


def test_plain_stats_of_a_partitioned_topic_point_to_the_others(
    admin: httpx.Client, namespace: str
) -> None:
    admin.put(f"{P}/{namespace}/parts/partitions", json=2)
    answer = admin.get(f"{P}/{namespace}/parts/stats")
    assert answer.status_code == 404
    assert "partitioned-stats" in answer.json()["reason"]


def test_internal_stats_show_ledgers_and_cursors(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    admin.put(f"{P}/{topic}/subscription/audit")
    publish(client, topic, 3)
    stats = admin.get(f"{P}/{topic}/internalStats").json()
    last = stats["ledgers"][-1]
    assert stats["lastConfirmedEntry"] == f"{last['ledgerId']}:2"
    assert all(ledger["size"] >= ledger["entries"] for ledger in stats["ledgers"])
    assert stats["numberOfEntries"] == 3
    assert stats["cursors"]["audit"]["markDeletePosition"] == f"{last['ledgerId']}:-1"


def test_the_last_message_id_is_that_of_the_last_message(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    publish(client, topic, 3)
    found = admin.get(f"{P}/{topic}/lastMessageId").json()
    assert (found["entryId"], found["partitionIndex"]) == (2, -1)


def test_skip_all_empties_the_backlog_and_reset_brings_it_back(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    path = f"{P}/{topic}/subscription/audit"
    admin.put(path)
    publish(client, topic, 3)

    def backlog() -> int:
        stats = admin.get(f"{P}/{topic}/stats").json()
        count: int = stats["subscriptions"]["audit"]["msgBacklog"]
        return count

    assert admin.post(f"{path}/skip_all").status_code == 204
    assert backlog() == 0
    first = admin.get(f"{P}/{topic}/internalStats").json()["ledgers"][-1]["ledgerId"]
    second_message = {"ledgerId": first, "entryId": 1}
    assert admin.post(f"{path}/resetcursor", json=second_message).status_code == 204
    assert backlog() == 2
    admin.post(f"{path}/resetcursor", json={**second_message, "isExcluded": True})
    assert backlog() == 1
    assert admin.post(f"{path}/resetcursor/0").status_code == 204
    assert backlog() == 3


def test_a_subscription_with_consumers_goes_by_force_only(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "audit")
    path = f"{P}/{topic}/subscription/audit"
    assert admin.delete(path).status_code == 412
    consumer.close()
    assert admin.delete(path).status_code == 204


def test_a_topic_in_use_goes_by_force_only(admin: httpx.Client, client: Client, topic: str) -> None:
    client.create_producer(f"persistent://{topic}")
    assert admin.delete(f"{P}/{topic}").status_code == 412


def test_an_unloaded_topic_comes_back(admin: httpx.Client, client: Client, topic: str) -> None:
    publish(client, topic, 1)
    assert admin.put(f"{P}/{topic}/unload").status_code == 204
    publish(client, topic, 1)
    consumer = client.subscribe(
        f"persistent://{topic}", "audit", initial_position=InitialPosition.Earliest
    )
    assert [consumer.receive(timeout_millis=30_000).data() for _ in range(2)] == [b"0", b"0"]


def test_an_open_transaction_shows_which_readers_it_blocks(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    producer.send(b"plain")
    txn = client.new_transaction(timeout_ms=60_000)
    producer.send(b"in it", txn=txn)
    most, least = txn.txn_id
    stats = admin.get(f"{P}/{topic}/stats").json()
    assert stats["oldestOpenTransaction"]["txnId"] == f"({most},{least})"
    assert stats["lastStablePosition"].endswith(":0")

    found = admin.get(f"{T}/transactionMetadata/{most}/{least}").json()
    assert (found["status"], found["timeoutAt"]) == ("OPEN", 60_000)
    assert found["producedPartitions"][f"persistent://{topic}"]["startPosition"].endswith(":1")
    assert f"({most},{least})" in admin.get(f"{T}/slowTransactions/0").json()
    assert f"({most},{least})" not in admin.get(f"{T}/slowTransactions/100000").json()
    buffer = admin.get(f"{T}/transactionBufferStats/{topic}").json()
    assert (buffer["ongoingTxnSize"], buffer["maxReadPosition"]) == (
        1,
        stats["lastStablePosition"],
    )
    assert admin.get(f"{T}/transactionInBufferStats/{topic}/{most}/{least}").json()["startPosition"]
    coordinator = admin.get(f"{T}/coordinatorStats", params={"coordinatorId": most}).json()
    assert (coordinator["state"], coordinator["ongoingTxnSize"] >= 1) == ("Ready", True)
    txn.abort()


def test_a_transaction_is_aborted_by_the_admin(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    txn = client.new_transaction(timeout_ms=60_000)
    producer.send(b"in it", txn=txn)
    most, least = txn.txn_id
    assert admin.post(f"{T}/abortTransaction/{most}/{least}").status_code == 204
    found = admin.get(f"{T}/transactionMetadata/{most}/{least}").json()
    assert found["status"] == "ABORTED"
    assert "oldestOpenTransaction" not in admin.get(f"{P}/{topic}/stats").json()


def test_the_owner_learns_why_an_administrator_aborted_and_the_audit_log_has_all_names(
    admin: httpx.Client, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    txn = client.new_transaction(timeout_ms=60_000)
    producer.send(b"in it", txn=txn)
    most, least = txn.txn_id
    path = f"{T}/abortTransaction/{most}/{least}"
    assert admin.post(path, params={"reason": "x" * 201}).status_code == 400
    with caplog.at_level(logging.INFO, "pybroker.audit"):
        assert admin.post(path, params={"reason": "it blocks\n the report"}).status_code == 204
    line = next(each for each in caplog.records if each.getMessage() == "abort transaction")
    assert line.__dict__["fields"] == {
        "who": "-",
        "from": line.__dict__["fields"]["from"],
        "on": f"({most},{least}) of nobody: persistent://{topic}",
        "result": "ok",
        "why": "it blocks the report",
    }
    said = "an administrator aborted it: it blocks the report"
    with pytest.raises(InvalidTxnStatus, match=f"is ABORTED: it cannot become COMMITTING; {said}"):
        txn.commit()
    found = admin.get(f"{T}/transactionMetadata/{most}/{least}").json()
    assert found["abortReason"] == said
    assert admin.post(path, params={"reason": "again"}).status_code == 204
    assert admin.get(f"{T}/transactionMetadata/{most}/{least}").json() == found


def test_what_has_committed_is_not_aborted(admin: httpx.Client, client: Client, topic: str) -> None:
    txn = client.new_transaction(timeout_ms=60_000)
    txn.commit()
    most, least = txn.txn_id
    assert admin.post(f"{T}/abortTransaction/{most}/{least}").status_code == 409


def test_pending_acknowledgements_are_shown(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "audit")
    unknown = {"lowWaterMarks": None, "recoverStartTime": 0, "recoverEndTime": 0}
    path = f"{T}/pendingAckStats/{topic}/audit"
    assert admin.get(path).json() == unknown | {"state": "None", "ongoingTxnSize": 0}
    publish(client, topic, 1)
    txn = client.new_transaction(timeout_ms=60_000)
    consumer.acknowledge(consumer.receive(timeout_millis=30_000), txn=txn)
    assert admin.get(path).json() == unknown | {"state": "Ready", "ongoingTxnSize": 1}
    txn.commit()
    assert admin.get(path).json()["ongoingTxnSize"] == 0


def test_unknown_transactions_and_coordinators_are_not_found(admin: httpx.Client) -> None:
    assert admin.get(f"{T}/transactionMetadata/0/99999999").status_code == 404
    assert admin.post(f"{T}/abortTransaction/0/99999999").status_code == 404
    assert admin.get(f"{T}/transactionMetadata/999/0").status_code == 404


def test_a_coordinator_tells_the_last_id_that_it_gave_out(
    admin: httpx.Client, client: Client
) -> None:
    with client.new_transaction() as transaction:
        coordinator, local_id = transaction.txn_id
    stats = admin.get(f"{T}/coordinatorStats", params={"coordinatorId": coordinator}).json()
    assert stats["leastSigBits"] == local_id


def test_coordinators_can_only_become_more(admin: httpx.Client) -> None:
    path = f"{T}/transactionCoordinator/replicas"
    count = len(admin.get(f"{T}/coordinators").json())
    assert admin.post(path, json=count - 1).status_code == 406
    assert admin.post(path, json=count + 1).status_code == 204
    assert len(admin.get(f"{T}/coordinators").json()) == count + 1
    partitions = f"{P}/pulsar/system/transaction_coordinator_assign/partitions"
    assert admin.get(partitions).json()["partitions"] == count + 1


def test_metrics_are_under_pulsars_names(admin: httpx.Client, client: Client, topic: str) -> None:
    admin.put(f"{P}/{topic}/subscription/audit")
    publish(client, topic, 2)
    answer = admin.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    labels = f'cluster="standalone",namespace="{topic.rpartition("/")[0]}"'
    labels += f',topic="persistent://{topic}"'
    assert f"pulsar_in_messages_total{{{labels}}} 2" in lines
    assert f"pulsar_msg_backlog{{{labels}}} 2" in lines
    assert f'pulsar_subscription_back_log{{{labels},subscription="audit"}} 2' in lines
    names = {line.partition("{")[0] for line in lines}
    assert {"pulsar_broker_topics_count", "pulsar_active_connections"} <= names


def test_coordinators_become_no_more_than_a_topic_may_have_partitions(admin: httpx.Client) -> None:
    path = f"{T}/transactionCoordinator/replicas"
    assert admin.post(path, json=2**31).status_code == 406
    assert admin.post(path, json=0).status_code == 406


def test_a_transaction_shows_topics_by_the_names_that_the_client_sent(
    admin: httpx.Client, admin_broker: RunningBroker
) -> None:
    whole = "persistent://public/default/sent-short"
    assert admin.put(f"{P}/public/default/sent-short").status_code == 204
    with RawClient(admin_broker.service_url) as raw:
        txn_id = raw.new_txn()
        assert not raw.add_partition(txn_id, "sent-short").HasField("error")
        assert not raw.add_subscription(txn_id, "sent-short", "s").HasField("error")
        path = f"{T}/transactionMetadata/{txn_id.most}/{txn_id.least}"
        found = admin.get(path).json()
        assert list(found["producedPartitions"]) == ["sent-short"]
        assert list(found["ackedPartitions"]) == ["sent-short"]
        raw.create_producer(whole)
        raw.publish(b"x", 0, txn_id)
        assert not raw.end(txn_id, commit=True).HasField("error")
        assert raw.receive_entry(whole)


def test_a_slow_transaction_shows_how_far_it_has_acknowledged_cumulatively(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    """Both before and after its topic is reloaded."""
    publish(client, topic, 3)
    txn = client.new_transaction(timeout_ms=60_000)
    for name in ("cumulative", "single"):
        consumer = client.subscribe(
            f"persistent://{topic}", name, initial_position=InitialPosition.Earliest
        )
        _, second = (consumer.receive(timeout_millis=30_000) for _ in range(2))
        acknowledge = {
            "cumulative": consumer.acknowledge_cumulative,
            "single": consumer.acknowledge,
        }
        acknowledge[name](second, txn=txn)
        consumer.close()
    message_id = second.message_id()
    position = f"{message_id.ledger_id()}:{message_id.entry_id()}"
    wanted = {
        "cumulative": {"cumulativeAckPosition": position},
        "single": {"cumulativeAckPosition": None},
    }
    most, least = txn.txn_id
    for _ in range(2):
        slow = admin.get(f"{T}/slowTransactions/0").json()[f"({most},{least})"]
        assert slow["ackedPartitions"] == {f"persistent://{topic}": wanted}
        shown = admin.get(f"{T}/transactionMetadata/{most}/{least}").json()
        assert shown["ackedPartitions"] == {f"persistent://{topic}": wanted}
        for name, found in wanted.items():
            path = f"{T}/transactionInPendingAckStats/{topic}/{name}/{most}/{least}"
            assert admin.get(path).json() == found
        assert admin.put(f"{P}/{topic}/unload").status_code == 204
    txn.abort()
