"""Transactional ids: the epoch of each, and the client session that holds it.

An id outlives its clients. Each newer session that takes the id raises the epoch by one. The new
epoch is durable before the previous session is fenced, so after a crash no older session is
mistaken for the latest. A record is written when a session begins, and a few times per expiration
period to note the last use; never for a transaction.

Several brokers may share the ids. Each change is a compare-and-set in the metadata, and every
broker learns of changes from there, even of its own: a change is in force once the metadata shows
it.

An id belongs to the principal that uses it, so only that principal's sessions fence each other. If
another principal uses the same text, that is another id. Source: KIP-98, "transactional.id" and
"transactional.id.expiration.ms".
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import InvalidTxnStatus, NotAllowed, ProducerFenced, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock

MAX_ID_CHARS: Final = 256
MAX_EPOCH: Final = 2**31 - 1  # a producer carries it in half of its topic epoch
NOTES_PER_EXPIRATION: Final = 7  # notes of the last use: with seven days, once a day
_FENCED_KEPT: Final = 16  # fenced sessions of an id whose names are remembered
_ALL: Final = "transactional-ids"
_RECORDS: Final = f"{_ALL}/"
_FLOOR: Final = f"{_ALL}-floor"
_FORMAT: Final = 1

log = logging.getLogger(__name__)


class TransactionalId(NamedTuple):
    owner: str | None  # the principal; None: no authentication
    name: str


class SessionRef(NamedTuple):
    """A period during which one client holds an id."""

    id: TransactionalId
    epoch: int


@dataclass(frozen=True, slots=True)
class IdRecord:
    epoch: int
    last_use_ms: int
    session: str = ""  # digest of the client's name for the session; empty if it has none
    fenced: tuple[str, ...] = ()  # digests of earlier sessions, the latest last


def digest(session: str) -> str:
    """The digest of a client's name for its session: the name itself may be long, and must not be
    shown to others.
    """
    return hashlib.sha256(session.encode()).hexdigest()[:32] if session else ""


def check_id(name: str) -> None:
    """Raises NotAllowed if it is empty or too long."""
    if not 0 < len(name) <= MAX_ID_CHARS:
        raise NotAllowed(
            f"Transactional id {name[:200]!r}: it must have 1 to {MAX_ID_CHARS} characters"
        )


def producer_fenced(name: str) -> ProducerFenced:
    return ProducerFenced(
        f"This session was fenced by a newer session of transactional id {name!r}: create a new "
        "client, and use only one at a time"
    )


def why_fenced(session: SessionRef) -> str:
    """The reason of an abort, as a clause."""
    return f"it was fenced by a newer session of transactional id {session.id.name!r}"


def fenced(txn_id: TxnId, session: SessionRef) -> InvalidTxnStatus:
    return InvalidTxnStatus(
        f"Transaction {txn_id} accepts no more operations: {why_fenced(session)}, and is aborted"
    )


class Overtaken(ServiceNotReady):
    """Another broker has changed the id meanwhile: read its record again, then retry."""


class TransactionalIds:
    """The transactional ids of this broker, or of all brokers that share them. Call `load`
    first.
    """

    def __init__(self, metadata: MetadataStore, clock: Clock, config: BrokerConfig) -> None:
        self._metadata = metadata
        self._clock = clock
        self._most = config.max_transactional_ids_per_principal
        self.expiration_ms = config.transactional_id_expiration_ms
        self._known: dict[TransactionalId, IdRecord] = {}
        self._of_owner: Counter[str | None] = Counter()
        self._new: set[TransactionalId] = set()  # counted, though their first epoch is not durable
        self._changes: dict[TransactionalId, asyncio.Future[Any]] = {}  # of this broker, in flight
        self._floor = 0  # the highest epoch of the expired ids
        self._keys: dict[str, TransactionalId] = {}

    def load(self) -> None:
        """Raises CorruptStorage if a record cannot be decoded."""
        self._metadata.watch(_ALL, self._changed)
        self._read_floor()
        for key in self._metadata.keys(_RECORDS):
            self._read(key)

    def _read_floor(self) -> None:
        if (floor := self._metadata.get(_FLOOR)) is not None:
            self._floor = Reader(floor.value, _FLOOR).number()

    def _read(self, key: str) -> None:
        """Raises CorruptStorage if the record cannot be decoded."""
        if (stored := self._metadata.get(key)) is None:
            if (gone := self._keys.pop(key, None)) is not None:
                del self._known[gone]
                self._count(gone.owner, -1)
            return
        transactional_id, record = _decoded(stored.value, key)
        if transactional_id not in self._known and transactional_id not in self._new:
            self._count(transactional_id.owner, 1)
        self._known[transactional_id] = record
        self._keys[key] = transactional_id

    def _changed(self, key: str) -> None:
        """Called when any broker, even this one, has changed the key."""
        try:
            if key == _FLOOR:
                self._read_floor()
            elif key.startswith(_RECORDS):
                self._read(key)
        except CorruptStorage as error:  # the previous state stays in force
            log.error("The record of a transactional id cannot be read: %s", error)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def are_any(self) -> bool:
        return bool(self._known)

    def __iter__(self) -> Iterator[tuple[TransactionalId, IdRecord]]:
        return iter(list(self._known.items()))

    def get(self, transactional_id: TransactionalId) -> IdRecord | None:
        return self._known.get(transactional_id)

    def is_fenced(self, session: SessionRef) -> bool:
        """Whether a newer session has taken the id."""
        record = self._known.get(session.id)
        return record is not None and record.epoch > session.epoch

    async def begin(self, transactional_id: TransactionalId, session: str) -> SessionRef:
        """Begin a newer session; durable when this returns. Do not begin another session of the
        same id on this broker meanwhile.

        Raises NotAllowed (too many ids, or the id has no epoch left), Overtaken,
        ManagedLedgerError.
        """
        while (change := self._changes.get(transactional_id)) is not None:
            await asyncio.wait([change])
        before = self._known.get(transactional_id)
        if before is None and self._most and self._of_owner[transactional_id.owner] >= self._most:
            raise NotAllowed(
                f"There are already {self._most} transactional ids "
                "(maxTransactionalIdsPerPrincipal): use fewer, or wait until some expire "
                "(transactionalIdExpirationMs)"
            )
        epoch, fenced = self._floor + 1, tuple[str, ...]()
        if before is not None:
            epoch = before.epoch + 1
            named = (before.session,) if before.session else ()
            fenced = (*before.fenced, *named)[-_FENCED_KEPT:]
        if epoch > MAX_EPOCH:
            raise NotAllowed(
                f"{transactional_id.name!r} has no sessions left: use another transactional id"
            )
        if before is None:
            self._count(transactional_id.owner, 1)  # before the write: several may begin at once
            self._new.add(transactional_id)
        try:
            record = IdRecord(epoch, self._clock.now_ms(), session, fenced)
            await self._write(transactional_id, record)
        except BadVersion as error:
            raise Overtaken(str(error)) from error
        finally:
            if before is None:
                self._new.discard(transactional_id)
                if transactional_id not in self._known:
                    self._count(transactional_id.owner, -1)
        return SessionRef(transactional_id, epoch)

    async def used(self, transactional_id: TransactionalId) -> None:
        """Record that the id is in use, unless this was recorded recently."""
        record = self._known.get(transactional_id)
        if record is None or transactional_id in self._changes:
            return  # the record of a newer session notes the use
        noted_ms = self._clock.now_ms() - record.last_use_ms
        if 0 <= noted_ms < self.expiration_ms // NOTES_PER_EXPIRATION:
            return
        with suppress(BadVersion):  # another broker has noted it, or begun a newer session
            noted = replace(record, last_use_ms=self._clock.now_ms())
            await self._write(transactional_id, noted)

    async def expire(self, transactional_id: TransactionalId) -> bool:
        """Forget the id if its last use is longer ago than the expiration; True if it is gone. No
        epoch is ever assigned twice.
        """
        record = self._known.get(transactional_id)
        if record is None or transactional_id in self._changes:
            return False
        if self._clock.now_ms() - record.last_use_ms <= self.expiration_ms:
            return False
        key = _key(transactional_id)
        version, floor = self._version(key), Writer()
        floor.number(max(record.epoch, self._floor))
        with suppress(BadVersion):  # another broker uses the id or has removed one: try again later
            # Write the floor even if it stays the same: another broker may have removed this id
            # too, and if the id was created again, its record has the same version as before.
            await self._metadata.put(_FLOOR, floor.getvalue(), self._version(_FLOOR))
            await self._change(transactional_id, self._metadata.delete(key, version))
        return transactional_id not in self._known

    # -- storage

    def _version(self, key: str) -> int:
        """-1 if the key does not exist."""
        stored = self._metadata.get(key)
        return -1 if stored is None else stored.version

    def _count(self, owner: str | None, change: int) -> None:
        self._of_owner[owner] += change
        if not self._of_owner[owner]:
            del self._of_owner[owner]

    async def _write(self, transactional_id: TransactionalId, record: IdRecord) -> None:
        key = _key(transactional_id)
        value = _encoded(transactional_id, record)
        await self._change(transactional_id, self._metadata.put(key, value, self._version(key)))

    async def _change(self, transactional_id: TransactionalId, change: asyncio.Future[Any]) -> None:
        self._changes.setdefault(transactional_id, change)
        try:
            await change
        finally:
            if self._changes.get(transactional_id) is change:
                del self._changes[transactional_id]


def _key(transactional_id: TransactionalId) -> str:
    owner, name = transactional_id
    scope = "" if owner is None else "=" + quote(owner, safe="")
    return f"{_RECORDS}{scope}/{quote(name, safe='')}"


def _encoded(transactional_id: TransactionalId, record: IdRecord) -> bytes:
    out = Writer()
    out.number(_FORMAT)
    out.number(transactional_id.owner is not None)
    out.text(transactional_id.owner or "")
    out.text(transactional_id.name)
    out.number(record.epoch)
    out.number(record.last_use_ms)
    out.text(record.session)
    out.number(len(record.fenced))
    for each in record.fenced:
        out.text(each)
    return out.getvalue()


def _decoded(value: bytes, key: str) -> tuple[TransactionalId, IdRecord]:
    data = Reader(value, f"The record {key}")
    data.version(_FORMAT)
    owned, owner, name = data.number(), data.text(), data.text()
    epoch, last_use_ms, session = data.number(), data.number(), data.text()
    fenced = tuple(data.text() for _ in range(data.number()))
    return TransactionalId(owner if owned else None, name), IdRecord(
        epoch, last_use_ms, session, fenced
    )
