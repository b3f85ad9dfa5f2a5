"""A classic group: members join, the leader assigns, everyone fetches its assignment.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...

A pure state machine: time and requests come in as arguments, answers and records go out as effects,
in order. A JoinGroup waits until all members have joined, or until the longest rebalance timeout
has passed; a SyncGroup waits for the leader's. `wake_ms` says when `wake` must be called at the
latest: for sessions, for members that were given an id and did not come back, and for a rebalance.

A first member waits a little for others (`initial_rebalance_delay_ms`), so that a group that starts
does not rebalance for each of them. Who comes again with its group.instance.id takes its
predecessor's place and assignment, and the predecessor is fenced.

Source: Kafka's protocol guide, "Group Membership API"; KIP-62, 134, 345, 394, 559, 814.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.groups.members import Member, MemberSizes
from pybroker.kafka.groups.states import TRANSITIONS, GroupState
from pybroker.kafka.groups.values import (
    Effect,
    GroupLimits,
    JoinAnswer,
    Joined,
    JoinedMember,
    JoinRequest,
    Protocol,
    Store,
    StoredGroup,
    SyncAnswer,
    Synced,
    SyncRequest,
)

NEVER: Final = math.inf
_PENDING_BYTES: Final = 400


class Pending(NamedTuple):
    """A member that got an id and has not come back with it."""

    until_ms: int
    user: str


class ClassicGroup:
    def __init__(self, group_id: str, limits: GroupLimits, now_ms: int) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.since_ms = now_ms
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # member ids by group.instance.id
        self.pending: dict[str, Pending] = {}  # by the ids that were handed out
        self.sizes = MemberSizes()
        self.wake_ms: float = NEVER
        self._deadline_ms: float = NEVER  # of this rebalance's present phase
        self._initial_left_ms = 0  # an initial delay is running, and may be extended by this
        self._is_initial = False
        self._joined_meanwhile = False
        self._out: list[Effect] = []

    @classmethod
    def restored(
        cls, group_id: str, limits: GroupLimits, stored: StoredGroup, now_ms: int
    ) -> "ClassicGroup":
        """The group as it was stored; the sessions of its members begin anew."""
        group = cls(group_id, limits, stored.since_ms)
        group.generation = stored.generation
        group.protocol_type, group.protocol = stored.protocol_type, stored.protocol
        group.leader = stored.leader
        for each in stored.members:
            member = Member.restored(each, stored.protocol, now_ms)
            group.members[member.member_id] = member
            group.sizes.count(member)
            if member.instance_id is not None:
                group.static[member.instance_id] = member.member_id
            group.wake_by(member.expires_ms)
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        return group

    def take_effects(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._out = self._out, []
        return effects

    def emit(self, effect: Effect) -> None:
        self._out.append(effect)

    # -- ids of new members

    def hand_out(self, member_id: str, until_ms: int, user: str) -> None:
        """The id of a member that must come back with it."""
        self.pending[member_id] = Pending(until_ms, user)
        self.sizes.add(user, _PENDING_BYTES + len(member_id))
        self.wake_by(until_ms)

    def take_back(self, member_id: str) -> bool:
        """Whether the id was handed out."""
        if (pending := self.pending.pop(member_id, None)) is None:
            return False
        self.sizes.add(pending.user, -_PENDING_BYTES - len(member_id))
        return True

    # -- requests; for JoinGroup see `joining`

    def sync(self, request: SyncRequest, waiter: object, now_ms: int) -> list[Effect]:
        error = self._sync_error(request)
        if error is ErrorCode.NONE:
            self._sync(self.members[request.member_id], request, waiter, now_ms)
        else:
            self.emit(Synced(waiter, SyncAnswer(error)))
        return self.take_effects()

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        error = self.check_member(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.NONE:
            return error
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        named = (request.protocol_type, self.protocol_type), (request.protocol, self.protocol)
        if any(theirs is not None and theirs != ours for theirs, ours in named):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _sync(self, member: Member, request: SyncRequest, waiter: object, now_ms: int) -> None:
        member.heard_of(now_ms)
        member.has_synced = True
        if self.state is GroupState.STABLE:
            self.emit(Synced(waiter, self._assignment_of(member)))
            return
        if member.sync_waiter is not None:  # the client has given that request up
            self.emit(Synced(member.sync_waiter, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.sync_waiter = waiter
        if member.member_id == self.leader:
            self._assign(request, now_ms)

    def _assign(self, request: SyncRequest, now_ms: int) -> None:
        assigned = dict(request.assignments)
        size = sum(len(assigned.get(each, b"")) for each in self.members)
        size += sum(len(each.metadata(self.protocol)) for each in self.members.values())
        if size > self.limits.max_group_bytes:
            self._answer_syncs(ErrorCode.MESSAGE_TOO_LARGE, now_ms)
            self.prepare_rebalance(now_ms)
            return
        for each in self.members.values():
            each.assignment = assigned.get(each.member_id, b"")
            self.sizes.count(each)
        self._become(GroupState.STABLE, now_ms)
        self.emit(Store(self.stored()))
        for each in self.members.values():
            if each.sync_waiter is not None:
                self.emit(Synced(each.sync_waiter, self._assignment_of(each)))
                each.sync_waiter = None
                each.heard_of(now_ms)
                self.wake_by(each.expires_ms)

    def _assignment_of(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self.members[member_id].heard_of(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[ErrorCode, list[Effect]]:
        """`member_id` may be empty for a static member: an administrator removes it."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if instance_id is not None and not member_id:
            member_id = self.static.get(instance_id, "")
        if self.take_back(member_id):
            self._complete_if_all_joined(now_ms)
            return ErrorCode.NONE, self.take_effects()
        error = self._known(member_id, instance_id)
        if error is ErrorCode.NONE:
            self.remove([self.members[member_id]], now_ms)
        return error, self.take_effects()

    def may_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, in_txn: bool
    ) -> ErrorCode:
        """Whether offsets may be committed in this generation. In a transaction, a client that does
        not know KIP-447 commits without a member id.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_nobody = generation < 0 and not member_id and instance_id is None
        if is_nobody and (in_txn or not self.members):
            return ErrorCode.NONE
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self.members[member_id].heard_of(now_ms)
        if self.state is GroupState.COMPLETING_REBALANCE and not in_txn:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def die(self, now_ms: int) -> list[Effect]:
        """The group is deleted; whoever waits looks it up again."""
        self._answer_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for member_id in list(self.pending):
            self.take_back(member_id)
        self._become(GroupState.DEAD, now_ms)
        self.wake_ms = self._deadline_ms = NEVER
        return self.take_effects()

    # -- who is a member

    def member_of(self, request: JoinRequest) -> Member | None:
        """The member that joins again, or whose place a static one takes."""
        static = self.static.get(request.instance_id or "", "")
        return self.members.get(request.member_id or static)

    def check_member(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._known(member_id, instance_id)
        if error is ErrorCode.NONE and generation is not None and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _known(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Whether every member has one of these protocols."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        common = self._common_protocols()
        return protocol_type == self.protocol_type and any(
            each.name in common for each in protocols
        )

    def _common_protocols(self) -> set[str]:
        names = [{each.name for each in member.protocols} for member in self.members.values()]
        return set.intersection(*names) if names else set()

    def add(self, member: Member, now_ms: int) -> None:
        """Let the member join the next generation."""
        if not self.members:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.sizes.count(member)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self._joined_meanwhile = True
        self.wake_by(member.expires_ms)
        self.prepare_rebalance(now_ms)

    def replace(self, former: Member, member: Member) -> None:
        """Give the place of a static member to its successor."""
        assert former.instance_id is not None
        self.members = {
            (member if each is former else each).member_id: member if each is former else each
            for each in self.members.values()
        }
        self.static[former.instance_id] = member.member_id
        self.sizes.forget(former)
        self.sizes.count(member)
        if self.leader == former.member_id:
            self.leader = member.member_id

    @property
    def still_votes_for_its_protocol(self) -> bool:
        return self._vote() == self.protocol

    def remove(self, members: list[Member], now_ms: int) -> None:
        for member in members:
            self._forget(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _forget(self, member: Member) -> None:
        del self.members[member.member_id]
        self.sizes.forget(member)
        if (
            member.instance_id is not None
            and self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        self.answer(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if member.member_id == self.leader:
            self.leader = next(iter(self.members), "")

    # -- rebalances

    def prepare_rebalance(self, now_ms: int) -> None:
        """Begin a rebalance unless one has begun; complete it if everybody is there."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now_ms)
            return
        was_empty = self.state is GroupState.EMPTY
        self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._become(GroupState.PREPARING_REBALANCE, now_ms)
        longest_ms = self._longest_rebalance_ms()
        delay_ms = min(self.limits.initial_rebalance_delay_ms, longest_ms) if was_empty else 0
        self._is_initial = delay_ms > 0
        self._initial_left_ms = longest_ms - delay_ms
        self._joined_meanwhile = False
        self._due_in(delay_ms if self._is_initial else longest_ms, now_ms)
        self._complete_if_all_joined(now_ms)

    def _longest_rebalance_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._is_initial and self.members:
            return  # others may still come
        if not self.pending and all(each.join_waiter for each in self.members.values()):
            self._complete_join(now_ms)

    def _initial_delay_over(self, now_ms: int) -> None:
        """Wait once more if members came during the delay, up to the rebalance timeout in all."""
        if self._joined_meanwhile and self._initial_left_ms > 0:
            delay_ms = min(self.limits.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._joined_meanwhile = False
            self._due_in(delay_ms, now_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Leave behind who has not joined, and begin the next generation. Static members that have
        not joined keep their place until their sessions end.
        """
        self._is_initial = False
        for each in list(self.members.values()):
            if each.join_waiter is None and each.instance_id is None:
                self._forget(each)
        if not self.members:
            self._become_empty(now_ms)
        elif not any(each.join_waiter for each in self.members.values()):
            self._due_in(max(1, self._longest_rebalance_ms()), now_ms)
        else:
            self._begin_generation(now_ms)

    def _become_empty(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.leader = ""
        self._deadline_ms = NEVER
        self._become(GroupState.EMPTY, now_ms)
        self.emit(Store(self.stored()))

    def _begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self._vote()
        if self.members[self.leader].join_waiter is None:
            self.leader = next(each.member_id for each in self.members.values() if each.join_waiter)
        self._become(GroupState.COMPLETING_REBALANCE, now_ms)
        self._due_in(self._longest_rebalance_ms(), now_ms)
        for each in self.members.values():
            each.has_synced = False
            if each.join_waiter is not None:
                self.emit(Joined(each.join_waiter, self.join_answer(each)))
                each.join_waiter = None
                each.is_new = False
                each.heard_of(now_ms)
                self.wake_by(each.expires_ms)

    def _vote(self) -> str:
        """Each member votes for the first of its protocols that all of them have."""
        common = self._common_protocols()
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def join_answer(self, member: Member, skips_assignment: bool = False) -> JoinAnswer:
        leads = member.member_id == self.leader
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self._seen_by_leader() if leads else (),
            skips_assignment,
        )

    def _seen_by_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
            for each in self.members.values()
        )

    # -- time

    def wake(self, now_ms: int) -> list[Effect]:
        """Do what is due. Call it at `wake_ms`, or a little later."""
        if self.state is GroupState.DEAD:
            return []
        late = [each for each, pending in self.pending.items() if pending.until_ms <= now_ms]
        for member_id in late:
            self.take_back(member_id)
        expired = [each for each in self.members.values() if each.has_expired(now_ms)]
        self.remove(expired, now_ms) if expired else self._complete_if_all_joined(now_ms)
        if self._deadline_ms <= now_ms:
            self._phase_over(now_ms)
        self.wake_ms = self._next_wake_ms()
        return self.take_effects()

    def _phase_over(self, now_ms: int) -> None:
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            self._deadline_ms = NEVER
            late = [each for each in self.members.values() if not each.has_synced]
            if late:
                self.remove(late, now_ms)
        elif self._is_initial:
            self._initial_delay_over(now_ms)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._complete_join(now_ms)

    def _next_wake_ms(self) -> float:
        sessions = [
            each.expires_ms for each in self.members.values() if each.is_new or not each.is_parked
        ]
        until_ms = [each.until_ms for each in self.pending.values()]
        return min(self._deadline_ms, *sessions, *until_ms, NEVER)

    def wake_by(self, at_ms: float) -> None:
        self.wake_ms = min(self.wake_ms, at_ms)

    def _due_in(self, delay_ms: int, now_ms: int) -> None:
        self._deadline_ms = now_ms + delay_ms
        self.wake_by(self._deadline_ms)

    # -- state

    def _become(self, state: GroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.state = state
        self.since_ms = now_ms

    def stored(self) -> StoredGroup:
        return StoredGroup(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple(each.stored(self.protocol) for each in self.members.values()),
            self.since_ms,
        )

    # -- answers before their time

    def answer(self, member: Member, error: ErrorCode) -> None:
        """Answer whatever waits for the member."""
        if member.join_waiter is not None:
            self.emit(Joined(member.join_waiter, JoinAnswer(error, member.member_id)))
            member.join_waiter = None
        if member.sync_waiter is not None:
            self.emit(Synced(member.sync_waiter, SyncAnswer(error)))
            member.sync_waiter = None

    def _answer_syncs(self, error: ErrorCode, now_ms: int) -> None:
        for each in self.members.values():
            if each.sync_waiter is not None:
                self.emit(Synced(each.sync_waiter, SyncAnswer(error)))
                each.sync_waiter = None
                each.heard_of(now_ms)  # while it waited, it could not send heartbeats
                self.wake_by(each.expires_ms)

    def _answer_all(self, error: ErrorCode) -> None:
        for each in self.members.values():
            self.answer(each, error)
