"""Members of a group of Kafka's that consume, transform and produce in transactions (KIP-447).

Each has a transactional id of its own, so nothing but the generation fences a member that stalled
for longer than its session: it wakes up, believes in its assignment, and commits.
"""

from typing import Any, Final

from checks.history import Read, Txn

from clients.kafka_group_words import (
    NOTHING,
    Membership,
    add_group,
    commit_in,
    committed_offset,
    heartbeat,
    join,
    leave,
    sync,
)
from clients.kafka_peer import KafkaClient
from clients.kafka_transacting import KafkaWorker
from clients.kafka_words import AGAIN, Place, Shown, fetch, first_offset
from pybroker.kafka.errors import ErrorCode

STALL_S: Final = 9.0  # longer than a session, and a rebalance
_AT_ONCE: Final = 4  # records of a transaction
_LOST: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MEMBER_ID_REQUIRED,
)


class Generations:
    """The newest generation that a member has worked in."""

    def __init__(self) -> None:
        self.newest = NOTHING
        self.broken: list[str] = []

    def began(self, generation: int) -> None:
        self.newest = max(self.newest, generation)


class Member(KafkaWorker):
    """Begins to work again whenever the group changes."""

    def __init__(
        self,
        *args: Any,
        group: str,
        inputs: list[Place],
        output: Place,
        generations: Generations,
        **more: Any,
    ) -> None:
        super().__init__(*args, places=[output], count=0, **more)
        self.group = group
        self.inputs = inputs
        self.output = output
        self.generations = generations
        self.instance_id: str | None = None
        self._member_id = ""
        self._membership = Membership(group, "", NOTHING)
        self._batch: tuple[Place, list[Shown]]

    async def work(self, client: Any) -> None:
        self.session, self._member_id = None, ""
        self._lives += 1
        await self._init(client)
        while not self.stopping:
            assigned = await self._join(client)
            if assigned is None:
                await self.pause(1.0)
            else:
                await self._consume(client, assigned)
        if self.rng.random() < 0.5:
            await leave(client, self._membership)

    async def _join(self, client: KafkaClient) -> list[Place] | None:
        joined = await join(client, self.group, self._member_id, self.instance_id)
        self._member_id = joined.membership.member_id
        if joined.code is not ErrorCode.NONE:
            self._not_a_member(joined.code, "JoinGroup")
            return None
        shares: dict[str, list[Place]] = {each: [] for each in joined.others}
        for number, place in enumerate(self.inputs if shares else ()):
            shares[joined.others[number % len(shares)]].append(place)
        self._membership = joined.membership
        code, assigned = await sync(client, joined.membership, shares)
        if code is not ErrorCode.NONE:
            self._not_a_member(code, "SyncGroup")
            return None
        self.generations.began(joined.membership.generation)
        self.note(f"works in generation {joined.membership.generation} on {assigned}")
        return assigned

    def _not_a_member(self, code: ErrorCode, what: str) -> None:
        self.note(f"{what}: {code.name}")
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif code not in AGAIN and code not in _LOST:
            self.unexpected(code, what)

    async def _consume(self, client: KafkaClient, assigned: list[Place]) -> None:
        """Until the group changes."""
        positions: dict[Place, int] = {}
        while not self.stopping:
            if (code := await heartbeat(client, self._membership)) is not ErrorCode.NONE:
                self._not_a_member(code, "Heartbeat")
                return
            for place in assigned:
                if place not in positions and not await self._resume(client, place, positions):
                    continue
                if not await self._transform(client, place, positions):
                    positions.clear()
            await self.pause(0.5)

    async def _resume(self, client: KafkaClient, place: Place, positions: dict[Place, int]) -> bool:
        found = await committed_offset(client, self.group, place)
        if found.code is ErrorCode.NONE and found.offset == NOTHING:
            found = await first_offset(client, place)
        if found.code is not ErrorCode.NONE:
            self._not_a_member(found.code, f"the position in {place}")
            return False
        positions[place] = found.offset
        return True

    async def _transform(
        self, client: KafkaClient, place: Place, positions: dict[Place, int]
    ) -> bool:
        """False: what is committed has to be asked again."""
        found = await fetch(client, place, positions[place], wait_ms=100)
        if found.code is not ErrorCode.NONE:
            self._not_a_member(found.code, f"a Fetch of {place}")
            return False
        if not found.shown:
            positions[place] = found.next_offset
            return True
        self._batch = place, found.shown[: self.rng.randint(1, _AT_ONCE)]
        if self.rng.random() < 0.05:
            self.history.counts["members that stalled"] += 1
            await self.pause(2 * STALL_S)
        before = len(self.history.txns)
        await self._transact(client)
        positions[place] = self._batch[1][-1].offset + 1
        return self.history.txns[before].committed

    async def fill(self, client: KafkaClient, record: Txn) -> None:
        place, batch = self._batch
        added: set[Place] = set()
        for _ in batch:
            await self.publish(client, record, self.output, added)
        await self.pause(0.2)
        if not self.newer:
            what = f"adding {self.group}"
            await self.until_accepted(
                client, lambda: add_group(client, self.owner, self.group), what
            )
        newest, membership = self.generations.newest, self._membership
        offset, asked_s = batch[-1].offset + 1, 0.0

        async def commit() -> ErrorCode:
            nonlocal asked_s
            asked_s = self.world.now
            return await commit_in(client, self.owner, membership, place, offset)

        await self.until_accepted(client, commit, f"offset {offset} of {place}")
        self.has_committed(f"{offset} of {place}", place, asked_s, newest)
        topic = f"{place.topic}/{place.partition}"
        record.acknowledged += [
            (self.group, Read(topic, (each.offset, 0, 0), each.value)) for each in batch
        ]

    def has_committed(self, what: str, place: Place, asked_s: float, newest: int) -> None:
        """The group took an offset, in a transaction. `newest`: the generation before it did."""
        generation = self._membership.generation
        if generation < newest:
            self.generations.broken.append(
                f"OLD GENERATION: {self.name} committed {what} in generation {generation}, when "
                f"{newest} had begun"
            )
