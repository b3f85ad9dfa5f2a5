"""The state of one coordinator, as a pure state machine: `decide_*` and `apply`.

`decide_*` changes nothing and may refuse; it returns records. The coordinator appends them to its
log and applies them; recovery reads them back and applies them again. `apply` cannot refuse. A
snapshot, too, consists of records: those that recreate the live transactions. It is taken piece by
piece. A record logged in between may concern a transaction whose piece is still to come; that piece
then includes the record's effect.

Live transactions are kept completely. Of an ended one only the outcome is retained, for a limited
time, so that an END is idempotent and participants can look up the outcome.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pybroker.base import errors
from pybroker.base.errors import InvalidTxnStatus, NotAllowed, TooManyRequests, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.coordinator_limits import CoordinatorLimits
from pybroker.transaction.coordinator.ends.abort_reasons import AbortReasons
from pybroker.transaction.coordinator.ends.timeline import decided
from pybroker.transaction.coordinator.live_transaction import (
    NO_TIMEOUT_MS,
    PreparedTransactions,
    TransactionMetadata,
    less,
    records_of,
)
from pybroker.transaction.coordinator.log.group_records import GroupMembers, Promise
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    BindSession,
    ChangeStatus,
    IdsUsed,
    NewTransaction,
    Prepare,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.namespaces import namespaces_of
from pybroker.transaction.coordinator.outcome_window import OutcomeMark, OutcomeWindow
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import (
    ACTION_OF_STATUS,
    ENDED_STATUS,
    ENDING_STATUS,
    TXN_TRANSITIONS,
    UNDECIDED,
    TxnAction,
    TxnStatus,
)

P = TypeVar("P")


class Promised(errors.Undecided):
    """The transaction has promised to end as another one does: see `group_ends`."""


class TransactionMetadataStore:
    def __init__(self, coordinator_id: int, limits: CoordinatorLimits) -> None:
        self._coordinator_id = coordinator_id
        self.limits = limits
        self.snapshot_entries = limits.snapshot_entries
        self._live: dict[int, TransactionMetadata] = {}
        # Read-only outside this class; public so that a look-up needs no call.
        self.transactions: Mapping[int, TransactionMetadata] = self._live
        self._decided: dict[int, None] = {}  # COMMITTING or ABORTING, in the order of decisions
        self._live_of: Counter[str] = Counter()  # by owner
        self._participants_of: Counter[str] = Counter()  # of an owner's live transactions
        self._bound: dict[TransactionalId, dict[int, None]] = {}
        self._live_in: Counter[str] = Counter()  # by a participant's namespace
        self._participants = 0  # of all live transactions
        self._highest_id = -1
        self._lowest_live = 0  # all ids below it have ended; never decreases
        self._replaying = False
        self.outcomes = OutcomeWindow(limits.outcome_retention_ms)
        self._reasons = AbortReasons()
        self.prepared = PreparedTransactions()

    # Queries

    @property
    def live_count(self) -> int:
        return len(self._live)

    def live_of(self, owner: str) -> int:
        return self._live_of[owner]

    def participants_of(self, owner: str) -> int:
        """Topics and subscriptions in the live transactions of the owner."""
        return self._participants_of[owner]

    def live_in(self, namespace: str) -> int:
        """The number of live transactions that take part in the namespace."""
        return self._live_in[namespace]

    def live(self) -> list[TransactionMetadata]:
        return list(self._live.values())

    def decided_first(self) -> list[TransactionMetadata]:
        """The live transactions: first those being ended, in the order of decision, then the open
        ones. All topics in commit order must see the same order, even after a crash.
        """
        decided, live = self._decided, self._live
        undecided = [each for local_id, each in live.items() if local_id not in decided]
        return [live[local_id] for local_id in decided] + undecided

    def bound_to(self, transactional_id: TransactionalId) -> list[TransactionMetadata]:
        """Live transactions that belong to sessions of this id."""
        return [self._live[local_id] for local_id in self._bound.get(transactional_id, ())]

    def owner_of(self, local_id: int) -> str | None:
        """The owner of a transaction, live or ended; None if there is none or it is unknown."""
        transaction = self._live.get(local_id)
        return self.outcomes.owner_of(local_id) if transaction is None else transaction.owner

    def get(self, local_id: int) -> TransactionMetadata | None:
        return self._live.get(local_id)

    def status(self, local_id: int) -> TxnStatus | None:
        transaction = self._live.get(local_id)
        return transaction.status if transaction is not None else self.outcomes.get(local_id)

    @property
    def highest_id(self) -> int:
        """The highest id assigned so far; -1 before the first."""
        return self._highest_id

    @property
    def low_watermark(self) -> int:
        """The smallest live id - 1: all ids up to it have ended. -1 before the first has ended.

        During replay, a missing id does not count as ended: it may still follow in the log.
        """
        if self._replaying:
            return self._lowest_live - 1
        while self._lowest_live <= self._highest_id and self._lowest_live not in self._live:
            self._lowest_live += 1
        return self._lowest_live - 1

    def why_aborted(self, local_id: int) -> str:
        """Empty after an abort by the owner or a timeout, or if the reason is no longer known."""
        status = self.status(local_id)
        return "" if status is None else self._reasons.get(local_id)

    def forget_old_outcomes(self, now_ms: int) -> None:
        """`now_ms` is in the time of `OutcomeWindow`. Applying an end also forgets old outcomes."""
        if now_ms >= self.outcomes.due_ms:
            self.outcomes.passed(now_ms, self.low_watermark)
        elif now_ms > self.outcomes.latest_ms:
            self.outcomes.latest_ms = now_ms

    # Decisions

    @property
    def is_full(self) -> bool:
        return len(self._live) >= self.limits.max_active

    def decide_new(
        self, timeout_ms: int | None, owner: str | None, now_ms: int, exempt: bool = False
    ) -> NewTransaction:
        """`timeout_ms`: None for none. Raises NotAllowed (its bounds), TooManyRequests (full)."""
        if timeout_ms is None:
            timeout_ms = NO_TIMEOUT_MS
        elif not 0 < timeout_ms <= self.limits.max_timeout_ms:
            raise NotAllowed(
                f"Transaction timeout {timeout_ms} ms: it must be 1 to "
                f"{self.limits.max_timeout_ms} ms (the broker's maxTransactionTimeoutMs)"
            )
        if self.is_full and not exempt:
            raise TooManyRequests(
                f"Coordinator {self._coordinator_id} has {self.limits.max_active} active "
                "transactions (maxActiveTransactionsPerCoordinator): end some, then retry"
            )
        return NewTransaction(self._highest_id + 1, timeout_ms, now_ms, owner)

    def decide_add_partitions(
        self, local_id: int, topics: list[str], principal: str | None
    ) -> AddPartitions:
        """Raises TransactionNotFound, InvalidTxnStatus (not OPEN, or Promised), NotAllowed (too
        many participants), and the errors of `admit`.
        """
        transaction = self._require_open(local_id, principal)
        self._check_count(transaction, transaction.partitions, topics)
        self._admit(transaction, namespaces_of(topics))
        return AddPartitions(local_id, tuple(topics))

    def decide_add_subscriptions(
        self, local_id: int, subscriptions: list[tuple[str, str]], principal: str | None
    ) -> AddSubscriptions:
        """Like `decide_add_partitions`."""
        transaction = self._require_open(local_id, principal)
        self._check_count(transaction, transaction.subscriptions, subscriptions)
        self._admit(transaction, namespaces_of([topic for topic, _ in subscriptions]))
        return AddSubscriptions(local_id, tuple(subscriptions))

    def _check_count(
        self,
        transaction: TransactionMetadata,
        participants: Mapping[P, int | None],
        added: Sequence[P],
    ) -> None:
        most = self.limits.max_participants
        count = len(transaction.partitions) + len(transaction.subscriptions)
        if not most or count + len(added) <= most:
            return
        if count + len({each for each in added if each not in participants}) > most:
            raise NotAllowed(
                f"Transaction {transaction.txn_id} has {count} topics and subscriptions, and may "
                f"have {most} (the broker's maxParticipantsPerTransaction): use several "
                "transactions"
            )

    def _admit(self, transaction: TransactionMetadata, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            if namespace not in transaction.namespaces:
                self.limits.admit(transaction, namespace)

    def decide_end(
        self, local_id: int, action: TxnAction, principal: str | None, now_ms: int, reason: str = ""
    ) -> ChangeStatus | None:
        """None if the same end is in progress or complete. Raises TransactionNotFound, Promised,
        InvalidTxnStatus (the opposite was decided; the message gives the reason of an abort).
        """
        status = self._status_for(local_id, principal)
        if ACTION_OF_STATUS.get(status) is action:
            return None
        self._require_free(local_id)
        wanted = ENDING_STATUS[action]
        if wanted not in TXN_TRANSITIONS[status]:
            raise InvalidTxnStatus(
                f"Transaction {self._name(local_id)} is {status.name}: it cannot become "
                f"{wanted.name}{self._because(local_id)}"
            )
        return ChangeStatus(local_id, wanted, now_ms, reason)

    def decide_commit_together(
        self, local_ids: Sequence[int], principal: str | None, now_ms: int
    ) -> list[ChangeStatus]:
        """Empty if the same end is in progress or complete. Raises the errors of `decide_end`, and
        InvalidTxnStatus if some have committed and others have not: all of them commit, or none.
        """
        decisions = [
            self.decide_end(local_id, TxnAction.COMMIT, principal, now_ms) for local_id in local_ids
        ]
        made = [decision for decision in decisions if decision is not None]
        if 0 < len(made) < len(decisions):
            committed = local_ids[decisions.index(None)]
            raise InvalidTxnStatus(
                f"Transaction {self._name(committed)} has committed and "
                f"{self._name(made[0].local_id)} has not: they cannot commit together any more"
            )
        return made

    def decide_prepare(
        self, local_id: int, name: str, principal: str | None, now_ms: int
    ) -> Prepare:
        """The first PREPARE if there was one. Raises TransactionNotFound, Promised,
        InvalidTxnStatus (decided, or prepared with another name).
        """
        status, transaction = self._status_for(local_id, principal), self._live.get(local_id)
        if status not in UNDECIDED or transaction is None:
            raise InvalidTxnStatus(
                f"Transaction {self._name(local_id)} is {status.name}: only an OPEN one can be "
                f"prepared{self._because(local_id)}"
            )
        if transaction.prepared is not None:
            if transaction.prepared.name != name:
                raise InvalidTxnStatus(
                    f"Transaction {self._name(local_id)} is prepared with the name "
                    f"{transaction.prepared.name!r}, not {name!r}: commit or abort it"
                )
            return transaction.prepared
        self._require_free(local_id)
        return Prepare(local_id, now_ms, name)

    def require_unprepared(self, local_id: int) -> None:
        """Raises InvalidTxnStatus: nothing but its owner and administrators ends a prepared one."""
        if local_id in self.prepared:
            who = "only its owner or an administrator may commit or abort it"
            raise InvalidTxnStatus(f"Transaction {self._name(local_id)} is PREPARED: {who}")

    def decide_ended(self, local_id: int, action: TxnAction, now_ms: int) -> ChangeStatus:
        """Close `local_id`, which every participant has ended."""
        assert ENDED_STATUS[action] in TXN_TRANSITIONS[self._live[local_id].status]
        return ChangeStatus(local_id, ENDED_STATUS[action], now_ms)

    def _require_free(self, local_id: int) -> None:
        transaction = self._live.get(local_id)
        if transaction is not None and transaction.promised_to is not None:
            raise Promised(
                f"Transaction {self._name(local_id)} is about to commit with "
                f"{transaction.promised_to}, and ends with it"
            )

    def _require_open(self, local_id: int, principal: str | None) -> TransactionMetadata:
        status = self._status_for(local_id, principal)
        if status is not TxnStatus.OPEN:
            refusal = errors.Undecided if status in UNDECIDED else InvalidTxnStatus
            raise refusal(
                f"Transaction {self._name(local_id)} is {status.name}, not OPEN: nothing can be "
                f"added to it; begin a new one{self._because(local_id)}"
            )
        if self._live[local_id].promised_to is not None:
            self._require_free(local_id)
        return self._live[local_id]

    def _because(self, local_id: int) -> str:
        reason = self._reasons.get(local_id)
        return f"; {reason}" if reason else ""

    def _status_for(self, local_id: int, principal: str | None) -> TxnStatus:
        transaction = self._live.get(local_id)
        if transaction is None:
            status = self.outcomes.get(local_id)
            if status is None:
                raise TransactionNotFound(
                    f"Transaction {self._name(local_id)} does not exist, or ended too long ago"
                )
            owner = None if principal is None else self.outcomes.owner_of(local_id)
        else:
            status, owner = transaction.status, transaction.owner
        if None not in (owner, principal) and owner != principal:
            raise TransactionNotFound(
                f"Transaction {self._name(local_id)} belongs to another principal than "
                f"{principal!r}: only its owner or a superuser may change it"
            )
        return status

    def _name(self, local_id: int) -> TxnId:
        return TxnId(self._coordinator_id, local_id)

    # Changes

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Wraps the replay of a log."""
        self._replaying = True
        yield
        self._replaying = False
        self._live = dict(sorted(self._live.items()))  # oldest first
        self.transactions = self._live
        # All lower ids have ended. The highest id may be another broker's: do not count up to it.
        self._lowest_live = max(self._lowest_live, min(self._live, default=self._highest_id + 1))

    def apply(self, record: Record) -> None:
        match record:  # the frequent ones first
            case NewTransaction():
                self._apply_new(record)
            case AddPartitions(local_id, topics):
                if (transaction := self._live.get(local_id)) is not None:
                    self._add(transaction, transaction.partitions, topics, namespaces_of(topics))
            case AddSubscriptions(local_id, subscriptions):
                if (transaction := self._live.get(local_id)) is not None:
                    namespaces = namespaces_of([topic for topic, _ in subscriptions])
                    self._add(transaction, transaction.subscriptions, subscriptions, namespaces)
            case ChangeStatus():
                self._apply_status(record)
            case SpanNamespace(local_id, namespace):
                if (transaction := self._live.get(local_id)) is not None:
                    transaction.namespace = namespace
                    self.limits.spans()
            case Promise(local_id, leader):
                if (transaction := self._live.get(local_id)) is not None:
                    transaction.promised_to = leader
            case GroupMembers(local_id, members):
                if (transaction := self._live.get(local_id)) is not None:
                    transaction.group |= frozenset(members)
            case Prepare(local_id):
                self._apply_prepare(local_id, record)
            case IdsUsed(highest_id, low_watermark):
                self._highest_id = max(self._highest_id, highest_id)
                self._lowest_live = max(self._lowest_live, low_watermark + 1)
            case OutcomeMark():
                self.outcomes.restore_mark(record)
            case BindSession(local_id, session):
                if (transaction := self._live.get(local_id)) is not None:
                    transaction.session = session
                    self._bound.setdefault(session.id, {})[local_id] = None

    def _apply_new(self, record: NewTransaction) -> None:
        # A snapshot cut short by a crash repeats part of what was replayed before it.
        if record.local_id in self._live:
            return
        self._live[record.local_id] = transaction = TransactionMetadata(
            self._name(record.local_id), record.timeout_ms, record.opened_at_ms, record.owner
        )
        if record.timeout_ms == NO_TIMEOUT_MS:
            self.prepared.count(transaction)
        self._highest_id = max(self._highest_id, record.local_id)
        if record.owner is not None:
            self._live_of[record.owner] += 1

    def _add(
        self,
        transaction: TransactionMetadata,
        participants: dict[P, int | None],
        added: Iterable[P],
        namespaces: Iterable[str],
    ) -> None:
        before = len(participants)
        for each in added:
            participants.setdefault(each)
        more = len(participants) - before
        self._participants += more
        if transaction.owner is not None:
            self._participants_of[transaction.owner] += more
        for namespace in namespaces:
            if namespace not in transaction.namespaces:
                transaction.namespaces[namespace] = None
                self._live_in[namespace] += 1

    def _apply_prepare(self, local_id: int, record: Prepare) -> None:
        transaction = self._live.get(local_id)
        # A snapshot cut short by a crash repeats it after the decision.
        if transaction is not None and transaction.status is TxnStatus.OPEN:
            transaction.status, transaction.prepared = TxnStatus.PREPARED, record
            self.prepared.add(transaction)

    def _apply_status(self, record: ChangeStatus) -> None:
        if record.reason:
            self._reasons.note(record.local_id, record.reason)
        if record.status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
            ended = self._forget(record.local_id)
            owner = None if ended is None else ended.owner
            self.outcomes.record(record.local_id, record.status, owner)
            self.forget_old_outcomes(record.at_ms)
            return
        transaction = self._live.get(record.local_id)
        if transaction is not None:
            transaction.status, transaction.promised_to = record.status, None
            if transaction.waits_for_owner:
                self.prepared.drop(record.local_id)
            if not self._replaying:
                transaction.end = decided(transaction.end, record.at_ms)
            # The last record counts: a snapshot may contain the decision too early, but the log
            # after the snapshot has the true order.
            self._decided.pop(record.local_id, None)
            self._decided[record.local_id] = None

    def _forget(self, local_id: int) -> TransactionMetadata | None:
        """The transaction, which is not live any more."""
        ended = self._live.pop(local_id, None)
        if ended is None:
            return None
        self._decided.pop(local_id, None)
        if ended.waits_for_owner:
            self.prepared.drop(local_id)
        count = len(ended.partitions) + len(ended.subscriptions)
        self._participants -= count
        if ended.owner is not None:
            less(self._live_of, ended.owner, 1)
            less(self._participants_of, ended.owner, count)
        for namespace in ended.namespaces:
            less(self._live_in, namespace, 1)
        if ended.session is not None:
            bound = self._bound[ended.session.id]
            del bound[local_id]
            if not bound:
                del self._bound[ended.session.id]
        return ended

    def snapshot_pays_after(self, entries: int) -> bool:
        """Whether writing all live transactions again costs less than the records logged since:
        at least `snapshot_entries`.
        """
        most = max(self.snapshot_entries, 2 * len(self._live), self._participants)
        return entries >= most

    def snapshot(self) -> Iterator[Record]:
        """Records that recreate everything except the outcomes, which are stored separately.

        Each record is up to date when it is requested: others may be logged and applied in between.
        """
        yield IdsUsed(self._highest_id, self.low_watermark)
        yield from self.outcomes.marks()
        yield from self._reasons_of_ended()
        for transaction in self.decided_first():
            for record in records_of(transaction, self._reasons.get(transaction.txn_id.least)):
                if transaction.txn_id.least not in self._live:
                    break  # it has ended, and the log has the record of its end
                yield record

    def _reasons_of_ended(self) -> Iterator[Record]:
        """As the records that ended the transactions; live ones have reasons in their own
        records.
        """
        for local_id, reason in self._reasons.items():
            outcome = self.outcomes.get(local_id)
            if outcome is not None:
                yield ChangeStatus(local_id, outcome, self.outcomes.latest_ms, reason)
            elif local_id not in self._live:
                self._reasons.drop(local_id)
