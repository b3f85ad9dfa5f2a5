"""Transactional producers that another broker of the cluster has: the owner of their log.

A batch goes to the leader of its partition, offsets go to the coordinator of their group, and
neither need be the broker that has the producer. That one is asked for the producer's transaction:
once for each topic or group, as long as the transaction is open. Its answer says that it is open
and that the topic or group is a part of it, durably; so its end will be told here, and from then on
the answer does not count any more. A client's next transaction begins only after that.

Source: KIP-890, whose leaders ask the coordinator with AddPartitionsToTxn.
"""

from typing import Final, NamedTuple, Protocol

from pybroker.base.errors import TransactionCoordinatorNotFound
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Clock
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.transactions.live_producer import Claim
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.kafka.transactions.values import ProducerKey
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.remote_coordinators import Participation
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnStatus

_MOST_KNOWN: Final = 10_000


class Part(NamedTuple):
    """What takes part in a transaction: a topic, or the offsets of a group."""

    topic: TopicName | None
    group: str = ""

    def of(self, txn_id: TxnId) -> Participation:
        if self.topic is not None:
            return Participation(txn_id, str(self.topic))
        return Participation(txn_id, str(topic_of_group(self.group)), self.group)

    def is_in(self, txn_id: TxnId, coordinators: Coordinators) -> bool:
        """Raises TransactionCoordinatorNotFound if its outcome is not known here."""
        if self.topic is not None:
            return coordinators.has_partition(txn_id, str(self.topic))
        return coordinators.has_subscription(txn_id, str(topic_of_group(self.group)), self.group)

    def __str__(self) -> str:
        return self.group if self.topic is None else str(self.topic)


class AsksBroker(Protocol):
    async def __call__(self, client: TxnClient, claim: Claim, part: Part, adds: bool) -> TxnId:
        """Ask the broker that has the producer for its transaction, of which the part is one, or
        becomes one (`adds`). Raises KafkaError.
        """
        ...


class RemoteProducers:
    def __init__(self, ask: AsksBroker, coordinators: Coordinators, clock: Clock) -> None:
        self._ask = ask
        self._coordinators = coordinators
        self._clock = clock
        self._known: dict[tuple[TransactionalId, Part], tuple[ProducerKey, TxnId]] = {}

    def known(self, claim: Claim, part: Part) -> TxnId | None:
        """The transaction, if its coordinator has just been asked and it is still open."""
        found = self._known.get((claim.id, part))
        if found is None or found[0] != claim.key or not self.is_open(found[1], part):
            return None
        return found[1]

    def is_open(self, txn_id: TxnId, part: Part) -> bool:
        """Whether the part may still be changed in the transaction, as far as is known here."""
        try:
            is_open = self._coordinators.status(txn_id) is TxnStatus.OPEN
            return is_open and part.is_in(txn_id, self._coordinators)
        except TransactionCoordinatorNotFound:
            return False

    async def ask(self, client: TxnClient, claim: Claim, part: Part, adds: bool) -> TxnId:
        """Raises KafkaError if the coordinator refuses, or the transaction has ended meanwhile."""
        began_s = self._clock.monotonic_s()
        txn_id = await self._ask(client, claim, part, adds)
        if (remote := self._coordinators.remote(txn_id.most)) is not None:
            remote.told_open(part.of(txn_id), client.owner, began_s)
        if not self.is_open(txn_id, part):  # it has been ended, or the topic has moved, meanwhile
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"{txn_id} of {claim.id.name!r} has changed"
            )
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[claim.id, part] = claim.key, txn_id
        return txn_id
