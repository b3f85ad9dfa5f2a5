"""A group of KIP-848: members send heartbeats, the broker assigns, each moves at its own pace.

    group epoch     rises with each change of members, subscriptions or partitions
    target          what each member should have, computed for that epoch
    member epoch    the epoch up to which the member has followed

A member first gives up what it should no longer have (it reports what it still owns), and only then
gets what others have given up. Who does not give up in its rebalance timeout, or is silent for the
session timeout, is removed.

Pure, like the classic group. Members are not stored: after a restart of the broker they join again,
with a group epoch above all earlier ones, so that nobody's old epoch fits. Source: KIP-848.
"""

import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.assignors import ASSIGNORS, DEFAULT, Assignment
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.offsets.records import TopicPartition

JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
NOTHING: Final = frozenset[TopicPartition]()
_MEMBER_BYTES: Final = 1_500  # with nothing in it
_TOPIC_BYTES: Final = 80  # of a subscription
_PLACE_BYTES: Final = 300  # of an assignment
_LOOK_AGAIN_MS: Final = 1_000


class GroupState(enum.Enum):
    """The names are those of ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    max_members: int = 1_000
    max_topics: int = 10_000  # of the subscriptions of a group


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat; None stands for what has not changed since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    regex: str | None = None  # what it subscribes to beside names; its topics are among `topics`
    named: frozenset[str] | None = None  # the names
    user: str = ""  # whose memory the member takes


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    member_id: str
    epoch: int
    assignment: frozenset[TopicPartition] | None = None  # None: as before


@dataclass(slots=True)
class ConsumerMember:
    member_id: str
    expires_ms: float
    instance_id: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    rebalance_timeout_ms: int = 300_000
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    named: frozenset[str] = frozenset()  # of `topics`, without those that the regex has found
    assignor: str | None = None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    assigned: frozenset[TopicPartition] = NOTHING
    revoking: frozenset[TopicPartition] = NOTHING
    revoked_by_ms: float = math.inf  # until then it must have given up `revoking`
    is_away: bool = False  # a static member that comes back soon
    user: str = ""
    topics_bytes: int = 0  # of `topics`, and of `named` if that is another set

    @property
    def size_bytes(self) -> int:
        """About what it takes, without its topics, which it may share with others."""
        texts = (self.member_id, self.instance_id, self.client_id, self.rack_id, self.regex)
        size = _MEMBER_BYTES + sum(len(each or "") for each in texts)
        return size + _PLACE_BYTES * (len(self.assigned) + len(self.revoking))


def _size_of(topics: frozenset[str]) -> int:
    return sum(_TOPIC_BYTES + len(each) for each in topics)


class ConsumerGroup:
    kind = GroupKind.CONSUMER

    def __init__(
        self, group_id: str, limits: ConsumerLimits, epoch: int, stored_text: str = ""
    ) -> None:
        """`stored_text` as it was when the group was stored last."""
        self.group_id = group_id
        self.limits = limits
        self.epoch = epoch
        self.target_epoch = epoch
        self.target: Assignment = {}
        self.assignor = DEFAULT
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}
        self.partitions: Mapping[str, int] = {}
        self._owners: dict[TopicPartition, str] = {}  # who has or still has a partition
        self.wake_ms: float = math.inf
        self._topics: frozenset[str] | None = frozenset()  # None: to be collected again
        self._looked_ms = -_LOOK_AGAIN_MS  # at the partitions of the topics
        self._is_resized = False

    @property
    def stored_text(self) -> str:
        """What is stored beside the epoch."""
        return ""

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.target_epoch < self.epoch:
            return GroupState.ASSIGNING
        is_settled = all(self._is_settled(each) for each in self.members.values())
        return GroupState.STABLE if is_settled else GroupState.RECONCILING

    def _is_settled(self, member: ConsumerMember) -> bool:
        wanted = self.target.get(member.member_id, NOTHING)
        return member.epoch == self.target_epoch and member.assigned == wanted

    @property
    def topics(self) -> frozenset[str]:
        if self._topics is None:
            distinct = {id(each.topics): each.topics for each in self.members.values()}
            self._topics = frozenset().union(*distinct.values())
        return self._topics

    def topics_with(self, beat: Beat) -> frozenset[str]:
        return self.topics if beat.topics is None else self.topics | beat.topics

    def looks_again(self, beat: Beat, now_ms: int) -> bool:
        """Whether the heartbeat needs the partitions of the topics: if it names new ones, and
        otherwise now and then, because each may have thousands.
        """
        member = self.members.get(beat.member_id)
        is_same = beat.topics is None or (member is not None and member.topics is beat.topics)
        is_new = not is_same and not self.topics_with(beat) <= self.partitions.keys()
        if beat.epoch < JOINS or not (is_new or now_ms >= self._looked_ms + _LOOK_AGAIN_MS):
            return False
        self._looked_ms = now_ms
        return True

    # -- what it takes

    def growth_bytes(self, beat: Beat) -> int:
        """About how much more the group takes with the heartbeat."""
        member = self.members.get(beat.member_id)
        said, before = (beat.rack_id, beat.client_id, beat.regex), 0
        growth = _MEMBER_BYTES + len(beat.member_id)
        if member is not None:
            growth, regex = 0, member.regex if beat.regex is None else beat.regex
            said = beat.rack_id, beat.client_id, regex
            before = sum(len(x or "") for x in (member.rack_id, member.client_id, member.regex))
        growth += sum(len(each or "") for each in said) - before
        if beat.topics is not None and self._held(beat.topics) is None:
            growth += _size_of(beat.topics)
        if beat.named is not None and beat.named != beat.topics and self._held(beat.named) is None:
            growth += _size_of(beat.named)
        return growth

    def _held(self, topics: frozenset[str]) -> frozenset[str] | None:
        """An equal set that a member has: most members subscribe to the same."""
        hash(topics)  # it is kept in the set, and makes comparisons fast
        for each in self.members.values():
            if each.topics == topics:
                return each.topics
            if each.named == topics:
                return each.named
        return None

    def changed_sizes(self) -> dict[str, int] | None:
        """About the bytes that members take, by user; None if nothing has changed since the last
        call.
        """
        if not self._is_resized:
            return None
        self._is_resized = False
        found: Counter[str] = Counter()
        counted = set()
        for each in self.members.values():
            found[each.user] += each.size_bytes
            if id(each.topics) not in counted:
                counted.add(id(each.topics))
                found[each.user] += each.topics_bytes
        return found

    # -- heartbeats

    def beat(self, beat: Beat, now_ms: int) -> BeatAnswer:
        """Raises KafkaError if the member is unknown or fenced, or cannot have the subscription."""
        if beat.epoch in (LEAVES, LEAVES_FOR_A_WHILE):
            return self._leave(beat)
        self._check(beat)
        is_new = beat.epoch == JOINS
        member = self._joining(beat, now_ms) if is_new else self._known(beat)
        member.expires_ms = now_ms + self.limits.session_timeout_ms
        self.wake_by(member.expires_ms)
        if self._update(member, beat):
            self.epoch += 1
        self._assign_if_due()
        before = member.assigned
        self._reconcile(member, beat.owned, now_ms)
        tells = is_new or member.assigned != before or beat.owned is not None
        return BeatAnswer(member.member_id, member.epoch, member.assigned if tells else None)

    def check(self, beat: Beat) -> None:
        """Raises KafkaError, if the member does not stay: what it says counts for nothing."""
        self._check(beat)
        if beat.epoch != JOINS:
            self._known(beat)

    def _check(self, beat: Beat) -> None:
        if beat.topics is not None and self._has_too_many(beat.topics):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A group may subscribe to {self.limits.max_topics} topics",
            )
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"The assignors are {known}")

    def _has_too_many(self, topics: frozenset[str]) -> bool:
        most = self.limits.max_topics
        if len(topics) + len(self.topics) <= most or self._held(topics) is not None:
            return False
        return len(topics | self.topics) > most

    def _joining(self, beat: Beat, now_ms: int) -> ConsumerMember:
        if beat.rebalance_timeout_ms <= 0 or beat.topics is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Who joins must say its topics and rebalance timeout"
            )
        if (former := self._former(beat)) is not None:
            self._set_assigned(former, NOTHING, NOTHING)
            return former
        if len(self.members) >= self.limits.max_members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is full")
        member = ConsumerMember(beat.member_id, now_ms, beat.instance_id)
        self._is_resized = True
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.epoch += 1
        return member

    def _former(self, beat: Beat) -> ConsumerMember | None:
        """The member that joins again, or whose place a static one takes."""
        if beat.instance_id is not None and beat.instance_id in self.static:
            former = self.members[self.static[beat.instance_id]]
            if former.member_id != beat.member_id:
                return self._take_place(former, beat)
        known = self.members.get(beat.member_id)
        if known is not None:
            known.epoch, known.previous_epoch = 0, -1
        return known

    def _take_place(self, former: ConsumerMember, beat: Beat) -> ConsumerMember:
        if not former.is_away:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"group.instance.id {beat.instance_id!r} is in use by another member",
            )
        self._set_assigned(former, NOTHING, NOTHING)
        del self.members[former.member_id]
        wanted = self.target.pop(former.member_id, None)
        former.member_id, former.epoch, former.is_away = beat.member_id, 0, False
        self.members[former.member_id] = former
        self.static[beat.instance_id or ""] = former.member_id
        if wanted is not None:
            self.target[former.member_id] = wanted
        return former

    def _known(self, beat: Beat) -> ConsumerMember:
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            current = self.static.get(beat.instance_id)
            if current is not None and current != beat.member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, "Another member has this instance id"
                )
        if member is None:
            raise unknown_member(beat.member_id)
        if beat.epoch != member.epoch and not self._lost_an_answer(member, beat):
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member's epoch is {member.epoch}, not {beat.epoch}: join again",
            )
        return member

    def _lost_an_answer(self, member: ConsumerMember, beat: Beat) -> bool:
        owned = member.assigned if beat.owned is None else beat.owned
        return beat.epoch == member.previous_epoch and owned <= member.assigned

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Whether the assignment depends on what has changed."""
        before = member.topics, member.assignor
        self._subscribe(member, beat)
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if beat.rebalance_timeout_ms > 0:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        member.client_id, member.client_host = beat.client_id, beat.client_host
        member.rack_id, member.is_away = beat.rack_id, False
        member.user = beat.user
        return before != (member.topics, member.assignor)

    def _subscribe(self, member: ConsumerMember, beat: Beat) -> None:
        before = member.topics, member.named, member.regex
        if beat.topics is not None and beat.topics is not member.topics:
            if beat.topics != member.topics:
                self._topics = None
            member.topics = self._shared(beat.topics)
        if beat.named is not None:
            member.named = self._shared(beat.named)
        if beat.regex is not None:
            member.regex = beat.regex
        if before != (member.topics, member.named, member.regex):
            self._is_resized = True
            member.topics_bytes = _size_of(member.topics)
            if member.named is not member.topics:
                member.topics_bytes += _size_of(member.named)

    def _shared(self, topics: frozenset[str]) -> frozenset[str]:
        held = self._held(topics)
        return topics if held is None else held

    def _leave(self, beat: Beat) -> BeatAnswer:
        member = self.members.get(beat.member_id)
        if member is None:
            raise unknown_member(beat.member_id)
        if beat.epoch == LEAVES_FOR_A_WHILE and member.instance_id is not None:
            member.is_away = True
            member.epoch = LEAVES_FOR_A_WHILE
        else:
            self._remove(member)
        return BeatAnswer(beat.member_id, beat.epoch)

    def remove(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """For an administrator."""
        if instance_id is not None and not member_id:
            member_id = self.static.get(instance_id, "")
        if (member := self.members.get(member_id)) is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._remove(member)
        return ErrorCode.NONE

    def _remove(self, member: ConsumerMember) -> None:
        self._set_assigned(member, NOTHING, NOTHING)
        self._topics, self._is_resized = None, True
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None and (
            self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        self.epoch += 1

    # -- the target

    def forgets(self, partitions: Mapping[str, int]) -> bool:
        """Whether `forget_gone` would change something."""
        return False

    def forget_gone(self, partitions: Mapping[str, int]) -> None:
        """Topics without partitions do not exist, whatever becomes of the heartbeat."""

    def has_partitions(self, partitions: Mapping[str, int]) -> None:
        """The topics have so many partitions now."""
        if partitions != self.partitions:
            self.partitions = partitions
            self.epoch += 1

    def _assign_if_due(self) -> None:
        if self.target_epoch >= self.epoch:
            return
        self.assignor = self._chosen_assignor()
        subscriptions = {each.member_id: each.topics for each in self.members.values()}
        self.target = ASSIGNORS[self.assignor](subscriptions, self.partitions, self.target)
        self.target_epoch = self.epoch

    def _chosen_assignor(self) -> str:
        """The one that most members ask for."""
        asked = [each.assignor for each in self.members.values() if each.assignor is not None]
        return max(ASSIGNORS, key=lambda name: (asked.count(name), name == DEFAULT))

    # -- following it

    def _reconcile(
        self, member: ConsumerMember, owned: frozenset[TopicPartition] | None, now_ms: int
    ) -> None:
        if member.revoking:
            if owned is None or owned & member.revoking:
                return  # it has not given up yet
            self._set_assigned(member, member.assigned, NOTHING)
        wanted = self.target.get(member.member_id, NOTHING)
        keeps, gives_up = member.assigned & wanted, member.assigned - wanted
        if gives_up:
            self._set_assigned(member, keeps, gives_up)
            member.revoked_by_ms = now_ms + member.rebalance_timeout_ms
            self.wake_by(member.revoked_by_ms)
            return
        free = frozenset(each for each in wanted - keeps if each not in self._owners)
        self._set_assigned(member, keeps | free, NOTHING)
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch

    def _set_assigned(
        self,
        member: ConsumerMember,
        assigned: frozenset[TopicPartition],
        revoking: frozenset[TopicPartition],
    ) -> None:
        self._is_resized |= (assigned, revoking) != (member.assigned, member.revoking)
        for place in (member.assigned | member.revoking) - assigned - revoking:
            if self._owners.get(place) == member.member_id:
                del self._owners[place]
        for place in assigned | revoking:
            self._owners[place] = member.member_id
        member.assigned, member.revoking = assigned, revoking
        if not revoking:
            member.revoked_by_ms = math.inf

    # -- commits

    def may_commit(self, member_id: str, epoch: int) -> ErrorCode:
        if epoch < 0 and not member_id and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    # -- time

    def wake_by(self, at_ms: float) -> None:
        self.wake_ms = min(self.wake_ms, at_ms)

    def wake(self, now_ms: int) -> None:
        """Remove who was silent, or did not give up in time."""
        late = [each for each in self.members.values() if _due_ms(each) <= now_ms]
        for each in late:
            self._remove(each)
        self.wake_ms = min((_due_ms(each) for each in self.members.values()), default=math.inf)


def _due_ms(member: ConsumerMember) -> float:
    return min(member.expires_ms, member.revoked_by_ms)


def unknown_member(member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id[:200]!r} is not a member: join")


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return found
