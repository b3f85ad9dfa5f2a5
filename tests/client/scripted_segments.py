"""A scripted broker with a scalable topic, whose segments a test splits."""

from typing import Any

from scripted_broker import Peer, ScriptedBroker, Sent, receipt

from pybroker.client.scalable.layout import Layout, layout_of
from pybroker.wire import pulsar_api_pb2 as pb

NAME = "topic://public/default/orders"


class Segments:
    """One segment at first, 0. A sealed one refuses messages at once; the layout that says so is
    told by `tell`.
    """

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self.dag = pb.ScalableTopicDAG(epoch=0)
        self.sealed: set[int] = set()
        self.silent: set[int] = set()  # segments that do not answer SENDs
        self.unanswered: list[Sent] = []
        self._add(0, 0, 0xFFFF)
        broker.answers["Connect"] = lambda *_: pb.CommandConnected(
            server_version="scripted",
            feature_flags=pb.FeatureFlags(supports_scalable_topics=True),
        )
        broker.answers["Ping"] = lambda *_: pb.CommandPong()
        broker.answers["ScalableTopicLookup"] = lambda _, body: self.update(body.session_id)
        broker.on_send = self._on_send

    def _add(self, number: int, start: int, end: int, *parents: int) -> None:
        self.dag.segments.add(
            segment_id=number,
            hash_start=start,
            hash_end=end,
            state=pb.ACTIVE,
            parent_ids=parents,
            created_at_epoch=self.dag.epoch,
            created_at_ms=0,
        )

    def split(self, number: int) -> None:
        parent = self.dag.segments[number]
        self.sealed.add(number)
        self.dag.epoch += 1
        parent.state = pb.SEALED
        following, middle = len(self.dag.segments), (parent.hash_start + parent.hash_end) // 2
        parent.child_ids.extend([following, following + 1])
        self._add(following, parent.hash_start, middle, number)
        self._add(following + 1, middle + 1, parent.hash_end, number)

    def tell(self) -> None:
        session_id = self._broker.asked_for(pb.CommandScalableTopicLookup)[-1].session_id
        self._broker.peer.say(self.update(session_id))

    def update(self, session_id: int) -> pb.CommandScalableTopicUpdate:
        return pb.CommandScalableTopicUpdate(
            session_id=session_id, dag=self.dag, resolved_topic_name=NAME
        )

    @property
    def layout(self) -> Layout:
        return layout_of(self.update(0))

    def of_producer(self, producer_id: int) -> int:
        """The segment's number."""
        names = {
            each.producer_id: each.topic for each in self._broker.asked_for(pb.CommandProducer)
        }
        return int(names[producer_id].rpartition("-")[2])

    def _on_send(self, _: Peer, sent: Sent) -> Any:
        number = self.of_producer(sent.producer_id)
        if number in self.sealed:
            return pb.CommandSendError(
                producer_id=sent.producer_id,
                sequence_id=sent.sequence_id,
                error=pb.TopicTerminatedError,
                message="sealed",
            )
        if number in self.silent:
            self.unanswered.append(sent)
            return None
        return receipt(sent)

    def answer(self) -> None:
        for sent in self.unanswered:
            self._broker.peer.say(receipt(sent))
        self.unanswered.clear()
