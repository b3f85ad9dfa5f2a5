"""Transactions that span a namespace: topics and subscriptions take part without being added first.

    SEND, ACK ─▶ does its transaction span this topic's namespace, and is the topic new to it?
                   │ ADD_PARTITION or ADD_SUBSCRIPTION, as a client would have requested
                   ▼
                 the coordinator's log: durable ─▶ the message or acknowledgement continues

Nothing may be stored on a topic or subscription before its coordinator durably knows it as a
participant: otherwise the transaction might never be ended there. So later commands for the same
participant wait too, one turn of the loop longer than the first, so that the order is kept.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from pybroker.base.names import TopicName, TxnId
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.remote_coordinators import Participation, RemoteCoordinators
from pybroker.transaction.txn_status import TxnStatus

Joined = asyncio.Future[TxnId]
Adding = Callable[[], Joined]


class Joiner(Protocol):
    """The client that sent the SEND or ACK."""

    @property
    def principal(self) -> str | None: ...
    @property
    def client(self) -> str:
        """The key that limits its questions to other brokers: see `RemoteCoordinators.join`."""
        ...

    def takes(self, txn_id: TxnId) -> None:
        """Count one more participant. Raises NotAllowed if a limit of the client is reached."""
        ...

    def add(self, adding: Adding) -> Joined:
        """Call `adding`, which adds the participant. Raises NotAllowed if a namespace is full."""
        ...


class _Touched(NamedTuple):
    txn_id: TxnId
    topic: str
    subscription: str | None


class Joining:
    """`serving` contains the open coordinators of this broker, by id."""

    def __init__(self, serving: Mapping[int, TransactionCoordinator]) -> None:
        self._serving = serving
        # Raises if a transaction may not take part in a namespace.
        self.check: Callable[[TxnId, str], None] = lambda txn_id, namespace: None
        self.remote: RemoteCoordinators | None = None  # only with several brokers
        # Whether a transaction may span a namespace: False until the first one does.
        self.are_any = False
        self._on_their_way: dict[_Touched, Joined] = {}

    def note_spanning(self) -> None:
        """A transaction spans a namespace, or one of another broker may."""
        self.are_any = True

    def partition(self, txn_id: TxnId, name: TopicName, joiner: Joiner) -> Joined | None:
        """Add the topic to the transaction if necessary. None: there is nothing to wait for. The
        future completes when the topic has been added or refused, or when the coordinator on
        another broker has been asked; then call again, which may raise. The future is shared: do
        not cancel it.

        Raises TransactionNotFound (the transaction belongs to another principal), NotAllowed (no
        room), and the errors of `check`.
        """
        coordinator = self._spanning(txn_id, name)
        if coordinator is None:
            return self._remote(Participation(txn_id, str(name)), joiner)
        topic = str(name)

        def ask(found: TransactionMetadata) -> Joined | None:
            if topic in found.partitions:
                return None
            add = partial(coordinator.add_partitions, txn_id, [topic], joiner.principal)
            return self._add(txn_id, name, joiner, add)

        return self._join(coordinator, _Touched(txn_id, topic, None), ask)

    def subscription(
        self,
        txn_id: TxnId,
        name: TopicName,
        subscription: str,
        joiner: Joiner,
    ) -> Joined | None:
        """Like `partition`, for a subscription."""
        coordinator = self._spanning(txn_id, name)
        if coordinator is None:
            return self._remote(Participation(txn_id, str(name), subscription), joiner)
        pair = (str(name), subscription)

        def ask(found: TransactionMetadata) -> Joined | None:
            if pair in found.subscriptions:
                return None
            add = partial(coordinator.add_subscriptions, txn_id, [pair], joiner.principal)
            return self._add(txn_id, name, joiner, add)

        return self._join(coordinator, _Touched(txn_id, *pair), ask)

    def _add(self, txn_id: TxnId, name: TopicName, joiner: Joiner, add: Adding) -> Joined:
        self.check(txn_id, name.namespace_name)
        joiner.takes(txn_id)
        return joiner.add(add)

    def _spanning(self, txn_id: TxnId, name: TopicName) -> TransactionCoordinator | None:
        """The coordinator of this transaction, if the transaction spans the topic's namespace.
        Called for each SEND.
        """
        coordinator = self._serving.get(txn_id.most)
        found = None if coordinator is None else coordinator.metadata(txn_id)
        if found is None or found.namespace is None or not name.persistent:
            return None
        return coordinator if found.namespace == name.namespace_name else None

    def _remote(self, asked: Participation, joiner: Joiner) -> Joined | None:
        """Ask a coordinator on another broker, which adds the participant if necessary."""
        remote, most = self.remote, asked.txn_id.most
        if remote is None or most in self._serving or remote.serves(most):
            return None
        begins = partial(joiner.takes, asked.txn_id)
        return remote.join(asked, joiner.client, joiner.principal, begins)

    def _join(
        self,
        coordinator: TransactionCoordinator,
        touched: _Touched,
        ask: Callable[[TransactionMetadata], Joined | None],
    ) -> Joined | None:
        under_way = self._on_their_way.get(touched)
        if under_way is not None:
            return under_way
        found = coordinator.metadata(touched.txn_id)
        if found is None or found.status is not TxnStatus.OPEN:
            return None  # the client gets that error on writing
        joined = ask(found)
        if joined is not None:
            self._on_their_way[touched] = joined
            joined.add_done_callback(lambda _: self._forget_soon(touched))
        return joined

    def _forget_soon(self, touched: _Touched) -> None:
        asyncio.get_running_loop().call_soon(self._on_their_way.pop, touched)
