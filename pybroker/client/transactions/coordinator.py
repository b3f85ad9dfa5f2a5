"""The transaction coordinators, found through their assign topic.

Partition i of persistent://pulsar/system/transaction_coordinator_assign stands for coordinator i:
the broker that serves the partition serves the coordinator. A request is repeated while its
coordinator moves, is recovering or cannot be reached, up to the operation timeout. All requests are
idempotent (a NEW_TXN whose answer was lost leaves an empty transaction behind, which times out).

Source: PIP-31, "Transaction Coordinator".
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pybroker.base.errors import InvalidTxnStatus, NotAllowed, TransactionCoordinatorNotFound
from pybroker.base.names import COORDINATOR_ASSIGN, TxnId
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.connection.retry import PASSING
from pybroker.client.errors import (
    BoundElsewhere,
    ConnectError,
    PulsarException,
    Timeout,
    TransactionOutcomeUnknown,
)
from pybroker.client.transactions.prepared import PreparedTransaction
from pybroker.client.transactions.transaction import Transaction, TransactionEnds
from pybroker.wire import pulsar_api_pb2 as pb


class Coordinators:
    def __init__(self, cluster: Cluster) -> None:
        self.ends = TransactionEnds()
        self._cluster = cluster
        self._count = 0
        self._turn: int | None = None
        # The allowed coordinators of namespaces whose policy restricts them.
        self._bound_to: dict[str | None, list[int]] = {}
        # Connections on which a coordinator has accepted this client.
        self._serving: dict[int, Connection] = {}

    async def new_transaction(
        self,
        timeout_ms: int,
        beside: TxnId | None = None,
        namespace: str | None = None,
        abort_on_disconnect: bool = False,
    ) -> Transaction:
        """If the broker cannot span a namespace, the client adds each topic and subscription.

        Raises NotAllowed if the broker does not know `abort_on_disconnect`.
        """
        coordinator_id = await self._next_coordinator() if beside is None else beside.most
        if beside is None and namespace in self._bound_to:
            coordinator_id = self._cluster.rng.choice(self._bound_to[namespace])
        begin = partial(self._begin, timeout_ms, namespace, abort_on_disconnect)
        try:
            return await begin(coordinator_id)
        except BoundElsewhere as refusal:
            if namespace is None or beside is not None:
                raise
            self._bound_to[namespace] = refusal.allowed
            coordinator_id = self._cluster.rng.choice(refusal.allowed)
        return await begin(coordinator_id)

    async def _begin(
        self,
        timeout_ms: int,
        namespace: str | None,
        abort_on_disconnect: bool,
        coordinator_id: int,
    ) -> Transaction:
        async def begin() -> Transaction:
            request = pb.CommandNewTxn(tc_id=coordinator_id, txn_ttl_millis=timeout_ms)
            connection = await self._connection(coordinator_id)
            spans = connection.spans_namespaces
            if namespace is not None and spans:
                request.spans_namespace = namespace
            if abort_on_disconnect:
                if not connection.aborts_on_disconnect:
                    raise NotAllowed(
                        "This broker does not abort transactions of disconnected clients"
                    )
                request.abort_on_disconnect = True
            session = self._cluster.session
            if session is not None:
                session.require_of(connection)
                session.name_in(request)
            answer = await self._ask(coordinator_id, request)
            if session is not None:
                session.told_transaction(answer)
            txn_id = TxnId(answer.txnid_most_bits, answer.txnid_least_bits)
            transaction = self.attach(txn_id, namespace if spans else None)
            transaction.trace()
            return transaction

        return await self._cluster.patiently(begin, "A new transaction")

    def attach(self, txn_id: TxnId, namespace: str | None = None) -> Transaction:
        """`namespace`: the namespace that the transaction spans at the broker."""
        return Transaction(self, txn_id, self._cluster.tasks, namespace)

    async def add_partition(self, txn_id: TxnId, topic: str) -> None:
        async def add() -> None:
            await self._ask(
                txn_id.most,
                pb.CommandAddPartitionToTxn(
                    txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least, partitions=[topic]
                ),
            )

        await self._cluster.patiently(add, f"Adding {topic} to transaction {txn_id}")

    async def add_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> None:
        async def add() -> None:
            await self._ask(
                txn_id.most,
                pb.CommandAddSubscriptionToTxn(
                    txnid_most_bits=txn_id.most,
                    txnid_least_bits=txn_id.least,
                    subscription=[pb.Subscription(topic=topic, subscription=subscription)],
                ),
            )

        await self._cluster.patiently(add, f"Adding {subscription} to transaction {txn_id}")

    async def commits_together(self) -> bool:
        """Whether the broker commits several transactions atomically."""

        async def ask() -> bool:
            connection = await self._connection(await self._next_coordinator())
            return connection.commits_together

        return await self._cluster.patiently(ask, "What the broker can do")

    async def end(self, txn_id: TxnId, commit: bool, together_with: Sequence[TxnId] = ()) -> None:
        """Returns when it has ended. Raises TransactionOutcomeUnknown if that remains unknown.

        Apache Pulsar forgets finished transactions, so its "not found" after an unanswered attempt
        says nothing about the outcome.
        """
        unsure = False

        async def end() -> None:
            nonlocal unsure
            before, unsure = unsure, True
            try:
                await self._require_together(txn_id, together_with)
                await self._ask(txn_id.most, self._end_request(txn_id, commit, together_with))
            except (ConnectError, Timeout):
                raise
            except PulsarException:
                unsure = before
                raise

        try:
            await self._cluster.patiently(end, f"The end of transaction {txn_id}")
        except InvalidTxnStatus:
            raise
        except PulsarException as error:  # of the last attempt; an earlier one may have arrived
            if not unsure:
                raise
            raise TransactionOutcomeUnknown(txn_id) from error

    async def prepare(self, txn_id: TxnId, name: str) -> None:
        """Durable when this returns. Idempotent, so that it can be repeated."""

        async def prepare() -> None:
            if not (await self._connection(txn_id.most)).prepares:
                raise NotAllowed("This broker cannot prepare transactions: commit or abort")
            request = pb.CommandPrepareTxn(
                txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least, name=name
            )
            await self._ask(txn_id.most, request)

        await self._cluster.patiently(prepare, f"Preparing transaction {txn_id}")

    async def prepared(self, name: str | None) -> list[PreparedTransaction]:
        """Of all coordinators. Raises NotAllowed if the broker cannot prepare transactions."""
        found = list[PreparedTransaction]()
        for coordinator_id in range(await self._cluster.partition_count(str(COORDINATOR_ASSIGN))):
            request = pb.CommandListPreparedTxns(tc_id=coordinator_id, name=name)
            ask = partial(self._ask_for_prepared, request)
            while True:
                answer = await self._cluster.patiently(ask, "Listing prepared transactions")
                listed = answer.transaction
                found += [PreparedTransaction.of(coordinator_id, each) for each in listed]
                if not answer.has_more:
                    break
                request.after_least_bits = listed[-1].txnid_least_bits
        return found

    async def _ask_for_prepared(
        self, request: pb.CommandListPreparedTxns
    ) -> pb.CommandListPreparedTxnsResponse:
        if not (await self._connection(request.tc_id)).prepares:
            raise NotAllowed("This broker cannot prepare transactions, so there are none")
        answer: pb.CommandListPreparedTxnsResponse = await self._ask(request.tc_id, request)
        return answer

    async def _require_together(self, txn_id: TxnId, others: Sequence[TxnId]) -> None:
        """A broker that does not know the field would commit only the first of them."""
        if not others:
            return
        connection = await self._connection(txn_id.most)
        if not connection.commits_together:
            raise NotAllowed("This broker cannot commit several transactions atomically")
        if any(other.most != txn_id.most for other in others) and not connection.commits_across:
            raise NotAllowed(
                "This broker commits only transactions of one coordinator together: begin them "
                f"beside {txn_id}"
            )

    def _end_request(
        self, txn_id: TxnId, commit: bool, together_with: Sequence[TxnId]
    ) -> pb.CommandEndTxn:
        across = any(other.most != txn_id.most for other in together_with)
        return pb.CommandEndTxn(
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            txn_action=pb.COMMIT if commit else pb.ABORT,
            together_with=[other.least for other in together_with],
            together_with_most=[other.most for other in together_with] if across else [],
        )

    async def _next_coordinator(self) -> int:
        if self._count == 0:
            self._count = await self._cluster.partition_count(str(COORDINATOR_ASSIGN))
        if self._count == 0:
            raise TransactionCoordinatorNotFound(
                "The broker has no transaction coordinators: enable them in its configuration "
                "(transactionCoordinatorEnabled)"
            )
        if self._turn is None:
            self._turn = self._cluster.rng.randrange(self._count)
        self._turn = (self._turn + 1) % self._count
        return self._turn

    async def _ask(self, coordinator_id: int, request: Any) -> Any:
        connection = await self._connection(coordinator_id)
        try:
            return await connection.request(request, self._cluster.timeout_s)
        except PASSING:
            self._serving.pop(coordinator_id, None)
            raise

    async def _connection(self, coordinator_id: int) -> Connection:
        """A connection to the coordinator's broker that has been announced to the coordinator."""
        connection = self._serving.get(coordinator_id)
        if connection is None or connection.closed:
            topic = COORDINATOR_ASSIGN.partition_at(coordinator_id)
            connection = await self._cluster.connection_for(str(topic))
            request = pb.CommandTcClientConnectRequest(tc_id=coordinator_id)
            await connection.request(request, self._cluster.timeout_s)
            self._serving[coordinator_id] = connection
        return connection
