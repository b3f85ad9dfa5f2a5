"""A member of a classic group."""

from dataclasses import dataclass

from pybroker.kafka.groups.values import JoinRequest, Protocol, StoredMember


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

    def metadata(self, protocol: str) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def heard_of(self, now_ms: int) -> None:
        self.expires_ms = now_ms + self.session_timeout_ms

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_ms <= now_ms and (self.is_new or not self.is_parked)
