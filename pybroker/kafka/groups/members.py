"""A member of a classic group."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pybroker.kafka.groups.values import JoinRequest, Protocol, StoredMember

_MEMBER_BYTES: Final = 1_000  # with nothing in it
_PROTOCOL_BYTES: Final = 200


def _size_of(protocols: Iterable[Protocol]) -> int:
    return sum(_PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols)


def growth_by(request: JoinRequest, known: "Member | None") -> int:
    """About how much more the member will take than now; `known` may be its predecessor."""
    if known is not None:
        return _size_of(request.protocols) - _size_of(known.protocols)
    texts = len(request.client_id) + 2 * len(request.fresh_id) + len(request.instance_id or "")
    return _MEMBER_BYTES + texts + _size_of(request.protocols)


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    expires_ms: int
    assignment: bytes = b""
    join_waiter: object | None = None  # its JoinGroup waits for the next generation
    sync_waiter: object | None = None  # its SyncGroup waits for the leader's
    is_new: bool = False  # has not been answered since it joined
    has_synced: bool = False  # in this generation
    user: str = ""  # "": it was restored
    counted: tuple[str, int] = ("", 0)  # the user and the bytes, as its group has counted them

    @classmethod
    def of(cls, request: JoinRequest, member_id: str, expires_ms: int) -> "Member":
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            expires_ms,
            is_new=True,
            user=request.user,
        )

    @classmethod
    def restored(cls, stored: StoredMember, protocol: str, now_ms: int) -> "Member":
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout_ms,
            stored.rebalance_timeout_ms,
            (Protocol(protocol, stored.metadata),),
            now_ms + stored.session_timeout_ms,
            stored.assignment,
            has_synced=True,
        )

    def stored(self, protocol: str) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )

    @property
    def is_parked(self) -> bool:
        """Whether one of its requests waits here: then it cannot send heartbeats."""
        return self.join_waiter is not None or self.sync_waiter is not None

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        texts = len(self.client_id) + len(self.member_id) + len(self.instance_id or "")
        return _MEMBER_BYTES + texts + len(self.assignment) + _size_of(self.protocols)

    def metadata(self, protocol: str) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def heard_of(self, now_ms: int) -> None:
        self.expires_ms = now_ms + self.session_timeout_ms

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_ms <= now_ms and (self.is_new or not self.is_parked)


class MemberSizes:
    """About the bytes that the members of a group take."""

    def __init__(self) -> None:
        self.of_user: Counter[str] = Counter()

    def count(self, member: Member) -> None:
        """Call when what the member takes has changed."""
        self.add(member.counted[0], -member.counted[1])
        member.counted = member.user, member.size_bytes
        self.add(*member.counted)

    def forget(self, member: Member) -> None:
        self.add(member.counted[0], -member.counted[1])
        member.counted = "", 0

    def add(self, user: str, size: int) -> None:
        self.of_user[user] += size
        if not self.of_user[user]:
            del self.of_user[user]
