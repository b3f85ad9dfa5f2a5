"""What the clients of one seed did and saw: the checker's only evidence.

Clients record an intention before they act and its outcome afterwards. If a client dies in between,
the outcome stays unknown. Values are unique, so a value identifies its message.

A seed is one thread, so `turn()` numbers all events, and tells what ended before something else
began. A feature adds its evidence for checks/anomalies.py like this:

- a message: `send(Sent(...))` before it is sent, then `clients.plain.Process.send`, which stamps;
- a transaction: `begin(...)`, or `clients.transacting.Transacting.begin`, `.commit` and `.abort`,
  which stamp; without them, set `commit_asked` and `commit_heard` to `turn()`. Transactions of one
  decision have equal `group`s, unless one of them may end alone;
- an acknowledgement in a transaction: `txn.acknowledged.append((subscription, read))`, when
  answered;
- a reader: `receiver(...)`, with `committed_only=False` for read_uncommitted, then `hand(...)`;
- a session with a transactional id: `process.session = take_over(id)` once the broker has said that
  it is the newest; `Process.send` and `Transacting.begin` pass it on;
- a topic in commit order: `in_commit_order(topic)` for each topic or partition, by its full name,
  before the first message; when the policy changes, `since` and `until`;
- a topic that a coordinator has to tell again of a transaction's end: `told_again`;
- `Feature.topics`: other topics that are read from their start and checked.

Events without a stamp are not judged. Nothing here changes what a seed does.
"""

import enum
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Turn = int | None  # None: it did not happen, or its time is unknown


class Outcome(enum.Enum):
    UNKNOWN = "unknown"  # requested, never answered: it may have happened
    DONE = "done"
    REFUSED = "refused"  # answered by an error: it did not happen, and will not


@dataclass(slots=True, eq=False)
class Session:
    """One of the successive sessions of a transactional id."""

    transactional_id: str
    number: int
    fenced: Turn = None  # when the next one was told that it is the newest


@dataclass(slots=True, eq=False)
class Sent:
    value: str
    topic: str  # as the application names it, without the partition
    producer: str
    number: int  # counts up per producer and topic
    deduplicated: bool = False
    txn: "Txn | None" = None
    outcome: Outcome = Outcome.UNKNOWN
    asked: Turn = None  # for the first time
    answered: Turn = None  # that it was stored
    session: Session | None = None


@dataclass(slots=True, eq=False)
class Txn:
    """A transaction as one client used it; commit and abort are None until requested."""

    name: str
    txn_id: Any = None
    owner: Any = None  # the node that may still end it
    sent: list[Sent] = field(default_factory=list)
    # The messages that it acknowledged successfully, with their subscriptions.
    acknowledged: list[tuple[str, "Read"]] = field(default_factory=list)
    commit: Outcome | None = None
    abort: Outcome | None = None
    # Known to be decided, because the opposite was refused: it may not be in force yet.
    inferred: bool = False
    began: Turn = None
    commit_asked: Turn = None  # for the first time
    commit_heard: Turn = None  # that it was done
    abort_heard: Turn = None
    session: Session | None = None
    group: Any = None

    @property
    def committed(self) -> bool:
        return self.commit is Outcome.DONE

    @property
    def ended(self) -> bool:
        """Some client was told so."""
        return Outcome.DONE in (self.commit, self.abort) and not self.inferred

    @property
    def surely_aborted(self) -> bool:
        """The commit was never requested, or was refused."""
        return self.commit in (None, Outcome.REFUSED) or (
            self.abort is Outcome.DONE and self.commit is not Outcome.DONE
        )


@dataclass(frozen=True, slots=True)
class Read:
    """One message in a topic or a partition."""

    topic: str
    message_id: tuple[int, int, int]
    value: str
    published_ms: int = field(default=0, compare=False)


# Each topic (or partition), read from its first message to its last at rest. This also tells the
# outcome of transactions whose end no client heard of: all of one is visible, or nothing.
Logs = dict[str, list[Read]]


@dataclass(slots=True, eq=False)
class Receiver:
    """A reader or consumer and all messages that it was handed, in order."""

    name: str
    subscription: str | None  # None for a reader, which sees everything once, in order
    reads: list[Read] = field(default_factory=list)
    committed_only: bool = True
    turns: list[int] = field(default_factory=list)  # when: as many as `reads`, if all were stamped


@dataclass(frozen=True, slots=True)
class CommitOrdered:
    """In the topic, transactions that began after `since` and ended before `until` are in the order
    of their commits, together with plain messages sent in between.
    """

    topic: str
    since: Turn
    until: Turn


@dataclass(slots=True)
class History:
    sent: dict[str, Sent] = field(default_factory=dict)
    txns: list[Txn] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # answers that no client should ever get
    notes: list[str] = field(default_factory=list)  # what happened, for people to read
    counts: "Counter[str]" = field(default_factory=Counter)  # actions, by kind
    # By subscription: all messages that its consumers were handed, in order of time.
    handed: dict[str, list[Read]] = field(default_factory=dict)
    sessions: dict[str, list[Session]] = field(default_factory=dict)  # by transactional id
    commit_ordered: list[CommitOrdered] = field(default_factory=list)
    # Transaction ids and full topic names: topics that did not follow an end at once.
    told_again: set[tuple[Any, str]] = field(default_factory=set)
    clock_set_s: float = -1.0  # when the machine's wall clock was last set back or forward
    turns: "count[int]" = field(default_factory=lambda: count(1))

    def turn(self) -> int:
        return next(self.turns)

    def send(self, sent: Sent) -> Sent:
        self.sent[sent.value] = sent
        if sent.txn is not None:
            sent.txn.sent.append(sent)
        return sent

    def begin(self, name: str, txn_id: Any = None, owner: Any = None) -> Txn:
        txn = Txn(name, txn_id, owner, began=self.turn())
        self.txns.append(txn)
        return txn

    def take_over(self, transactional_id: str) -> Session:
        """The new session; it fences all earlier sessions of this id."""
        sessions = self.sessions.setdefault(transactional_id, [])
        if sessions:
            sessions[-1].fenced = self.turn()
        sessions.append(Session(transactional_id, len(sessions)))
        return sessions[-1]

    def in_commit_order(self, topic: str, since: Turn = None, until: Turn = None) -> None:
        self.commit_ordered.append(CommitOrdered(topic, since, until))

    def hand(self, receiver: Receiver, read: Read) -> None:
        """The application has received the message."""
        receiver.reads.append(read)
        receiver.turns.append(self.turn())
        if receiver.subscription is not None:
            self.handed.setdefault(receiver.subscription, []).append(read)

    def receiver(
        self, name: str, subscription: str | None = None, committed_only: bool = True
    ) -> Receiver:
        receiver = Receiver(name, subscription, committed_only=committed_only)
        self.receivers.append(receiver)
        return receiver


def was_committed(txn: Txn, visible: set[str]) -> bool:
    """True if committed. If the end is unknown: if any of its messages is visible."""
    if txn.committed or txn.surely_aborted:
        return txn.committed
    return any(sent.value in visible for sent in txn.sent)
