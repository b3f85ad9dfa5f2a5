"""Ends transactions on topics and subscriptions of any broker.

    here        a direct call, as on a standalone broker
    elsewhere   END_TXN_ON_PARTITION or END_TXN_ON_SUBSCRIPTION to the broker that serves the topic

The coordinator repeats a failed END, with a new lookup, until the participant has completed it; an
END is idempotent there. A broker that does not serve the topic answers with an error, never with
"ok". No broker serves the topics of a namespace that was deleted: they count as ended, if this
broker's metadata, brought up to date, has no such topic either.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from pybroker.base.names import TopicName, TxnId
from pybroker.broker.brokers.ownership import BrokerAddress, NotServedHere, Ownership
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.broker.transactions.txn_participants import participant_name, subscription_place
from pybroker.broker.transactions.waiting_ends import WaitingEnds
from pybroker.cluster.transactions.peers import Peers
from pybroker.transaction.coordinator.ends.participants import Participants
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb

# Ends the transaction here; receives `not_later`.
EndHere = Callable[[bool], Awaitable[object] | None]
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

    def end_on_partition(
        self,
        txn_id: TxnId,
        topic: str,
        action: TxnAction,
        low_watermark: int,
        not_later: bool = False,
    ) -> Awaitable[object] | None:
        end = partial(self._local.end_on_partition, txn_id, topic, action, low_watermark)
        command = partial(_command, txn_id, action, low_watermark, None)
        return self._end(participant_name(topic), end, command, not_later)

    def end_on_subscription(
        self,
        txn_id: TxnId,
        topic: str,
        subscription: str,
        action: TxnAction,
        low_watermark: int,
        not_later: bool = False,
    ) -> Awaitable[object] | None:
        end = partial(
            self._local.end_on_subscription, txn_id, topic, subscription, action, low_watermark
        )
        command = partial(_command, txn_id, action, low_watermark, subscription)
        return self._end(subscription_place(topic), end, command, not_later)

    def _end(
        self, name: TopicName, end_here: EndHere, command: Command, not_later: bool
    ) -> Awaitable[object] | None:
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
    ) -> Awaitable[object] | None:
        if found.owner is not None:
            return self._peers.request(found.owner, command(name))
        if found.is_deleted:
            return end_here(True)  # WouldWait if the topic exists, so it is repeated
        if not self._ownership.owns(name):
            raise NotServedHere(name)
        return end_here(False)  # this broker has just taken it


def _command(
    txn_id: TxnId,
    action: TxnAction,
    low_watermark: int,
    subscription: str | None,
    name: TopicName,
) -> Any:
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
