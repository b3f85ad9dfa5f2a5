"""Readers of Kafka's protocol: a partition from its start on, without a group."""

from typing import Any

from clients.kafka_peer import KafkaClient
from clients.kafka_producing import KafkaProcess
from clients.kafka_words import AGAIN, Fetched, Place, Shown, fetch, first_offset
from pybroker.kafka.errors import ErrorCode


class Reading:
    """What one life of a reader was shown, and when."""

    def __init__(self, name: str, place: Place, committed: bool) -> None:
        self.name = name
        self.place = place
        self.committed = committed
        self.shown: list[Shown] = []
        self.turns: list[int] = []


class KafkaReader(KafkaProcess):
    def __init__(self, *args: Any, place: Place, committed: bool) -> None:
        super().__init__(*args)
        self.place = place
        self.committed = committed
        self.readings: list[Reading] = []

    async def work(self, client: Any) -> None:
        life = f"{self.name}.{self.incarnation}.{len(self.readings)}"
        reading = Reading(life, self.place, self.committed)
        self.readings.append(reading)
        offset, stable = await self._first(client), 0
        while not self.stopping:
            found = await self._fetch(client, offset)
            if found.code is not ErrorCode.NONE:
                self.note(f"at {offset}: {found.code.name}")
                if found.code not in AGAIN:
                    self.unexpected(found.code, f"offset {offset}")
                await self.pause(1.0)
                continue
            if found.stable < stable or found.stable > found.end:
                self.history.failures.append(
                    f"STABLE OFFSET: {found.stable} of {self.place} after {stable}, "
                    f"with the end at {found.end}"
                )
            stable = found.stable
            offset = found.next_offset
            for shown in found.shown:
                reading.shown.append(shown)
                reading.turns.append(self.history.turn())

    async def _first(self, client: KafkaClient) -> int:
        while (answer := await first_offset(client, self.place)).code in AGAIN:
            await self.pause(1.0)
        if answer.code is not ErrorCode.NONE:
            self.unexpected(answer.code, "the first offset")
        return answer.offset

    async def _fetch(self, client: KafkaClient, offset: int) -> Fetched:
        return await fetch(
            client,
            self.place,
            offset,
            self.committed,
            most_bytes=self.rng.choice((1, 300, 3000, 1 << 20)),
        )


async def read_all(place: Place) -> list[Shown]:
    """Everything that is committed, once all is at rest."""
    client, shown = KafkaClient(), list[Shown]()
    offset = (await first_offset(client, place)).offset
    while True:
        found = await fetch(client, place, offset, wait_ms=0)
        if found.code in AGAIN:
            continue
        assert found.code is ErrorCode.NONE, f"{place} at {offset}: {found.code!r}"
        shown += found.shown
        offset = found.next_offset
        if offset >= found.stable:
            await client.close()
            return shown
