"""What the clients of one seed did and saw: the checker's only evidence.

Clients write down an intention before they act and its outcome after; one that dies in between
leaves the outcome unknown. Values are unique, so a message is known by its value.
"""

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


class Outcome(enum.Enum):
    UNKNOWN = "unknown"  # asked for, never answered: it may or may not have happened
    DONE = "done"
    REFUSED = "refused"  # answered by an error: it did not happen, and will not


@dataclass(slots=True, eq=False)
class Sent:
    value: str
    topic: str  # as the application names it: without the partition
    producer: str
    number: int  # counts up per producer and topic
    deduplicated: bool = False
    txn: "Txn | None" = None
    outcome: Outcome = Outcome.UNKNOWN


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


@dataclass(slots=True, eq=False)
class Receiver:
    """A reader or consumer and all that it was handed, in order."""

    name: str
    subscription: str | None  # None for a reader, which sees everything once, in order
    reads: list[Read] = field(default_factory=list)
    in_order: bool = True  # each topic's messages are handed over in the order of their ids
    since: int = 0  # index into `reads` where the present connection's order starts


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

    def send(self, sent: Sent) -> Sent:
        self.sent[sent.value] = sent
        if sent.txn is not None:
            sent.txn.sent.append(sent)
        return sent

    def begin(self, name: str, txn_id: Any = None, owner: Any = None) -> Txn:
        txn = Txn(name, txn_id, owner)
        self.txns.append(txn)
        return txn

    def hand(self, receiver: Receiver, read: Read) -> None:
        """The application has it now."""
        receiver.reads.append(read)
        if receiver.subscription is not None:
            self.handed.setdefault(receiver.subscription, []).append(read)

    def receiver(self, name: str, subscription: str | None = None) -> Receiver:
        receiver = Receiver(name, subscription)
        self.receivers.append(receiver)
        return receiver
