"""What the clients of one seed did and saw: the checker's only evidence.

Clients write down an intention before they act and its outcome after; one that dies in between
leaves the outcome unknown. Values are unique, so a message is known by its value.

A seed is one thread, so `turn()` numbers what happens, and tells what was over before something
else began. How a feature adds to it, for checks/anomalies.py to judge:

- a message: `send(Sent(...))` before it is sent, then `clients.plain.Process.send`, which stamps;
- a transaction: `begin(...)`, or `clients.transacting.Transacting.begin`, `.commit` and `.abort`,
  which stamp; who does without them sets `commit_asked` and `commit_heard` to `turn()`. Those that
  are decided by one decision have equal `group`s, unless one of them may end alone;
- who acknowledges in a transaction: `txn.acknowledged.append((subscription, read))`, when answered;
- who reads: `receiver(...)`, with `committed_only=False` for read_uncommitted, then `hand(...)`;
- sessions with a transactional id: `process.session = take_over(id)` when the broker has said that
  it is the newest; `Process.send` and `Transacting.begin` pass it on;
- topics in commit order: `in_commit_order(topic)` for each, or each partition, by its full name,
  before the first message; when the policy changes, `since` and `until`;
- a topic that a coordinator has to tell again of a transaction's end: `told_again`;
- `Feature.topics`: what else shall be read from its start and be held against all this.

What is not stamped, or left out, is not judged. Nothing here changes what a seed does.
"""

import enum
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Turn = int | None  # None: it did not happen, or nobody said when


class Outcome(enum.Enum):
    UNKNOWN = "unknown"  # asked for, never answered: it may or may not have happened
    DONE = "done"
    REFUSED = "refused"  # answered by an error: it did not happen, and will not


@dataclass(slots=True, eq=False)
class Session:
    """One of those with a transactional id that follow one another."""

    transactional_id: str
    number: int
    fenced: Turn = None  # the next one has been told that it is the newest


@dataclass(slots=True, eq=False)
class Sent:
    value: str
    topic: str  # as the application names it: without the partition
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
    """A transaction as one client used it; commit and abort are None until they are asked for."""

    name: str
    txn_id: Any = None
    owner: Any = None  # the node that may still be about to end it
    sent: list[Sent] = field(default_factory=list)
    # What it acknowledged, successfully, and on which subscription.
    acknowledged: list[tuple[str, "Read"]] = field(default_factory=list)
    commit: Outcome | None = None
    abort: Outcome | None = None
    # Known to be decided because the opposite was refused: it may still be under way.
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
        """Somebody was told so."""
        return Outcome.DONE in (self.commit, self.abort) and not self.inferred

    @property
    def surely_aborted(self) -> bool:
        """Nobody asked for the commit, or it was refused."""
        return self.commit in (None, Outcome.REFUSED) or (
            self.abort is Outcome.DONE and self.commit is not Outcome.DONE
        )


@dataclass(frozen=True, slots=True)
class Read:
    """One message as it stands in a topic (or a partition of one)."""

    topic: str
    message_id: tuple[int, int, int]
    value: str
    published_ms: int = field(default=0, compare=False)


# Each topic (or partition) as it is read from its first message to its last when all has come to
# rest. What a transaction whose end nobody heard of did is read off there, too: all of it is
# visible, or none.
Logs = dict[str, list[Read]]


@dataclass(slots=True, eq=False)
class Receiver:
    """A reader or consumer and all that it was handed, in order."""

    name: str
    subscription: str | None  # None for a reader, which sees everything once, in order
    reads: list[Read] = field(default_factory=list)
    committed_only: bool = True
    turns: list[int] = field(default_factory=list)  # when: as many as `reads`, if all were stamped


@dataclass(frozen=True, slots=True)
class CommitOrdered:
    """Of a topic, transactions that began after `since` and had ended before `until`, and what was
    sent between without one, stand in the order of their commits.
    """

    topic: str
    since: Turn
    until: Turn


@dataclass(slots=True)
class History:
    sent: dict[str, Sent] = field(default_factory=dict)
    txns: list[Txn] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # answers that nobody should ever get
    notes: list[str] = field(default_factory=list)  # what happened, for people to read
    counts: "Counter[str]" = field(default_factory=Counter)  # what was done, by kind
    # By subscription: all that its consumers were handed, in the order of time.
    handed: dict[str, list[Read]] = field(default_factory=dict)
    sessions: dict[str, list[Session]] = field(default_factory=dict)  # by transactional id
    commit_ordered: list[CommitOrdered] = field(default_factory=list)
    # Ids of transactions and full names of topics that did not follow at once.
    told_again: set[tuple[Any, str]] = field(default_factory=set)
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
        """All earlier sessions of this id are fenced by now."""
        sessions = self.sessions.setdefault(transactional_id, [])
        if sessions:
            sessions[-1].fenced = self.turn()
        sessions.append(Session(transactional_id, len(sessions)))
        return sessions[-1]

    def in_commit_order(self, topic: str, since: Turn = None, until: Turn = None) -> None:
        self.commit_ordered.append(CommitOrdered(topic, since, until))

    def hand(self, receiver: Receiver, read: Read) -> None:
        """The application has it now."""
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
    """For a transaction with an unknown end: what it sent is visible."""
    if txn.committed or txn.surely_aborted:
        return txn.committed
    return any(sent.value in visible for sent in txn.sent)
