"""Members of KIP-848's groups, and static ones of classic groups, that transform in transactions.

A member of KIP-848 sends heartbeats between transactions, again if an answer was lost. Of a
partition that it has to give up it may finish a last transaction before it confirms. A static one
that died returns under the same group.instance.id, and so may another process meanwhile.
"""

from typing import Any, Final, NamedTuple

from clients.kafka_group_words import Beaten, Membership, beat
from clients.kafka_members import STALL_S, Member
from clients.kafka_peer import KafkaClient, KafkaGone
from clients.kafka_words import AGAIN, METADATA, Place
from pybroker.kafka.errors import ErrorCode

_JOINS: Final = 0
_LEAVES, _LEAVES_FOR_A_WHILE = -1, -2
_OUT: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)
_OUT_OF_COMMITS: Final = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION)


class Held(NamedTuple):
    """A partition, as a member was told."""

    epoch: int
    who: str
    told_s: float


class Holders:
    """Which member of a KIP-848 group has a partition: epochs are never used twice."""

    def __init__(self) -> None:
        self.held: dict[Place, Held] = {}
        self.broken: list[str] = []

    def told(self, place: Place, new: Held) -> None:
        former = self.held.get(place)
        if former is not None and former.epoch == new.epoch and former.who != new.who:
            self.broken.append(
                f"TWO OWNERS: {place} was given to {former.who} and {new.who} in epoch {new.epoch}"
            )
        if former is None or former.epoch < new.epoch:
            self.held[place] = new

    def committed(self, what: str, place: Place, who: str, asked_s: float) -> None:
        held = self.held[place]
        if held.who != who and held.told_s < asked_s:
            self.broken.append(
                f"TWO OWNERS: {who} committed {what}, which {held.who} had been given"
            )


class BeatingMember(Member):
    def __init__(
        self, *args: Any, holders: Holders, instance_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.holders = holders
        self.instance_id = instance_id
        self._owned: frozenset[Place] = frozenset()
        self._is_told = False  # whether the broker knows what it owns
        self._positions: dict[Place, int] = {}

    @property
    def _who(self) -> str:
        """Who succeeds a static member has its partitions in the same epoch."""
        return self.instance_id or self._membership.member_id

    async def work(self, client: Any) -> None:
        self.session = None
        self._lives += 1
        await self._init(client)
        ids = await self._ids(client)
        member_id = f"{self.name}-{self.incarnation}-{self._lives}"
        self._membership = Membership(self.group, member_id, _JOINS, self.instance_id)
        self._forget()
        while not self.stopping:
            await self._beat(client, ids)
            for place in sorted(self._owned):
                if place in self._owned and await self._is_resumed(client, place):
                    await self._work_on(client, place)
            await self.pause(0.5)
        await self._leave(client, ids)

    async def _ids(self, client: KafkaClient) -> dict[str, bytes]:
        while True:
            asked = [{"name": each.topic} for each in self.inputs]
            found = (await client.ask(METADATA, 12, {"topics": asked}))["topics"]
            if not any(each["error_code"] for each in found):
                return {each["name"]: bytes(each["topic_id"]) for each in found}
            await self.pause(1.0)

    def _forget(self) -> None:
        self._owned, self._is_told = frozenset(), False
        self._positions.clear()
        self._membership = self._membership._replace(generation=_JOINS)

    # -- heartbeats

    async def _beat(self, client: KafkaClient, ids: dict[str, bytes]) -> None:
        tells = not self._is_told or self.rng.random() < 0.3
        try:
            answer = await beat(client, self._membership, ids, self._owned if tells else None)
        except KafkaGone as error:
            self.note(f"a heartbeat: {error}")
            return  # the next one is of the same epoch
        if answer.code is not ErrorCode.NONE:
            await self._refused(answer.code)
            return
        self._is_told |= tells
        self._membership = self._membership._replace(generation=answer.epoch)
        if answer.assigned is not None and answer.assigned != self._owned:
            await self._follow(client, answer)

    async def _refused(self, code: ErrorCode) -> None:
        self.note(f"a heartbeat: {code.name}")
        if code in AGAIN:
            await self.pause(1.0)
            return
        if code not in _OUT:
            self.unexpected(code, "a heartbeat")
        self.history.counts["members that had to join again"] += 1
        self._forget()
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            await self.pause(STALL_S)

    async def _follow(self, client: KafkaClient, answer: Beaten) -> None:
        assigned = answer.assigned or frozenset()
        for place in sorted(self._owned - assigned):
            self.history.counts["partitions given up"] += 1
            if place in self._positions and self.rng.random() < 0.6:
                await self._work_on(client, place)
            self._positions.pop(place, None)
        for place in sorted(assigned - self._owned):
            self.holders.told(place, Held(answer.epoch, self._who, self.world.now))
        self.note(f"has {sorted(assigned)} in epoch {answer.epoch}")
        self._owned, self._is_told = assigned, False

    async def _leave(self, client: KafkaClient, ids: dict[str, bytes]) -> None:
        epochs = (_LEAVES,) if self.instance_id is None else (_LEAVES, _LEAVES_FOR_A_WHILE)
        if self.rng.random() < 0.5:
            leaving = self._membership._replace(generation=self.rng.choice(epochs))
            await beat(client, leaving, ids, None)

    # -- work

    async def _is_resumed(self, client: KafkaClient, place: Place) -> bool:
        return place in self._positions or await self._resume(client, place, self._positions)

    async def _work_on(self, client: KafkaClient, place: Place) -> None:
        if not await self._transform(client, place, self._positions):
            self._positions.clear()

    def _not_a_member(self, code: ErrorCode, what: str) -> None:
        self.note(f"{what}: {code.name}")
        if code not in AGAIN and code not in (*_OUT, *_OUT_OF_COMMITS):
            self.unexpected(code, what)

    def has_committed(self, what: str, place: Place, asked_s: float, newest: int) -> None:
        self.holders.committed(what, place, self._who, asked_s)


class Life(NamedTuple):
    """A life of a process with a group.instance.id."""

    name: str
    joined_s: float  # when it asked
    heard_s: float  # its assignment


class Lives:
    """Of one group.instance.id: who joins fences those that worked before."""

    def __init__(self) -> None:
        self.newest: dict[str, Life] = {}  # the newest work of each process
        self.broken: list[str] = []

    def committed(self, what: str, life: Life, asked_s: float) -> None:
        for each in self.newest.values():
            if each.joined_s > life.heard_s and each.heard_s < asked_s:
                self.broken.append(
                    f"TWO OWNERS: {life.name} committed {what}, when {each.name} had its place"
                )


class StaticMember(Member):
    """`is_double`: it comes meanwhile, and ends when it is fenced."""

    def __init__(
        self, *args: Any, instance_id: str, lives: Lives, is_double: bool = False, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.instance_id = instance_id
        self.lives = lives
        self.is_double = is_double
        self._life = Life(self.name, 0.0, 0.0)
        self._is_fenced = False

    async def work(self, client: Any) -> None:
        self.session, self._member_id, self._is_fenced = None, "", False
        self._lives += 1
        await self._init(client)
        while not self.stopping:
            joined_s = self.world.now
            assigned = await self._join(client)
            if assigned is not None:
                self._life = Life(f"{self.name}.{self.incarnation}", joined_s, self.world.now)
                self.lives.newest[self.name] = self._life
                await self._consume(client, assigned)
            if self._is_fenced:
                self.history.counts["static members that were fenced"] += 1
                if self.is_double:
                    return
                self._is_fenced, self._member_id = False, ""
                await self.pause(STALL_S)
            elif assigned is None:
                await self.pause(1.0)

    def _not_a_member(self, code: ErrorCode, what: str) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.note(f"{what}: fenced")
            self._is_fenced = True
        else:
            super()._not_a_member(code, what)

    def has_committed(self, what: str, place: Place, asked_s: float, newest: int) -> None:
        super().has_committed(what, place, asked_s, newest)
        self.lives.committed(what, self._life, asked_s)
