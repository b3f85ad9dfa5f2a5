"""What a classic group is asked, and what it answers: values without a socket or a clock.

A waiter is whatever the caller wants back with the answer: JoinGroup and SyncGroup wait for other
members, so their answers come out of later calls.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

from pybroker.kafka.errors import ErrorCode


class GroupKind(IntEnum):
    """As stored."""

    CLASSIC = 0
    CONSUMER = 1  # KIP-848
    SHARE = 2  # KIP-932

    @property
    def shown(self) -> str:
        """As ListGroups calls it."""
        return self.name.lower()


NO_GENERATION = -1  # of a group without members, and of commits by no member


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way to assign that a member supports, with what its kind of client wrote about it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    member_id: str  # empty: a new member
    fresh_id: str  # the id that a new member gets
    protocol_type: str
    protocols: tuple[Protocol, ...]  # the preferred one first
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None  # group.instance.id of a static member
    client_id: str = ""
    client_host: str = ""
    needs_known_id: bool = False  # from version 4 on: KIP-394
    may_skip_assignment: bool = False  # from version 9 on: KIP-814
    user: str = ""  # whose memory a member takes


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()  # for the leader only
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()  # by member id; of the leader only
    instance_id: str | None = None
    protocol_type: str | None = None  # from version 5 on
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes  # of the generation's protocol
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """What outlives the coordinator: a group whose coordinator restarts goes on without a
    rebalance.
    """

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[StoredMember, ...]
    since_ms: int  # when the group came into this state; offsets of an empty group expire from here
    # Of KIP-848 and of shares, the generation is the group's epoch, and members are not stored.
    kind: GroupKind = GroupKind.CLASSIC

    def has_positions_on(self, topic: str) -> bool:
        """Whether it is a share group that may have a subscription there."""
        return self.kind is GroupKind.SHARE and topic in topics_in(self.protocol)

    def without_topic(self, topic: str) -> "StoredGroup":
        return replace(self, protocol=text_of(topics_in(self.protocol) - {topic}))


def topics_in(stored_text: str) -> frozenset[str]:
    """The topics for which a stored share group may have positions: names have no commas."""
    return frozenset(stored_text.split(",")) - {""}


def text_of(topics: frozenset[str]) -> str:
    return ",".join(sorted(topics))


@dataclass(frozen=True, slots=True)
class Joined:
    """Effect: the answer to a JoinGroup."""

    waiter: object
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class Synced:
    """Effect: the answer to a SyncGroup."""

    waiter: object
    answer: SyncAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Effect: the record is to be durable before the answers that follow."""

    group: StoredGroup


Effect = Joined | Synced | Store


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Bounds of one group. Kafka's names are in the comments, and its defaults the values."""

    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    max_members: int = 1_000  # group.max.size; Kafka has no bound
    # Kafka stores a group as one message of its offsets topic, so 1 MiB bounds the whole there.
    max_member_bytes: int = 1024 * 1024  # what a member may say about itself, in all protocols
    max_group_bytes: int = 4 * 1024 * 1024  # assignments and the chosen protocol's metadata
    max_protocols: int = 100
    new_member_timeout_ms: int = 300_000  # a new member that waits for a rebalance
