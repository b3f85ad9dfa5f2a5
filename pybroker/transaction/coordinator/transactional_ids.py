"""Transactional ids: which epoch each stands at, and which session of a client holds it.

An id outlives its clients. Each newer session that takes it raises the epoch by one, and that is
durable before the session before it is fenced; so after a crash nobody is taken for the latest who
is not. A record is written when a session begins, and to note the last use, a few times while an id
would expire: never for a transaction.

Who may fence whom: an id belongs to the principal that uses it. The same text from another one is
another id. Source: KIP-98, "transactional.id" and "transactional.id.expiration.ms".
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import quote

from managed_ledger.codec import Reader, Writer
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.config import BrokerConfig
from pybroker.base.errors import InvalidTxnStatus, NotAllowed, ProducerFenced
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock

MAX_ID_CHARS: Final = 256
MAX_EPOCH: Final = 2**31 - 1  # a producer carries it in half of its topic epoch
NOTES_PER_EXPIRATION: Final = 7  # of the last use: once a day, of seven
_FENCED_KEPT: Final = (
    16  # sessions of an id that are known to be fenced, by what they call themselves
)
_RECORDS: Final = "transactional-ids/"
_FLOOR: Final = "transactional-ids-floor"
_FORMAT: Final = 1


class TransactionalId(NamedTuple):
    owner: str | None  # the principal; None: there is no authentication
    name: str


class SessionRef(NamedTuple):
    """One client's time of holding an id."""

    id: TransactionalId
    epoch: int


@dataclass(frozen=True, slots=True)
class IdRecord:
    epoch: int
    last_use_ms: int
    session: str = ""  # the digest of what its client calls it; empty where it has no name
    fenced: tuple[str, ...] = ()  # digests of those before it, the latest one last


def digest(session: str) -> str:
    """Of what a client calls its session: it may be long, and is nobody else's to see."""
    return hashlib.sha256(session.encode()).hexdigest()[:32] if session else ""


def check_id(name: str) -> None:
    """Raises NotAllowed."""
    if not 0 < len(name) <= MAX_ID_CHARS:
        raise NotAllowed(f"Transactional id {name[:200]!r}: one has 1 to {MAX_ID_CHARS} characters")


def producer_fenced(name: str) -> ProducerFenced:
    return ProducerFenced(
        f"This session was fenced by a newer session of transactional id {name!r}: make a new "
        "client, and only one at a time"
    )


def why_fenced(session: SessionRef) -> str:
    """A clause."""
    return f"it was fenced by a newer session of transactional id {session.id.name!r}"


def fenced(txn_id: TxnId, session: SessionRef) -> InvalidTxnStatus:
    return InvalidTxnStatus(
        f"Nothing more is done in transaction {txn_id}: {why_fenced(session)}, and is aborted"
    )


class TransactionalIds:
    """Those of this broker. `load` comes first."""

    def __init__(self, metadata: MetadataStore, clock: Clock, config: BrokerConfig) -> None:
        self._metadata = metadata
        self._clock = clock
        self._most = config.max_transactional_ids_per_principal
        self.expiration_ms = config.transactional_id_expiration_ms
        self._known: dict[TransactionalId, IdRecord] = {}
        self._of_owner: Counter[str | None] = Counter()
        self._beginning: set[TransactionalId] = set()  # whose newer epoch is not durable yet
        self._floor = 0  # the highest epoch of ids that have expired

    def load(self) -> None:
        """Raises CorruptStorage."""
        if (floor := self._metadata.get(_FLOOR)) is not None:
            self._floor = Reader(floor.value, _FLOOR).number()
        for key in self._metadata.keys(_RECORDS):
            stored = self._metadata.get(key)
            assert stored is not None
            self._keep(*_decoded(stored.value, key))

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[TransactionalId, IdRecord]]:
        return iter(list(self._known.items()))

    def get(self, transactional_id: TransactionalId) -> IdRecord | None:
        return self._known.get(transactional_id)

    def is_fenced(self, session: SessionRef) -> bool:
        """Whether a newer one has taken its id."""
        record = self._known.get(session.id)
        return record is not None and record.epoch > session.epoch

    async def begin(self, transactional_id: TransactionalId, session: str) -> SessionRef:
        """A newer session, durable. Nobody else may begin one of that id meanwhile.

        Raises NotAllowed (too many ids, or too many sessions of this one), ManagedLedgerError.
        """
        before = self._known.get(transactional_id)
        if before is None and self._most and self._of_owner[transactional_id.owner] >= self._most:
            raise NotAllowed(
                f"There are {self._most} transactional ids already "
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
                f"Transactional id {transactional_id.name!r} had all its sessions: use another one"
            )
        record = IdRecord(epoch, self._clock.now_ms(), session, fenced)
        self._beginning.add(transactional_id)
        try:
            await self._write(transactional_id, record)
        finally:
            self._beginning.discard(transactional_id)
        self._keep(transactional_id, record)
        return SessionRef(transactional_id, epoch)

    async def used(self, transactional_id: TransactionalId) -> None:
        """Note that it is in use, if that was last noted some time ago."""
        record = self._known.get(transactional_id)
        if record is None or transactional_id in self._beginning:
            return  # the newer record notes it
        noted_ms = self._clock.now_ms() - record.last_use_ms
        if 0 <= noted_ms < self.expiration_ms // NOTES_PER_EXPIRATION:
            return
        noted = replace(record, last_use_ms=self._clock.now_ms())
        self._known[transactional_id] = noted
        await self._write(transactional_id, noted)

    async def expire(self, transactional_id: TransactionalId) -> bool:
        """Forget it, if its last use was long ago; an epoch that was given is never given again."""
        record = self._known.get(transactional_id)
        if record is None or transactional_id in self._beginning:
            return False
        if self._clock.now_ms() - record.last_use_ms <= self.expiration_ms:
            return False
        self._forget(transactional_id)
        if record.epoch > self._floor:
            self._floor = record.epoch
            out = Writer()
            out.number(self._floor)
            await self._metadata.put(_FLOOR, out.getvalue())
        if transactional_id not in self._known and transactional_id not in self._beginning:
            await self._metadata.delete(_key(transactional_id))
        return True

    # -- storage

    def _keep(self, transactional_id: TransactionalId, record: IdRecord) -> None:
        if transactional_id not in self._known:
            self._of_owner[transactional_id.owner] += 1
        self._known[transactional_id] = record

    def _forget(self, transactional_id: TransactionalId) -> None:
        del self._known[transactional_id]
        self._of_owner[transactional_id.owner] -= 1
        if not self._of_owner[transactional_id.owner]:
            del self._of_owner[transactional_id.owner]

    async def _write(self, transactional_id: TransactionalId, record: IdRecord) -> None:
        await self._metadata.put(_key(transactional_id), _encoded(transactional_id, record))


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
