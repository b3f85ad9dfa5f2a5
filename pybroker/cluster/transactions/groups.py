"""Groups of transactions with coordinators on several brokers: the requests between the brokers.

Each request goes to the broker that serves the coordinator now. The caller repeats a failed request
with a new lookup; each step is idempotent.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from pybroker.base.errors import NotAllowed, ServiceNotReady
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName, TxnId
from pybroker.broker.brokers.ownership import Ownership
from pybroker.cluster.transactions.peers import Peers
from pybroker.transaction.coordinator.group_commits.settling import Verdicts
from pybroker.transaction.coordinator.remote_coordinators import Answer, Participation
from pybroker.transaction.txn_status import TxnStatus, coordinator_not_ready
from pybroker.wire import pulsar_api_pb2 as pb

_GROUP: Final = pb.CommandTransactionGroup
_ANSWER: Final = pb.CommandTransactionGroupResponse
_VERDICTS: Final = {_ANSWER.COMMITS: True, _ANSWER.RELEASED: False}


@lru_cache(maxsize=1000)
def assign_partition(coordinator_id: int) -> TopicName:
    return COORDINATOR_ASSIGN.partition_at(coordinator_id)


class SharedGroups:
    """Implements transaction.coordinator.groups.RemoteGroups. `ask`: see Elsewhere."""

    def __init__(
        self,
        ownership: Ownership,
        peers: Peers,
        ask: Callable[[Participation], Awaitable[Answer | None]],
    ) -> None:
        self._ownership = ownership
        self._peers = peers
        self._ask = ask

    def serves(self, coordinator_id: int) -> bool:
        return self._ownership.owns(assign_partition(coordinator_id))

    async def promise(self, leader: TxnId, members: Sequence[TxnId], principal: str | None) -> None:
        command = _command(_GROUP.PROMISE, leader, members)
        if principal is not None:
            command.principal = principal
        await self._request(members[0].most, command)

    async def follow(self, leader: TxnId, members: Sequence[TxnId]) -> None:
        await self._request(members[0].most, _command(_GROUP.FOLLOW, leader, members))

    async def verdicts(self, leader: TxnId, members: Sequence[TxnId]) -> Verdicts:
        answer = await self._request(leader.most, _command(_GROUP.VERDICT, leader, members))
        if len(answer.verdict) != len(members):
            raise ServiceNotReady(
                f"The broker of transaction coordinator {leader.most} answered about "
                f"{len(answer.verdict)} of {len(members)} transactions"
            )
        return [_VERDICTS.get(each) for each in answer.verdict]

    async def status(self, txn_id: TxnId) -> TxnStatus | None:
        answer = await self._ask(Participation(txn_id))
        return None if answer is None else answer.status

    async def _request(self, coordinator_id: int, command: pb.CommandTransactionGroup) -> Any:
        broker = await self._ownership.owner_of(assign_partition(coordinator_id))
        if broker is None:  # this broker has just taken it: the next attempt is local
            raise coordinator_not_ready(coordinator_id)
        if not await self._peers.joins_groups(broker):
            raise NotAllowed(
                f"{broker.broker_url} serves transaction coordinator {coordinator_id} and cannot "
                "commit together with others: begin all transactions of the group with one "
                "coordinator"
            )
        return await self._peers.request(broker, command)


def _command(step: int, leader: TxnId, members: Sequence[TxnId]) -> pb.CommandTransactionGroup:
    return pb.CommandTransactionGroup(
        step=step,  # type: ignore[arg-type]
        txnid_most_bits=leader.most,
        txnid_least_bits=leader.least,
        member_most=[each.most for each in members],
        member_least=[each.least for each in members],
    )
