"""TRANSACTION_GROUP: transactions of another broker and of this one commit together.

Differs: Apache Pulsar has no such command; CONNECTED announces it (`supports_transaction_groups`).
"""

from collections.abc import Sequence
from typing import Final

from pybroker.base.errors import NotAllowed
from pybroker.base.names import COORDINATOR_ASSIGN, TxnId
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions import fencing
from pybroker.server.transactions.on_behalf_of import principal_of
from pybroker.server.transactions.on_transaction import MAX_TOGETHER
from pybroker.wire import pulsar_api_pb2 as pb

_GROUP: Final = pb.CommandTransactionGroup
_ANSWER: Final = pb.CommandTransactionGroupResponse
_VERDICTS: Final = {None: _ANSWER.UNDECIDED, True: _ANSWER.COMMITS, False: _ANSWER.RELEASED}


async def transaction_group(session: Connection, command: pb.CommandTransactionGroup) -> None:
    """Raises NotAllowed, and the errors of the steps of `Groups`."""
    leader = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    members = _members(command)
    groups, answer = session.services.coordinators.groups, _ANSWER(request_id=command.request_id)
    match command.step:
        case _GROUP.VERDICT:
            await _require_served(session, leader.most)
            found = await groups.verdicts(leader, members)
            answer.verdict.extend(_VERDICTS[each] for each in found)
        case _GROUP.FOLLOW:
            await _require_served(session, _of_one_coordinator(members))
            await groups.follow_at_once(leader, members)
        case _GROUP.PROMISE:
            await _require_served(session, _of_one_coordinator(members))
            await _require_leader(session, leader, members)
            claimed = command.principal if command.HasField("principal") else None
            coordinator = await session.services.coordinators.get(members[0].most)
            fencing.require_current(session, coordinator, members)
            await groups.promise_to(leader, members, principal_of(session, claimed))
    session.send_command(answer)


def _members(command: pb.CommandTransactionGroup) -> list[TxnId]:
    most, least = command.member_most, command.member_least
    if len(most) != len(least) or not 0 < len(least) <= MAX_TOGETHER:
        raise NotAllowed(
            f"TRANSACTION_GROUP has {len(least)} least bits and {len(most)} most bits: send "
            f"equally many, 1 to {MAX_TOGETHER}"
        )
    return list(map(TxnId, most, least))


def _of_one_coordinator(members: Sequence[TxnId]) -> int:
    if len({each.most for each in members}) > 1:
        raise NotAllowed("The members belong to several coordinators: ask each one individually")
    return members[0].most


async def _require_leader(session: Connection, leader: TxnId, members: Sequence[TxnId]) -> None:
    """A promise to a coordinator that does not exist would hold forever."""
    if leader.most >= session.services.coordinators.count:
        await session.services.topics.ownership.refreshed()  # it may have just been added
    if leader.most >= session.services.coordinators.count or leader.most == members[0].most:
        raise NotAllowed(
            f"{leader} cannot lead {members[0]}: it must belong to another coordinator that exists"
        )


async def _require_served(session: Connection, coordinator_id: int) -> None:
    """Acquires the coordinator if no broker has it."""
    coordinators = session.services.coordinators
    if coordinators.serving(coordinator_id) is None and coordinator_id < coordinators.count:
        partition = COORDINATOR_ASSIGN.partition_at(coordinator_id)
        await session.services.topics.ownership.owner_of(partition)
