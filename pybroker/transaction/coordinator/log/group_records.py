"""Log records for groups: transactions of several coordinators that commit together.

Promise       in the log of each member: the member ends exactly as the leader does
GroupMembers  in the leader's log, in one entry with COMMITTING: this entry is the decision
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from managed_ledger.codec import Reader, Writer
from pybroker.base.names import TxnId

MEMBERS_PER_RECORD: Final = 500


@dataclass(frozen=True, slots=True)
class Promise:
    local_id: int
    leader: TxnId | None  # None releases the member


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Members of other coordinators. A large group has several such records."""

    local_id: int  # of the leader
    members: tuple[TxnId, ...]


def records_of_group(leader: int, members: Iterable[TxnId]) -> Iterator[GroupMembers]:
    every = tuple(members)
    for at in range(0, len(every), MEMBERS_PER_RECORD):
        yield GroupMembers(leader, every[at : at + MEMBERS_PER_RECORD])


def encode_promise(record: Promise, out: Writer) -> None:
    out.number(record.local_id)
    most, least = record.leader or (-1, 0)
    out.number(most + 1)
    out.number(least)


def decode_promise(data: Reader) -> Promise:
    local_id, most, least = data.number(), data.number() - 1, data.number()
    return Promise(local_id, None if most < 0 else TxnId(most, least))


def encode_members(record: GroupMembers, out: Writer) -> None:
    out.number(record.local_id)
    out.number(len(record.members))
    for most, least in record.members:
        out.number(most)
        out.number(least)


def decode_members(data: Reader) -> GroupMembers:
    local_id, count = data.number(), data.number()
    return GroupMembers(local_id, tuple(TxnId(data.number(), data.number()) for _ in range(count)))
