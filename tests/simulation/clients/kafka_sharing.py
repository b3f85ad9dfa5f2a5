"""Members of a share group: each record is accepted, rejected or released, or its lock runs out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from clients.kafka_peer import Body, KafkaClient, KafkaGone, KafkaPeer
from clients.kafka_producing import KafkaProcess
from clients.kafka_words import AGAIN, METADATA, Place, Shown, records_in
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.shares.acquired import AckType

ALTER_CONFIGS, SHARE_FETCH, SHARE_ACKNOWLEDGE = 44, 78, 79
LOCK_S: Final = 15.0
DELIVERIES: Final = 10  # then a batch is given up
_GROUP: Final = 32  # a resource
_CONFIGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": str(int(LOCK_S * 1000)),
    "share.delivery.count.limit": str(DELIVERIES),
}
_LOST_SESSIONS: Final = (
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)
_WAIT_MS: Final = 500


class Holding(NamedTuple):
    """A record that a member has."""

    holder: "SharingMember"
    peer: KafkaPeer
    until_s: float
    load: object  # of the topic: an unload forgets locks


@dataclass
class Sharing:
    """What the members of a group did, together."""

    topic_load: Callable[[], object]
    accepted: dict[int, float] = field(default_factory=dict)  # answered: when, by offset
    perhaps: set[int] = field(default_factory=set)  # accepted or rejected, without an answer
    deliveries: dict[int, int] = field(default_factory=dict)  # the highest count, by offset
    holdings: dict[int, Holding] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def delivered(
        self, member: "SharingMember", peer: KafkaPeer, shown: Shown, asked_s: float, now_s: float
    ) -> None:
        offset = shown.offset
        answered_s = self.accepted.get(offset)
        if answered_s is not None and answered_s < asked_s:
            self.broken.append(f"ACCEPTANCE LOST: {shown.value} at {offset} is delivered again")
        held, load = self.holdings.get(offset), self.topic_load()
        if held is not None and held.peer is not peer:
            is_there = held.holder.has(held.peer) and load is not None and held.load is load
            if is_there and now_s < held.until_s:
                self.broken.append(
                    f"HELD BY TWO: {shown.value} at {offset}, by {held.holder.name} and "
                    f"{member.name}"
                )
        self.holdings[offset] = Holding(member, peer, asked_s + LOCK_S, load)

    def consumed(self) -> set[int]:
        given_up = {each for each, count in self.deliveries.items() if count >= DELIVERIES}
        return {*self.accepted, *self.perhaps, *given_up}


class SharingMember(KafkaProcess):
    def __init__(
        self,
        *args: Any,
        group: str,
        place: Place,
        sharing: Sharing,
        about_to: Callable[[str], None],
    ) -> None:
        """`about_to` is told of each request that acknowledges."""
        super().__init__(*args)
        self.group, self.place, self.sharing, self.about_to = group, place, sharing, about_to
        self._epoch = 0
        self._peer: KafkaPeer | None = None
        self._topic_id = b""
        self._to_say: list[tuple[int, AckType]] = []

    def has(self, peer: KafkaPeer) -> bool:
        """Whether this is its connection, as far as it knows, and it lives."""
        lives = self.node is not None and not self.node.dead and not self.finished
        return lives and self._peer is peer and not peer.lost

    async def work(self, client: Any) -> None:
        self._peer = None
        await self._set_configs(client)
        self._epoch, self._to_say, self._topic_id = 0, [], await self._id(client)
        while not self.stopping:
            peer = await client.peer()
            if peer is not self._peer:
                self._peer, self._epoch, self._to_say = peer, 0, []
            await (self._say(client) if self.rng.random() < 0.3 else self._fetch(client))
            await self.pause(0.5)
        await self._say(client)

    async def _set_configs(self, client: KafkaClient) -> None:
        changes = [
            {"name": name, "config_operation": 0, "value": value}
            for name, value in _CONFIGS.items()
        ]
        asked = {"resource_type": _GROUP, "resource_name": self.group, "configs": changes}
        while True:
            body = await client.ask(ALTER_CONFIGS, 1, {"resources": [asked]})
            code = ErrorCode(body["responses"][0]["error_code"])
            if code is ErrorCode.NONE:
                return
            self.note(f"the configs of {self.group}: {code.name}")
            await self.pause(1.0)

    async def _id(self, client: KafkaClient) -> bytes:
        while True:
            body = await client.ask(METADATA, 12, {"topics": [{"name": self.place.topic}]})
            (found,) = body["topics"]
            if found["error_code"] == ErrorCode.NONE:
                return bytes(found["topic_id"])
            await self.pause(1.0)

    # -- requests

    async def _fetch(self, client: KafkaClient) -> None:
        records, is_strict = self.rng.choice((1, 3, 100)), self.rng.random() < 0.5
        wanted = {
            "max_wait_ms": _WAIT_MS,
            "min_bytes": 1,
            "max_bytes": self.rng.choice((1, 1000, 1 << 20)),
            "max_records": records,
            "batch_size": records,
            "forgotten_topics_data": [],
            "share_acquire_mode": int(is_strict),
        }
        said = self._next_said()
        asked_s = self.world.now
        body = await self._ask(client, SHARE_FETCH, said, wanted)
        if (found := self._answered(body, said, "acknowledge_error_code")) is None:
            return
        shown = {each.offset: each for each in records_in(bytes(found["records"] or b""))}
        for each in found["acquired_records"]:
            for offset in range(each["first_offset"], each["last_offset"] + 1):
                self._delivered(shown[offset], asked_s, each["delivery_count"])

    def _delivered(self, shown: Shown, asked_s: float, count: int) -> None:
        assert self._peer is not None
        self.sharing.delivered(self, self._peer, shown, asked_s, self.world.now)
        most = self.sharing.deliveries.get(shown.offset, 0)
        self.sharing.deliveries[shown.offset] = max(most, count)
        kinds = (AckType.ACCEPT, AckType.REJECT, AckType.RELEASE, None)
        (kind,) = self.rng.choices(kinds, (20, 2, 2, 1))
        if kind is not None:  # otherwise the lock runs out
            self._to_say.append((shown.offset, kind))

    async def _say(self, client: KafkaClient) -> None:
        if self._epoch and (said := self._next_said()):
            body = await self._ask(client, SHARE_ACKNOWLEDGE, said, {})
            self._answered(body, said, "error_code")

    def _next_said(self) -> dict[int, AckType]:
        """Some of what there is to say."""
        if not self._epoch:
            return {}
        count = self.rng.randint(0, len(self._to_say))
        said, self._to_say = dict(self._to_say[:count]), self._to_say[count:]
        return said

    async def _ask(
        self, client: KafkaClient, key: int, said: dict[int, AckType], more: Body
    ) -> Body:
        for offset, kind in said.items():
            if kind is AckType.RELEASE:
                self.sharing.holdings.pop(offset, None)
            else:
                self.sharing.perhaps.add(offset)
        if said:
            self.about_to("ShareAcknowledge")
        batches = [
            {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}
            for offset, kind in sorted(said.items())
        ]
        partition = {"partition_index": self.place.partition, "acknowledgement_batches": batches}
        body = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self._epoch,
            "topics": [{"topic_id": self._topic_id, "partitions": [partition]}],
        }
        try:
            answer = await client.ask(key, 2, body | more)
        except KafkaGone:
            self._peer = None
            raise
        self._epoch += 1
        return answer

    def _answered(self, body: Body, said: dict[int, AckType], error: str) -> Body | None:
        """The answer for the partition, if it has records."""
        code = ErrorCode(body["error_code"])
        if code is not ErrorCode.NONE:
            self.note(f"ended its session: {code.name}")
            self._epoch, self._to_say = 0, []
            if code not in (*AGAIN, *_LOST_SESSIONS):
                self.unexpected(code, "a share session")
            return None
        if not body["responses"]:
            return None
        (found,) = body["responses"][0]["partitions"]
        refused = ErrorCode(found[error])
        if refused is ErrorCode.NONE:
            self.sharing.accepted |= {
                offset: self.world.now
                for offset, kind in said.items()
                if kind is not AckType.RELEASE
            }
        elif refused not in (*AGAIN, ErrorCode.INVALID_RECORD_STATE):
            self.unexpected(refused, "acknowledgements")
        failed = ErrorCode(found["error_code"])
        if failed is ErrorCode.NONE and "records" in found:
            return found
        if failed not in (ErrorCode.NONE, *AGAIN, ErrorCode.INVALID_RECORD_STATE):
            self.unexpected(failed, "records")
        return None
