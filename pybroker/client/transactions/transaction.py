"""A transaction, on the client's side.

Before the first message to a topic, or the first acknowledgement on a subscription, the client adds
the topic or subscription at the coordinator (ADD_PARTITION, ADD_SUBSCRIPTION); operations wait for
that, in order. Ending waits for every operation in progress. If one failed, commit aborts instead
and raises TransactionAborted: a transaction is never committed in part.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from pybroker.base.errors import (
    AuthorizationError,
    InvalidTxnStatus,
    NotAllowed,
    TransactionNotFound,
    Undecided,
)
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Tasks
from pybroker.client import tracing
from pybroker.client.errors import ClientError, PulsarException, TransactionAborted
from pybroker.client.messages import Done, MessageId


class TxnState(Enum):
    OPEN = "open"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"
    # The end or PREPARE was requested, but the answer was lost or not understood.
    UNKNOWN = "unknown"


TXN_STATES: Final = {
    TxnState.OPEN: {TxnState.PREPARING, TxnState.COMMITTING, TxnState.ABORTING},
    TxnState.PREPARING: {
        TxnState.PREPARED,
        TxnState.OPEN,
        TxnState.ABORTING,
        TxnState.UNKNOWN,
    },
    TxnState.PREPARED: {TxnState.PREPARING, TxnState.COMMITTING, TxnState.ABORTING},
    TxnState.COMMITTING: {TxnState.COMMITTED, TxnState.ABORTING, TxnState.UNKNOWN},
    TxnState.ABORTING: {TxnState.ABORTED, TxnState.UNKNOWN},
    # All of these are idempotent: requesting the same again reveals the outcome.
    TxnState.UNKNOWN: {TxnState.PREPARING, TxnState.COMMITTING, TxnState.ABORTING},
    TxnState.COMMITTED: set(),
    TxnState.ABORTED: set(),
}


class Publisher(Protocol):
    """What a transaction needs from a producer."""

    topic: str

    def flush_batch(self) -> None: ...


class Publishing(Protocol):
    """What a producer needs from a transaction."""

    @property
    def txn_id(self) -> TxnId: ...

    def publish(
        self, publisher: Publisher, done: Done, joined: Callable[[Exception | None, Done], None]
    ) -> None: ...

    def refused(self, error: Exception) -> None: ...

    async def joined(self, topic: str) -> None: ...


MAX_FOLLOWED: Final = 10_000  # transactions; beyond this number the oldest are not followed
Ended = Callable[[TxnId, bool], None]


class TransactionEnds:
    """Tells who asked for it how transactions of this client have ended, also if another
    Transaction object with the same id has ended them.
    """

    def __init__(self) -> None:
        self._followers: dict[TxnId, list[Ended]] = {}

    def follow(self, txn_id: TxnId, ended: Ended) -> None:
        """Calls `ended` with the id, and whether it has committed."""
        followers = self._followers
        if txn_id not in followers and len(followers) >= MAX_FOLLOWED:
            del followers[next(iter(followers))]
        followers.setdefault(txn_id, []).append(ended)

    def tell(self, txn_id: TxnId, committed: bool) -> None:
        for ended in self._followers.pop(txn_id, ()):
            ended(txn_id, committed)


class CoordinatorApi(Protocol):
    """What a transaction needs from its coordinator; raises the coordinator's refusals."""

    ends: TransactionEnds

    async def add_partition(self, txn_id: TxnId, topic: str) -> None: ...
    async def add_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> None: ...
    async def end(
        self, txn_id: TxnId, commit: bool, together_with: Sequence[TxnId] = ()
    ) -> None: ...
    async def prepare(self, txn_id: TxnId, name: str) -> None: ...


Joined = Callable[[Exception | None], None]


class Joining:
    """A topic or subscription that is being added, and the operations that wait for it."""

    __slots__ = ("_error", "_settled", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Joined] = []
        self._settled = False
        self._error: Exception | None = None

    def then(self, joined: Joined) -> None:
        if self._settled:
            joined(self._error)
        else:
            self._waiting.append(joined)

    def settle(self, error: Exception | None) -> None:
        self._settled, self._error = True, error
        for joined in self._waiting:
            joined(error)
        self._waiting.clear()


class Transaction:
    """Use it as `async with`: it commits at the end of the block and aborts on an exception."""

    def __init__(
        self,
        coordinator: CoordinatorApi,
        txn_id: TxnId,
        tasks: Tasks,
        namespace: str | None = None,
    ) -> None:
        self.txn_id = txn_id
        self._namespace = namespace  # whose topics the broker adds on use
        self._state = TxnState.OPEN
        # Whether a commit was requested and not answered.
        self.may_have_committed = False
        # The error of the first failed operation: then nothing is committed.
        self.failure: Exception | None = None
        self._coordinator = coordinator
        self._tasks = tasks
        self._participants: dict[tuple[str, str | None], Joining] = {}
        self._publishers: dict[Publisher, None] = {}
        self._span: Any = None
        self._operations = 0
        self._idle: asyncio.Future[None] | None = None

    @property
    def state(self) -> TxnState:
        return self._state

    @state.setter
    def state(self, state: TxnState) -> None:
        self._state = state
        if state in (TxnState.COMMITTED, TxnState.ABORTED):
            self._coordinator.ends.tell(self.txn_id, state is TxnState.COMMITTED)

    def follow(self, ended: Ended) -> None:
        """See TransactionEnds."""
        self._coordinator.ends.follow(self.txn_id, ended)

    async def has_committed(self, other: TxnId, topic: str, subscription: str) -> bool | None:
        """Whether another transaction, which this subscription has joined, may have committed; None
        before it is decided.
        """
        ends = (InvalidTxnStatus, TransactionNotFound)
        try:
            await self._coordinator.add_subscription(other, topic, subscription)
            return None
        except Undecided:
            return None
        except ends:
            pass
        try:
            # It has ended, so this changes nothing: the answer says how.
            await self._coordinator.end(other, commit=False)
            return False
        except ends:
            return True

    def trace(self) -> None:
        """Starts its span; for the client that has begun it and will also end it."""
        if tracing.spans is not None:
            self._span = tracing.spans.transaction(self.txn_id)

    # --- ending -----------------------------------------------------------------------------

    async def commit(self, together_with: Sequence[TxnId] = ()) -> None:
        """The commit is durable and visible when this returns.

        `together_with`: transactions begun with `beside` that commit atomically with this one.
        Their own processes must have received all receipts. Differs: not with Apache Pulsar.

        Raises TransactionAborted if an operation failed, TransactionOutcomeUnknown if the broker
        did not answer in time, InvalidTxnStatus if the transaction was aborted meanwhile, or if one
        of the others was: then none has committed, and you should abort this one.
        """
        self.move_to(TxnState.COMMITTING)
        await self.settle_operations()
        await self._require_complete("committed")
        await self.end(commit=True, together_with=together_with)

    async def _require_complete(self, wanted: str) -> None:
        """Aborts it if an operation has failed, and raises TransactionAborted."""
        if self.failure is None:
            return
        self.move_to(TxnState.ABORTING)
        aborted = TransactionAborted(
            f"Transaction {self.txn_id} was aborted instead of {wanted} because an operation "
            f"failed: {self.failure}"
        )
        try:
            await self.end(commit=False)
        except InvalidTxnStatus:
            raise  # Another client has committed it.
        except PulsarException as trouble:
            # An unknown end must not be retried as a commit: that would commit only a part.
            aborted.add_note(
                f"The abort was not confirmed ({trouble.__class__.__name__}), so "
                "it holds its messages until it times out"
            )
        raise aborted from self.failure

    async def prepare(self, name: str = "") -> None:
        """From now on only `commit` and `abort` end it, of this client or another one of its owner:
        no timeout, no lost connection. All that it did is durable when this returns, and nothing
        more can be done in it. `prepared_transactions` of any client finds it by its `name`.

        It holds its topics' readers back until somebody decides, so decide soon. Leaving an `async
        with` block does not. Differs: raises NotAllowed with Apache Pulsar.

        Raises TransactionAborted if an operation failed, InvalidTxnStatus if it has ended
        meanwhile. After Timeout it may be prepared: call this again, or `abort`.
        """
        self.move_to(TxnState.PREPARING)
        await self.settle_operations()
        await self._require_complete("prepared")
        try:
            await self._coordinator.prepare(self.txn_id, name)
        except (AuthorizationError, NotAllowed):
            self.state = TxnState.OPEN
            raise
        except BaseException:
            self.state = TxnState.UNKNOWN
            raise
        self.state = TxnState.PREPARED

    async def abort(self) -> None:
        """Nothing of the transaction becomes visible; its acknowledgements are undone."""
        self.move_to(TxnState.ABORTING)
        await self.settle_operations()
        await self.end(commit=False)

    async def __aenter__(self) -> "Transaction":
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        if self.state is not TxnState.OPEN:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except PulsarException as trouble:
            # The block's own error matters more; the transaction will time out.
            error.add_note(f"Transaction {self.txn_id} could not be aborted: {trouble}")

    def move_to(self, state: TxnState) -> None:
        """Raises InvalidTxnStatus for a state that cannot follow the current one."""
        if state not in TXN_STATES[self.state]:
            raise InvalidTxnStatus(
                f"Transaction {self.txn_id} is {self.state.value}: it cannot become {state.value}"
            )
        self.state = state

    async def settle_operations(self) -> None:
        """Returns when everything sent or acknowledged in it is answered."""
        self._flush_publishers()
        try:
            while self._operations:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
        except asyncio.CancelledError:
            self.state = TxnState.UNKNOWN
            raise

    def _flush_publishers(self) -> None:
        for publisher in self._publishers:
            publisher.flush_batch()

    async def end(self, commit: bool, together_with: Sequence[TxnId] = ()) -> None:
        """Requests the end from the coordinator, and records the result."""
        try:
            await self._ask_to_end(commit, together_with)
        except BaseException as error:
            self._end_span(error)
            raise
        self._end_span(None)

    def _end_span(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.set_attribute("pybroker.txn_outcome", self.state.value)
            if error is not None:
                tracing.failed(span, error)
            span.end()

    async def _ask_to_end(self, commit: bool, together_with: Sequence[TxnId]) -> None:
        try:
            await self._coordinator.end(self.txn_id, commit, together_with)
        except InvalidTxnStatus:
            # It ended the other way, by its timeout, another client or an administrator. Or one of
            # several did, and this one may still be open.
            ended = TxnState.ABORTED if commit else TxnState.COMMITTED
            self.state = TxnState.UNKNOWN if together_with else ended
            raise
        except BaseException:
            self.state = TxnState.UNKNOWN
            self.may_have_committed = commit
            raise
        self.state = TxnState.COMMITTED if commit else TxnState.ABORTED

    # --- operations -------------------------------------------------------------------------

    def refused(self, error: Exception) -> None:
        """An operation could not even begin: the transaction must not commit without it."""
        if self.state is TxnState.OPEN:
            self.failure = self.failure or error

    def publish(
        self, publisher: Publisher, done: Done, joined: Callable[[Exception | None, Done], None]
    ) -> None:
        """Calls `joined` once the topic is part of the transaction, or cannot be.

        `joined` gets the `done` to call then, because the transaction needs the answer too.
        """
        try:
            finished = self.operation(done)
        except InvalidTxnStatus as error:
            joined(error, done)
        else:
            self.enlist(publisher, lambda error: joined(error, finished))

    def operation(self, done: Done) -> Done:
        """Begins one, which ends with a call of what this returns. Raises InvalidTxnStatus."""
        if self.state is not TxnState.OPEN:
            raise self._refusal()
        self._operations += 1

        def finished(message_id: MessageId | None, error: Exception | None) -> None:
            done(message_id, error)
            self._operation_ended(error)

        return finished

    def enlist(self, publisher: Publisher, joined: Joined) -> None:
        """Like `publish`, for a message whose operation has begun."""
        self._publishers[publisher] = None
        self._take_in(publisher.topic, None).then(joined)

    async def acknowledge(
        self, topic: str, subscription: str, send: Callable[[], Awaitable[None]]
    ) -> None:
        """Runs `send` once the subscription has joined the transaction."""
        if self.state is not TxnState.OPEN:
            raise self._refusal()
        self._operations += 1
        failure: Exception | None = ClientError(
            "An acknowledgement was cancelled before it completed"
        )
        try:
            await self._joined(self._take_in(topic, subscription))
            await send()
            failure = None
        except Exception as error:
            failure = error
            raise
        finally:
            self._operation_ended(failure)

    def _refusal(self) -> InvalidTxnStatus:
        return InvalidTxnStatus(
            f"Transaction {self.txn_id} is {self.state.value}: begin a new one for more operations"
        )

    def _operation_ended(self, error: Exception | None) -> None:
        self.failure = self.failure or error
        self._operations -= 1
        if self._operations == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def joined(self, topic: str, subscription: str | None = None) -> None:
        """Returns once a topic or subscription is part of it. Raises the error that prevents it."""
        await self._joined(self._join(topic, subscription))

    async def _joined(self, joining: Joining) -> None:
        waiter: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def joined(error: Exception | None) -> None:
            if not waiter.done():
                waiter.set_result(error)

        joining.then(joined)
        if (error := await waiter) is not None:
            raise error

    def _take_in(self, topic: str, subscription: str | None) -> Joining:
        """Joins a participant; without a request if the broker adds it automatically."""
        if self._namespace is None or _namespace_of(topic) != self._namespace:
            return self._join(topic, subscription)
        taken_in = Joining()
        taken_in.settle(None)
        return taken_in

    def _join(self, topic: str, subscription: str | None) -> Joining:
        key = (topic, subscription)
        joining = self._participants.get(key)
        if joining is None:
            joining = self._participants[key] = Joining()
            if self._span is not None:
                about = {"topic": topic, "subscription": subscription or ""}
                self._span.add_event("participant", about)
            self._tasks.start(self._ask_to_join(joining, *key), f"{topic} joins {self.txn_id}")
        return joining

    async def _ask_to_join(self, joining: Joining, topic: str, subscription: str | None) -> None:
        failure: Exception | None = ClientError("The client was closed")
        try:
            if subscription is None:
                await self._coordinator.add_partition(self.txn_id, topic)
            else:
                await self._coordinator.add_subscription(self.txn_id, topic, subscription)
            failure = None
        except PulsarException as error:
            failure = error
        finally:
            joining.settle(failure)
            if self.state is not TxnState.OPEN:
                self._flush_publishers()  # An end waits for the messages that were just batched.


def _namespace_of(topic: str) -> str:
    return TopicName.parse(topic).namespace_name
