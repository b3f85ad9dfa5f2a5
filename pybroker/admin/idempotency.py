"""Idempotency-Key: a request that publishes is repeated, and its messages are not.

A key's record is written before its messages, with the ends of their topics, and again with their
ids. Each message carries its key as a property. So after a crash between the two, the record says
where to look, and the messages say which of them are there. Only if that part of a topic was
deleted meanwhile is the outcome unknown, and the repeat refused. A record is kept for a day.

Imported at the first request with a key. Source: the IETF's draft "The Idempotency-Key HTTP Header
Field".
"""

import asyncio
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.exceptions import HTTPException

from managed_ledger.empty_ledgers import has_all_after
from managed_ledger.errors import BadVersion
from managed_ledger.position import Position
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.errors import ServiceNotReady, TooManyRequests
from pybroker.base.json_text import json_of
from pybroker.base.runtime import Clock, Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.wire.message_metadata import BadEntry, parse_metadata

PROPERTY: Final = "idempotency.key"  # of each message
MOST_CHARS: Final = 255
KEPT_MS: Final = 24 * 3_600_000
MOST_KEYS: Final = 200_000
MOST_KEYS_OF_A_ROLE: Final = 50_000
_PREFIX: Final = "/idempotency-keys/"
_WAIT_S: Final = 30.0  # for the first request
_LOOK_EVERY_MS: Final = 600_000
_LOOKED_THROUGH: Final = 200_000  # entries after a crash
_READ_ENTRIES: Final = 200
_READ_BYTES: Final = 1024 * 1024
_KEYS_A_TURN: Final = 500
_OF_A_KEY: Final = 100  # messages; a request with more counts as several keys


@dataclass(slots=True)
class Record:
    digest: str  # of the request
    at_ms: int
    ids: list[str | None] = field(default_factory=list)  # None: not known to be stored
    chosen: list[int] = field(default_factory=list)  # the partition of each message
    starts: dict[str, list[int]] = field(default_factory=dict)  # where each topic ended before
    schema_version: int = -1
    in_transaction: bool = False

    @property
    def is_answered(self) -> bool:
        return bool(self.chosen) and None not in self.ids

    @property
    def keys(self) -> int:
        """As how many keys it counts."""
        return max(1, -(-len(self.ids) // _OF_A_KEY))

    def stored(self) -> bytes:
        """A line that is enough to forget and to count it; the rest is compressed, because ids of a
        request are alike.
        """
        head = json.dumps({"at_ms": self.at_ms, "keys": self.keys}).encode()
        rest = json.dumps({name: getattr(self, name) for name in Record.__slots__}).encode()
        return head + b"\n" + zlib.compress(rest, level=1)

    @classmethod
    def of(cls, stored: bytes) -> "Record":
        return cls(**json_of(zlib.decompress(stored.partition(b"\n")[2])))


class Claim:
    """One request's hold on its key; nobody else has the key meanwhile."""

    def __init__(self, metadata: MetadataStore, key: str, record: Record, is_new: bool) -> None:
        self._metadata = metadata
        self._key = key
        self._name = key.rpartition("/")[2]
        self.record = record
        self.is_new = is_new

    def property_of(self, index: int) -> dict[str, str]:
        return {PROPERTY: f"{self._name}:{index}"}

    def choose(self, chosen: list[int]) -> None:
        self.record.chosen, self.record.ids = chosen, self.record.ids or [None] * len(chosen)

    async def begin(self, topics: Iterable[Topic]) -> None:
        """Durable when it returns; before that, the key is not used up. Raises
        ManagedLedgerError.
        """
        record = self.record
        record.starts = {str(each.name): list(_end_of(each)) for each in topics}
        await self._metadata.put(self._key, record.stored())

    async def note(self, ids: list[str | None], schema_version: int) -> None:
        """Durable when it returns. Raises ManagedLedgerError."""
        self.record.ids, self.record.schema_version = ids, schema_version
        await self._metadata.put(self._key, self.record.stored())

    async def find(self, topics: Iterable[Topic]) -> None:
        """After a crash, or a request that was not answered in time: which messages are there.
        Raises HTTPException if nobody can know, ServiceNotReady if not yet.
        """
        wanted = {self.property_of(at)[PROPERTY]: at for at in range(len(self.record.ids))}
        if self.record.in_transaction:
            raise _unknown(
                "abort the transaction, and repeat the request in a new one, with a new key"
            )
        for topic in topics:
            await _until_written(topic)
            await self._find_in(topic, wanted)

    async def _find_in(self, topic: Topic, wanted: dict[str, int]) -> None:
        start = self.record.starts.get(str(topic.name))
        if start is None:
            return
        position, ledger = Position(*start), topic.ledger
        if not has_all_after(position, ledger.ledgers(), ledger.properties):
            raise _unknown("look whether it was, then use a new key")
        left = _LOOKED_THROUGH
        while left > 0:
            run = await ledger.read(
                position.after, ledger.last_confirmed, _READ_ENTRIES, _READ_BYTES
            )
            if run is None:
                return
            for number, entry in enumerate(run.entries):
                self._look_at(
                    entry, Position(run.ledger_id, run.first_entry_id + number), wanted, topic
                )
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries) - 1)
            left -= len(run.entries)
            await asyncio.sleep(0)
        raise _unknown("look whether it was, then use a new key")

    def _look_at(
        self, entry: bytes, position: Position, indexes: dict[str, int], topic: Topic
    ) -> None:
        if self._name.encode() not in entry:
            return
        try:
            metadata = parse_metadata(entry)
        except BadEntry:
            return
        for pair in metadata.properties:
            if pair.key == PROPERTY and (index := indexes.get(pair.value)) is not None:
                self.record.ids[index] = f"{position}:{topic.name.partition}"


async def _until_written(topic: Topic) -> None:
    """Messages of the earlier request may be on their way to the disk. Raises ServiceNotReady."""
    written = asyncio.get_running_loop().create_future()
    topic.ledger.call_after_queued(lambda: None if written.done() else written.set_result(None))
    try:
        async with asyncio.timeout(_WAIT_S):
            await written
    except TimeoutError:
        raise ServiceNotReady(
            "What was published before is not on the disk yet; try again"
        ) from None


def _end_of(topic: Topic) -> Position:
    """The last entry; if that was deleted, what is before the first one to come."""
    ledger = topic.ledger
    return max(ledger.last_confirmed, ledger.first_position.before)


def _unknown(advice: str) -> HTTPException:
    return HTTPException(
        409, f"The broker stopped before it could note whether the request was published: {advice}"
    )


class IdempotencyKeys:
    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._at_work: dict[str, asyncio.Event] = {}
        self._counts: Counter[str] = Counter()  # of keys, by owner; as of the last look at all
        self._looked_ms = 0

    @asynccontextmanager
    async def claimed(
        self, owner: str | None, key: str, request: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Claim]:
        """`request`: its path, and what else identifies it besides its body. Waits while another
        request with the key is at work on the same path. Raises HTTPException, TooManyRequests.
        """
        if not 1 <= len(key) <= MOST_CHARS or not key.isprintable():
            raise HTTPException(
                400, f"Idempotency-Key must have 1 to {MOST_CHARS} printable characters"
            )
        digest = _digest(json.dumps(dict(request), sort_keys=True).encode(), body)
        owner_path = f"{_PREFIX}{_digest((owner or '').encode())[:16]}/"
        path = owner_path + _digest(key.encode(), request["path"].encode())
        await self._alone(path)
        mine = self._at_work[path] = asyncio.Event()
        try:
            claim = await self._claim(owner_path, path, digest, "txn" in request)
            try:
                yield claim
            finally:
                if claim.is_new and claim.record.starts:
                    self._counts[owner_path] += claim.record.keys
        finally:
            del self._at_work[path]
            mine.set()

    async def _alone(self, path: str) -> None:
        try:
            async with asyncio.timeout(_WAIT_S):
                while (at_work := self._at_work.get(path)) is not None:
                    await at_work.wait()
        except TimeoutError:
            raise HTTPException(409, "The first request with this key is still at work") from None

    async def _claim(self, owner_path: str, path: str, digest: str, in_txn: bool) -> Claim:
        await self._metadata.refresh(path)
        now_ms = self._clock.now_ms()
        stored = self._metadata.get(path)
        if stored is not None:
            record = Record.of(stored.value)
            if record.at_ms + KEPT_MS > now_ms:
                if record.digest != digest:
                    raise HTTPException(422, "This Idempotency-Key was used for another request")
                return Claim(self._metadata, path, record, is_new=False)
        else:
            await self._make_room(owner_path, now_ms)
        record = Record(digest, now_ms, in_transaction=in_txn)
        return Claim(self._metadata, path, record, is_new=True)

    async def _make_room(self, owner_path: str, now_ms: int) -> None:
        """Raises TooManyRequests if the role, or all together, have as many keys as are kept."""
        if now_ms - self._looked_ms >= _LOOK_EVERY_MS:
            self._looked_ms = now_ms
            await self._look_at_all(now_ms)
        of_role = self._counts[owner_path]
        if of_role >= MOST_KEYS_OF_A_ROLE or self._counts.total() >= MOST_KEYS:
            raise TooManyRequests(
                f"{MOST_KEYS_OF_A_ROLE} keys of a role, and {MOST_KEYS} of all, are kept for a "
                f"day each, and a request counts once for each {_OF_A_KEY} messages: publish more "
                "messages with each, or without"
            )

    async def _look_at_all(self, now_ms: int) -> None:
        """Forgets keys that are old, and counts the others."""
        pace, counts = Pace(_KEYS_A_TURN), Counter[str]()
        for key in self._metadata.keys(_PREFIX):
            stored = self._metadata.get(key)
            if stored is None:
                continue
            head = json.loads(stored.value.partition(b"\n")[0])
            if head["at_ms"] + KEPT_MS > now_ms or key in self._at_work:
                counts[key[: key.rindex("/") + 1]] += head["keys"]
            else:
                with suppress(BadVersion):  # another broker has used it again
                    await self._metadata.delete(key, stored.version)
            await pace.step()
        self._counts = counts


def _digest(*parts: bytes) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "big") + part)
    return made.hexdigest()[:32]
