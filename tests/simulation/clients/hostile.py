"""A hostile client: forged metadata, others' transactions, impossible names, partial frames.

No other client may notice. Its messages are ordinary ones: acknowledged ones exist, refused ones do
not.
"""

from typing import Any, Final

from checks.history import Outcome, Sent, Txn

from clients.plain import Process
from clients.raw import Gone, RawPeer
from pybroker.base.names import TxnId
from pybroker.simulation.world import SimulatedClock
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

SYSTEM_NAMES: Final = (
    "persistent://public/default/one__transaction_pending_ack",
    "persistent://public/default/one-x__transaction_pending_ack",
    "persistent://pulsar/system/__transaction_log_0",
    "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
    "persistent://nobody/nowhere/one",
    "persistent://public/default/one-partition-7",
    "non-persistent://public/default/one",
    "one/two/three/four/five",
    "://",
    "",
)
MARKERS: Final = (21, 22, 20, 10, 12, 13)
HUGE: Final = (2**31 - 1, 1_000_000, 65)


class Hostile(Process):
    def __init__(self, *args: Any, topics: list[str], deeds: int) -> None:
        super().__init__(*args)
        self.topics = topics
        self.deeds = deeds
        self.number = 0
        self.producers: dict[str, int] = {}

    async def _main(self) -> None:
        while self.deeds and not self.finished:
            try:
                await self._misbehave(await RawPeer.connect())
            except (OSError, Gone) as error:
                self.note(f"begins again: {error}")
            await self.pause(0.5)
        self.finished = True
        self.note("finished")

    async def _misbehave(self, peer: RawPeer) -> None:
        self.producers.clear()
        deeds = (
            self._forge_metadata, self._forge_metadata, self._forge_metadata, self._end_on_topic,
            self._end_on_topic, self._end_on_subscription, self._join_impossibly,
            self._join_impossibly, self._end_another_s, self._acknowledge_anything,
            self._send_in_another_s, self._half_a_frame,
        )  # fmt: skip
        try:
            while self.deeds:
                self.deeds -= 1
                deed = self.rng.choice(deeds)
                self.note(deed.__name__)
                self.history.counts["hostile deeds"] += 1
                await deed(peer)
                await self.pause(0.4)
        finally:
            peer.close()

    # -- its knowledge

    def _somebody(self) -> Txn | None:
        """A recent transaction of another client."""
        known = [txn for txn in self.history.txns if txn.txn_id is not None]
        return self.rng.choice(known[-5:]) if known else None

    def _txn_id(self) -> TxnId:
        somebody = self._somebody()
        if somebody is None or self.rng.random() < 0.1:
            return self.rng.choice((TxnId(0, 10**6), TxnId(99, 0), TxnId(2**64 - 1, 2**64 - 1)))
        return TxnId(*somebody.txn_id)

    def _topic(self) -> str:
        return self.rng.choice(self.topics)

    async def _producer(self, peer: RawPeer, topic: str) -> int:
        if topic not in self.producers:
            number = self.producers[topic] = len(self.producers) + 1
            answer = await peer.request(pb.CommandProducer(topic=topic, producer_id=number))
            if not isinstance(answer, pb.CommandProducerSuccess):
                raise Gone(f"no producer: {answer}")
        return self.producers[topic]

    # -- its actions

    async def _forge_metadata(self, peer: RawPeer) -> None:
        """A plain SEND whose metadata claims to belong to a transaction, or to end one."""
        metadata = self._metadata()
        txn_id = self._txn_id()
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
        if self.rng.random() < 0.6:
            metadata.marker_type = self.rng.choice(MARKERS)
        await self._send(peer, metadata)

    async def _send_in_another_s(self, peer: RawPeer) -> None:
        """Sends into a transaction to which the producer does not belong, with plain metadata."""
        txn_id = self._txn_id()
        await self._send(peer, self._metadata(), txn_id)

    async def _send(
        self, peer: RawPeer, metadata: pb.MessageMetadata, txn_id: TxnId | None = None
    ) -> None:
        topic = self._topic()
        producer = await self._producer(peer, topic)
        self.number += 1
        short = topic.rpartition("/")[2]
        value = f"{self.name}/{self.number}"
        txn = next((t for t in self.history.txns if txn_id and t.txn_id == txn_id), None)
        sent = Sent(value, short, f"{self.name}.{self.incarnation}", self.number, txn=txn)
        self.history.send(sent)
        metadata.sequence_id = self.number
        fields = {} if txn_id is None else {
            "txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least
        }  # fmt: skip
        peer.send(
            metadata, value.encode() + b"|", producer_id=producer, sequence_id=self.number, **fields
        )
        kinds = pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR
        answer = await peer.receive(*kinds, pb.BaseCommand.CLOSE_PRODUCER)
        if isinstance(answer, pb.CommandSendReceipt):
            sent.outcome = Outcome.DONE
        else:
            self.note(f"refused: {answer}".replace("\n", " "))
            if isinstance(answer, pb.CommandSendError):
                sent.outcome = Outcome.REFUSED
            raise Gone("a producer that was refused")

    def _metadata(self) -> pb.MessageMetadata:
        return pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=0,
            publish_time=SimulatedClock(self.world).now_ms(),
        )

    async def _end_on_topic(self, peer: RawPeer) -> None:
        txn_id = self._txn_id()
        await peer.request(
            pb.CommandEndTxnOnPartition(
                txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least, topic=self._topic(),
                txn_action=self.rng.choice((pb.COMMIT, pb.ABORT)),
                txnid_least_bits_of_low_watermark=self.rng.choice((0, txn_id.least, 2**63)),
            )
        )  # fmt: skip

    async def _end_on_subscription(self, peer: RawPeer) -> None:
        txn_id = self._txn_id()
        names = [name for txn in self.history.txns[-9:] for name, _ in txn.acknowledged] or ["x"]
        await peer.request(
            pb.CommandEndTxnOnSubscription(
                txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least,
                subscription=pb.Subscription(
                    topic=self._topic(), subscription=self.rng.choice(names)
                ),
                txn_action=self.rng.choice((pb.COMMIT, pb.ABORT)),
                txnid_least_bits_of_low_watermark=self.rng.choice((0, txn_id.least, 2**63)),
            )
        )  # fmt: skip

    async def _join_impossibly(self, peer: RawPeer) -> None:
        """Its own transaction over impossible participants: it must end in time."""
        answer = await peer.request(pb.CommandNewTxn(txn_ttl_millis=2000, tc_id=0))
        if answer.HasField("error"):
            return
        ids = {
            "txnid_most_bits": answer.txnid_most_bits,
            "txnid_least_bits": answer.txnid_least_bits,
        }
        names = self.rng.sample(SYSTEM_NAMES, 2)
        if self.rng.random() < 0.6:
            await peer.request(pb.CommandAddPartitionToTxn(partitions=names, **ids))
        else:
            subscriptions = [pb.Subscription(topic=name, subscription="s") for name in names]
            await peer.request(pb.CommandAddSubscriptionToTxn(subscription=subscriptions, **ids))
        if self.rng.random() < 0.5:
            await peer.request(pb.CommandEndTxn(txn_action=pb.COMMIT, **ids))

    async def _end_another_s(self, peer: RawPeer) -> None:
        """With an unknown coordinator or id: anyone may end an existing transaction."""
        txn_id = self.rng.choice((TxnId(0, 10**7), TxnId(10**4, 3), TxnId(2**64 - 1, 2**64 - 1)))
        await peer.request(
            pb.CommandEndTxn(
                txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least, txn_action=pb.COMMIT
            )
        )

    async def _acknowledge_anything(self, peer: RawPeer) -> None:
        """On its own subscription: batches of any size, entries that do not exist."""
        name = f"{self.name}-{self.rng.randrange(3)}"
        answer = await peer.request(
            pb.CommandSubscribe(
                topic=self._topic(), subscription=name, consumer_id=1,
                subType=pb.CommandSubscribe.Shared, initialPosition=pb.CommandSubscribe.Earliest,
            )
        )  # fmt: skip
        if not isinstance(answer, pb.CommandSuccess):
            return
        peer.post(pb.CommandFlow(consumer_id=1, messagePermits=5))
        for _ in range(3):
            await self._acknowledge_one(peer)
        await peer.request(pb.CommandCloseConsumer(consumer_id=1))

    async def _acknowledge_one(self, peer: RawPeer) -> None:
        message_id = pb.MessageIdData(
            ledgerId=self.rng.choice((0, 1, 5, 2**63, 2**64 - 1)),
            entryId=self.rng.choice((0, 1, 7, 2**63, 2**64 - 1)),
        )
        if self.rng.random() < 0.7:
            message_id.batch_size = self.rng.choice(HUGE)
            message_id.ack_set.extend([-2] * self.rng.choice((1, 1, 40)))
        kinds = pb.CommandAck.Individual, pb.CommandAck.Cumulative
        await peer.request(
            pb.CommandAck(consumer_id=1, ack_type=self.rng.choice(kinds), message_id=[message_id])
        )

    async def _half_a_frame(self, peer: RawPeer) -> None:
        frame = encode_frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
        junk = (frame[:3], frame[:-1], (5_000_000).to_bytes(4, "big"), bytes(12), b"\xff" * 12)
        peer.write(self.rng.choice(junk))
        await self.pause(1.0)
        raise Gone("nothing can follow half a frame")
