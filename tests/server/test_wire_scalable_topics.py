"""Scalable topics on the wire: layouts as they change, the order of segments, watches."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_client import RawClient
from v5_raw import join, leave, next_assignment, next_layout, segments_of, watch_layout

from pybroker.base.names import any_topic
from pybroker.broker.namespaces.tenants import InUse
from pybroker.broker.scalable import drains
from pybroker.broker.topic_lists.lists import TopicList
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
FIRST = "0000-ffff-0"


class Scalable:
    def __init__(self, broker: Any, topic: str) -> None:
        self._broker = broker
        self.name = topic.replace("persistent", "topic", 1)
        self.key = any_topic(self.name)

    def segment(self, descriptor: str) -> str:
        return self.name.replace("topic", "segment", 1) + f"/{descriptor}"

    def create(self, segments: int = 1, **properties: str) -> None:
        self._ask(lambda scalable: scalable.create(self.key, segments, properties))

    def split(self, number: int) -> None:
        self._ask(lambda scalable: scalable.split(self.key, number))

    def merge(self, one: int, other: int) -> None:
        self._ask(lambda scalable: scalable.merge(self.key, one, other))

    def prune(self) -> Any:
        return self._ask(lambda scalable: scalable.pruner.prune_unneeded(self.key))

    def delete(self, force: bool = False) -> None:
        self._ask(lambda scalable: scalable.delete(self.key, force))

    def subscribe(self, descriptor: str, subscription: str) -> None:
        """On one segment, without its descendants."""

        async def subscribe(running: Any) -> None:
            topic = await running.topics.get(self.segment(descriptor))
            await topic.subscription(subscription, None, {}, create=True)

        self._broker.call(subscribe)

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        return self._broker.call(lambda running: work(running.topics.scalable))


@pytest.fixture
def scalable(wire_broker: Any, topic: str) -> Iterator[Scalable]:
    yield Scalable(wire_broker, topic)


def shown(update: Any) -> list[tuple[int, str, list[int]]]:
    """Number, state and children of a layout's segments."""
    assert not update.HasField("error"), update
    return [
        (each.segment_id, pb.SegmentState.Name(each.state), list(each.child_ids))
        for each in update.dag.segments
    ]


def publish(raw: RawClient, topic: str, count: int = 1, producer_id: int = 1) -> None:
    raw.create_producer(topic, producer_id)
    for number in range(count):
        receipt = raw.publish(b"x", number, producer_id=producer_id)
        assert isinstance(receipt, pb.CommandSendReceipt), receipt
    raw.close_producer(producer_id)


def drain(raw: RawClient, topic: str, count: int, consumer_id: int = 7) -> None:
    """Receives and acknowledges that many messages with a consumer of subscription "s"."""
    raw.subscribe(topic, consumer_id, subscription="s")
    raw.flow(count, consumer_id)
    for message in raw.messages(count):
        ack = pb.CommandAck(
            consumer_id=consumer_id,
            ack_type=pb.CommandAck.Individual,
            message_id=[message.message_id],
        )
        raw.request(_T.ACK, "ack", ack)
    raw.close_consumer(consumer_id)


# -- layouts


def test_a_topic_that_is_missing_gets_one_segment(raw: RawClient, scalable: Scalable) -> None:
    absent = watch_layout(raw, scalable.name, create=False)
    assert absent.error == pb.TopicNotFound
    update = watch_layout(raw, scalable.name)
    assert shown(update) == [(0, "ACTIVE", [])]
    assert update.resolved_topic_name == scalable.name
    assert not update.dag.segments[0].HasField("legacy_topic_name")


def test_a_short_name_is_that_of_the_scalable_topic_if_there_is_one(
    raw: RawClient, connect: Connect, scalable: Scalable, topic: str
) -> None:
    """The SDK completes it to a persistent:// name."""
    assert shown(watch_layout(raw, topic)) == [(0, "ACTIVE", [])], "an ordinary topic, so far"
    scalable.create(2)
    update = watch_layout(connect(), topic)
    assert update.resolved_topic_name == scalable.name and len(update.dag.segments) == 2
    assert not update.dag.segments[0].HasField("legacy_topic_name")
    group = connect()
    assert segments_of(join(group, topic)) == [0, 1]
    scalable.split(0)
    assert segments_of(join(connect(), topic, "two")), "of the same group"
    assert segments_of(next_assignment(group))


def test_a_watch_hears_of_each_change_as_a_whole(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    scalable.create(2)
    assert shown(watch_layout(raw, scalable.name)) == [(0, "ACTIVE", []), (1, "ACTIVE", [])]
    scalable.split(0)
    update = next_layout(raw)
    assert shown(update)[0] == (0, "SEALED", [2, 3]) and update.dag.epoch == 1
    scalable.merge(1, 3)
    update = next_layout(raw)
    assert shown(update)[1:] == [
        (1, "SEALED", [4]),
        (2, "ACTIVE", []),
        (3, "SEALED", [4]),
        (4, "ACTIVE", []),
    ]
    last = update.dag.segments[4]
    assert list(last.parent_ids) == [3, 1] and (last.hash_start, last.hash_end) == (16384, 65535)
    assert watch_layout(connect(), scalable.name).dag == update.dag


def test_a_sealed_segment_takes_no_messages_and_its_children_do(
    raw: RawClient, scalable: Scalable
) -> None:
    scalable.create()
    publish(raw, scalable.segment(FIRST))
    scalable.split(0)
    refused = raw.ask_for_producer(scalable.segment(FIRST))
    assert refused.error == pb.TopicTerminatedError
    publish(raw, scalable.segment("0000-7fff-1"))
    publish(raw, scalable.segment("8000-ffff-2"))


@pytest.mark.parametrize("descriptor", ["0000-7fff-0", "0000-ffff-1", "0000-ffff-00"])
def test_a_segment_that_no_record_names_is_not_there(
    raw: RawClient, scalable: Scalable, descriptor: str
) -> None:
    scalable.create()
    refused = raw.ask_for_producer(scalable.segment(descriptor))
    assert refused.error in (pb.TopicNotFound, pb.InvalidTopicName) and refused.message


def test_no_producer_is_attached_to_the_topic_itself(raw: RawClient, scalable: Scalable) -> None:
    scalable.create()
    refused = raw.ask_for_producer(scalable.name)
    assert refused.error == pb.InvalidTopicName and "V5 SDK" in refused.message


def test_lists_and_patterns_of_topics_have_no_segments(raw: RawClient, scalable: Scalable) -> None:
    scalable.create()
    publish(raw, scalable.segment(FIRST))
    asked = pb.CommandGetTopicsOfNamespace(namespace="public/default", mode=2)
    found = raw.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", asked).topics
    assert not [name for name in found if scalable.key.local in name]


def test_lookups_find_the_topic_and_its_segments(raw: RawClient, scalable: Scalable) -> None:
    scalable.create()
    for name in (scalable.name, scalable.segment(FIRST)):
        answer = raw.request(_T.LOOKUP, "lookupTopic", pb.CommandLookupTopic(topic=name))
        assert answer.response == pb.CommandLookupTopicResponse.Connect


def test_a_deleted_topic_is_gone_with_its_segments(raw: RawClient, scalable: Scalable) -> None:
    scalable.create()
    raw.create_producer(scalable.segment(FIRST))
    with pytest.raises(InUse):
        scalable.delete()
    scalable.delete(force=True)
    assert watch_layout(raw, scalable.name, create=False).error == pb.TopicNotFound
    scalable.create()
    raw.subscribe(scalable.segment(FIRST), subscription="s")
    raw.flow(10)
    assert raw.waiting_messages() == 0


# -- subscriptions


def test_children_have_the_subscriptions_of_their_parents(
    raw: RawClient, scalable: Scalable
) -> None:
    scalable.create()
    raw.subscribe(scalable.segment(FIRST), subscription="away")
    raw.close_consumer()
    scalable.split(0)
    publish(raw, scalable.segment("0000-7fff-1"))
    latest = pb.CommandSubscribe.Latest
    raw.subscribe(scalable.segment("0000-7fff-1"), subscription="away", initialPosition=latest)
    raw.flow(10)
    raw.messages(1)


def test_a_subscription_on_a_sealed_segment_is_one_on_its_descendants(
    raw: RawClient, scalable: Scalable
) -> None:
    """A stream consumer comes to a child later, and must miss nothing of the time between."""
    scalable.create()
    scalable.split(0)
    child = scalable.segment("0000-7fff-1")
    publish(raw, child)
    latest = pb.CommandSubscribe.Latest
    raw.subscribe(scalable.segment(FIRST), subscription="late", initialPosition=latest)
    publish(raw, child, 2)
    raw.subscribe(child, 2, subscription="late", initialPosition=latest)
    raw.flow(10, 2)
    raw.messages(2)
    assert raw.waiting_messages() == 0, "what was there before the subscription is not for it"


def test_a_subscription_that_a_crash_kept_from_the_children_gets_there_when_asked_for_again(
    raw: RawClient, scalable: Scalable
) -> None:
    scalable.create()
    scalable.split(0)
    scalable.split(1)
    scalable.subscribe(FIRST, "s")  # and here it crashed, before the children had it
    raw.subscribe(scalable.segment(FIRST), subscription="s")
    grandchild = scalable.segment("0000-3fff-3")
    publish(raw, grandchild)
    latest = pb.CommandSubscribe.Latest
    raw.subscribe(grandchild, 2, subscription="s", initialPosition=latest)
    raw.flow(10, 2)
    raw.messages(1)


# -- groups


def test_a_stream_consumer_gets_a_child_once_its_parent_is_drained(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    scalable.create()
    publish(raw, scalable.segment(FIRST), 3)
    group = connect()
    assert segments_of(join(group, scalable.name)) == [0]
    scalable.split(0)
    assert group.kinds_before_pong() == [], "the children must wait"
    drain(raw, scalable.segment(FIRST), 3)
    update = next_assignment(group)
    assert segments_of(update) == [0, 1, 2]
    assert [each.segment_topic for each in update.assignment.segments] == [
        scalable.segment(each) for each in (FIRST, "0000-7fff-1", "8000-ffff-2")
    ]
    assert update.assignment.layout_epoch == 1


def test_who_seeks_back_on_a_sealed_segment_has_the_children_again_after_it(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    scalable.create()
    publish(raw, scalable.segment(FIRST))
    drain(raw, scalable.segment(FIRST), 1)
    group = connect()
    assert segments_of(join(group, scalable.name)) == [0]
    scalable.split(0)
    assert segments_of(next_assignment(group)) == [0, 1, 2]
    raw.subscribe(scalable.segment(FIRST), subscription="s")
    back = pb.CommandSeek(consumer_id=1, message_publish_time=1)
    raw.request(_T.SEEK, "seek", back)
    assert segments_of(next_assignment(group)) == [0]
    drain(connect(), scalable.segment(FIRST), 1)
    assert segments_of(next_assignment(group)) == [0, 1, 2]


def test_a_grandchild_waits_for_all_its_ancestors(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    scalable.create()
    group = connect()
    publish(raw, scalable.segment(FIRST))
    scalable.split(0)
    scalable.merge(1, 2)
    publish(raw, scalable.segment("0000-ffff-3"))
    assert segments_of(join(group, scalable.name)) == [0], "sealed children wait, too"
    drain(raw, scalable.segment(FIRST), 1)
    assert segments_of(next_assignment(group)) == [0, 1, 3, 2], "by the ranges"


def test_checkpoint_consumers_get_all_segments_at_once(raw: RawClient, scalable: Scalable) -> None:
    scalable.create()
    publish(raw, scalable.segment(FIRST))
    scalable.split(0)
    assert segments_of(join(raw, scalable.name, kind=pb.CHECKPOINT)) == [0, 1, 2]


def test_without_the_rule_a_child_would_come_before_its_parent(
    raw: RawClient, scalable: Scalable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the rule can fail."""
    monkeypatch.setattr(drains, "is_drained", lambda *_: True)
    scalable.create()
    publish(raw, scalable.segment(FIRST))
    scalable.split(0)
    assert segments_of(join(raw, scalable.name)) == [0, 1, 2]
    leave(raw)


def test_an_open_transaction_keeps_the_children_waiting_and_commits_after_the_split(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    scalable.create()
    parent, group = scalable.segment(FIRST), connect()
    raw.subscribe(parent, 9, subscription="s")
    raw.close_consumer(9)
    txn = raw.new_txn()
    raw.add_partition(txn, parent)
    raw.create_producer(parent)
    assert isinstance(raw.publish(b"in a transaction", 0, txn), pb.CommandSendReceipt)
    scalable.split(0)
    assert segments_of(join(group, scalable.name)) == [0], "not drained while it is open"
    raw.end(txn, commit=True)
    drain(raw, parent, 1)
    assert segments_of(next_assignment(group)) == [0, 1, 2]


# -- pruning


def test_a_drained_segment_is_pruned_and_the_watch_hears_of_it(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    scalable.create()
    publish(raw, scalable.segment(FIRST), 2)
    raw.subscribe(scalable.segment(FIRST), 9, subscription="s")
    raw.close_consumer(9)
    scalable.split(0)
    watcher = connect()
    assert len(shown(watch_layout(watcher, scalable.name))) == 3
    assert scalable.prune() == [], "subscription s has a backlog"
    drain(raw, scalable.segment(FIRST), 2)
    assert scalable.prune() == [0]
    assert shown(next_layout(watcher)) == [(1, "ACTIVE", []), (2, "ACTIVE", [])]
    refused = raw.ask_for_producer(scalable.segment(FIRST))
    assert refused.error == pb.TopicNotFound
    raw.subscribe(scalable.segment("0000-7fff-1"), subscription="s")


# -- watches of a namespace


def watch(raw: RawClient, namespace: str, watch_id: int = 1, **fields: Any) -> Any:
    filters = [pb.KeyValue(key=k, value=v) for k, v in fields.pop("wanted", {}).items()]
    asked = pb.CommandWatchScalableTopics(
        watch_id=watch_id, namespace=namespace, property_filters=filters, **fields
    )
    raw.send(_T.WATCH_SCALABLE_TOPICS, "watchScalableTopics", asked)


def heard(raw: RawClient) -> Any:
    return raw.receive(_T.WATCH_SCALABLE_TOPICS_UPDATE)


def test_a_namespace_tells_its_scalable_topics_and_what_comes_and_goes(
    raw: RawClient, connect: Connect, scalable: Scalable
) -> None:
    mine = {"team": scalable.key.local}
    scalable.create(1, **mine)
    watch(raw, "public/default", wanted=mine)
    assert list(heard(raw).snapshot.topics) == [scalable.name]
    scalable.delete()
    assert list(heard(raw).diff.removed) == [scalable.name]
    scalable.create(1, other="property")
    scalable.delete()
    scalable.create(2, **mine, more="properties")
    assert list(heard(raw).diff.added) == [scalable.name]
    close = pb.CommandWatchScalableTopicsClose(watch_id=1)
    raw.send(_T.WATCH_SCALABLE_TOPICS_CLOSE, "watchScalableTopicsClose", close)
    scalable.delete()
    watch(raw, "public/default", 2, wanted=mine)
    assert (update := heard(raw)).watch_id == 2 and not update.snapshot.topics


def test_who_knows_the_names_by_their_hash_gets_only_changes(
    raw: RawClient, scalable: Scalable
) -> None:
    mine = {"team": scalable.key.local}
    scalable.create(1, **mine)
    known = TopicList([scalable.name]).hash
    watch(raw, "public/default", wanted=mine, current_hash=known)
    assert raw.kinds_before_pong() == []
    scalable.delete()
    assert list(heard(raw).diff.removed) == [scalable.name]


def test_a_missing_namespace_has_no_watch(raw: RawClient) -> None:
    watch(raw, "public/absent")
    refused = heard(raw)
    assert refused.error == pb.TopicNotFound and "Namespace does not exist" in refused.message
