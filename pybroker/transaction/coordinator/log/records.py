"""The records of a coordinator's log: its decisions, and the parts of its snapshots."""

from dataclasses import dataclass

from pybroker.transaction.coordinator.log.group_records import GroupMembers, Promise
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef
from pybroker.transaction.txn_status import TxnStatus


@dataclass(frozen=True, slots=True)
class NewTransaction:
    local_id: int
    timeout_ms: int
    opened_at_ms: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class SpanNamespace:
    """Topics and subscriptions in the namespace take part when touched: see `joining`."""

    local_id: int
    namespace: str


@dataclass(frozen=True, slots=True)
class AddPartitions:
    local_id: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddSubscriptions:
    local_id: int
    subscriptions: tuple[tuple[str, str], ...]  # (topic, subscription)


@dataclass(frozen=True, slots=True)
class ChangeStatus:
    local_id: int
    status: TxnStatus
    at_ms: int
    reason: str = ""  # of an abort that its owner did not request


@dataclass(frozen=True, slots=True)
class Prepare:
    """Everything in the transaction is durable, and its owner has promised to decide."""

    local_id: int
    at_ms: int
    name: str  # by which its owner finds it again; may be empty


@dataclass(frozen=True, slots=True)
class IdsUsed:
    """The ids assigned and ended so far. A snapshot begins with this record, so that no id is
    assigned twice after trimming.
    """

    highest_id: int
    low_watermark: int


@dataclass(frozen=True, slots=True)
class BindSession:
    """The transaction belongs to a session of a transactional id, and is aborted if that session is
    fenced.
    """

    local_id: int
    session: SessionRef


Record = (
    NewTransaction
    | SpanNamespace
    | Promise
    | GroupMembers
    | AddPartitions
    | AddSubscriptions
    | ChangeStatus
    | Prepare
    | IdsUsed
    | OutcomeMark
    | BindSession
)
