"""Ends transactions on topics and subscriptions of any broker.

    here        a direct call, as on a standalone broker
    elsewhere   END_TXN_ON_PARTITION or END_TXN_ON_SUBSCRIPTION to the broker that serves the topic

The coordinator repeats a failed END, with a new lookup, until the participant has completed it; an
END is idempotent there. A broker that does not serve the topic answers with an error, never with
"ok". No broker serves the topics of a namespace that was deleted: they count as ended, if this
broker's metadata, brought up to date, has no such topic either.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress, NotServedHere, Ownership
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.broker.transactions.txn_participants import participant_name, subscription_place
from pybroker.broker.transactions.waiting_ends import WaitingEnds
from pybroker.cluster.transactions.peers import Peers
from pybroker.transaction.coordinator.ends.participants import Ending, Participants, TransactionEnd
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb

# Ends the transaction here; receives `not_later`.
EndHere = Callable[[bool], Ending]
# Makes the request to another broker.
Command = Callable[[TopicName], Any]


class Found(NamedTuple):
    """The other broker that serves a topic; None: this broker, or none since it is deleted."""

    owner: BrokerAddress | None
    is_deleted: bool = False


class SharedParticipants:
    """Implements transaction.coordinator.participants.Participants."""

    def __init__(self, local: Participants, ownership: Ownership, peers: Peers) -> None:
        self._local = local
        self._ownership = ownership
        self._peers = peers
        self._waiting = WaitingEnds("participants of several brokers", self._found)

    async def close(self) -> None:
        """Fail the ends that wait until it is known which broker serves their topic."""
        await self._waiting.close()

    def end_on_partition(self, end: TransactionEnd, topic: str, not_later: bool = False) -> Ending:
        here = partial(self._local.end_on_partition, end, topic)
        return self._end(participant_name(topic), here, partial(_command, end, None), not_later)

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, not_later: bool = False
    ) -> Ending:
        here = partial(self._local.end_on_subscription, end, topic, subscription)
        command = partial(_command, end, subscription)
        return self._end(subscription_place(topic), here, command, not_later)

    def _end(self, name: TopicName, end_here: EndHere, command: Command, not_later: bool) -> Ending:
        if name not in self._waiting and self._ownership.owns(name):
            return end_here(not_later)
        if not_later:
            raise WouldWait
        return self._waiting.add(name, partial(self._end_there, name, end_here, command))

    async def _found(self, name: TopicName) -> Found:
        try:
            return Found(await self._ownership.owner_of(name))
        except NotFound:  # the namespace was deleted
            await self._ownership.refreshed()
            return Found(None, is_deleted=True)

    def _end_there(
        self, name: TopicName, end_here: EndHere, command: Command, found: Found
    ) -> Ending:
        if found.owner is not None:
            return self._peers.request(found.owner, command(name))
        if found.is_deleted:
            return end_here(True)  # WouldWait if the topic exists, so it is repeated
        if not self._ownership.owns(name):
            raise NotServedHere(name)
        return end_here(False)  # this broker has just taken it


def _command(end: TransactionEnd, subscription: str | None, name: TopicName) -> Any:
    txn_id, action, low_watermark = end
    known: dict[str, Any] = {
        "txnid_most_bits": txn_id.most,
        "txnid_least_bits": txn_id.least,
        "txn_action": pb.COMMIT if action is TxnAction.COMMIT else pb.ABORT,
    }
    if low_watermark >= 0:  # unsigned field; left out before the first transaction has ended
        known["txnid_least_bits_of_low_watermark"] = low_watermark
    if subscription is None:
        return pb.CommandEndTxnOnPartition(topic=str(name), **known)
    part = pb.Subscription(topic=str(name), subscription=subscription)
    return pb.CommandEndTxnOnSubscription(subscription=part, **known)
