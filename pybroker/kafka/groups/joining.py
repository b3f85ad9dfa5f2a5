"""JoinGroup: who may join a classic group, and what a member that comes again is told.

Source: Kafka's protocol guide, "Group Membership API"; KIP-345 (static members), KIP-394 (a member
needs an id before it may wait here), KIP-814 (a static leader that comes again).
"""

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.groups.classic_group import ClassicGroup
from pybroker.kafka.groups.members import Member
from pybroker.kafka.groups.states import GroupState
from pybroker.kafka.groups.values import Effect, JoinAnswer, Joined, JoinRequest, Store


def join(group: ClassicGroup, request: JoinRequest, waiter: object, now_ms: int) -> list[Effect]:
    """The answer is among the effects, or among those of a later call."""
    error = _refusal(group, request)
    if error is not ErrorCode.NONE:
        _refuse(group, request, waiter, error)
    elif not request.member_id:
        _join_new(group, request, waiter, now_ms)
    elif request.member_id in group.pending:
        group.take_back(request.member_id)
        _add(group, request, request.member_id, waiter, now_ms)
    else:
        _join_again(group, request, waiter, now_ms)
    return group.take_effects()


def _refuse(group: ClassicGroup, request: JoinRequest, waiter: object, error: ErrorCode) -> None:
    group.emit(Joined(waiter, JoinAnswer(error, request.member_id)))


def _refusal(group: ClassicGroup, request: JoinRequest) -> ErrorCode:
    limits = group.limits
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not (
        limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms
    ):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(request.protocols) > limits.max_protocols or not _fits(group, request):
        return ErrorCode.MESSAGE_TOO_LARGE
    if not _supports(group, request):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _fits(group: ClassicGroup, request: JoinRequest) -> bool:
    size = sum(len(each.name) + len(each.metadata) for each in request.protocols)
    size += len(request.fresh_id) + len(request.instance_id or "") + len(request.protocol_type)
    return size <= group.limits.max_member_bytes


def _supports(group: ClassicGroup, request: JoinRequest) -> bool:
    """The only member of a group may come again with other protocols."""
    if list(group.members) == [request.member_id]:
        return bool(request.protocols) and request.protocol_type == group.protocol_type
    return group.supports(request.protocol_type, request.protocols)


def _is_full(group: ClassicGroup) -> bool:
    return len(group.members) + len(group.pending) >= group.limits.max_members


def _join_new(group: ClassicGroup, request: JoinRequest, waiter: object, now_ms: int) -> None:
    instance_id = request.instance_id
    if instance_id is not None and instance_id in group.static:
        _take_place(group, request, group.members[group.static[instance_id]], waiter, now_ms)
    elif _is_full(group):
        _refuse(group, request, waiter, ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif request.needs_known_id and instance_id is None:
        until_ms = now_ms + request.session_timeout_ms
        group.hand_out(request.fresh_id, until_ms, request.user)
        answer = JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id)
        group.emit(Joined(waiter, answer))
    else:
        _add(group, request, request.fresh_id, waiter, now_ms)


def _add(
    group: ClassicGroup, request: JoinRequest, member_id: str, waiter: object, now_ms: int
) -> None:
    if not group.members:
        group.protocol_type = request.protocol_type
    member = Member.of(request, member_id, now_ms + group.limits.new_member_timeout_ms)
    member.join_waiter = waiter
    group.add(member, now_ms)


def _join_again(group: ClassicGroup, request: JoinRequest, waiter: object, now_ms: int) -> None:
    error = group.check_member(request.member_id, request.instance_id)
    if error is not ErrorCode.NONE:
        _refuse(group, request, waiter, error)
        return
    member = group.members[request.member_id]
    group.answer(member, ErrorCode.REBALANCE_IN_PROGRESS)  # its client has given those up
    is_same = member.protocols == request.protocols
    if is_same and group.state is GroupState.COMPLETING_REBALANCE:
        _answer_now(group, member, waiter, now_ms)  # the first answer was lost
    elif is_same and group.state is GroupState.STABLE and member.member_id != group.leader:
        _answer_now(group, member, waiter, now_ms)
    else:
        _rejoin(group, member, request, waiter, now_ms)


def _answer_now(group: ClassicGroup, member: Member, waiter: object, now_ms: int) -> None:
    member.heard_of(now_ms)
    group.wake_by(member.expires_ms)
    group.emit(Joined(waiter, group.join_answer(member)))


def _rejoin(
    group: ClassicGroup, member: Member, request: JoinRequest, waiter: object, now_ms: int
) -> None:
    _update(member, request)
    group.sizes.count(member)
    member.join_waiter = waiter
    group.prepare_rebalance(now_ms)


def _update(member: Member, request: JoinRequest) -> None:
    member.protocols = request.protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.client_id, member.client_host = request.client_id, request.client_host
    member.user = request.user


def _take_place(
    group: ClassicGroup, request: JoinRequest, former: Member, waiter: object, now_ms: int
) -> None:
    """A static member has restarted: it gets its predecessor's place. In a stable group nothing
    else changes if it would assign in the same way.
    """
    instance_id = request.instance_id
    assert instance_id is not None
    group.answer(former, ErrorCode.FENCED_INSTANCE_ID)
    was_leader = former.member_id == group.leader
    is_same = former.metadata(group.protocol) == _metadata(request, group.protocol)
    member = Member.of(request, request.fresh_id, now_ms + request.session_timeout_ms)
    member.is_new, member.has_synced = False, former.has_synced
    member.assignment = former.assignment
    group.replace(former, member)
    if group.state is GroupState.STABLE and is_same and group.still_votes_for_its_protocol:
        group.emit(Store(group.stored()))
        group.emit(Joined(waiter, _answer_to_successor(group, request, former, was_leader)))
        group.wake_by(member.expires_ms)
        return
    member.join_waiter = waiter
    group.prepare_rebalance(now_ms)


def _metadata(request: JoinRequest, protocol: str) -> bytes | None:
    return next((each.metadata for each in request.protocols if each.name == protocol), None)


def _answer_to_successor(
    group: ClassicGroup, request: JoinRequest, former: Member, was_leader: bool
) -> JoinAnswer:
    """A leader that comes again must not assign anew. Clients before KIP-814 are kept from it by
    the former leader's id.
    """
    member = group.members[request.fresh_id]
    if not was_leader:
        return group.join_answer(member)
    if request.may_skip_assignment:
        return group.join_answer(member, skips_assignment=True)
    answer = group.join_answer(member)
    return JoinAnswer(
        answer.error,
        answer.member_id,
        answer.generation,
        answer.protocol_type,
        answer.protocol,
        former.member_id,
    )
